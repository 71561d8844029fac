//! From a command to its answer.

use super::Core;
use super::report;
use super::session::{Incoming, Input, Phase, ProtocolState};
use crate::bodies::Slot;
use crate::ids::{JobId, JobKey};
use crate::limits::{COMMAND_STEPS, SPARE_BUFFER_BYTES_MAX};
use crate::protocol::command::{Command, CommandKind, PutArgs};
use crate::protocol::parse::parse;
use crate::protocol::reply::Reply;
use crate::queue::{Ignored, Kicked, NewJob, Reserved};
use crate::time::{Span, Time};
use crate::wal::Room;

impl Core {
    /// Serves one line of input, with the body that `rest` begins with if it is all there; what is not is
    /// left to [`ProtocolState::input`].
    // One call less a command, and what the parser finds stays in registers: 50 of 1400 instructions of a put.
    #[inline(always)]
    pub(super) fn line(&mut self, talk: &mut ProtocolState, line: &[u8], rest: &mut &[u8], now: Time) {
        match parse(line) {
            Ok(Command::Put(args)) => {
                self.commands[CommandKind::Put as usize] += 1;
                self.announce(talk, args, rest, now);
            }
            Ok(command) => {
                self.commands[command.kind() as usize] += 1;
                self.tells_pending |= self.is_stalled() && self.may_tell_pending(talk.client, &command);
                self.command(talk, command, now);
            }
            Err(error) => self.reply(talk, error.into()),
        }
    }

    fn command(&mut self, talk: &mut ProtocolState, command: Command<'_>, now: Time) {
        let client = talk.client;
        let engine = &mut self.engine;
        let reply = match command {
            Command::Put(_) => unreachable!("it is served with what follows it"),
            Command::Reserve => return self.reserve(talk, None, now),
            Command::ReserveWithTimeout { seconds } => {
                return self.reserve(talk, Some(Span::from_secs(seconds)), now);
            }
            Command::ReserveJob(id) => {
                let job = engine.reserve_job(client, id, now);
                return self.job_or_not_found(talk, job, reserved);
            }
            Command::Peek(id) => {
                let job = engine.jobs().find(id);
                return self.job_or_not_found(talk, job, found);
            }
            Command::PeekReady => {
                let job = engine.peek_ready(client);
                return self.job_or_not_found(talk, job, found);
            }
            Command::PeekDelayed => {
                let job = engine.peek_delayed(client);
                return self.job_or_not_found(talk, job, found);
            }
            Command::PeekBuried => {
                let job = engine.peek_buried(client);
                return self.job_or_not_found(talk, job, found);
            }
            Command::Kick { bound } => match engine.kick(client, bound, now) {
                Kicked::Jobs(count) => Reply::Kicked(u64::from(count)),
                Kicked::Working => {
                    talk.phase = Phase::Kicking;
                    return;
                }
            },
            Command::Delete(id) => done(engine.delete(client, id, now), Reply::Deleted),
            Command::Release { id, pri, delay } => {
                done(engine.release(client, id, pri, delay, now), Reply::Released)
            }
            Command::Bury { id, pri } => done(engine.bury(client, id, pri, now), Reply::Buried),
            Command::KickJob(id) => done(engine.kick_job(id, now), Reply::KickedJob),
            Command::Touch(id) => done(engine.touch(client, id, now), Reply::Touched),
            Command::PauseTube { tube: None, .. } => Reply::BadFormat,
            Command::PauseTube { tube: Some(tube), seconds } => {
                done(engine.pause(tube, Span::from_secs(seconds), now), Reply::Paused)
            }
            Command::Use(tube) if engine.can_use(tube) => {
                engine.use_tube(client, tube);
                self.footprint.distrust();
                Reply::Using(tube)
            }
            Command::Watch(tube) if engine.can_watch(client, tube) => {
                let count = engine.watch(client, tube);
                self.footprint.distrust();
                Reply::Watching(count)
            }
            Command::Use(_) | Command::Watch(_) => {
                self.tube_refusals += 1;
                Reply::OutOfMemory
            }
            Command::Ignore(tube) => match engine.ignore(client, tube) {
                Ignored::Watching(count) => Reply::Watching(count),
                Ignored::Last => Reply::NotIgnored,
            },
            Command::ListTubeUsed => {
                let reply = Reply::Using(engine.used(client).name());
                return talk.output.reply(reply, &mut self.buffers);
            }
            Command::Stats => return self.stats(talk, now),
            Command::StatsJob(id) => match engine.jobs().find(id) {
                Some(job) => return self.data(talk, |core, out| report::job(core, job, out, now)),
                None => Reply::NotFound,
            },
            Command::StatsTube(tube) => match engine.tubes().find(tube) {
                Some(tube) => {
                    self.extra_steps += engine.tube_waiting_looks(tube) as u32 + TIMES_STEPS;
                    return self.data(talk, |core, out| report::tube(core, tube, out, now));
                }
                None => Reply::NotFound,
            },
            Command::ListTubes => {
                let list = engine.list_tubes();
                return self.begin_list(talk, list);
            }
            Command::ListTubesWatched => {
                let list = engine.list_watched(client);
                return self.begin_list(talk, list);
            }
            Command::Undrain => {
                self.draining = false;
                Reply::Undrained
            }
            Command::Quit => {
                talk.phase = Phase::Closing;
                return;
            }
        };
        self.reply(talk, reply);
    }

    /// A body follows, or is skipped. The checks come in the reference's order.
    fn announce(&mut self, talk: &mut ProtocolState, args: PutArgs, rest: &mut &[u8], now: Time) {
        let bytes = u64::from(args.bytes) + 2;
        if args.bytes > self.config.max_job_bytes {
            talk.input = Input::Skip { left: bytes, answer: Reply::JobTooBig };
            return;
        }
        if args.trailing {
            return self.reply(talk, Reply::BadFormat);
        }
        self.engine.mark_producer(talk.client);
        let room = self.room_for(talk, args.bytes);
        if room == Room::Never || !self.has_memory_for(args.bytes + 2) {
            talk.input = Input::Skip { left: bytes, answer: Reply::OutOfMemory };
        } else {
            let id = self.engine.next_id();
            let bodies = self.engine.bodies_mut();
            match bodies.announce(args.bytes + 2) {
                Ok(mut slot) => match rest.split_at_checked(slot.len()) {
                    Some((body, following)) if room == Room::Now => {
                        *rest = following;
                        bodies.bytes_mut(&mut slot).copy_from_slice(body);
                        bodies.wrote(&slot, body.len());
                        self.put(talk, id, args, slot, now);
                    }
                    _ => talk.input = Input::Body(Incoming { id, args, slot, filled: 0 }),
                },
                Err(_) => talk.input = Input::Skip { left: bytes, answer: Reply::OutOfMemory },
            }
        }
    }

    /// Whether the log has room for a job in the tube that the client uses.
    pub(super) fn room_for(&mut self, talk: &ProtocolState, body_bytes: u32) -> Room {
        let Some(log) = &mut self.log else { return Room::Now };
        let tube = self.engine.used(talk.client).name();
        log.room_for(tube.as_bytes().len(), body_bytes as usize + 2)
    }

    /// The body of a job has come in whole.
    pub(super) fn put(&mut self, talk: &mut ProtocolState, id: JobId, args: PutArgs, slot: Slot, now: Time) {
        let bodies = self.engine.bodies_mut();
        let reply = if !bodies.bytes(&slot).ends_with(b"\r\n") {
            bodies.free(slot);
            Reply::ExpectedCrlf
        } else if self.draining {
            bodies.free(slot);
            Reply::Draining
        } else if self.room_for(talk, args.bytes) == Room::Never {
            self.engine.bodies_mut().free(slot);
            Reply::OutOfMemory
        } else {
            let PutArgs { pri, delay, ttr, .. } = args;
            self.tells_pending = true;
            self.engine.put(talk.client, NewJob { id, pri, delay, ttr: ttr.max(1), body: slot }, now);
            Reply::Inserted(id)
        };
        tracing::trace!(conn = self.engine.clients().get(talk.client).conn.slot, job = id.0, "{reply:?}");
        self.reply(talk, reply);
    }

    fn reserve(&mut self, talk: &mut ProtocolState, patience: Option<Span>, now: Time) {
        match self.engine.reserve(talk.client, patience, now) {
            Reserved::Job(job) => self.reply_job(talk, job, reserved),
            Reserved::DeadlineSoon => self.reply(talk, Reply::DeadlineSoon),
            Reserved::TimedOut => self.reply(talk, Reply::TimedOut),
            Reserved::Waiting => talk.phase = Phase::Waiting,
        }
    }

    fn job_or_not_found(
        &mut self,
        talk: &mut ProtocolState,
        job: Option<JobKey>,
        reply: fn(JobId, u32) -> Reply<'static>,
    ) {
        match job {
            Some(job) => self.reply_job(talk, job, reply),
            None => self.reply(talk, Reply::NotFound),
        }
    }

    /// A reply with a job's body.
    pub(super) fn reply_job(
        &mut self,
        talk: &mut ProtocolState,
        job: JobKey,
        reply: fn(JobId, u32) -> Reply<'static>,
    ) {
        let (job, bodies) = self.engine.job_and_bodies(job);
        let bytes = job.body.len() as u32 - 2;
        talk.output.reply(reply(job.id, bytes), &mut self.buffers);
        talk.output.body(&job.body, bodies, &mut self.buffers);
    }

    /// The reply to `stats`, now or once the driver has reported its statistics.
    pub(super) fn stats(&mut self, talk: &mut ProtocolState, now: Time) {
        if !self.has_sample(now) {
            talk.phase = Phase::Sampling;
            return;
        }
        self.data(talk, |core, out| report::stats(core, out, now));
    }

    /// A reply with data that `write` renders.
    fn data(&mut self, talk: &mut ProtocolState, write: impl FnOnce(&Self, &mut Vec<u8>)) {
        let mut data = std::mem::take(&mut self.scratch);
        data.clear();
        write(self, &mut data);
        talk.output.reply(Reply::Ok { bytes: data.len() }, &mut self.buffers);
        data.extend_from_slice(b"\r\n");
        talk.output.data(&data, &mut self.buffers);
        self.extra_steps += (data.len() / REPORT_BYTES_A_STEP) as u32;
        if data.capacity() <= SPARE_BUFFER_BYTES_MAX {
            self.scratch = data;
        }
    }

    pub(super) fn reply(&mut self, talk: &mut ProtocolState, reply: Reply<'_>) {
        talk.output.reply(reply, &mut self.buffers);
    }

    /// What the last command took out of its connection's turn.
    pub(super) fn take_steps(&mut self) -> u32 {
        COMMAND_STEPS + self.engine.take_steps() + self.take_extra_steps()
    }

    /// What the last command took beyond what the engine counts.
    pub(super) fn take_extra_steps(&mut self) -> u32 {
        std::mem::take(&mut self.extra_steps)
    }
}

/// Rendering this much of a report takes about as long as an elementary step.
pub(super) const REPORT_BYTES_A_STEP: usize = 64;

/// Steps for the percentiles of a tube, each of which goes through all bins of its times.
const TIMES_STEPS: u32 = 8;

/// The answer to a `reserve` that got a job.
pub(super) const fn reserved(id: JobId, bytes: u32) -> Reply<'static> {
    Reply::Reserved { id, bytes }
}

const fn found(id: JobId, bytes: u32) -> Reply<'static> {
    Reply::Found { id, bytes }
}

fn done(is_done: bool, reply: Reply<'static>) -> Reply<'static> {
    if is_done { reply } else { Reply::NotFound }
}
