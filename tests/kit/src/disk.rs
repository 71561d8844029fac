//! A disk in memory that fails in every way that a real one may, below a page cache that behaves as Linux's does: what
//! was not synced is there or not, sector by sector; a page whose write has failed can still be read, is clean, and is
//! not on the disk.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};

use beanring::io::wal_files::{Segments, Storage};
use beanring::wal::scan::Source;
use beanring::wal::{Arrangement, Operation, Outcome, SegmentNumber};

use super::random::Random;

/// What a disk writes whole or not at all.
const SECTOR_BYTES: usize = 512;

/// What the kernel keeps and writes as one.
const PAGE_BYTES: usize = 4096;

#[derive(Default)]
pub struct Disk {
    files: RefCell<BTreeMap<SegmentNumber, File>>,
    /// What was begun and is not done, in order, and how many operations had ended before.
    under_way: Vec<(usize, Operation)>,
    /// How many operations have ended.
    pub ended: usize,
    /// How many files of old segments have gone.
    pub retired: Cell<usize>,
    /// The operation that fails, by how many have ended before.
    pub fails_at: Option<usize>,
    /// None ends any more when so many have.
    pub stalls_at: Option<usize>,
    /// Segments that there is space for.
    pub room: usize,
    /// A write takes new space, for which there has to be room for one more segment.
    pub copies_on_write: bool,
    /// There was no space for a new segment once.
    pub was_full: Cell<bool>,
    /// Writes that have found no space.
    pub refused_writes: usize,
}

#[derive(Clone, Default)]
struct File {
    /// As it would be read now.
    cached: Vec<u8>,
    durable: Vec<u8>,
    /// Written and not synced: whole pages, as they were then.
    pending: Vec<(usize, Vec<u8>)>,
}

/// How the server ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crash {
    /// The process is killed: the system keeps what it was given.
    Killed,
    /// Everything that was not synced is gone, or not.
    PowerLoss,
}

/// An open segment: what is read is what the page cache has.
pub struct Reading(Vec<u8>);

impl Disk {
    pub fn new(room: usize, copies_on_write: bool) -> Self {
        Self { room, copies_on_write, ..Self::default() }
    }

    pub fn begin(&mut self, operation: Operation) {
        self.under_way.push((self.ended, operation));
    }

    pub fn is_busy(&self) -> bool {
        !self.under_way.is_empty() && !self.is_stalled()
    }

    pub fn is_stalled(&self) -> bool {
        self.stalls_at == Some(self.ended)
    }

    /// Ends one of the operations under way.
    pub fn finish_one(&mut self, random: &mut Random) -> Option<Outcome> {
        if !self.is_busy() {
            return None;
        }
        // One that two others have overtaken is next, so that none takes more than five ends.
        let late = self.under_way.iter().position(|&(before, _)| self.ended >= before + 2);
        let at = late.unwrap_or_else(|| random.below(self.under_way.len()));
        self.ended += 1;
        let (_, operation) = self.under_way.remove(at);
        if self.fails_at == Some(self.ended - 1) {
            return Some(self.fail(operation, random));
        }
        Some(match operation {
            Operation::Write { segment, batch, .. } if self.copies_on_write && !self.has_room() => {
                assert!(self.files.borrow().contains_key(&segment), "it was prepared");
                self.refused_writes += 1;
                Outcome::Written(batch, Err(ErrorKind::StorageFull.into()))
            }
            Operation::Write { segment, offset, batch, sync } => {
                let mut files = self.files.borrow_mut();
                let file = files.get_mut(&segment).expect("a segment is prepared before it is written");
                assert!(offset as usize + batch.len() <= file.cached.len(), "within the space that it has");
                file.write(offset as usize, batch.bytes());
                if sync {
                    file.sync();
                }
                Outcome::Written(batch, Ok(()))
            }
            Operation::Sync(segments) => {
                let mut files = self.files.borrow_mut();
                for segment in segments {
                    files.get_mut(&segment).expect("what is synced is there").sync();
                }
                Outcome::Synced(Ok(()))
            }
            Operation::Arrange(arrangement) => {
                let arranged = self.arrange(arrangement);
                Outcome::Arranged(arrangement, arranged)
            }
        })
    }

    fn has_room(&self) -> bool {
        self.files.borrow().len() < self.room
    }

    /// Reports an error, and does a part of it or nothing.
    fn fail(&mut self, operation: Operation, random: &mut Random) -> Outcome {
        let error = || io::Error::from_raw_os_error(5);
        let mut files = self.files.borrow_mut();
        match operation {
            Operation::Write { segment, offset, batch, sync } => {
                let file = files.get_mut(&segment).expect("it was prepared");
                let written = random.below(batch.len() + 1) / SECTOR_BYTES * SECTOR_BYTES;
                file.write(offset as usize, &batch.bytes()[..written]);
                if sync {
                    file.fail_to_sync(random);
                }
                Outcome::Written(batch, Err(error()))
            }
            Operation::Sync(segments) => {
                for segment in segments {
                    files.get_mut(&segment).expect("it is there").fail_to_sync(random);
                }
                Outcome::Synced(Err(error()))
            }
            Operation::Arrange(arrangement) => {
                drop(files);
                if random.below(2) == 0 {
                    let _ = self.arrange(arrangement);
                }
                Outcome::Arranged(arrangement, Err(error()))
            }
        }
    }

    /// What is left of it when the process or the power goes.
    pub fn crash(&mut self, crash: Crash, random: &mut Random) {
        for (_, operation) in std::mem::take(&mut self.under_way) {
            match operation {
                Operation::Write { segment, offset, batch, .. } => {
                    let mut files = self.files.borrow_mut();
                    let file = files.get_mut(&segment).expect("it was prepared");
                    // A process ends between two pages that it has written.
                    let written = random.below(batch.len() + 1) / SECTOR_BYTES * SECTOR_BYTES;
                    let written = if crash == Crash::Killed { written } else { batch.len() };
                    file.write(offset as usize, &batch.bytes()[..written]);
                }
                Operation::Arrange(arrangement) if random.below(2) == 0 => _ = self.arrange(arrangement),
                _ => {}
            }
        }
        for file in self.files.borrow_mut().values_mut() {
            match crash {
                Crash::PowerLoss => file.lose_power(random),
                Crash::Killed => file.drop_pages(random),
            }
        }
        (self.fails_at, self.stalls_at) = (None, None);
    }

    pub fn bytes(&self) -> usize {
        self.files.borrow().values().map(|file| file.cached.len()).sum()
    }
}

impl Segments for Disk {
    type File = Reading;

    fn open(&self, segment: SegmentNumber) -> io::Result<Reading> {
        let files = self.files.borrow();
        files.get(&segment).map(|file| Reading(file.cached.clone())).ok_or(ErrorKind::NotFound.into())
    }
}

impl Source for Reading {
    type Error = io::Error;

    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let rest = self.0.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

impl Storage for Disk {
    fn list(&self) -> io::Result<BTreeMap<SegmentNumber, u64>> {
        Ok(self.files.borrow().iter().map(|(&number, file)| (number, file.cached.len() as u64)).collect())
    }

    fn rewrite(&self, segment: SegmentNumber, from: u64, to: u64, then: &[u8]) -> io::Result<()> {
        if self.copies_on_write && !self.has_room() {
            return Err(ErrorKind::StorageFull.into());
        }
        let mut files = self.files.borrow_mut();
        let file = files.get_mut(&segment).expect("it is there");
        let again = file.cached[from as usize..to as usize].to_vec();
        file.write(from as usize, &again);
        file.write(to as usize, then);
        file.sync();
        Ok(())
    }

    fn resize(&self, _: SegmentNumber, _: u64) -> io::Result<()> {
        unreachable!("all have one size")
    }

    fn rename(&self, from: SegmentNumber, to: SegmentNumber) -> io::Result<()> {
        let mut files = self.files.borrow_mut();
        let file = files.remove(&from).expect("it is there");
        assert!(files.insert(to, file).is_none(), "its new name is new");
        Ok(())
    }

    fn remove(&self, segment: SegmentNumber) -> io::Result<()> {
        assert!(self.files.borrow_mut().remove(&segment).is_some(), "it is there");
        Ok(())
    }

    fn create_unwritten(&self, segment: SegmentNumber, bytes: u64) -> io::Result<()> {
        self.arrange(Arrangement::Create { segment, bytes })
    }

    fn arrange(&self, arrangement: Arrangement) -> io::Result<()> {
        self.retired.update(|count| count + usize::from(!matches!(arrangement, Arrangement::Create { .. })));
        match arrangement {
            Arrangement::Create { segment, bytes } => {
                if !self.has_room() {
                    self.was_full.set(true);
                    return Err(ErrorKind::StorageFull.into());
                }
                let zeros = vec![0; bytes as usize];
                let file = File { cached: zeros.clone(), durable: zeros, pending: Vec::new() };
                let before = self.files.borrow_mut().insert(segment, file);
                assert!(before.is_none(), "a segment is made once");
                Ok(())
            }
            Arrangement::Recycle { from, to } => self.rename(from, to),
            Arrangement::Remove(segment) => self.remove(segment),
        }
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

impl File {
    /// Dirties whole pages, with what a write that failed has left in them.
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.cached[offset..offset + bytes.len()].copy_from_slice(bytes);
        let begin = offset / PAGE_BYTES * PAGE_BYTES;
        let end = (offset + bytes.len()).next_multiple_of(PAGE_BYTES).min(self.cached.len());
        self.pending.push((begin, self.cached[begin..end].to_vec()));
    }

    /// Writes what is dirty, and nothing else.
    fn sync(&mut self) {
        for (offset, bytes) in self.pending.drain(..) {
            self.durable[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
    }

    /// Some of it is on the disk. All of it can be read, and is clean: the next sync has nothing to do.
    fn fail_to_sync(&mut self, random: &mut Random) {
        let cached = self.cached.clone();
        self.lose_power(random);
        self.cached = cached;
    }

    /// The kernel drops some clean pages, which are read from the disk next time.
    fn drop_pages(&mut self, random: &mut Random) {
        if random.below(3) > 0 {
            return;
        }
        for begin in (0..self.cached.len()).step_by(PAGE_BYTES) {
            let end = (begin + PAGE_BYTES).min(self.cached.len());
            let is_dirty = self.pending.iter().any(|(at, bytes)| *at < end && begin < at + bytes.len());
            if !is_dirty && random.below(4) == 0 {
                self.cached[begin..end].copy_from_slice(&self.durable[begin..end]);
            }
        }
    }

    fn lose_power(&mut self, random: &mut Random) {
        let share = random.below(5);
        for (offset, bytes) in std::mem::take(&mut self.pending) {
            let end = offset + bytes.len();
            let mut at = offset;
            while at < end {
                let next = (at / SECTOR_BYTES + 1) * SECTOR_BYTES;
                let next = next.min(end);
                if random.below(4) < share {
                    self.durable[at..next].copy_from_slice(&bytes[at - offset..next - offset]);
                }
                at = next;
            }
        }
        self.cached.copy_from_slice(&self.durable);
    }
}
