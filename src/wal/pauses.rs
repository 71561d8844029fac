//! Pauses of tubes, and which segment each is logged in.

use super::placed::{Place, Placed};
use super::record::PauseRecord;
use super::segment::SegmentNumber;
use super::segment_index::SegmentIndex;
use crate::limits::TUBE_NAME_BYTES_MAX;
use crate::time::{Span, Time};

/// All logged pauses, by the name of the tube.
#[derive(Default)]
pub struct Pauses {
    placed: Placed<Box<[u8]>, LoggedPause>,
}

/// Memory of one pause, at most: the longest name twice, and its share of two trees.
const PAUSE_BYTES: usize = 2 * TUBE_NAME_BYTES_MAX + 4 * size_of::<Place<LoggedPause>>();

/// What the log has of a pause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoggedPause {
    pub until: Time,
    pub length: Span,
}

impl Pauses {
    /// Takes a record of this size, which is in this segment, and accounts for it in the index. It replaces an earlier
    /// pause of the tube; a length of zero ends the pause.
    pub fn apply(
        &mut self,
        pause: &PauseRecord<'_>,
        segment: SegmentNumber,
        bytes: usize,
        index: &mut SegmentIndex,
    ) {
        let &PauseRecord { tube, until, length } = pause;
        if length > Span::ZERO {
            let place = (segment, bytes);
            self.placed.insert(tube.as_bytes().into(), LoggedPause { until, length }, place, index);
        } else {
            index.add_garbage(bytes as u64);
            self.placed.remove(tube.as_bytes(), index);
        }
    }

    /// Removes a pause whose record is not needed any more. Returns it with the size of its record in bytes.
    ///
    /// # Panics
    /// If the tube has none.
    pub fn release(&mut self, tube: &[u8], index: &mut SegmentIndex) -> (LoggedPause, usize) {
        let Place { content, bytes, .. } = self.placed.remove(tube, index).expect("the tube has a pause");
        (content, bytes)
    }

    /// Returns a tube whose pause is in this segment, which must be the oldest.
    pub fn first_in(&self, segment: SegmentNumber) -> Option<Box<[u8]>> {
        self.placed.first_in(segment)
    }

    /// An upper bound of the memory that pauses take.
    pub fn memory_bytes(&self) -> usize {
        self.placed.len() * PAUSE_BYTES
    }

    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &LoggedPause)> {
        self.placed.iter().map(|(tube, pause)| (&**tube, pause))
    }
}
