//! Compaction: live jobs, pauses, kept keys, rules and schedules of the oldest segment are appended again, so that its file can go. A little of it
//! goes with every write, so that no command waits for it.

use super::capacity::Capacity;
use super::pauses::FORGOTTEN_PER_ITERATION;
use super::record::Record;
use super::{BACKLOG_BYTES_MAX, Wal};
use crate::queue::Engine;
use crate::time::{Span, Time};

/// Bytes of records that one step compacts, or one record if that is larger: some 30 us.
pub const STEP_BYTES: u64 = 64 * 1024;

/// The pause between steps that only shrink the WAL, for which no command waits.
const STEP_PAUSE: Span = Span::from_millis(1);

/// The pace of compaction: how much each step should compact.
#[derive(Default)]
pub struct Compactor {
    /// Bytes that were appended since the last step, without those of compaction.
    appended: u64,
    /// Bytes by which compaction is behind its pace.
    debt: u64,
    /// When the next step may come that only shrinks the WAL.
    next_step: Time,
    /// Padding that the jobs compacted so far would need again, in bytes.
    padding: u64,
}

/// Why to compact, in rising urgency.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Demand {
    None,
    /// The WAL will soon be as large as it may be.
    Soon,
    /// The WAL is larger than it may be.
    Excess,
    /// Commands wait for space.
    Now,
}

impl Compactor {
    /// Counts bytes that were appended, other than by compaction.
    #[inline]
    pub const fn note_appended(&mut self, bytes: u64) {
        self.appended += bytes;
    }

    /// Returns how many bytes to compact now, or none. `joins_write` says whether the bytes would go with a write that
    /// happens anyway.
    fn next_step(
        &mut self,
        capacity: &Capacity,
        demand: Demand,
        joins_write: bool,
        now: Time,
    ) -> Option<u64> {
        let appended = std::mem::take(&mut self.appended);
        match demand {
            Demand::None => {
                self.debt = 0;
                None
            }
            Demand::Now => Some(STEP_BYTES),
            Demand::Excess if now < self.next_step => None,
            Demand::Excess => {
                self.next_step = now + STEP_PAUSE;
                Some(STEP_BYTES)
            }
            Demand::Soon => {
                // In the worst case all live records come first and all garbage after them. The factor 2 leaves space
                // even then.
                let (live, left) = (capacity.live_bytes, capacity.bytes_to_limit().max(1));
                let more = u128::from(appended) * u128::from(live) / (2 * u128::from(left));
                let max = capacity.segment_bytes;
                self.debt = self.debt.saturating_add(more.min(max.into()) as u64).min(max);
                // A write of its own would make the next reply wait for one more sync.
                joins_write.then(|| self.debt.min(STEP_BYTES + 4 * appended))
            }
        }
    }

    /// Returns how much of the padding of a batch is garbage. Compaction would write the rest again: as much as the compacted bytes of
    /// the batch entitle it to, up to `max` per segment.
    pub fn garbage_of_padding(&mut self, padding: usize, entitled: u64, max: u64) -> u64 {
        self.padding += entitled;
        let inherent = self.padding.min(padding as u64);
        self.padding = (self.padding - inherent).min(max);
        padding as u64 - inherent
    }
}

impl Demand {
    fn of(capacity: &Capacity, is_retiring: bool) -> Self {
        if !capacity.is_worth_compacting() {
            return Self::None;
        }
        let cannot_grow = capacity.is_full || capacity.is_short(is_retiring) && !capacity.may_grow();
        let limit = capacity.segments_max();
        if capacity.wants_prepared() && cannot_grow {
            Self::Now
        } else if capacity.segments() > limit {
            Self::Excess
        } else if 2 * capacity.bytes_to_limit() < limit * capacity.segment_bytes - capacity.live_bytes {
            Self::Soon
        } else {
            Self::None
        }
    }
}

impl Wal {
    /// Compacts a part of the oldest segment, if its space is wanted.
    pub fn compact(&mut self, engine: &Engine, now: Time) {
        self.pauses.forget_over(now, FORGOTTEN_PER_ITERATION, &mut self.index);
        if self.rewritten_up_to == Some(self.appender.active().number) && self.can_begin_segment() {
            self.begin_next_segment(engine);
        }
        let capacity = self.capacity();
        let demand = self.demand(&capacity);
        let step = self.compactor.next_step(&capacity, demand, self.appender.is_gathering(), now);
        if let Some(bytes) = step.filter(|_| self.can_compact()) {
            let before = self.commits.end().0;
            self.compact_bytes(bytes, engine, now);
            let compacted = self.commits.end().0 - before;
            self.compactor.debt = self.compactor.debt.saturating_sub(compacted);
        }
    }

    /// When to compact if nothing else happens.
    pub(super) fn next_compaction(&self) -> Option<Time> {
        match self.demand(&self.capacity()) {
            Demand::Now if self.can_compact() && self.appender.can_start_write() => Some(Time::ZERO),
            Demand::Excess if self.can_compact() => Some(self.compactor.next_step),
            _ => None,
        }
    }

    fn demand(&self, capacity: &Capacity) -> Demand {
        let is_rewriting = self.rewritten_up_to.is_some_and(|last| self.oldest() <= last);
        match Demand::of(capacity, self.retirement.is_active()) {
            Demand::None | Demand::Soon if is_rewriting => Demand::Excess,
            Demand::None | Demand::Soon if self.refuses_puts && capacity.is_worth_compacting() => {
                Demand::Excess
            }
            demand => demand,
        }
    }

    fn can_begin_segment(&self) -> bool {
        !self.segments.has_missing() && !self.is_stopping && !self.space.is_stalled
    }

    fn can_compact(&self) -> bool {
        let is_free = !self.retirement.is_active() && self.can_begin_segment();
        is_free && self.index.segments() > 1 && self.appender.backlog_bytes() < BACKLOG_BYTES_MAX / 2
    }

    fn compact_bytes(&mut self, bytes: u64, engine: &Engine, now: Time) {
        let before = self.commits.end().0;
        loop {
            let oldest = self.oldest();
            if oldest == self.appender.active().number {
                return;
            }
            let (pause, key) = (self.pauses.first_in(oldest), self.kept_keys.first_in(oldest));
            let (rule, schedule) = (self.rules.first_in(oldest), self.schedules.first_in(oldest));
            let job = self.index.first_job_of_oldest();
            let is_empty =
                pause.is_none() && key.is_none() && rule.is_none() && schedule.is_none() && job.is_none();
            if !is_empty && self.commits.end().0 - before >= bytes {
                return;
            }
            let compacted = if let Some(tube) = pause {
                self.compact_pause(&tube, engine, now)
            } else if let Some(key) = key {
                self.append_kept_key(key, engine)
            } else if let Some(rule) = rule {
                self.compact_rule(&rule, engine)
            } else if let Some(schedule) = schedule {
                // mutant schedule-lost-by-compaction: self.append_schedule(&schedule, engine) => self.schedules.remove(&schedule, &mut self.index).map_or(0, |place| place.bytes)
                self.append_schedule(&schedule, engine)
            } else if let Some(job) = job {
                self.counters.compacted += 1;
                self.append_job(job, engine)
            } else {
                return self.retire_oldest(engine);
            };
            self.appender.note_compacted(compacted);
        }
    }

    /// The oldest segment has no live record. It can go once a record on disk announces that.
    fn retire_oldest(&mut self, engine: &Engine) {
        let oldest = self.oldest();
        let first = self.index.first_live().expect("there is an active segment");
        let record = Record::Oldest(first);
        let fits = record.bytes() as u64 <= self.bytes_left();
        // Without space for a file that the record would need, the retired file becomes a marker: it gets the name of a
        // later segment. A file of another size cannot.
        let may_declare = fits || !self.space.is_full() || self.segments.may_have_other_size(oldest);
        if !self.retirement.is_declared(oldest) && may_declare {
            self.append_change(&record, engine);
            self.retirement.declare(first, self.commits.end());
        }
        self.retirement.start(oldest, self.commits.end());
    }
}
