//! What the server takes of the memory, and whether there is room for another job.
//!
//! Counted is what the kernel has given, in use or kept for reuse, and what the jobs that there are may take on top
//! by commands that are not refused. A job that finds room in what is kept adds nothing: it is not refused, however
//! much there is.

use std::collections::VecDeque;

use super::connections::Connections;
use super::http::Exchange;
use super::session::{Input, Phase, ProtocolState, Session};
use super::{Core, Server};
use crate::limits::ALLOCATION_BYTES;
use crate::protocol::framing;
use crate::protocol::reply::Reply;
use crate::queue::List;
use crate::wal::Log;

/// What a connection takes: its session, a line that has come in part, and the server's entry for it.
const SESSION_BYTES: usize = size_of::<Session>() + framing::FRONT_BYTES + 2 * ALLOCATION_BYTES;

/// More than one job takes without its body and what that is rounded up to: the largest span and the upkeep of a
/// chunk, a record, an entry in each index.
const JOB_GROWTH_BYTES_MAX: u64 = 128 * 1024;

/// What a job takes without its body, where it is one of many.
const JOB_BYTES_USUAL: u64 = 512;

/// Room that is not counted on for the jobs of one turn: first pages of every size of body, growing tables, buffers.
const SURE_BYTES_LESS: u64 = 8 * 1024 * 1024;

/// What is held for connections.
#[derive(Default)]
pub(super) struct Footprint {
    /// Input that is not served yet.
    inbox_bytes: usize,
    /// Sessions, and the tables and queues of them.
    table_bytes: usize,
    /// Room for jobs that there is for sure in this turn, so that not each of them has to ask.
    sure_bytes: u64,
}

impl Footprint {
    /// Counts the inbox of a session as it is now.
    pub fn weigh_inbox(&mut self, session: &mut Session) {
        // What is served from the front stays allocated, but is not part of the capacity any more.
        let before = session.inbox_bytes;
        let capacity = session.inbox.capacity();
        session.inbox_bytes = if capacity == 0 { 0 } else { capacity.max(before) };
        self.inbox_bytes = self.inbox_bytes - before + session.inbox_bytes;
    }

    /// Something besides a job may have taken memory: the next job has to ask again.
    pub fn distrust(&mut self) {
        self.sure_bytes = 0;
    }
}

impl Server {
    /// Counts sessions and what there is for all of them as they are now.
    pub(super) fn weigh_tables(&mut self) {
        let Self { core, sessions, queue, effects, held, sample_waiters, .. } = self;
        core.footprint.sure_bytes = 0;
        core.footprint.table_bytes = sessions.len() * SESSION_BYTES
            + sessions.capacity() * Connections::ENTRY_BYTES
            + queue_bytes(queue)
            + queue_bytes(effects)
            + queue_bytes(held)
            + queue_bytes(sample_waiters)
            + core.lists * (size_of::<List>() + ALLOCATION_BYTES)
            + sessions.exchanges().map(Exchange::memory_bytes).sum::<usize>();
    }

    /// Recomputes what is counted, in the queue too.
    ///
    /// # Panics
    /// If something does not hold: always a defect of the server.
    pub fn check(&self) {
        let Self { core, sessions, .. } = self;
        core.engine.check();
        core.log.iter().for_each(Log::check);
        let (mut inbox_bytes, mut buffer_bytes) = (0, core.buffers.spare_bytes());
        let lists = sessions.clients().filter(|session| session.talk.list.is_some()).count();
        assert_eq!(lists, core.lists, "the lists are counted");
        for session in sessions.clients() {
            assert_eq!(session.talk.list.is_some(), session.talk.phase == Phase::Listing);
            assert!(session.inbox.capacity() <= session.inbox_bytes, "an inbox is counted");
            inbox_bytes += session.inbox_bytes;
            buffer_bytes += session.talk.output.buffer_bytes();
        }
        assert_eq!(inbox_bytes, core.footprint.inbox_bytes, "the inboxes are counted");
        assert_eq!(buffer_bytes, core.buffers.bytes(), "the buffers of replies are counted");
    }
}

impl Core {
    /// The memory that jobs, connections and buffers take, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let log_bytes = self.log.as_ref().map_or(0, Log::memory_bytes);
        let Footprint { inbox_bytes, table_bytes, .. } = self.footprint;
        let own = self.engine.memory_bytes()
            + log_bytes
            + self.buffers.bytes()
            + self.scratch.capacity()
            + inbox_bytes
            + table_bytes;
        own as u64 + self.config.host.memory_bytes + self.driver_bytes
    }

    /// Whether there is memory for one more job with its body of so many bytes with CR LF. If not, the job is to be
    /// refused.
    #[inline]
    pub(super) fn has_memory_for(&mut self, body_bytes: u32) -> bool {
        self.config.max_memory_bytes.is_none_or(|max| self.has_memory_below(max, body_bytes))
    }

    #[inline(never)]
    fn has_memory_below(&mut self, max: u64, body_bytes: u32) -> bool {
        let usual = JOB_BYTES_USUAL + 2 * u64::from(body_bytes);
        if usual <= self.footprint.sure_bytes {
            self.footprint.sure_bytes -= usual;
            return true;
        }
        let committed = self.committed_bytes();
        if committed + JOB_GROWTH_BYTES_MAX + u64::from(body_bytes) <= max {
            self.footprint.sure_bytes = (max - committed).saturating_sub(SURE_BYTES_LESS + usual);
            return true;
        }
        let growth = self.engine.job_growth() + self.engine.bodies().growth(body_bytes);
        growth == 0 || self.makes_room(growth, max)
    }

    /// Counts what has come of a body that is on its way. False if there is no memory for it any more, or for its
    /// job: then what came is given back, and the rest is skipped.
    #[inline(never)]
    pub(super) fn keep_or_skip(&mut self, talk: &mut ProtocolState) -> bool {
        let Input::Body(incoming) = &talk.input else { return true };
        let grown = self.engine.bodies_mut().wrote(&incoming.slot, incoming.filled);
        let Some(max) = self.config.max_memory_bytes else { return true };
        let job = if incoming.is_whole() { self.engine.job_growth() } else { 0 };
        if grown + job == 0 || self.makes_room(job, max) {
            return true;
        }
        let left = (incoming.slot.len() - incoming.filled) as u64;
        let skip = Input::Skip { left, answer: Reply::OutOfMemory };
        if let Input::Body(incoming) = std::mem::replace(&mut talk.input, skip) {
            self.engine.bodies_mut().free(incoming.slot);
        }
        false
    }

    /// What is taken, and what is set aside.
    fn committed_bytes(&self) -> u64 {
        self.memory_bytes() + self.engine.set_aside_bytes() as u64
    }

    /// Whether so much more fits under the ceiling, if need be in place of memory that is only kept.
    fn makes_room(&mut self, growth: usize, max: u64) -> bool {
        let committed = self.committed_bytes() + growth as u64;
        if committed <= max {
            return true;
        }
        let has_room = committed - max <= self.engine.bodies().idle_bytes() as u64;
        if has_room {
            self.engine.bodies_mut().want((committed - max) as usize);
        } else {
            self.refusals += 1;
        }
        has_room
    }
}

fn queue_bytes<T>(queue: &VecDeque<T>) -> usize {
    queue.capacity() * size_of::<T>()
}
