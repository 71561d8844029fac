//! Which jobs a damaged job log has lost, as far as its valid records show.

use std::collections::BTreeSet;

use crate::values::ids::JobId;
use crate::wal::record::Record;
use crate::wal::segment::Header;

/// Follows all valid records in order. Ids are given in order, so an id that is skipped behind a gap was in the gap.
#[derive(Default)]
pub struct Losses {
    /// The largest id that was given so far.
    highest: u64,
    /// Whether a gap followed.
    has_gap: bool,
    /// First and last ids that were given in gaps.
    given: Vec<(u64, u64)>,
    /// Of those, ids with a later record of the job or of its deletion.
    known: BTreeSet<u64>,
}

impl Losses {
    /// Notes that records are missing here.
    pub fn gap(&mut self) {
        self.has_gap = true;
    }

    /// Takes the header of the next segment, which says how many ids had been given. Without a gap before it, the records of ids
    /// that have none yet may follow: a put that begins a segment has its id already.
    pub fn segment(&mut self, header: &Header) {
        if self.has_gap || self.highest == 0 {
            self.were_given(header.next_id.0.saturating_sub(1));
        }
        self.has_gap = false;
    }

    fn job(&mut self, id: u64) {
        if id > self.highest {
            self.were_given(id - 1);
            self.highest = id;
            self.has_gap = false;
        }
        self.know(id);
    }

    /// Takes the next record.
    pub fn record(&mut self, record: &Record<'_>) {
        let Some(JobId(id)) = record.job_id() else { return };
        match record {
            Record::Job(_) | Record::Run(_) => self.job(id),
            Record::Deleted(_) | Record::KeptKey(_) => {
                self.were_given(id);
                self.know(id);
            }
            // A change.
            _ => self.were_given(id),
        }
    }

    /// Notes that all ids up to this one were given.
    fn were_given(&mut self, id: u64) {
        if id > self.highest {
            if self.has_gap {
                self.given.push((self.highest + 1, id));
            }
            self.highest = id;
        }
    }

    fn know(&mut self, id: u64) {
        if self.given.iter().any(|&(first, last)| (first..=last).contains(&id)) {
            self.known.insert(id);
        }
    }

    /// Returns the first and last ids of jobs that were put, have no record, and are not known to be deleted; in order. `unrecorded` are
    /// those of them that have a change.
    pub fn finish(self, unrecorded: &[JobId]) -> Vec<(u64, u64)> {
        let mut lost = Vec::new();
        for (first, last) in self.given {
            let mut from = first;
            for &id in self.known.range(first..=last) {
                if from < id {
                    lost.push((from, id - 1));
                }
                from = id + 1;
            }
            if from <= last {
                lost.push((from, last));
            }
        }
        let is_listed = |id: u64| lost.iter().any(|&(first, last)| (first..=last).contains(&id));
        let changed: Vec<_> =
            unrecorded.iter().filter(|id| !is_listed(id.0)).map(|id| (id.0, id.0)).collect();
        lost.extend(changed);
        lost.sort_unstable();
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{LoggedState, PersistedState};
    use crate::time::{Seconds, Time};
    use crate::values::notes::Notes;
    use crate::values::tags::Tags;
    use crate::values::tube_name::TubeName;
    use crate::wal::SegmentNumber;
    use crate::wal::record::{JobRecord, Lsn};

    /// What is read next.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Put(u64),
        Deletion(u64),
        Gap,
        /// A segment whose header has this next id.
        Begin(u64),
    }
    use Step::{Begin, Deletion, Gap, Put};

    /// Returns the first and last ids that are lost after these steps.
    fn lost(steps: &[Step], unrecorded: &[JobId]) -> Vec<(u64, u64)> {
        let (pri, delay, counts) = (0, Seconds::ZERO, Default::default());
        let state = PersistedState { pri, delay, state: LoggedState::Ready, counts };
        let (created, ttr, tube, tags, notes) =
            (Time::ZERO, Seconds::ONE, TubeName::DEFAULT, Tags::NONE, Notes::NONE);
        let mut losses = Losses::default();
        for step in steps {
            match *step {
                Put(id) => {
                    let (id, body) = (JobId(id), &b"\r\n"[..]);
                    let job = JobRecord { id, created, ttr, tube, tags, notes: notes.clone(), state, body };
                    losses.record(&Record::Job(job));
                }
                Deletion(id) => losses.record(&Record::Deleted(JobId(id))),
                Gap => losses.gap(),
                Begin(next_id) => {
                    let header = Header::reconstructed(SegmentNumber(2), 1, Lsn(0));
                    losses.segment(&Header { next_id: JobId(next_id), ..header });
                }
            }
        }
        losses.finish(unrecorded)
    }

    #[test]
    fn ids_that_were_given_in_a_gap() {
        // Id 2 was refused: nothing is missing. Compaction wrote the second record of job 1: it shows nothing about the gap.
        assert_eq!(lost(&[Put(1), Put(3), Gap, Put(1), Put(8), Deletion(5)], &[]), [(4, 4), (6, 7)]);
    }

    #[test]
    fn jobs_with_changes_and_without_a_record() {
        assert_eq!(lost(&[Put(3), Put(10), Gap, Put(13)], &[JobId(5), JobId(12)]), [(5, 5), (11, 12)]);
    }

    #[test]
    fn a_header_shows_which_ids_were_given() {
        assert_eq!(lost(&[Put(2), Gap, Begin(7), Put(9)], &[]), [(3, 6)]);
    }

    #[test]
    fn the_first_jobs_of_a_segment() {
        // The records of older jobs are not needed any more. Jobs 9 to 12 were put together, and the first one is in the first segment.
        let steps = [Begin(7), Gap, Put(8), Put(9), Begin(13), Gap, Put(12)];
        assert_eq!(lost(&steps, &[]), [(7, 7), (10, 11)]);
    }
}
