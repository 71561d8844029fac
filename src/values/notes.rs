//! Notes of a job: why attempts at it have failed.

use crate::time::Time;

/// A note of `job-note`, without its CR LF.
pub const NOTE_BYTES_MAX: u32 = 1024;

/// Notes of one job that are kept.
pub const NOTES_MAX: usize = 3;

/// The time and the length of a note in a record.
pub const NOTE_FIELDS_BYTES: usize = 12;

/// The length of all notes in the record of a job.
pub const NOTES_LENGTH_BYTES: usize = 4;

/// Why an attempt at a job has failed, as its holder has said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Note<'a> {
    /// The time of the note.
    pub at: Time,
    /// Any bytes, at most [`NOTE_BYTES_MAX`].
    pub text: &'a [u8],
}

/// The last notes of one job, the oldest first. Few jobs have any, and for the others it is small.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Notes<'a>(Option<Box<[Note<'a>]>>);

impl<'a> Notes<'a> {
    /// No notes.
    pub const NONE: Self = Self(None);

    /// The first [`NOTES_MAX`] of these notes.
    pub fn new(notes: impl Iterator<Item = Note<'a>>) -> Self {
        // Bounded by NOTES_MAX: the notes of one job.
        let all: Box<[Note<'a>]> = notes.take(NOTES_MAX).collect();
        Self((!all.is_empty()).then_some(all))
    }

    /// Whether there is none.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Their size in a record of the job log, with the fixed fields of each.
    #[inline]
    pub fn logged_bytes(&self) -> usize {
        if self.is_empty() { 0 } else { self.iter().map(|note| NOTE_FIELDS_BYTES + note.text.len()).sum() }
    }

    /// The same with the length of all notes: what they add to the record of a job.
    pub fn room_bytes(&self) -> usize {
        if self.is_empty() { 0 } else { NOTES_LENGTH_BYTES + self.logged_bytes() }
    }

    /// The oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Note<'a>> {
        self.0.iter().flatten().copied()
    }
}
