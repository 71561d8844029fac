//! Pauses of tubes, and which segment each is logged in.

use std::collections::BTreeSet;

use super::placed::{Placed, PlacedRecord};
use super::record::PauseRecord;
use super::segment::SegmentNumber;
use super::segment_index::SegmentIndex;
use crate::queue::Pause;
use crate::time::{Span, Time};
use crate::values::limits::TUBE_NAME_BYTES_MAX;
use crate::values::tube_name::TubeName;

/// All logged pauses, by the name of the tube.
#[derive(Default)]
pub struct Pauses {
    placed: Placed<Box<[u8]>, Pause>,
    /// The pauses by their ends. A tube that is removed after its pause has no change that would end it here.
    by_end: BTreeSet<(Time, Box<[u8]>)>,
}

/// Memory of one pause, at most: the longest name three times, and its share of three trees.
const PAUSE_BYTES: usize = 3 * TUBE_NAME_BYTES_MAX + 6 * size_of::<PlacedRecord<Pause>>();

/// Pauses that are over and that an event-loop iteration forgets, and those that a new pause does. Each is a few operations on
/// trees: some microseconds.
pub const FORGOTTEN_PER_ITERATION: usize = 32;
pub const FORGOTTEN_PER_PAUSE: usize = 2;

impl Pauses {
    /// Takes a record of this size, which is in this segment, and accounts for it in the index. It replaces an earlier
    /// pause of the tube; a length of zero ends the pause.
    pub fn apply(
        &mut self,
        pause: &PauseRecord<'_>,
        place: (SegmentNumber, usize),
        index: &mut SegmentIndex,
    ) {
        let &PauseRecord { tube, until, length } = pause;
        self.remove(tube.as_bytes(), index);
        if length > Span::ZERO {
            self.by_end.insert((until, tube.as_bytes().into()));
            self.placed.insert(tube.as_bytes().into(), Pause { until, length }, place, index);
        } else {
            index.add_garbage(place.1 as u64);
        }
    }

    /// Forgets up to `most` pauses that are over.
    pub fn forget_over(&mut self, now: Time, most: usize, index: &mut SegmentIndex) {
        for _ in 0..most {
            let over = self.by_end.first().filter(|(until, _)| *until <= now);
            let Some(tube) = over.map(|(_, tube)| tube.clone()) else { return };
            self.remove(&tube, index);
        }
    }

    /// Removes a pause whose record is not needed any more, if the tube has one.
    pub fn remove(&mut self, tube: &[u8], index: &mut SegmentIndex) -> Option<PlacedRecord<Pause>> {
        let place = self.placed.remove(tube, index)?;
        let is_there = self.by_end.remove(&(place.content.until, tube.into()));
        assert!(is_there, "a pause is found by its end");
        Some(place)
    }

    /// Returns a tube whose pause is in this segment, which must be the oldest.
    pub fn first_in(&self, segment: SegmentNumber) -> Option<Box<[u8]>> {
        self.placed.first_in(segment)
    }

    /// An upper bound of the memory that pauses take.
    pub fn memory_bytes(&self) -> usize {
        self.placed.len() * PAUSE_BYTES
    }

    /// All pauses, with those that are over.
    pub fn records(&self) -> impl Iterator<Item = PauseRecord<'_>> {
        self.placed.iter().map(|(tube, &Pause { until, length })| {
            let tube = TubeName::new(tube).expect("it is the name of a tube");
            PauseRecord { tube, until, length }
        })
    }
}
