//! Commands that change nothing, and replies with data.

use super::commit_gate::Replies;
use super::session::ProtocolState;
use super::{Core, stats};
use crate::protocol::command::Command;
use crate::protocol::reply::Reply;
use crate::queue::JobPage;
use crate::time::Time;
use crate::values::ids::JobId;
use crate::values::limits::SPARE_BUFFER_BYTES_MAX;

impl Core {
    /// Serves a command that changes nothing.
    pub(super) fn serve_query(
        &mut self,
        protocol: &mut ProtocolState,
        replies: &mut Replies,
        command: Command<'_>,
        now: Time,
    ) {
        let client = protocol.client;
        let engine = &mut self.engine;
        let job = match command {
            Command::Peek(id) => engine.jobs().find(id),
            Command::PeekReady => engine.peek_ready(client),
            Command::PeekDelayed => engine.peek_delayed(client),
            Command::PeekBuried => engine.peek_buried(client),
            Command::PeekReserved => engine.peek_reserved(client),
            Command::Stats => return self.stats(replies, now),
            Command::StatsJob(id) => match engine.jobs().find(id) {
                Some(job) => return self.data(replies, |core, out| stats::job(core, job, out, now)),
                None => None,
            },
            Command::StatsTube(tube) => match engine.tubes().find(tube) {
                Some(tube) => {
                    self.extra_steps += engine.tube_waiting_cost(tube) as u32 + PERCENTILE_STEPS;
                    return self.data(replies, |core, out| stats::tube(core, tube, out, now));
                }
                None => None,
            },
            Command::StatsGroup(name) if engine.group_stats(name).is_some() => {
                return self.data(replies, |core, out| stats::group(core, name, out));
            }
            Command::StatsGroup(_) => None,
            Command::TubeConfig { tube, .. }
                if engine.tubes().find(tube).is_some() || engine.rules_of(tube).is_some() =>
            {
                return self.data(replies, |core, out| stats::rules(core, tube, out));
            }
            Command::TubeConfig { .. } => None,
            Command::ListTubeUsed => {
                let reply = Reply::Using(engine.used(client).name());
                return replies.reply(reply, &mut self.buffers);
            }
            Command::ListTubes => {
                let list = engine.list_tubes();
                return self.begin_list(protocol, replies, list);
            }
            Command::ListTubesWatched => {
                let list = engine.list_watched(client);
                return self.begin_list(protocol, replies, list);
            }
            other => unreachable!("{other:?} is not a query"),
        };
        self.job_or_not_found(replies, job, found);
    }

    /// Replies with a page of jobs.
    pub(super) fn reply_page(&mut self, replies: &mut Replies, page: &JobPage, now: Time) {
        self.data(replies, |core, out| stats::page(core, page, out, now));
    }

    /// Replies to `stats`.
    pub(super) fn stats(&mut self, replies: &mut Replies, now: Time) {
        self.read_driver(now);
        self.data(replies, |core, out| stats::stats(core, out, now));
    }

    /// Reads what the driver counts, once in an iteration: CPU time costs a system call.
    pub(super) fn read_driver(&mut self, now: Time) {
        if self.driver_read_at != Some(now) {
            self.driver_read_at = Some(now);
            self.driver = self.driver_counts.as_ref().map(|counts| counts.read()).unwrap_or_default();
        }
    }

    /// Replies with data that `write` renders.
    fn data(&mut self, replies: &mut Replies, write: impl FnOnce(&Self, &mut Vec<u8>)) {
        let mut data = std::mem::take(&mut self.scratch);
        data.clear();
        write(self, &mut data);
        replies.reply(Reply::Ok { bytes: data.len() }, &mut self.buffers);
        data.extend_from_slice(b"\r\n");
        replies.data(&data, &mut self.buffers);
        self.extra_steps += (data.len() / STATS_BYTES_PER_STEP) as u32;
        if data.capacity() <= SPARE_BUFFER_BYTES_MAX {
            self.scratch = data;
        }
    }
}

/// Bytes of statistics that are rendered in the time of one elementary step.
pub(super) const STATS_BYTES_PER_STEP: usize = 64;

/// Steps for the percentiles of a tube: each reads all bins of a histogram.
pub(super) const PERCENTILE_STEPS: u32 = 8;

const fn found(id: JobId, bytes: u32) -> Reply<'static> {
    Reply::Found { id, bytes }
}
