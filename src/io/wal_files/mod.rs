//! The files of the log: writes that wait for nothing are done at once, everything else by threads that own no
//! state, so that the loop never waits for a disk. A driver with a ring keeps some of that from the thread.

pub(super) mod directory;
pub(super) mod fresh;
mod lock;
pub mod offline;
mod recovery;
pub(super) mod storage;
mod worker;

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use nix::sys::eventfd::{EfdFlags, EventFd};

pub use self::directory::{Directory, DirectoryError};
pub use self::recovery::{RecoveryError, recover};
pub use self::storage::{Segments, Storage};
use self::worker::{Task, Worker};
use super::descriptors::Reserve;
use crate::limits::LOG_UNSYNCED_FILES_MAX;
use crate::server::{Event, Service};
use crate::time::Time;
use crate::wal::{Arrangement, Operation, Outcome, SegmentNumber};

/// The disk as the loop sees it.
#[derive(Debug)]
pub struct Disk {
    directory: Arc<Directory>,
    /// Open segments, and whether through the page cache.
    files: HashMap<(SegmentNumber, Access), Arc<File>>,
    /// Segments written through the page cache since the last sync, the oldest first. Their files stay open: the
    /// descriptor that wrote is sure to be told of a write that failed later, and one opened after that is not.
    unsynced: VecDeque<SegmentNumber>,
    /// What somebody may wait for does not wait for new files.
    writer: Worker,
    arranger: Worker,
    done: Receiver<Outcome>,
    bell: Arc<EventFd>,
    reserve: Arc<Reserve>,
}

/// How a segment is opened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// Through the page cache.
    Cached,
    /// Past it, and each write is durable when it is done.
    Durable,
}

/// A segment to sync, and the file that wrote it if that is still open.
pub type ToSync = (SegmentNumber, Option<Arc<File>>);

impl Disk {
    /// For the log in this directory. Starts the threads.
    pub fn new(directory: Directory) -> io::Result<Self> {
        let directory = Arc::new(directory);
        let bell =
            Arc::new(EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let (outcomes, done) = mpsc::channel();
        let reserve = Arc::new(Reserve::take());
        let worker = |name| {
            let hands = (outcomes.clone(), bell.clone());
            Worker::start(name, directory.clone(), hands, reserve.clone())
        };
        let (writer, arranger) = (worker("log")?, worker("log files")?);
        Ok(Self {
            directory,
            files: HashMap::new(),
            unsynced: VecDeque::new(),
            writer,
            arranger,
            done,
            bell,
            reserve,
        })
    }

    /// Begins what the server has for the disk. What is done at once is told at once.
    pub fn serve(&mut self, server: &mut impl Service, now: Time) {
        while let Some(operation) = server.disk(now) {
            if let Some(outcome) = self.begin(operation) {
                server.handle(now, Event::Disk(outcome));
            }
        }
    }

    /// Begins an operation. Returns its outcome if it is over already.
    pub fn begin(&mut self, operation: Operation) -> Option<Outcome> {
        match operation {
            Operation::Write { segment, offset, batch, sync: false } => {
                self.note_unsynced(segment);
                let written = self
                    .file(segment, Access::Cached)
                    .and_then(|file| file.write_all_at(batch.bytes(), offset));
                Some(Outcome::Written(batch, written))
            }
            Operation::Write { segment, offset, batch, sync: true } => {
                match self.file(segment, Access::Durable) {
                    Ok(file) => self.writer.hand_over(Task::Write { file, offset, batch }),
                    Err(error) => Some(Outcome::Written(batch, Err(error))),
                }
            }
            Operation::Sync(segments) => {
                let files = self.to_sync(segments);
                self.writer.hand_over(Task::Sync(files))
            }
            Operation::Arrange(arrangement) => {
                if let Arrangement::Recycle { from, .. } | Arrangement::Remove(from) = arrangement {
                    self.files.retain(|&(segment, _), _| segment != from);
                }
                self.arranger.hand_over(Task::Arrange(arrangement))
            }
        }
    }

    /// Ends the threads, and waits for that. What they have begun is done, or undone if it takes long. Returns the lock
    /// of the directory.
    pub fn end(self) -> File {
        self.directory.give_up();
        self.writer.end();
        self.arranger.end();
        Arc::into_inner(self.directory).expect("the threads are gone").into_lock()
    }

    /// Descriptors for its files, which connections leave it.
    pub fn reserve(&self) -> Arc<Reserve> {
        self.reserve.clone()
    }

    /// Readable when a thread has finished something.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// What the threads have finished, if anything.
    pub fn finished(&mut self) -> Option<Outcome> {
        self.done.try_recv().ok()
    }

    /// Makes the bell silent, before [`finished`](Self::finished) is asked.
    pub fn answer_bell(&mut self) {
        // Nothing to read means that it does not ring.
        let _ = self.bell.read();
    }

    fn note_unsynced(&mut self, segment: SegmentNumber) {
        if self.unsynced.back() != Some(&segment) {
            self.unsynced.push_back(segment);
        }
        if self.unsynced.len() > LOG_UNSYNCED_FILES_MAX {
            self.unsynced.pop_front();
        }
    }

    /// What a sync of these segments takes. From now on only what is written later has to be kept open.
    pub fn to_sync(&mut self, segments: Vec<SegmentNumber>) -> Vec<ToSync> {
        self.unsynced.clear();
        let file = |segment| self.files.get(&(segment, Access::Cached)).cloned();
        segments.into_iter().map(|segment| (segment, file(segment))).collect()
    }

    /// An open segment.
    pub fn file(&mut self, segment: SegmentNumber, access: Access) -> io::Result<Arc<File>> {
        if let Some(file) = self.files.get(&(segment, access)) {
            return Ok(file.clone());
        }
        // Older segments are not written to any more.
        let unsynced = &self.unsynced;
        self.files.retain(|&(number, _), _| number.0 + 2 > segment.0 || unsynced.contains(&number));
        let file = Arc::new(self.reserve.open(|| self.directory.open_segment(segment, access))?);
        self.files.insert((segment, access), file.clone());
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn its_threads_end_with_it_and_leave_nothing_half_made() {
        let path = std::env::temp_dir().join(format!("beanring-disk-{}", std::process::id()));
        fs::create_dir(&path).expect("there is room");
        let directory = Directory::open(&path, true).expect("it is empty");
        let mut disk = Disk::new(directory).expect("there are threads");
        // Written with zeros, it takes a while.
        let (segment, bytes) = (SegmentNumber(1), crate::limits::LOG_PREWRITTEN_BYTES_MAX);
        assert!(disk.begin(Operation::Arrange(Arrangement::Create { segment, bytes })).is_none());
        let file = disk.directory.file(&segment.to_string());
        let done = std::mem::replace(&mut disk.done, mpsc::channel().1);
        // Nothing else ends the wait if it cannot be made.
        let mut outcome = None;
        while outcome.is_none() && !file.exists() {
            outcome = done.try_recv().ok();
        }
        let bell = disk.bell.clone();
        let lock = disk.end();
        assert_eq!(Arc::strong_count(&bell), 1, "no thread has it any more");
        let outcome = outcome.or_else(|| done.try_recv().ok());
        let Some(Outcome::Arranged(_, arranged)) = outcome else { panic!("it was begun: {outcome:?}") };
        assert_eq!(file.exists(), arranged.is_ok(), "{arranged:?}");
        // Until somebody else has it.
        assert!(matches!(Directory::open(&path, false), Err(DirectoryError::Locked(_))));
        let taken = Directory::take_over(&path, false, Some(lock)).expect("it is the lock of this directory");
        assert!(matches!(Directory::open(&path, false), Err(DirectoryError::Locked(_))));
        drop(taken);
        Directory::open(&path, false).expect("nobody has it");
        fs::remove_dir_all(&path).expect("it is ours");
    }
}
