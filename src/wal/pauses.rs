//! Pauses of tubes, and which segment each is logged in.

use std::collections::{BTreeMap, BTreeSet};

use super::record::PauseRecord;
use super::segment::SegmentNumber;
use super::segment_index::SegmentIndex;
use crate::limits::TUBE_NAME_BYTES_MAX;
use crate::time::{Span, Time};

/// All logged pauses, by the name of the tube.
#[derive(Default)]
pub struct Pauses {
    by_name: BTreeMap<Box<[u8]>, LoggedPause>,
    /// The same, in the order of their segments.
    by_segment: BTreeSet<(SegmentNumber, Box<[u8]>)>,
}

/// Memory of one pause, at most: the longest name twice, and its share of two trees.
const PAUSE_BYTES: usize = 2 * TUBE_NAME_BYTES_MAX + 4 * size_of::<LoggedPause>();

/// A pause and where its record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoggedPause {
    pub until: Time,
    pub length: Span,
    pub segment: SegmentNumber,
    /// The size of its record, in bytes.
    pub bytes: usize,
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
        let before = self.remove(tube.as_bytes());
        if length > Span::ZERO {
            index.add_live(segment, bytes);
            let tube: Box<[u8]> = tube.as_bytes().into();
            self.by_segment.insert((segment, tube.clone()));
            self.by_name.insert(tube, LoggedPause { until, length, segment, bytes });
        } else {
            index.add_garbage(bytes as u64);
        }
        if let Some(before) = before {
            index.remove_live(before.segment, before.bytes);
        }
    }

    /// Removes a pause whose record is not needed any more.
    ///
    /// # Panics
    /// If the tube has none.
    pub fn release(&mut self, tube: &[u8], index: &mut SegmentIndex) -> LoggedPause {
        let pause = self.remove(tube).expect("the tube has a pause");
        index.remove_live(pause.segment, pause.bytes);
        pause
    }

    fn remove(&mut self, tube: &[u8]) -> Option<LoggedPause> {
        let (name, before) = self.by_name.remove_entry(tube)?;
        self.by_segment.remove(&(before.segment, name));
        Some(before)
    }

    /// Returns a tube whose pause is in this segment, which must be the oldest.
    pub fn first_in(&self, segment: SegmentNumber) -> Option<Box<[u8]>> {
        let (first, tube) = self.by_segment.first()?;
        (*first == segment).then(|| tube.clone())
    }

    /// An upper bound of the memory that pauses take.
    pub fn memory_bytes(&self) -> usize {
        self.by_name.len() * PAUSE_BYTES
    }

    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &LoggedPause)> {
        self.by_name.iter().map(|(tube, pause)| (&**tube, pause))
    }
}
