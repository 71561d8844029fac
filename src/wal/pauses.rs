//! Pauses of tubes, and which segment says so.

use std::collections::{BTreeMap, BTreeSet};

use super::segment::SegmentNumber;
use crate::limits::TUBE_NAME_BYTES_MAX;
use crate::time::{Span, Time};

/// All pauses that the log keeps, by the name of the tube.
#[derive(Default)]
pub struct Pauses {
    by_name: BTreeMap<Box<[u8]>, KeptPause>,
    /// The same, in the order of their segments.
    by_segment: BTreeSet<(SegmentNumber, Box<[u8]>)>,
}

/// What a pause takes: a name of the longest twice, and its share of two trees.
const PAUSE_BYTES: usize = 2 * TUBE_NAME_BYTES_MAX + 4 * size_of::<KeptPause>();

/// A pause where it was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct KeptPause {
    pub until: Time,
    pub length: Span,
    pub segment: SegmentNumber,
    /// What its record takes.
    pub bytes: usize,
}

impl Pauses {
    /// The tube is paused like this from now on. What was known of it before.
    pub fn insert(&mut self, tube: &[u8], pause: KeptPause) -> Option<KeptPause> {
        let before = self.remove(tube);
        self.by_name.insert(tube.into(), pause);
        self.by_segment.insert((pause.segment, tube.into()));
        before
    }

    /// The tube is not paused any more. What was known of it before.
    pub fn remove(&mut self, tube: &[u8]) -> Option<KeptPause> {
        let (name, before) = self.by_name.remove_entry(tube)?;
        self.by_segment.remove(&(before.segment, name));
        Some(before)
    }

    /// A tube whose pause is in this segment, of which there is none before.
    pub fn first_in(&self, segment: SegmentNumber) -> Option<Box<[u8]>> {
        let (first, tube) = self.by_segment.first()?;
        (*first == segment).then(|| tube.clone())
    }

    /// The memory that they take, about.
    pub fn memory_bytes(&self) -> usize {
        self.by_name.len() * PAUSE_BYTES
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &KeptPause)> {
        self.by_name.iter().map(|(tube, pause)| (&**tube, pause))
    }
}
