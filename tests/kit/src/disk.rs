//! A simulated disk that fails in every way that a real one may, below a page cache that behaves as that of Linux.
//! After a power failure each sector that was not synced is there or not. A page whose write has failed can still be read,
//! is clean, and is not on the disk. The same files may stand for a store across a network, which loses no part of a batch.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};

use beanring::io::wal_files::{EndMarks, Segments, Storage};
use beanring::wal::scan::ScanSource;
use beanring::wal::{Arrangement, Destination, DiskOperation, DiskOutcome, EndMark, SegmentNumber};
use nix::errno::Errno;

use super::random::Random;

/// The unit that the disk writes whole or not at all.
const SECTOR_BYTES: usize = 512;

/// The unit that the kernel caches and writes back.
const PAGE_BYTES: usize = 4096;

#[derive(Default)]
pub struct Disk {
    files: RefCell<BTreeMap<SegmentNumber, File>>,
    /// The mark of the log's end. Two copies are written one after the other, so one is whole.
    mark: Cell<Option<EndMark>>,
    /// Operations in flight, in order, each with the number of operations that had ended when it began.
    under_way: Vec<(usize, DiskOperation)>,
    /// The number of operations that have ended.
    pub ended: usize,
    /// The number of old segments that were recycled or removed.
    pub retired: Cell<usize>,
    /// The operation that fails: the number of operations that end before it.
    pub fails_at: Option<usize>,
    /// The number of operations after which none ends.
    pub stalls_at: Option<usize>,
    /// The number of segments that there is space for.
    pub room: usize,
    /// Whether a write takes new space: it needs space for one more segment.
    pub copies_on_write: bool,
    /// Whether a new segment or a write has ever found no space.
    pub was_full: Cell<bool>,
    /// The number of writes that have found no space.
    pub refused_writes: usize,
    /// The largest number of writes in flight so far.
    pub writes_at_once: usize,
    /// Whether it is across a network: several writes are in flight, and end in their order. A write arrives as a whole or
    /// not at all, and none without those before it.
    is_network: bool,
    /// Writes in flight that get no space because one before them got none.
    to_refuse: usize,
    /// Whether a write was lost, and with it all after it.
    is_cut_off: bool,
}

#[derive(Clone, Default)]
struct File {
    /// The content that a read returns.
    cached: Vec<u8>,
    durable: Vec<u8>,
    /// Pages that were written and not synced, with their content at the time of the write.
    pending: Vec<(usize, Vec<u8>)>,
}

/// How the server ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crash {
    /// The process is killed: written pages stay in the page cache.
    Killed,
    /// The power fails: each sector that was not synced is lost or not.
    PowerLoss,
}

/// An open segment, read from the page cache.
pub struct Reading(Vec<u8>);

impl Disk {
    pub fn new(room: usize, copies_on_write: bool) -> Self {
        Self { room, copies_on_write, ..Self::default() }
    }

    /// A store across a network.
    pub fn network(room: usize, copies_on_write: bool) -> Self {
        Self { is_network: true, ..Self::new(room, copies_on_write) }
    }

    pub const fn destination(&self) -> Destination {
        if self.is_network {
            Destination::Network { writes_in_flight_max: 4 }
        } else {
            Destination::Directory
        }
    }

    pub fn begin(&mut self, operation: DiskOperation) {
        self.under_way.push((self.ended, operation));
        self.writes_at_once = self.writes_at_once.max(self.writes());
    }

    pub fn is_busy(&self) -> bool {
        !self.under_way.is_empty() && !self.is_stalled()
    }

    pub fn is_stalled(&self) -> bool {
        self.stalls_at == Some(self.ended)
    }

    /// Ends one of the operations in flight.
    pub fn finish_one(&mut self, random: &mut Random) -> Option<DiskOutcome> {
        if !self.is_busy() {
            return None;
        }
        // An operation that two others have overtaken ends next, so that each ends among the next five.
        let late = self.under_way.iter().position(|&(before, _)| self.ended >= before + 2);
        let at = late.unwrap_or_else(|| random.below(self.under_way.len()));
        let first_write = self.under_way.iter().position(is_write);
        let at = first_write.filter(|_| is_write(&self.under_way[at])).unwrap_or(at);
        self.ended += 1;
        let (_, operation) = self.under_way.remove(at);
        if self.fails_at == Some(self.ended - 1) {
            return Some(self.fail(operation, random));
        }
        Some(match operation {
            DiskOperation::Write { batch, .. } if self.is_cut_off => {
                DiskOutcome::Written(batch, Err(Errno::EIO.into()))
            }
            DiskOperation::Write { segment, batch, .. } if self.refuses_write() => {
                assert!(self.files.borrow().contains_key(&segment), "the segment is prepared");
                self.refused_writes += 1;
                self.was_full.set(true);
                DiskOutcome::Written(batch, Err(ErrorKind::StorageFull.into()))
            }
            DiskOperation::Write { segment, offset, batch, sync, .. } => {
                let mut files = self.files.borrow_mut();
                let file = files.get_mut(&segment).expect("a segment is prepared before it is written");
                assert!(offset as usize + batch.len() <= file.cached.len(), "a batch fits into its segment");
                file.write(offset as usize, batch.bytes());
                if sync {
                    file.sync();
                }
                DiskOutcome::Written(batch, Ok(()))
            }
            DiskOperation::Sync(segments) => {
                let mut files = self.files.borrow_mut();
                for segment in segments {
                    files.get_mut(&segment).expect("a synced segment exists").sync();
                }
                DiskOutcome::Synced(Ok(()))
            }
            DiskOperation::Arrange(arrangement @ Arrangement::Recycle { .. })
                if self.copies_on_write && !self.has_room() =>
            {
                // As btrfs does, if data and metadata share the space.
                self.was_full.set(true);
                DiskOutcome::Arranged(arrangement, Err(ErrorKind::StorageFull.into()))
            }
            DiskOperation::Arrange(arrangement) => {
                let arranged = self.arrange(arrangement);
                DiskOutcome::Arranged(arrangement, arranged)
            }
        })
    }

    fn has_room(&self) -> bool {
        self.files.borrow().len() < self.room
    }

    /// Whether the write that ends now finds no space.
    fn refuses_write(&mut self) -> bool {
        if let Some(rest) = self.to_refuse.checked_sub(1) {
            self.to_refuse = rest;
            return true;
        }
        let refuses = self.copies_on_write && !self.has_room();
        if refuses {
            self.to_refuse = self.writes();
        }
        refuses
    }

    /// The number of writes in flight.
    fn writes(&self) -> usize {
        self.under_way.iter().filter(|&operation| is_write(operation)).count()
    }

    /// Fails an operation, which has happened in part or not at all.
    fn fail(&mut self, operation: DiskOperation, random: &mut Random) -> DiskOutcome {
        let error = || io::Error::from(Errno::EIO);
        let mut files = self.files.borrow_mut();
        match operation {
            DiskOperation::Write { segment, offset, batch, sync, .. } => {
                let file = files.get_mut(&segment).expect("the segment is prepared");
                let written = random.below(batch.len() + 1) / SECTOR_BYTES * SECTOR_BYTES;
                if self.is_network {
                    self.is_cut_off = written.is_multiple_of(2 * SECTOR_BYTES);
                    let written = if self.is_cut_off { 0 } else { batch.len() };
                    file.write(offset as usize, &batch.bytes()[..written]);
                    file.sync();
                    return DiskOutcome::Written(batch, Err(error()));
                }
                file.write(offset as usize, &batch.bytes()[..written]);
                if sync {
                    file.fail_to_sync(random);
                }
                DiskOutcome::Written(batch, Err(error()))
            }
            DiskOperation::Sync(segments) => {
                for segment in segments {
                    files.get_mut(&segment).expect("it is there").fail_to_sync(random);
                }
                // A thin volume reports it here, although the kernel accepted the write.
                let errno = if random.below(2) == 0 { Errno::EIO } else { Errno::ENOSPC };
                DiskOutcome::Synced(Err(errno.into()))
            }
            DiskOperation::Arrange(arrangement) => {
                drop(files);
                if random.below(2) == 0 {
                    let _ = self.arrange(arrangement);
                }
                DiskOutcome::Arranged(arrangement, Err(error()))
            }
        }
    }

    /// Applies a crash of the process or of the power.
    pub fn crash(&mut self, crash: Crash, random: &mut Random) {
        for (_, operation) in std::mem::take(&mut self.under_way) {
            match operation {
                DiskOperation::Write { segment, offset, batch, .. } if self.is_network => {
                    self.is_cut_off |= random.below(3) == 0;
                    if !self.is_cut_off {
                        let mut files = self.files.borrow_mut();
                        let file = files.get_mut(&segment).expect("the segment is prepared");
                        file.write(offset as usize, batch.bytes());
                        file.sync();
                    }
                }
                DiskOperation::Write { segment, offset, batch, .. } => {
                    let mut files = self.files.borrow_mut();
                    let file = files.get_mut(&segment).expect("the segment is prepared");
                    // A killed process may have written a part of the pages.
                    let written = random.below(batch.len() + 1) / SECTOR_BYTES * SECTOR_BYTES;
                    let written = if crash == Crash::Killed { written } else { batch.len() };
                    file.write(offset as usize, &batch.bytes()[..written]);
                }
                DiskOperation::Arrange(arrangement) if random.below(2) == 0 => _ = self.arrange(arrangement),
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
        (self.to_refuse, self.is_cut_off) = (0, false);
    }

    /// Replaces the files by copies that lack zeros at their ends, behind the block of the header.
    pub fn lose_zeros(&mut self, random: &mut Random) {
        for file in self.files.borrow_mut().values_mut() {
            let used = file.cached.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
            let least = used.max(PAGE_BYTES);
            file.pending.clear();
            file.durable = file.cached.clone();
            file.resize(least + random.below(file.cached.len() - least + 1));
        }
    }

    pub fn bytes(&self) -> usize {
        self.files.borrow().values().map(|file| file.cached.len()).sum()
    }
}

fn is_write((_, operation): &(usize, DiskOperation)) -> bool {
    matches!(operation, DiskOperation::Write { .. })
}

impl Segments for Disk {
    type File = Reading;

    fn open(&self, segment: SegmentNumber) -> io::Result<Reading> {
        let files = self.files.borrow();
        files.get(&segment).map(|file| Reading(file.cached.clone())).ok_or(ErrorKind::NotFound.into())
    }

    fn end_marks(&self) -> io::Result<EndMarks> {
        Ok(EndMarks {
            valid: self.mark.get().map_or(Vec::new(), |mark| vec![("first", mark), ("second", mark)]),
            damaged: Vec::new(),
        })
    }
}

impl ScanSource for Reading {
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
        let end = (to as usize + then.len()).next_multiple_of(PAGE_BYTES);
        file.resize(end.max(file.cached.len()));
        let again = file.cached[from as usize..to as usize].to_vec();
        file.write(from as usize, &again);
        file.write(to as usize, then);
        file.sync();
        Ok(())
    }

    fn resize(&self, segment: SegmentNumber, bytes: u64) -> io::Result<()> {
        self.files.borrow_mut().get_mut(&segment).expect("it is there").resize(bytes as usize);
        Ok(())
    }

    fn rename(&self, from: SegmentNumber, to: SegmentNumber) -> io::Result<()> {
        if self.copies_on_write && !self.has_room() && from != to {
            return Err(ErrorKind::StorageFull.into());
        }
        let mut files = self.files.borrow_mut();
        let file = files.remove(&from).expect("it is there");
        assert!(files.insert(to, file).is_none(), "the new name is free");
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
        let retires = matches!(arrangement, Arrangement::Recycle { .. } | Arrangement::Remove(_));
        self.retired.update(|count| count + usize::from(retires));
        match arrangement {
            Arrangement::Create { segment, bytes } => {
                if !self.has_room() {
                    self.was_full.set(true);
                    return Err(ErrorKind::StorageFull.into());
                }
                let zeros = vec![0; bytes as usize];
                let file = File { cached: zeros.clone(), durable: zeros, pending: Vec::new() };
                let before = self.files.borrow_mut().insert(segment, file);
                assert!(before.is_none(), "a segment is created once");
                Ok(())
            }
            Arrangement::Recycle { from, to } => self.rename(from, to),
            Arrangement::Remove(segment) => self.remove(segment),
            Arrangement::MarkEnd(mark) => {
                self.mark.set(Some(mark));
                Ok(())
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

impl File {
    fn resize(&mut self, bytes: usize) {
        self.cached.resize(bytes, 0);
        self.durable.resize(bytes, 0);
    }

    /// Dirties whole pages, which may have content from a failed write.
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.cached[offset..offset + bytes.len()].copy_from_slice(bytes);
        let begin = offset / PAGE_BYTES * PAGE_BYTES;
        let end = (offset + bytes.len()).next_multiple_of(PAGE_BYTES).min(self.cached.len());
        self.pending.push((begin, self.cached[begin..end].to_vec()));
    }

    /// Writes back dirty pages.
    fn sync(&mut self) {
        for (offset, bytes) in self.pending.drain(..) {
            self.durable[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
    }

    /// Writes back some dirty pages and marks all as clean: they can be read, and the next sync does not write them.
    fn fail_to_sync(&mut self, random: &mut Random) {
        let cached = self.cached.clone();
        self.lose_power(random);
        self.cached = cached;
    }

    /// Evicts some clean pages, which the next read takes from the disk.
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
