//! The job log in files: carries out the operations of the WAL. Cached writes are done at once. Everything that waits for
//! the disk goes to two threads that own no state, so that the event loop never waits for it; a driver with a ring does
//! some of it on the ring instead.

pub(super) mod directory;
mod end_marks;
pub(super) mod fresh;
mod lock;
pub mod offline;
pub mod plain_file;
mod recovery;
pub(super) mod storage;
#[cfg(any(feature = "tokio-uring", feature = "uring"))]
pub(super) mod ways;
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
pub use self::end_marks::{EndMarks, MarkFault};
pub use self::recovery::{RecoveryError, Unrecorded, preflight, recover};
pub use self::storage::{Segments, Storage};
#[cfg(any(feature = "tokio-uring", feature = "uring"))]
use self::ways::{Way, Ways};
use self::worker::{Task, Worker};
use super::descriptors::SpareDescriptors;
#[cfg(any(feature = "tokio-uring", feature = "uring"))]
use crate::time::Time;
use crate::wal::{Arrangement, DiskOperation, DiskOutcome, SegmentNumber};

/// Segments that stay open until the next sync under `-F`; older ones are closed and opened again for it.
const UNSYNCED_FILES_MAX: usize = 3;

/// The disk as the event loop sees it: an operation in, an outcome out, at once or later.
#[derive(Debug)]
pub struct Disk {
    directory: Arc<Directory>,
    /// Open segments.
    files: HashMap<(SegmentNumber, Access), Arc<File>>,
    /// Segments written through the page cache since the last sync, the oldest first. Their files stay open: the kernel
    /// reports a failed write-back to a descriptor that was open before it, and maybe not to one opened later.
    unsynced: VecDeque<SegmentNumber>,
    /// Writes and syncs. They have a thread of their own, since replies wait for them.
    writer: Worker,
    /// Creates, recycles and removes files.
    arranger: Worker,
    #[cfg(any(feature = "tokio-uring", feature = "uring"))]
    ways: Ways,
    outcomes: Receiver<DiskOutcome>,
    outcome_fd: Arc<EventFd>,
    reserve: Arc<SpareDescriptors>,
}

/// How a segment is written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// Through the page cache.
    Cached,
    /// Past the page cache where the file system can do that; each write is durable when it returns.
    Durable,
}

/// A segment to sync, and the file that wrote it if that is still open.
pub type ToSync = (SegmentNumber, Option<Arc<File>>);

impl Disk {
    /// Starts the threads for the job log in this directory.
    ///
    /// # Errors
    /// If there are no threads or descriptors left.
    pub fn new(directory: Directory) -> io::Result<Self> {
        directory.end_start();
        let directory = Arc::new(directory);
        let outcome_fd =
            Arc::new(EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let (reported, outcomes) = mpsc::channel();
        let reserve = Arc::new(SpareDescriptors::open_all());
        let worker = |name| {
            Worker::start(name, directory.clone(), (reported.clone(), outcome_fd.clone()), reserve.clone())
        };
        let (writer, arranger) = (worker("log")?, worker("log files")?);
        Ok(Self {
            directory,
            files: HashMap::new(),
            unsynced: VecDeque::new(),
            writer,
            arranger,
            #[cfg(any(feature = "tokio-uring", feature = "uring"))]
            ways: Ways::default(),
            outcomes,
            outcome_fd,
            reserve,
        })
    }

    /// Begins an operation, a durable write on a thread. Returns its outcome if it has ended.
    pub fn begin(&mut self, operation: DiskOperation) -> Option<DiskOutcome> {
        match operation {
            DiskOperation::Write { segment, offset, batch, sync: false, .. } => {
                self.note_unsynced(segment);
                let written = self
                    .file(segment, Access::Cached)
                    .and_then(|file| file.write_all_at(batch.bytes(), offset));
                Some(DiskOutcome::Written(batch, written))
            }
            DiskOperation::Write { segment, offset, batch, sync: true, .. } => {
                match self.file(segment, Access::Durable) {
                    Ok(file) => self.writer.queue(Task::Write { file, offset, batch }),
                    Err(error) => return Some(DiskOutcome::Written(batch, Err(error))),
                }
                None
            }
            DiskOperation::Sync(segments) => {
                let files = self.to_sync(segments);
                self.writer.queue(Task::Sync(files));
                None
            }
            DiskOperation::Arrange(arrangement) => {
                if let Arrangement::Recycle { from, .. } | Arrangement::Remove(from) = arrangement {
                    self.files.retain(|&(segment, _), _| segment != from);
                }
                self.arranger.queue(Task::Arrange(arrangement));
                None
            }
        }
    }

    /// Chooses how a driver with a ring makes the durable write that it begins now.
    ///
    /// # Panics
    /// If another one is in flight.
    #[cfg(any(feature = "tokio-uring", feature = "uring"))]
    pub fn choose_way(&mut self, now: Time) -> Way {
        self.ways.begin(now)
    }

    /// Takes the end of a write. If it was completed, it tells how long its way takes.
    #[cfg(any(feature = "tokio-uring", feature = "uring"))]
    pub fn note_written(&mut self, now: Time, completed: bool) {
        self.ways.end(now, completed);
    }

    /// Ends the threads and waits for them. They finish what they have begun, or undo it if it takes long. Returns the
    /// lock of the directory.
    pub fn end(self) -> File {
        self.directory.cancel();
        self.writer.end();
        self.arranger.end();
        Arc::into_inner(self.directory).expect("the threads have ended").into_lock()
    }

    /// Descriptors that are reserved for its files.
    pub fn reserve(&self) -> Arc<SpareDescriptors> {
        self.reserve.clone()
    }

    /// An eventfd that is readable when a thread has an outcome.
    pub fn outcome_fd(&self) -> BorrowedFd<'_> {
        self.outcome_fd.as_fd()
    }

    /// Returns the next outcome of a thread, if there is one.
    pub fn finished(&mut self) -> Option<DiskOutcome> {
        self.outcomes.try_recv().ok()
    }

    /// Resets the eventfd. Call this before [`finished`](Self::finished), so that no outcome is missed.
    pub fn clear_outcome_fd(&mut self) {
        // An error means that it was not readable.
        let _ = self.outcome_fd.read();
    }

    fn note_unsynced(&mut self, segment: SegmentNumber) {
        if self.unsynced.back() != Some(&segment) {
            self.unsynced.push_back(segment);
        }
        if self.unsynced.len() > UNSYNCED_FILES_MAX {
            self.unsynced.pop_front();
        }
    }

    /// Returns what a sync of these segments needs. Files stay open only for what is written after this.
    pub fn to_sync(&mut self, segments: Vec<SegmentNumber>) -> Vec<ToSync> {
        self.unsynced.clear();
        let file = |segment| self.files.get(&(segment, Access::Cached)).cloned();
        segments.into_iter().map(|segment| (segment, file(segment))).collect()
    }

    /// Returns an open segment.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn file(&mut self, segment: SegmentNumber, access: Access) -> io::Result<Arc<File>> {
        if let Some(file) = self.files.get(&(segment, access)) {
            return Ok(file.clone());
        }
        // Only the two newest segments are written to.
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
    fn threads_end_and_leave_no_incomplete_file() {
        let path = std::env::temp_dir().join(format!("beanring-disk-{}", std::process::id()));
        fs::create_dir(&path).expect("there is space");
        let directory = Directory::open(&path, true).expect("it is empty");
        let mut disk = Disk::new(directory).expect("there are threads");
        // A file of this size is filled with zeros, which takes a while.
        let (segment, bytes) = (SegmentNumber(1), directory::PREWRITTEN_BYTES_MAX);
        assert!(disk.begin(DiskOperation::Arrange(Arrangement::Create { segment, bytes })).is_none());
        let file = disk.directory.file(&segment.to_string());
        let outcomes = std::mem::replace(&mut disk.outcomes, mpsc::channel().1);
        // An outcome ends the wait if the file cannot be created.
        let mut outcome = None;
        while outcome.is_none() && !file.exists() {
            outcome = outcomes.try_recv().ok();
        }
        let outcome_fd = disk.outcome_fd.clone();
        let lock = disk.end();
        assert_eq!(Arc::strong_count(&outcome_fd), 1, "no thread holds it");
        let outcome = outcome.or_else(|| outcomes.try_recv().ok());
        let Some(DiskOutcome::Arranged(_, arranged)) = outcome else {
            panic!("no outcome, or of another kind: {outcome:?}")
        };
        assert_eq!(file.exists(), arranged.is_ok(), "{arranged:?}");
        // The lock is still held.
        assert!(matches!(Directory::open(&path, false), Err(DirectoryError::Locked(_))));
        let taken =
            Directory::open_with_lock(&path, false, Some(lock)).expect("it is the lock of this directory");
        assert!(matches!(Directory::open(&path, false), Err(DirectoryError::Locked(_))));
        drop(taken);
        Directory::open(&path, false).expect("the lock is free");
        fs::remove_dir_all(&path).expect("it belongs to this test");
    }
}
