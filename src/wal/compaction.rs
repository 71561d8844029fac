//! Jobs are moved out of the oldest segment, so that it can go: a little with everything that is written, so
//! that nobody has to wait for it.

use super::record::{Lsn, Record};
use super::segment::SegmentNumber;
use super::writer::Log;
use crate::limits::{LOG_BACKLOG_BYTES_MAX, LOG_MOVE_BYTES, LOG_MOVE_PAUSE};
use crate::queue::Engine;
use crate::time::Time;

/// How far the moving is behind what it should have done.
pub(super) struct Pace {
    /// What has become of the queue since jobs were last moved, in bytes of records.
    pub(super) written: u64,
    /// Bytes to move.
    due: u64,
    /// When to move more of a log that is larger than it may be.
    next: Time,
    /// The last segment that the log calls the oldest one of use, and the end of where it does.
    pub(super) told: SegmentNumber,
    pub(super) told_by: Lsn,
    /// Padding that jobs which were moved may still have behind them.
    pub(super) padding: u64,
}

/// Why jobs should be moved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Demand {
    /// There is no reason.
    None,
    /// The log will be as large as it may be before long.
    Soon,
    /// It is larger than it may be.
    Excess,
    /// Commands wait for space.
    Now,
}

impl Pace {
    /// For a log that goes on here, and whose last header has told of this segment.
    pub const fn new(told: SegmentNumber, end: Lsn) -> Self {
        Self { written: 0, due: 0, next: Time::ZERO, told, told_by: end, padding: 0 }
    }
}

impl Log {
    /// Moves some jobs out of the oldest segment, if its space is wanted.
    pub fn compact(&mut self, engine: &Engine, now: Time) {
        let written = std::mem::take(&mut self.pace.written);
        let bytes = self.bytes_to_move(written, now);
        if let Some(bytes) = bytes.filter(|_| self.can_move()) {
            let before = self.end.0;
            self.move_bytes(bytes, engine, now);
            self.pace.due = self.pace.due.saturating_sub(self.end.0 - before);
        }
    }

    /// How much is to be moved now, after so much else was written; none if nothing is.
    fn bytes_to_move(&mut self, written: u64, now: Time) -> Option<u64> {
        match self.demand() {
            Demand::None => {
                self.pace.due = 0;
                None
            }
            Demand::Now => Some(LOG_MOVE_BYTES),
            Demand::Excess if now < self.pace.next => None,
            Demand::Excess => {
                self.pace.next = now + LOG_MOVE_PAUSE;
                Some(LOG_MOVE_BYTES)
            }
            Demand::Soon => {
                // Were all live records to come first, and what is of no use after them, there would still be
                // space left when it is reached.
                let (live, room) = (self.ledger.live_bytes(), self.room_to_limit().max(1));
                let more = u128::from(written) * u128::from(live) / (2 * u128::from(room));
                let most = self.config.segment_bytes;
                self.pace.due = self.pace.due.saturating_add(more.min(most.into()) as u64).min(most);
                // There is time: a write of its own would keep the next reply waiting for one more sync.
                let has_company = !self.gathering.is_empty();
                has_company.then(|| self.pace.due.min(LOG_MOVE_BYTES + 4 * written))
            }
        }
    }

    fn demand(&self) -> Demand {
        if !self.is_worth_it() {
            return Demand::None;
        }
        let cannot_grow = self.is_full() || self.is_short_of_room() && !self.may_grow();
        let limit = self.segments_max();
        if self.wants_prepared() && cannot_grow {
            Demand::Now
        } else if self.segments() > limit {
            Demand::Excess
        } else if 2 * self.room_to_limit() < limit * self.config.segment_bytes - self.ledger.live_bytes() {
            Demand::Soon
        } else {
            Demand::None
        }
    }

    fn can_move(&self) -> bool {
        let is_stuck = self.stopping || self.is_stalled;
        let is_free = self.retiring.is_none() && self.missing.is_empty() && !is_stuck;
        is_free && self.ledger.segments() > 1 && self.backlog() < LOG_BACKLOG_BYTES_MAX / 2
    }

    /// When to move jobs though nothing else happens.
    pub(super) fn next_move(&self) -> Option<Time> {
        match self.demand() {
            Demand::Now if self.can_move() && self.writing.is_none() => Some(Time::ZERO),
            Demand::Excess if self.can_move() => Some(self.pace.next),
            _ => None,
        }
    }

    fn move_bytes(&mut self, bytes: u64, engine: &Engine, now: Time) {
        let before = self.end.0;
        loop {
            let oldest = self.ledger.oldest().expect("the active one is there");
            if oldest == self.active.number {
                return;
            }
            let (pause, job) = (self.pauses.first_in(oldest), self.ledger.first_of_oldest());
            if pause.is_none() && job.is_none() {
                return self.retire_oldest(engine);
            }
            if self.end.0 - before >= bytes {
                return;
            }
            if let Some(tube) = pause {
                self.move_pause(&tube, engine, now);
            } else if let Some(job) = job {
                let moved = self.append_job(job, engine);
                self.gathering_moved += moved;
                self.totals.moved += 1;
            }
        }
    }

    /// Nothing in the oldest segment means anything any more: it can go once that is known on disk.
    fn retire_oldest(&mut self, engine: &Engine) {
        let oldest = self.ledger.oldest().expect("the active one is there");
        let first = self.ledger.first_of_use().expect("the active one is there");
        let record = Record::Oldest(first);
        let has_room = record.bytes() as u64 <= self.room();
        // Where it would need a file that there is no space for, the one that goes tells by itself: it gets the
        // name of a later one.
        let may_tell = has_room || !self.is_full() || oldest <= self.odd_up_to;
        if !self.is_told(oldest) && may_tell {
            self.append_change(&record, engine);
            (self.pace.told, self.pace.told_by) = (first, self.end);
        }
        self.retiring = Some(if self.is_told(oldest) { self.pace.told_by } else { self.end });
    }

    /// Whether the log says that this segment is of no use any more.
    pub(super) fn is_told(&self, segment: SegmentNumber) -> bool {
        segment < self.pace.told
    }

    /// Whether it is on disk in a record or a header that the oldest segment is the first one of use.
    pub(super) fn is_beginning_safe(&self) -> bool {
        let oldest = self.ledger.oldest().expect("the active one is there");
        oldest <= self.pace.told && self.pace.told_by <= self.durable
    }

    /// Whether the segment that is empty should go before the next sync is due.
    pub(super) fn is_in_haste(&self) -> bool {
        let is_wanted = self.wants_prepared() && !self.may_grow();
        is_wanted || self.is_full() || self.segments() > self.segments_max()
    }
}
