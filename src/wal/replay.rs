//! From the segments of a log to the queue as it was.

use super::pauses::{KeptPause, Pauses};
use super::record::{JobRecord, Lsn, PauseRecord, Record};
use super::segment::{Header, SegmentNumber};
use super::segment_index::SegmentIndex;
use crate::bodies::OutOfMemory;
use crate::ids::{JobId, TubeKey};
use crate::queue::{Engine, Restored};
use crate::time::{Span, Time};
use crate::tube_name::TubeName;

/// What a log has said so far. Records go in in their order.
pub struct Replay {
    ledger: SegmentIndex,
    /// The segment that records come from.
    segment: SegmentNumber,
    pauses: Pauses,
    next_id: JobId,
    /// Of the last job: often that of the next, too.
    tube: Option<(Box<[u8]>, TubeKey)>,
}

/// Where a log was left.
pub struct Recovered {
    /// See [`Header::log_id`].
    pub log_id: u64,
    /// Where its records go on.
    pub end: Lsn,
    /// The segment that they go on in, if not a new one.
    pub active: Option<Header>,
    /// Segments up to this one may be of another size than new ones.
    pub odd_up_to: SegmentNumber,
    /// What the largest record of a job takes.
    pub largest: u64,
    /// It ends with a record that says so.
    pub is_closed: bool,
    pub(super) ledger: SegmentIndex,
    pub(super) pauses: Pauses,
}

impl Recovered {
    /// Pauses of tubes, also those that are over.
    pub fn pauses(&self) -> impl Iterator<Item = PauseRecord<'_>> {
        self.pauses.iter().map(|(name, pause)| PauseRecord {
            tube: TubeName::new(name).expect("a tube had it"),
            until: pause.until,
            length: pause.length,
        })
    }
}

impl Default for Replay {
    fn default() -> Self {
        Self {
            ledger: SegmentIndex::default(),
            segment: SegmentNumber(0),
            pauses: Pauses::default(),
            next_id: JobId(1),
            tube: None,
        }
    }
}

impl Replay {
    /// The records that follow are in this segment.
    pub fn open(&mut self, header: &Header) {
        self.ledger.open(header.number);
        self.segment = header.number;
        self.next_id = self.next_id.max(header.next_id);
    }

    /// Takes a record, which takes so many bytes. The engine keeps the jobs, unseen.
    pub fn apply(
        &mut self,
        record: &Record<'_>,
        bytes: usize,
        engine: &mut Engine,
    ) -> Result<(), OutOfMemory> {
        match record {
            Record::Job(job) => self.job(job, bytes, engine)?,
            Record::Paused(pause) => self.pause(pause, bytes),
            Record::State { id, kept } => {
                self.ledger.waste(bytes as u64);
                if let Some(job) = engine.jobs().find(*id) {
                    engine.restore_kept(job, kept);
                }
            }
            Record::Deleted(id) => {
                self.ledger.waste(bytes as u64);
                if let Some(job) = engine.jobs().find(*id) {
                    self.ledger.leave(job);
                    engine.drop_restored(job);
                }
            }
            Record::Oldest(_) | Record::Padding(_) | Record::Closed => self.ledger.waste(bytes as u64),
        }
        Ok(())
    }

    fn job(&mut self, job: &JobRecord<'_>, bytes: usize, engine: &mut Engine) -> Result<(), OutOfMemory> {
        let JobRecord { id, created, ttr, tube, kept, body } = *job;
        if let Some(job) = engine.jobs().find(id) {
            // It was moved: its body is the same.
            engine.restore_kept(job, &kept);
            self.ledger.leave(job);
            self.ledger.enter(job, self.segment, bytes);
            return Ok(());
        }
        let tube = self.tube(tube, engine);
        let bodies = engine.bodies_mut();
        let mut slot = bodies.allocate(body.len() as u32)?;
        bodies.bytes_mut(&mut slot).copy_from_slice(body);
        let job = engine.restore(Restored { id, created, ttr, tube, kept, body: slot });
        self.ledger.enter(job, self.segment, bytes);
        Ok(())
    }

    fn tube(&mut self, name: TubeName<'_>, engine: &mut Engine) -> TubeKey {
        if let Some((_, tube)) = self.tube.as_ref().filter(|(last, _)| **last == *name.as_bytes()) {
            return *tube;
        }
        let tube = engine.restore_tube(name);
        self.tube = Some((name.as_bytes().into(), tube));
        tube
    }

    fn pause(&mut self, pause: &PauseRecord<'_>, bytes: usize) {
        let &PauseRecord { tube, until, length } = pause;
        let segment = self.segment;
        let before = if length > Span::ZERO {
            self.ledger.keep(segment, bytes);
            self.pauses.insert(tube.as_bytes(), KeptPause { until, length, segment, bytes })
        } else {
            self.ledger.waste(bytes as u64);
            self.pauses.remove(tube.as_bytes())
        };
        if let Some(before) = before {
            self.ledger.let_go(before.segment, before.bytes);
        }
    }

    /// Shows the queue as it was. What it returns goes on in a new segment at position 0 of a new log.
    pub fn finish(self, engine: &mut Engine, now: Time) -> Recovered {
        let Self { ledger, pauses, next_id, .. } = self;
        engine.settle_restored(now);
        for (name, pause) in pauses.iter() {
            let name = TubeName::new(name).expect("a tube had it");
            engine.restore_pause(name, pause.until, pause.length, now);
        }
        if let Some(last) = next_id.0.checked_sub(1).filter(|&last| last > 0) {
            engine.keep_ids_above(JobId(last));
        }
        let (end, odd_up_to, largest) = (Lsn::default(), SegmentNumber(0), ledger.largest());
        Recovered { log_id: 0, end, active: None, odd_up_to, largest, is_closed: false, ledger, pauses }
    }
}
