//! Which operation comes next, and what follows from its outcome.

use std::io;

use super::operation::{Arrangement, DiskOperation, DiskOutcome, is_full};
use super::record::{Lsn, job_ids};
use super::segment::{HEADER_BYTES, Header};
use super::{Batch, Durability, SegmentNumber, Wal};
use crate::time::Time;

impl Wal {
    /// Returns the next operation that can start now, if there is one.
    pub fn next_operation(&mut self, now: Time) -> Option<DiskOperation> {
        if self.failure.is_some() {
            return None;
        }
        self.next_write(now).or_else(|| self.next_sync(now)).or_else(|| self.next_arrangement(now))
    }

    fn next_write(&mut self, now: Time) -> Option<DiskOperation> {
        if !self.appender.can_start_write() || !self.space.may_write(now) {
            return None;
        }
        if !self.appender.has_waiting() && self.appender.is_worth_writing() {
            self.close_batch();
        }
        let segment = self.appender.next_segment()?;
        if self.segments.is_missing(segment) || self.commits.must_sync_before(segment) {
            return None;
        }
        self.appender.start_write(self.config.durability == Durability::Always, now)
    }

    fn next_sync(&mut self, now: Time) -> Option<DiskOperation> {
        if !self.commits.is_sync_due(now) && !self.must_sync() {
            return None;
        }
        self.commits.start_sync(now).map(DiskOperation::Sync)
    }

    /// Whether something waits for written records to become durable: the oldest segment, the stop, or the next write.
    fn must_sync(&self) -> bool {
        let would_help = |at: Lsn| self.commits.needs_sync(at);
        let stop_waits = self.is_stopping && would_help(self.commits.end());
        // Under `-F` no later sync is due.
        let is_never = self.config.durability == Durability::Never;
        let segment_waits =
            self.retirement.retiring.is_some_and(would_help) && (is_never || self.is_retirement_urgent());
        segment_waits || stop_waits || self.commits.has_many_unsynced()
    }

    /// Whether the oldest segment should go before the next sync is due.
    fn is_retirement_urgent(&self) -> bool {
        let capacity = self.capacity();
        let is_wanted = capacity.wants_prepared() && !capacity.may_grow();
        is_wanted || capacity.is_full || capacity.segments() > capacity.segments_max()
    }

    fn next_arrangement(&mut self, now: Time) -> Option<DiskOperation> {
        if self.segments.is_arranging {
            return None;
        }
        let (may_create, may_change) = (self.space.may_create(now), self.space.may_change(now));
        let wanted = self.wanted_arrangement();
        if wanted.is_none() && may_create {
            // Nothing tries the disk again, so it does not count as full.
            self.space.clear_full();
        }
        let is_create = |wanted: &Arrangement| matches!(wanted, Arrangement::Create { .. });
        let arrangement = wanted.filter(|wanted| if is_create(wanted) { may_create } else { may_change })?;
        if let Arrangement::Remove(segment) = arrangement {
            // Records must not continue in it.
            self.segments.prepared.retain(|&prepared| prepared != segment);
        }
        self.segments.is_arranging = true;
        Some(DiskOperation::Arrange(arrangement))
    }

    fn wanted_arrangement(&self) -> Option<Arrangement> {
        if let Some(mark) = self.wanted_mark() {
            return Some(Arrangement::MarkEnd(mark));
        }
        let capacity = self.capacity();
        let is_wanted =
            self.has_number() && (capacity.has_missing || capacity.wants_prepared() && !self.is_stopping);
        if self.space.is_stalled && self.has_spare() && !self.retirement.is_active() {
            return self.segments.prepared.back().copied().map(Arrangement::Remove);
        }
        // mutant segment-goes-too-early: self.retirement.is_durable(self.commits.durable()) => self.retirement.is_active()
        if self.retirement.is_durable(self.commits.durable()) {
            return Some(self.retired_arrangement(is_wanted));
        }
        let is_oldest_durable = self.retirement.is_oldest_durable(self.oldest(), self.commits.durable());
        let may_shrink = capacity.has_excess_prepared() && is_oldest_durable && !self.is_stopping;
        if let Some(excess) = self.segments.prepared.back().copied().filter(|_| may_shrink) {
            return Some(Arrangement::Remove(excess));
        }
        // A new file must not take the space that a stalled write waits for.
        let may_grow = !self.space.is_stalled && (capacity.may_grow() || capacity.has_missing);
        let (segment, bytes) = (self.segments.next_number(), self.config.segment_bytes);
        (is_wanted && may_grow).then_some(Arrangement::Create { segment, bytes })
    }

    /// Whether there is a number for another segment.
    pub(super) fn has_number(&self) -> bool {
        self.segments.next_number() <= SegmentNumber::LAST
    }

    /// What becomes of the file of the oldest segment.
    fn retired_arrangement(&self, is_wanted: bool) -> Arrangement {
        let (from, capacity) = (self.oldest(), self.capacity());
        let is_declared = self.retirement.is_declared(from);
        let is_kept = self.has_number()
            && (is_wanted || capacity.segments() <= capacity.segments_max() || !is_declared);
        // Where a write takes new space, a removed file gives some.
        let is_space_wanted = self.space.writes_take_space && is_declared;
        if is_kept && !self.segments.may_have_other_size(from) && !is_space_wanted {
            Arrangement::Recycle { from, to: self.segments.next_number() }
        } else {
            Arrangement::Remove(from)
        }
    }

    /// Takes the outcome of an operation.
    pub fn complete(&mut self, outcome: DiskOutcome, now: Time) {
        let result = match outcome {
            // The records of an earlier write may be missing.
            DiskOutcome::Written(..) if self.failure.is_some() => Ok(()),
            DiskOutcome::Written(batch, Err(error)) if is_full(&error) && self.can_stall() => {
                self.batch_returned(batch, now);
                Ok(())
            }
            DiskOutcome::Written(batch, result) => result.map(|()| self.batch_written(batch, now)),
            DiskOutcome::Synced(result) => result.map(|()| {
                let begun = self.commits.finish_sync();
                self.closing.postpone();
                self.durable_advanced(begun, now);
            }),
            DiskOutcome::Arranged(arrangement, result) => self.arranged(arrangement, result, now),
        };
        if let Err(error) = result {
            self.failure.get_or_insert(error);
        }
    }

    /// The destination has found no space for batches that it keeps and tries to write again.
    pub fn stall<'a>(&mut self, kept: impl Iterator<Item = &'a Batch>, now: Time) {
        let kept = kept.flat_map(|batch| {
            let records = if Header::decode(batch.bytes()).is_ok() { HEADER_BYTES as usize } else { 0 };
            job_ids(&batch.bytes()[records..])
        });
        self.space.write_waits(kept.chain(self.appender.unwritten_jobs()), now);
    }

    /// Whether a write without space is tried again. A server that stops tries only if it can free space itself.
    fn can_stall(&self) -> bool {
        !self.is_stopping || self.has_spare()
    }

    /// Whether a prepared segment can be removed for its space. One remains to compact into.
    fn has_spare(&self) -> bool {
        self.segments.prepared.len() > 1 && !self.retirement.has_marker
    }

    /// Whether the stop needs a segment for which nothing that the WAL does makes space.
    fn stop_lacks_segment(&self) -> bool {
        let is_under_way = self.appender.is_writing() || self.commits.is_syncing();
        let needs_sync = |at: Lsn| self.commits.needs_sync(at);
        let retirement = &self.retirement;
        let may_retire =
            retirement.is_durable(self.commits.durable()) || retirement.retiring.is_some_and(needs_sync);
        self.is_stopping && self.capacity().has_missing && !is_under_way && !may_retire
    }

    fn batch_returned(&mut self, batch: Batch, now: Time) {
        // Which jobs wait is known once all batches are back.
        // mutant wal-stall-before-its-jobs-are-known: self.appender.return_write(batch) =>
        //     self.appender.return_write(batch) || true
        if self.appender.return_write(batch) {
            self.space.write_failed(self.appender.unwritten_jobs(), now);
        }
    }

    fn batch_written(&mut self, batch: Batch, now: Time) {
        let write = self.appender.finish_write(batch);
        self.space.write_succeeded();
        self.closing.postpone();
        self.commits.batch_written(write.segment, write.end, now);
        if self.config.durability == Durability::Always {
            self.durable_advanced(write.begun, now);
        }
    }

    /// A sync, or a write that is synced, has ended.
    fn durable_advanced(&mut self, begun: Time, now: Time) {
        self.retirement.advance_durable(self.oldest(), self.commits.durable());
        self.counters.count_sync(begun, now);
        self.sync_times.add(now.since(begun).as_nanos());
    }

    fn arranged(&mut self, done: Arrangement, result: io::Result<()>, now: Time) -> io::Result<()> {
        self.segments.is_arranging = false;
        match (done, result) {
            // mutant wal-stop-without-space-waits: self.stop_lacks_segment() => false
            (Arrangement::Create { .. }, Err(error)) if is_full(&error) && !self.stop_lacks_segment() => {
                self.space.create_failed(now);
            }
            (Arrangement::Recycle { .. }, Err(error)) if is_full(&error) => self.space.change_failed(now),
            (Arrangement::Remove(segment), Err(error)) if is_full(&error) => {
                if self.index.oldest() != Some(segment) {
                    self.segments.add(segment);
                }
                self.space.change_failed(now);
            }
            // The next closing record has it written again.
            (Arrangement::MarkEnd(mark), Err(error)) if is_full(&error) => self.closing.note_marked(mark),
            (_, Err(error)) => return Err(error),
            (Arrangement::MarkEnd(mark), Ok(())) => self.closing.note_marked(mark),
            (Arrangement::Create { segment, .. }, Ok(())) => {
                self.space.clear_full();
                self.segments.add(segment);
            }
            (Arrangement::Recycle { from, to }, Ok(())) => {
                self.retirement.recycled(from);
                self.drop_oldest(from);
                self.segments.add(to);
            }
            (Arrangement::Remove(segment), Ok(())) => {
                if self.index.oldest() == Some(segment) {
                    self.retirement.retiring = None;
                    self.drop_oldest(segment);
                }
                self.space.space_freed(now);
            }
        }
        Ok(())
    }

    fn drop_oldest(&mut self, segment: SegmentNumber) {
        assert_eq!(self.index.oldest(), Some(segment), "segments go in order");
        self.index.drop_oldest();
        self.commits.forget_segment(segment);
    }

    /// When an operation can start or a record is due, if nothing else happens.
    pub fn next_deadline(&self) -> Option<Time> {
        if self.failure.is_some() {
            return None;
        }
        let is_arranging = self.segments.is_arranging;
        let create = self.space.retry_create_at.filter(|_| !is_arranging);
        let change = self.space.retry_change_at.filter(|_| !is_arranging);
        let deadlines = [
            self.commits.next_sync(),
            create,
            change,
            self.space.retry_write_at,
            self.next_compaction(),
            self.next_close(),
        ];
        deadlines.into_iter().flatten().min()
    }
}
