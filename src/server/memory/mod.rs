//! The memory that the server takes, and whether it suffices for another job.
//!
//! The total is what the kernel has provided, in use or kept for reuse, and what commands that are never refused may still
//! add to the existing jobs (reserved memory). A job that fits into memory kept for reuse adds nothing, so it is accepted even at
//! the limit.

mod gauge;

use tracing::warn;

pub(super) use self::gauge::{Kept, MemoryGauge};
use super::beanstalk::Session;
use super::client_state::{BodyOf, Incoming, Input, ProtocolState, Skipped};
use super::connections::Connections;
use super::metrics::Count;
use super::outcome::Shortage;
use super::{Core, Effect, Server};
use crate::intrusive::List;
use crate::protocol::framing;
use crate::queue::BatchRoom;
use crate::values::byte_size::Bytes;
use crate::values::ids::ClientKey;
use crate::values::limits::{
    ALLOCATION_BYTES, DIRECT_RECEIVE_BYTES_MIN, RECEIVE_DIRECT_BYTES_MAX, TUBE_NAME_BYTES_MAX,
    WIDE_BATCH_JOBS_MAX, WIDE_BATCH_WATCHES,
};
use crate::values::tags::Tags;

/// Memory of a connection: its session, an incomplete line, and the two allocations for them.
const SESSION_BYTES: usize = size_of::<Session>() + framing::FRONT_BYTES + 2 * ALLOCATION_BYTES;

/// An upper bound for what one job adds besides its body: the largest span of slots with the bookkeeping of a chunk, a
/// record, and an entry in each index.
const JOB_GROWTH_BYTES_MAX: u64 = 128 * 1024;

/// What one of many jobs adds on average besides its body.
const JOB_BYTES_USUAL: u64 = 512;

/// An upper bound for what the tags of one job add, and what those of one of many add on average: the first page of a table, a
/// piece of a hash table, and the text twice.
const TAGS_GROWTH_BYTES_MAX: u64 = 512 * 1024;
const TAGS_BYTES_USUAL: u64 = 512;

/// Subtracted from the headroom of an iteration: first pages of every size of body, growing tables, buffers.
const HEADROOM_MARGIN_BYTES: u64 = 8 * 1024 * 1024;

/// A line of `list-jobs`.
pub(super) const LISTED_JOB_BYTES: u64 = 100;

/// A name in `list-schedules`.
pub(super) const LISTED_SCHEDULE_BYTES: u64 = TUBE_NAME_BYTES_MAX as u64 + 4;

/// The size of a page in any case.
const PAGE_BYTES_SHORT: u64 = 3200;

/// What a job takes in the reply to a `reserve-batch` besides its body: its line, and the CR LF.
const BATCH_LINE_BYTES: u64 = 48;

/// A large body gets memory in advance for this many times of what has arrived. So a client that announces large bodies and
/// sends little takes little.
const EXPECTED_BYTES_PER_BYTE: usize = 8;

impl Server {
    /// Counts the current size of sessions, tables and queues.
    pub(super) fn count_tables(&mut self) {
        let Self { core, connections } = self;
        let sessions = connections.len() * SESSION_BYTES
            + connections.capacity() * Connections::ENTRY_BYTES
            + core.ready.memory_bytes()
            + core.effects.capacity() * size_of::<Effect>()
            + core.gate.memory_bytes();
        core.memory.count_tables(sessions);
    }
}

impl Core {
    /// Returns the memory that jobs, connections and buffers take, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let own = self.engine.memory_bytes() + self.log.memory_bytes() + self.buffers.scratch_bytes();
        own as u64 + self.config.host.memory_bytes + self.memory.bytes()
    }

    /// Claims memory for one more job of the client, and returns whether there is enough. `body_bytes` includes the CR LF.
    #[inline]
    pub(super) fn claim_memory(&mut self, client: ClientKey, body_bytes: u32, tags: Tags<'_>) -> bool {
        self.config.max_memory_bytes.is_none_or(|max| self.claim_memory_below(max, client, body_bytes, tags))
    }

    #[inline(never)]
    fn claim_memory_below(&mut self, max: u64, client: ClientKey, body_bytes: u32, tags: Tags<'_>) -> bool {
        let (tags_most, tags_usual) = match tags.as_bytes().len() as u64 {
            0 => (0, 0),
            bytes => (TAGS_GROWTH_BYTES_MAX, TAGS_BYTES_USUAL + 2 * bytes),
        };
        let usual = JOB_BYTES_USUAL + 2 * u64::from(body_bytes) + tags_usual;
        if self.memory.take_headroom(usual) {
            return true;
        }
        let charged = self.charged_bytes();
        if charged + JOB_GROWTH_BYTES_MAX + tags_most + u64::from(body_bytes) <= max {
            self.memory.set_headroom((max - charged).saturating_sub(HEADROOM_MARGIN_BYTES + usual));
            return true;
        }
        let own_growth = self.engine.job_growth(1) + self.engine.tags_growth(client, tags);
        let growth = own_growth + self.engine.bodies().growth(body_bytes);
        growth == 0 || self.makes_room(growth, max)
    }

    /// Whether there is memory for a job that the server puts, with this body, given with its CR LF. Counts no refusal: the job may wait.
    pub(super) fn has_memory_for_job(&mut self, body_bytes: u32) -> bool {
        let Some(max) = self.config.max_memory_bytes else { return true };
        let growth = self.engine.job_growth(1) + self.engine.bodies().growth(body_bytes);
        growth == 0 || self.finds_room(growth, max)
    }

    /// Whether there is memory for the jobs of a batch, whose bodies and tags are there.
    pub(super) fn has_memory_for_jobs(&mut self, client: ClientKey, jobs: &List) -> bool {
        let Some(max) = self.config.max_memory_bytes else { return true };
        let (mut growth, mut first) = (self.engine.job_growth(jobs.len()), 0);
        // Bounded by BATCH_JOBS_MAX: the jobs of one batch.
        for tags_key in self.batches.tags_keys(jobs) {
            let one = self.engine.stored_tags_growth(client, Some(tags_key));
            let tags_bytes = self.engine.stored_tags(Some(tags_key)).as_bytes().len();
            // A table begins a page for one of them, and has room for the others there.
            first = first.max(one);
            growth += one.min(TAGS_BYTES_USUAL as usize + 2 * tags_bytes);
        }
        growth += first;
        growth == 0 || self.makes_room(growth, max)
    }

    /// Counts what has arrived of a body, and what the next receive may bring, as memory. Gets this memory in one call, from the
    /// byte `from` on, which is not written yet. Returns by how much the memory of bodies grew.
    #[inline(never)]
    pub(super) fn expect_body(&mut self, incoming: &Incoming, from: usize) -> usize {
        let Incoming { slot, filled, .. } = incoming;
        let next = (slot.len() - filled).min(EXPECTED_BYTES_PER_BYTE * filled).min(RECEIVE_DIRECT_BYTES_MAX);
        let next = if next < DIRECT_RECEIVE_BYTES_MIN { 0 } else { next };
        self.engine.bodies_mut().expect(slot, from, filled + next)
    }

    /// Decides about a body of which more has arrived, and whose memory has `grown` by that. Returns false if there is
    /// no more memory for it or its job: then the slot is freed and the rest is skipped.
    #[inline(never)]
    pub(super) fn keep_or_skip(&mut self, protocol: &mut ProtocolState, grown: usize) -> bool {
        let Some(max) = self.config.max_memory_bytes else { return true };
        let Input::Body(Incoming { of, slot, filled }) = &protocol.input else { return true };
        let left = slot.len() - filled;
        let (more, of) = match of {
            BodyOf::Job(_, line) if left == 0 => {
                let tags = self.engine.stored_tags_growth(protocol.client, line.tags_key);
                (self.engine.job_growth(1) + tags, Skipped::Job)
            }
            BodyOf::Job(..) => (0, Skipped::Job),
            BodyOf::Note(_) | BodyOf::Schedule(_) => (0, Skipped::Text),
        };
        if grown + more == 0 || self.makes_room(more, max) {
            return true;
        }
        let skip = Input::Skip { left: left as u64, refusal: Shortage::Memory.into(), of };
        self.free_input(std::mem::replace(&mut protocol.input, skip));
        false
    }

    /// What a `reserve-batch` of `count` jobs may reply with. Small bodies are copied into the reply, so with a memory limit there must
    /// be memory for them: at the limit a batch has one job.
    pub(super) fn batch_room(&self, client: ClientKey, count: u32) -> BatchRoom {
        let is_wide = self.engine.clients().get(client).watch_count() > WIDE_BATCH_WATCHES;
        let count = if is_wide { count.min(WIDE_BATCH_JOBS_MAX) } else { count };
        let room = BatchRoom::new(count as usize);
        let Some(max) = self.config.max_memory_bytes else { return room };
        // A buffer may double as it grows.
        let bytes = self.memory.account().output_room().min(max.saturating_sub(self.charged_bytes())) / 2;
        let jobs = (bytes / BATCH_LINE_BYTES).max(1).min(u64::from(count)) as usize;
        BatchRoom { jobs, body_bytes: room.body_bytes.min(bytes) }
    }

    /// How many lines of this many bytes a page has that may have `limit`: fewer while unsent output has little room, but some in any case.
    /// Readers go on until there are no more.
    pub(super) fn page_room(&self, limit: u32, line_bytes: u64) -> u32 {
        // A buffer may double as it grows.
        let bytes = (self.memory.account().output_room() / 2).max(PAGE_BYTES_SHORT);
        limit.min(u32::try_from(bytes / line_bytes).unwrap_or(u32::MAX))
    }

    /// Whether there is memory for a list of tubes over HTTP. One at a time is always made: at the limit, an operator needs it to
    /// see which tube is full.
    pub(super) fn begin_http_list(&mut self, bytes: usize) -> bool {
        if self.memory.kept(Kept::HttpList) > 0 && !self.has_memory_for_http(bytes) {
            return false;
        }
        self.memory.count(Kept::HttpList, false, true);
        true
    }

    /// Whether this much more memory fits below the limit.
    pub(super) fn has_memory_for_http(&self, bytes: usize) -> bool {
        self.config.max_memory_bytes.is_none_or(|max| self.charged_bytes() + bytes as u64 <= max)
    }

    /// Memory in use and reserved memory, which count for the limit.
    pub(super) fn charged_bytes(&self) -> u64 {
        self.memory_bytes() + self.engine.reserved_memory_bytes() as u64
    }

    /// Warns of recovered jobs that leave no room for new ones, and of idempotency keys in the job log that the server does not keep.
    // docs/RUNBOOK.md lists these messages.
    pub(super) fn warn_of_recovered(&self) {
        let (used, drops) = (self.memory_bytes(), self.engine.key_stats().drops);
        if let Some(max) = self.config.max_memory_bytes.filter(|&max| used >= max) {
            warn!(
                "the recovered jobs take {}, and --max-memory is {}: put is refused with OUT_OF_MEMORY until jobs are deleted",
                Bytes(used),
                Bytes(max)
            );
        }
        if drops > 0 {
            warn!(
                "dropped kept idempotency keys that would take more than a quarter of --max-memory: {drops}"
            );
        }
    }

    /// Whether `growth` more bytes fit below the limit `max`, if need be in place of memory kept for reuse. Counts a refusal.
    fn makes_room(&mut self, growth: usize, max: u64) -> bool {
        let has_room = self.finds_room(growth, max);
        if !has_room {
            self.counts.add(Count::MemoryRefusals, 1);
        }
        has_room
    }

    fn finds_room(&mut self, growth: usize, max: u64) -> bool {
        let taken = self.charged_bytes();
        let charged = taken + growth as u64;
        if charged <= max {
            return true;
        }
        let has_room = charged - max <= self.engine.bodies().idle_bytes() as u64;
        if has_room {
            let bodies = self.engine.bodies_mut();
            // Many bodies may grow in one iteration, and together by more than the piece that it returns at its end.
            bodies.reclaim_now(taken.saturating_sub(max) as usize);
            bodies.want((charged - max) as usize);
        }
        has_room
    }
}
