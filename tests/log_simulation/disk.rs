//! A disk in memory that fails in every way that a real one may: what was not synced is there or not, sector by
//! sector.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use beanring::log::{Arrangement, Operation, Outcome, SegmentNumber};

use super::support::random::Random;

/// What a disk writes whole or not at all.
const SECTOR_BYTES: usize = 512;

#[derive(Default)]
pub struct Disk {
    files: BTreeMap<SegmentNumber, File>,
    /// What was begun and is not done, in order, and how many operations had ended before.
    under_way: Vec<(usize, Operation)>,
    /// How many operations have ended.
    pub ended: usize,
    /// How many files of old segments have gone.
    pub retired: usize,
    /// The operation that fails, by how many have ended before.
    pub fails_at: Option<usize>,
    /// None ends any more when so many have.
    pub stalls_at: Option<usize>,
    /// Segments that there is space for.
    pub room: usize,
    /// There was no space once.
    pub was_full: bool,
}

#[derive(Clone, Default)]
struct File {
    /// As it would be read now.
    cached: Vec<u8>,
    durable: Vec<u8>,
    /// Written and not synced.
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

impl Disk {
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
            Operation::Write { segment, offset, batch, sync } => {
                let file = self.files.get_mut(&segment).expect("a segment is prepared before it is written");
                assert!(offset as usize + batch.len() <= file.cached.len(), "within the space that it has");
                file.write(offset as usize, batch.bytes());
                if sync {
                    file.sync();
                }
                Outcome::Written(batch, Ok(()))
            }
            Operation::Sync(segments) => {
                for segment in segments {
                    self.files.get_mut(&segment).expect("what is synced is there").sync();
                }
                Outcome::Synced(Ok(()))
            }
            Operation::Arrange(arrangement) => {
                let arranged = self.arrange(arrangement);
                Outcome::Arranged(arrangement, arranged)
            }
        })
    }

    /// Reports an error, and does a part of it or nothing.
    fn fail(&mut self, operation: Operation, random: &mut Random) -> Outcome {
        let error = || io::Error::from_raw_os_error(5);
        match operation {
            Operation::Write { segment, offset, batch, .. } => {
                let file = self.files.get_mut(&segment).expect("it was prepared");
                let written = random.below(batch.len() + 1) / SECTOR_BYTES * SECTOR_BYTES;
                file.write(offset as usize, &batch.bytes()[..written]);
                Outcome::Written(batch, Err(error()))
            }
            Operation::Sync(segments) => {
                // What could not be written is forgotten, and the next sync says nothing of it.
                for segment in segments {
                    self.files.get_mut(&segment).expect("it is there").lose_power(random);
                }
                Outcome::Synced(Err(error()))
            }
            Operation::Arrange(arrangement) => {
                if random.below(2) == 0 {
                    let _ = self.arrange(arrangement);
                }
                Outcome::Arranged(arrangement, Err(error()))
            }
        }
    }

    fn arrange(&mut self, arrangement: Arrangement) -> io::Result<()> {
        self.retired += usize::from(!matches!(arrangement, Arrangement::Create { .. }));
        match arrangement {
            Arrangement::Create { segment, bytes } => {
                if self.files.len() >= self.room {
                    self.was_full = true;
                    return Err(ErrorKind::StorageFull.into());
                }
                let zeros = vec![0; bytes as usize];
                let file = File { cached: zeros.clone(), durable: zeros, pending: Vec::new() };
                assert!(self.files.insert(segment, file).is_none(), "a segment is made once");
            }
            Arrangement::Recycle { from, to } => {
                let file = self.files.remove(&from).expect("it is there");
                assert!(self.files.insert(to, file).is_none(), "its new name is new");
            }
            Arrangement::Remove(segment) => {
                assert!(self.files.remove(&segment).is_some(), "it is there");
            }
        }
        Ok(())
    }

    /// What is left of it, in a directory.
    pub fn crash(&mut self, crash: Crash, directory: &Path, random: &mut Random) {
        for (_, operation) in std::mem::take(&mut self.under_way) {
            match operation {
                Operation::Write { segment, offset, batch, .. } => {
                    let file = self.files.get_mut(&segment).expect("it was prepared");
                    // A process ends between two pages that it has written.
                    let written = random.below(batch.len() + 1) / SECTOR_BYTES * SECTOR_BYTES;
                    let written = if crash == Crash::Killed { written } else { batch.len() };
                    file.write(offset as usize, &batch.bytes()[..written]);
                }
                Operation::Arrange(arrangement) if random.below(2) == 0 => _ = self.arrange(arrangement),
                _ => {}
            }
        }
        for (number, file) in &mut self.files {
            if crash == Crash::PowerLoss {
                file.lose_power(random);
            }
            fs::write(directory.join(number.to_string()), &file.cached).expect("there is space");
        }
    }

    /// The disk as recovery has left it.
    pub fn read(directory: &Path, room: usize) -> Self {
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(directory).expect("it is there") {
            let entry = entry.expect("an entry");
            if let Some(number) = entry.file_name().to_str().and_then(SegmentNumber::from_file_name) {
                let cached = fs::read(entry.path()).expect("it can be read");
                files.insert(number, File { durable: cached.clone(), cached, pending: Vec::new() });
            }
        }
        Self { files, room, ..Self::default() }
    }

    pub fn bytes(&self) -> usize {
        self.files.values().map(|file| file.cached.len()).sum()
    }
}

impl File {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.cached[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.pending.push((offset, bytes.to_vec()));
    }

    fn sync(&mut self) {
        self.durable.copy_from_slice(&self.cached);
        self.pending.clear();
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
