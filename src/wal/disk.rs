//! The log's side of the disk: what it asks for, in which order, and what follows from the answers.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};

use super::record::Lsn;
use super::writer::{Log, LogStats, Waiting, Writing};
use super::{Arrangement, Durability, Operation, Outcome, SegmentNumber};
use crate::histogram::Histogram;
use crate::limits::{LOG_BATCH_BYTES_KEPT, LOG_BATCHES_SPARE, LOG_SPACE_RETRY, LOG_UNSYNCED_SEGMENTS_MAX};
use crate::time::Time;

impl Log {
    /// The next thing for the disk to do, if there is one that can begin now.
    pub fn next_operation(&mut self, now: Time) -> Option<Operation> {
        if self.failure.is_some() {
            return None;
        }
        self.next_write(now).or_else(|| self.next_sync(now)).or_else(|| self.next_arrangement(now))
    }

    fn next_write(&mut self, now: Time) -> Option<Operation> {
        if self.writing.is_some() || self.retry_at.is_some_and(|at| now < at) {
            return None;
        }
        self.retry_at = None;
        if self.full.is_empty() {
            self.close_batch();
        }
        let segment = self.full.front()?.segment;
        if self.missing.contains(&segment) || self.must_sync_before(segment) {
            return None;
        }
        let Waiting { offset, batch, end, .. } = self.full.pop_front()?;
        let (bytes, memory_bytes) = (batch.len(), batch.memory_bytes());
        self.writing = Some(Writing { segment, offset, bytes, memory_bytes, end });
        let sync = self.config.durability == Durability::Always;
        if sync {
            self.totals.sync_began = now;
        }
        Some(Operation::Write { segment, offset, batch, sync })
    }

    fn next_sync(&mut self, now: Time) -> Option<Operation> {
        let is_due = self.sync_due.is_some_and(|due| due <= now) || self.must_sync();
        if !is_due || self.syncing.is_some() || self.unsynced.is_empty() {
            return None;
        }
        self.sync_due = None;
        self.syncing = Some(self.written);
        self.totals.sync_began = now;
        Some(Operation::Sync(std::mem::take(&mut self.unsynced)))
    }

    /// Something waits for what is written to be on disk: a segment that is to go, the end, or the next write.
    fn must_sync(&self) -> bool {
        let is_wanted = |at: Lsn| self.durable < at && at <= self.written;
        let ends = self.stopping && is_wanted(self.end);
        let is_never = self.config.durability == Durability::Never;
        let goes = self.retiring.is_some_and(is_wanted) && (is_never || self.is_in_haste());
        goes || ends || self.has_many_unsynced()
    }

    /// A sync goes by the descriptors that wrote: no more segments may wait for one than can be kept open. Under `-F`,
    /// where the next sync may be hours away, the oldest of them are closed before.
    fn has_many_unsynced(&self) -> bool {
        let is_within = matches!(self.config.durability, Durability::Within(_));
        is_within && self.unsynced.len() >= LOG_UNSYNCED_SEGMENTS_MAX
    }

    fn must_sync_before(&self, segment: SegmentNumber) -> bool {
        self.has_many_unsynced() && self.unsynced.last() != Some(&segment)
    }

    fn next_arrangement(&mut self, now: Time) -> Option<Operation> {
        if self.is_arranging {
            return None;
        }
        let rests = self.short_until.is_some_and(|until| now < until);
        let is_create = |wanted: &Arrangement| matches!(wanted, Arrangement::Create { .. });
        let wanted = self.wanted_arrangement();
        if wanted.is_none() && !rests {
            // Nobody has looked again, so nobody knows.
            self.short_until = None;
        }
        let arrangement = wanted.filter(|wanted| !(rests && is_create(wanted)))?;
        if let Arrangement::Remove(segment) = arrangement {
            // It must not be gone on in.
            self.prepared.retain(|&prepared| prepared != segment);
        }
        self.is_arranging = true;
        Some(Operation::Arrange(arrangement))
    }

    fn wanted_arrangement(&self) -> Option<Arrangement> {
        let is_wanted = !self.missing.is_empty() || self.wants_prepared() && !self.stopping;
        let to = self.missing.front().copied().unwrap_or_else(|| self.last_number.next());
        if self.is_stalled && self.has_spare() && self.retiring.is_none() {
            return self.prepared.back().copied().map(Arrangement::Remove);
        }
        if self.retiring.is_some_and(|at| at <= self.durable) {
            let from = self.ledger.oldest().expect("it is the one that goes");
            let arrangement = Arrangement::Recycle { from, to };
            let is_kept = is_wanted || self.segments() <= self.segments_max() || !self.is_told(from);
            let is_taken = self.writes_take_space && self.is_told(from);
            let is_usable = is_kept && from > self.odd_up_to && !is_taken;
            return Some(if is_usable { arrangement } else { Arrangement::Remove(from) });
        }
        let may_shrink = self.has_surplus() && self.is_beginning_safe() && !self.stopping;
        if let Some(&surplus) = self.prepared.back().filter(|_| may_shrink) {
            return Some(Arrangement::Remove(surplus));
        }
        // What a write waits for is not taken by a new file.
        let may_grow = !self.is_stalled && (self.may_grow() || !self.missing.is_empty());
        let create = Arrangement::Create { segment: to, bytes: self.config.segment_bytes };
        (is_wanted && may_grow).then_some(create)
    }

    /// Something that was asked for is done.
    pub fn complete(&mut self, outcome: Outcome, now: Time) {
        let result = match outcome {
            Outcome::Written(batch, Err(error)) if is_full(&error) && self.can_stall() => {
                self.stall(batch, now);
                Ok(())
            }
            Outcome::Written(mut batch, result) => {
                if self.spare.len() < LOG_BATCHES_SPARE && batch.capacity() <= LOG_BATCH_BYTES_KEPT {
                    batch.clear();
                    self.spare.push(batch);
                }
                result.map(|()| self.has_written(now))
            }
            Outcome::Synced(result) => result.map(|()| self.has_synced(now)),
            Outcome::Arranged(arrangement, result) => self.has_arranged(arrangement, result, now),
        };
        if let Err(error) = result {
            self.failure.get_or_insert(error);
        }
    }

    fn has_written(&mut self, now: Time) {
        let Writing { segment, end, .. } = self.writing.take().expect("a write was under way");
        (self.is_stalled, self.close_due) = (false, None);
        self.pending.clear();
        self.safe += 1;
        self.written = end;
        match self.config.durability {
            Durability::Always => {
                self.durable = end;
                self.has_telling_name &= !self.is_beginning_safe();
                self.count_sync(now);
            }
            Durability::Within(span) => {
                self.sync_due.get_or_insert(now + span);
                self.note_unsynced(segment);
            }
            Durability::Never => self.note_unsynced(segment),
        }
    }

    fn note_unsynced(&mut self, segment: SegmentNumber) {
        if self.unsynced.last() != Some(&segment) {
            self.unsynced.push(segment);
        }
    }

    fn has_synced(&mut self, now: Time) {
        self.durable = self.syncing.take().expect("a sync was under way");
        self.close_due = None;
        self.has_telling_name &= !self.is_beginning_safe();
        self.count_sync(now);
    }

    fn count_sync(&mut self, now: Time) {
        self.totals.syncs += 1;
        self.totals.synced_records = self.totals.records;
        self.totals.last_sync = now.since(self.totals.sync_began);
        self.totals.sync_times.add(self.totals.last_sync.as_nanos());
    }

    fn has_arranged(&mut self, done: Arrangement, result: io::Result<()>, now: Time) -> io::Result<()> {
        self.is_arranging = false;
        match (done, result) {
            (Arrangement::Create { .. }, Err(error)) if is_full(&error) => {
                self.short_until = Some(now + LOG_SPACE_RETRY);
                return Ok(());
            }
            (_, Err(error)) => return Err(error),
            (Arrangement::Create { segment, .. }, Ok(())) => {
                self.short_until = None;
                self.has_prepared(segment);
            }
            (Arrangement::Recycle { from, to }, Ok(())) => {
                self.has_telling_name |= !self.is_told(from);
                self.has_retired(from);
                self.has_prepared(to);
            }
            (Arrangement::Remove(segment), Ok(())) => {
                if self.ledger.oldest() == Some(segment) {
                    self.has_retired(segment);
                }
                if let Some(at) = &mut self.retry_at {
                    *at = now;
                }
            }
        }
        Ok(())
    }

    fn has_prepared(&mut self, segment: SegmentNumber) {
        if self.missing.front() == Some(&segment) {
            self.missing.pop_front();
        } else {
            self.prepared.push_back(segment);
            self.last_number = self.last_number.max(segment);
        }
    }

    fn has_retired(&mut self, segment: SegmentNumber) {
        assert_eq!(self.ledger.oldest(), Some(segment), "segments go in order");
        self.ledger.drop_oldest();
        self.unsynced.retain(|&unsynced| unsynced != segment);
        self.retiring = None;
    }

    /// When there is something to do, if nothing else happens.
    pub fn next_deadline(&self) -> Option<Time> {
        if self.failure.is_some() {
            return None;
        }
        let sync = self.sync_due.filter(|_| self.syncing.is_none() && !self.unsynced.is_empty());
        let space = self.short_until.filter(|_| !self.is_arranging);
        [sync, space, self.retry_at, self.next_move(), self.next_close()].into_iter().flatten().min()
    }

    /// From now on everything goes to disk as soon as it can.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Whether everything that was recorded is as safe as it is meant to be.
    pub fn is_settled(&self) -> bool {
        let is_written = self.gathering.is_empty() && self.full.is_empty() && self.writing.is_none();
        let is_synced = self.durable == self.end;
        self.failure.is_some() || is_written && is_synced && !self.can_close()
    }

    /// Why the log cannot go on. What is not safe yet never will be.
    pub const fn failure(&self) -> Option<&io::Error> {
        self.failure.as_ref()
    }

    /// What `stats` tells.
    pub fn stats(&self) -> LogStats {
        let totals = &self.totals;
        LogStats {
            oldest: self.ledger.oldest().map_or(0, |number| number.0),
            current: self.active.number.0,
            records_moved: totals.moved,
            records_written: totals.records,
            segment_bytes: self.config.segment_bytes,
            live_bytes: self.ledger.live_bytes(),
            disk_bytes: self.segments() * self.config.segment_bytes,
            syncs: totals.syncs,
            records_a_sync: totals.synced_records.checked_div(totals.syncs).unwrap_or(0),
            last_sync: totals.last_sync,
        }
    }

    /// How long syncs have taken, in nanoseconds.
    pub const fn sync_times(&self) -> &Histogram {
        &self.totals.sync_times
    }

    /// The number of the file that a job's record is in, for `stats-job`.
    pub fn file_of(&self, job: crate::ids::JobKey) -> u64 {
        self.ledger.segment_of(job).map_or(0, |number| number.0)
    }

    /// Recomputes what can be.
    ///
    /// # Panics
    /// If something does not hold.
    pub fn check(&self) {
        self.ledger.check();
        assert!(self.durable <= self.written && self.written <= self.end);
        let waiting: &VecDeque<Waiting> = &self.full;
        let open = self.closed - self.safe;
        assert_eq!(
            open,
            waiting.len() as u64 + u64::from(self.writing.is_some()),
            "every batch has its ticket"
        );
    }
}

/// Whether there is no space left, for now.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}
