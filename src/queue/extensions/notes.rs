//! `job-note`: why attempts at a job have failed, as its holders have said.
//!
//! A job with notes has a record in a side table, which the key of the job finds. A deletion costs other jobs one comparison while the
//! table is empty, and one probe of its index otherwise.

use crate::bodies::{Bodies, Slot};
use crate::intrusive::{NIL, Table, intrusive};
use crate::queue::store::Store;
use crate::time::Time;
use crate::values::ids::JobKey;
use crate::values::notes::{NOTES_MAX, Note, Notes};

/// The CR LF at the end of a stored note.
const CRLF_BYTES: usize = 2;

/// The notes of all jobs.
pub struct JobNotes {
    table: Table<Noted>,
    /// The notes of all jobs together.
    len: usize,
}

/// A job that has notes.
struct Noted {
    job: JobKey,
    /// The oldest first.
    notes: [Option<Stored>; NOTES_MAX],
    chain: u32,
}

struct Stored {
    at: Time,
    /// The text with its CR LF.
    text: Slot,
}

impl JobNotes {
    /// No notes. `seed` keeps clients from choosing jobs that collide.
    pub const fn new(seed: u64) -> Self {
        Self { table: Table::new(seed), len: 0 }
    }

    /// The number of notes, each of which is a text of the arena.
    pub const fn len(&self) -> usize {
        self.len
    }

    pub const fn bytes(&self) -> usize {
        self.table.bytes()
    }

    fn find(&self, job: JobKey) -> Option<u32> {
        self.table.find_word(job.0.into())
    }

    /// The notes of a job.
    #[inline]
    pub fn of<'a>(&'a self, job: JobKey, bodies: &'a Bodies) -> Notes<'a> {
        if self.table.is_empty() { Notes::NONE } else { self.of_any(job, bodies) }
    }

    #[cold]
    fn of_any<'a>(&'a self, job: JobKey, bodies: &'a Bodies) -> Notes<'a> {
        let Some(found) = self.find(job) else { return Notes::NONE };
        // Bounded by NOTES_MAX: the notes of one job.
        let stored = self.table[found].notes.iter().flatten();
        Notes::new(stored.map(|Stored { at, text }| {
            let text = bodies.bytes(text);
            Note { at: *at, text: &text[..text.len() - CRLF_BYTES] }
        }))
    }

    /// Adds a note, given with its CR LF. The oldest one gives way if there are [`NOTES_MAX`].
    pub fn add(&mut self, job: JobKey, at: Time, text: Slot, store: &mut Store) {
        let key = self.find(job).unwrap_or_else(|| {
            self.table.insert(Noted { job, notes: [const { None }; NOTES_MAX], chain: NIL })
        });
        let notes = &mut self.table[key].notes;
        self.len += 1;
        if notes[NOTES_MAX - 1].is_some() {
            // mutant note-the-last-gives-way: notes.rotate_left(1) => {}
            notes.rotate_left(1);
            self.len -= 1;
            let oldest = notes[NOTES_MAX - 1].take().expect("there is a first one");
            store.bodies.free(oldest.text);
        }
        // Bounded by NOTES_MAX: the notes of one job.
        let free = notes.iter_mut().find(|place| place.is_none());
        *free.expect("one is free") = Some(Stored { at, text });
    }

    /// Removes the notes of a job. The key of the job may then be used again.
    #[inline]
    pub fn forget(&mut self, job: JobKey, store: &mut Store) {
        if !self.table.is_empty() {
            self.forget_any(job, store);
        }
    }

    #[cold]
    fn forget_any(&mut self, job: JobKey, store: &mut Store) {
        // mutant note-of-a-deleted-job: self.find(job) => self.find(job).filter(|_| self.len > usize::MAX - 1)
        let Some(found) = self.find(job) else { return };
        // Bounded by NOTES_MAX: the notes of one job.
        for Stored { text, .. } in self.table.remove(found).notes.into_iter().flatten() {
            self.len -= 1;
            store.bodies.free(text);
        }
    }

    // Bounded by its caller: a test.
    pub fn check(&self, store: &Store) {
        self.table.check(0);
        let notes = self.table.iter().map(|(_, noted)| noted.notes.iter().flatten().count());
        assert_eq!(notes.sum::<usize>(), self.len, "notes are counted");
        for (_, Noted { job, notes, .. }) in self.table.iter() {
            assert!(store.jobs.slab.get(job.0).is_some(), "a job with notes exists");
            let filled = notes.iter().take_while(|note| note.is_some()).count();
            assert!(filled > 0 && notes[filled..].iter().all(Option::is_none), "notes have no gap");
        }
    }
}

intrusive!(Noted: in tables by |noted| noted.job.0.into());
