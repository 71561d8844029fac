//! From the segments of a log to the queue as it was.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use super::ledger::Ledger;
use super::pauses::{KeptPause, Pauses};
use super::record::{JobRecord, Lsn, PauseRecord, Record};
use super::segment::{Header, SegmentNumber};
use crate::bodies::{OutOfMemory, Slot};
use crate::ids::JobId;
use crate::intrusive::mix;
use crate::queue::{Engine, Kept, Restored, Standing};
use crate::time::{Span, Time};
use crate::tube_name::TubeName;

/// What a log has said so far. Records go in in their order.
pub struct Replay {
    jobs: HashMap<u64, Found, BuildHasherDefault<Mixing>>,
    /// Names of tubes, which many jobs share.
    tubes: Vec<Box<[u8]>>,
    tube_numbers: HashMap<Box<[u8]>, u32>,
    last_tube: u32,
    pauses: Pauses,
    next_id: JobId,
    /// With what their records take.
    segments: Vec<(SegmentNumber, u64)>,
}

/// A job, as far as the log has told.
struct Found {
    created: Time,
    ttr: u32,
    tube: u32,
    kept: Kept,
    body: Slot,
    segment: SegmentNumber,
    record_bytes: usize,
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
    pub(super) ledger: Ledger,
    pub(super) pauses: Pauses,
}

impl Default for Replay {
    fn default() -> Self {
        Self {
            jobs: HashMap::default(),
            tubes: Vec::new(),
            tube_numbers: HashMap::new(),
            last_tube: 0,
            pauses: Pauses::default(),
            next_id: JobId(1),
            segments: Vec::new(),
        }
    }
}

impl Replay {
    /// The records that follow are in this segment.
    pub fn open(&mut self, header: &Header) {
        self.segments.push((header.number, 0));
        self.next_id = self.next_id.max(header.next_id);
    }

    /// The records of the segment have gone in; they take so many bytes, with the zeros between them.
    pub fn close(&mut self, bytes: u64) {
        self.segments.last_mut().expect("a segment is open").1 = bytes;
    }

    /// Takes a record. The engine keeps the bodies.
    pub fn apply(
        &mut self,
        record: &Record<'_>,
        bytes: usize,
        engine: &mut Engine,
    ) -> Result<(), OutOfMemory> {
        match record {
            Record::Job(job) => self.job(job, bytes, engine)?,
            Record::State { id, kept } => {
                if let Some(found) = self.jobs.get_mut(&id.0) {
                    found.kept = *kept;
                }
            }
            Record::Deleted(id) => {
                if let Some(found) = self.jobs.remove(&id.0) {
                    engine.bodies_mut().free(found.body);
                }
            }
            Record::Paused(pause) => self.pause(pause, bytes),
            Record::Oldest(_) | Record::Padding(_) => {}
        }
        Ok(())
    }

    fn job(
        &mut self,
        job: &JobRecord<'_>,
        record_bytes: usize,
        engine: &mut Engine,
    ) -> Result<(), OutOfMemory> {
        let &(segment, _) = self.segments.last().expect("a record is in a segment");
        let JobRecord { id, created, ttr, tube, kept, body } = *job;
        self.next_id = self.next_id.max(JobId(id.0 + 1));
        if let Some(found) = self.jobs.get_mut(&id.0) {
            // It was moved: its body is the same.
            (found.kept, found.segment) = (kept, segment);
            return Ok(());
        }
        let tube = self.tube(tube);
        let bodies = engine.bodies_mut();
        let mut slot = bodies.allocate(body.len() as u32)?;
        bodies.bytes_mut(&mut slot).copy_from_slice(body);
        self.jobs.insert(id.0, Found { created, ttr, tube, kept, body: slot, segment, record_bytes });
        Ok(())
    }

    fn pause(&mut self, pause: &PauseRecord<'_>, bytes: usize) {
        let &PauseRecord { tube, until, length } = pause;
        if length > Span::ZERO {
            let &(segment, _) = self.segments.last().expect("a record is in a segment");
            self.pauses.insert(tube.as_bytes(), KeptPause { until, length, segment, bytes });
        } else {
            self.pauses.remove(tube.as_bytes());
        }
    }

    fn tube(&mut self, name: TubeName<'_>) -> u32 {
        let name = name.as_bytes();
        if self.tubes.get(self.last_tube as usize).is_some_and(|last| **last == *name) {
            return self.last_tube;
        }
        self.last_tube = match self.tube_numbers.get(name) {
            Some(&number) => number,
            None => {
                let number = self.tubes.len() as u32;
                self.tubes.push(name.into());
                self.tube_numbers.insert(name.into(), number);
                number
            }
        };
        self.last_tube
    }

    /// How many jobs there are.
    pub fn jobs(&self) -> usize {
        self.jobs.len()
    }

    /// Puts everything into the queue. What it returns goes on in a new segment at position 0 of a new log.
    pub fn finish(self, engine: &mut Engine, now: Time) -> Recovered {
        let Self { jobs, tubes, pauses, next_id, segments, .. } = self;
        let mut ledger = Ledger::default();
        let mut garbage: BTreeMap<SegmentNumber, u64> = segments.into_iter().collect();
        for found in jobs.values() {
            *garbage.get_mut(&found.segment).expect("it is in one of them") -= found.record_bytes as u64;
        }
        for (_, pause) in pauses.iter() {
            *garbage.get_mut(&pause.segment).expect("it is in one of them") -= pause.bytes as u64;
        }
        for (number, bytes) in garbage {
            ledger.open(number);
            ledger.waste(bytes);
        }
        let mut jobs: Vec<(u64, Found)> = jobs.into_iter().collect();
        let burial = |found: &Found| match found.kept.standing {
            Standing::Buried(burial) => burial,
            _ => 0,
        };
        jobs.sort_unstable_by_key(|(id, found)| (burial(found), *id));
        for (id, found) in jobs {
            let Found { created, ttr, tube, kept, body, segment, record_bytes } = found;
            let tube = TubeName::new(&tubes[tube as usize]).expect("a tube had it");
            let job = engine.restore(Restored { id: JobId(id), created, ttr, tube, kept, body }, now);
            ledger.enter(job, segment, record_bytes);
        }
        for (name, pause) in pauses.iter() {
            ledger.keep(pause.segment, pause.bytes);
            let name = TubeName::new(name).expect("a tube had it");
            engine.restore_pause(name, pause.until, pause.length, now);
        }
        if let Some(last) = next_id.0.checked_sub(1).filter(|&last| last > 0) {
            engine.keep_ids_above(JobId(last));
        }
        let (end, odd_up_to) = (Lsn::default(), SegmentNumber(0));
        Recovered { log_id: 0, end, active: None, odd_up_to, ledger, pauses }
    }
}

/// Spreads ids, which are numbers that follow one another.
#[derive(Default)]
struct Mixing(u64);

impl Hasher for Mixing {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("ids are words")
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = mix(word);
    }
}
