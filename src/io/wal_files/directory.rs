//! The directory of a job log: its lock, its segments, and how files are created.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, FallocateFlags, fallocate};
use nix::libc;
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, FsType, fstatfs};
use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, faccessat};

use super::Access;
use super::end_marks::{self, END_MARKS};
use super::lock::{Lock, mark_in_flight, wait_for_writes};
use super::plain_file::{self, FileRefusal};
use crate::io::privileges::current_user;
use crate::io::signal::{StopRequested, refuse_to_go_on};
use crate::io::socket::{text_of, to_errno};
use crate::wal::{Arrangement, SegmentNumber};

/// A locked directory: no other server writes a job log there.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// The directory as a file, to sync its entries.
    handle: File,
    /// Whether new segments are filled with zeros: a durable write to a block that was written before is faster.
    prewrites: bool,
    is_cancelled: AtomicBool,
    /// Whether signals to stop are pending until a long operation looks for them.
    is_starting: AtomicBool,
    lock: Lock,
}

/// Why a directory cannot be used. Nothing in it has changed.
// docs/RUNBOOK.md lists these messages.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum DirectoryError {
    #[error("{}", unusable(.1))]
    Unusable(PathBuf, io::Error),
    #[error(
        "permission denied: user {user} must be able to read and write {file}; correct its owner or mode"
    )]
    Denied { file: PathBuf, user: String },
    #[error("another server uses this job log; stop it, or choose another directory")]
    Locked(PathBuf),
    #[error("the directory contains \"{}\" and no job log; choose an empty directory", .1.escape_debug())]
    Foreign(PathBuf, String),
}

/// Segments up to this size are filled with zeros under `-f 0`: a disk takes some 10 ms for each 10 MiB.
pub const PREWRITTEN_BYTES_MAX: u64 = 256 * 1024 * 1024;

const LOCK: &str = "lock";

/// The pause after an interrupted call: interruptions may go on for minutes.
const INTERRUPTED_PAUSE: Duration = Duration::from_millis(10);

/// Files that exist while a binlog of beanstalkd is imported: see `io/binlog_import`.
pub const IMPORT_BEGUN: &str = "import.begun";
pub const IMPORT_DONE: &str = "import.done";

/// How the names of the files of a binlog begin.
const BINLOG: &str = "binlog.";

/// A directory that an empty file system may have.
const LOST_AND_FOUND: &str = "lost+found";

impl Directory {
    /// Opens and locks a directory, and waits for writes of a killed server that the disk still carries out. beanstalkd uses
    /// the same file, `lock`, so each respects the other. The lock ends with the process, unless an
    /// [in-place restart](Self::into_lock) keeps it.
    ///
    /// # Errors
    /// If the directory cannot be used.
    pub fn open(path: &Path, prewrites: bool) -> Result<Self, DirectoryError> {
        Self::open_with_lock(path, prewrites, None)
    }

    /// Opens the directory with the [lock](Self::into_lock) of the program before an in-place restart, if it belongs to this
    /// directory.
    ///
    /// # Errors
    /// If the directory cannot be used.
    pub fn open_with_lock(
        path: &Path,
        prewrites: bool,
        inherited: Option<File>,
    ) -> Result<Self, DirectoryError> {
        let unusable = |error| DirectoryError::new(path, error);
        // Not a FIFO, whose open would wait.
        let handle = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(path);
        let handle = handle.map_err(unusable)?;
        refuse_foreign(path)?;
        let file = path.join(LOCK);
        let present = fs::symlink_metadata(&file).map(identity_of).ok();
        let inherited = inherited.filter(|lock| lock.metadata().map(identity_of).ok() == present);
        let lock = match inherited {
            Some(lock) => lock,
            None => {
                let mut options = OpenOptions::new();
                let opened = plain_file::open(&file, options.write(true).create(true).truncate(false), 0);
                opened.map_err(|error| DirectoryError::new(&file, error))?
            }
        };
        let lock = Lock::to_write(lock).map_err(unusable)?;
        let lock = lock.ok_or_else(|| DirectoryError::Locked(path.to_owned()))?;
        wait_for_writes(path).map_err(unusable)?;
        let (is_cancelled, is_starting) = (AtomicBool::new(false), AtomicBool::new(true));
        Ok(Self { path: path.to_owned(), handle, prewrites, is_cancelled, is_starting, lock })
    }

    /// Returns the locked file. The directory stays locked while any process has it open.
    pub fn into_lock(self) -> File {
        self.lock.into_file()
    }

    /// Checks whether [`open`](Self::open) would succeed, without a change and without the lock, which another process may
    /// hold. Returns the device and inode of the directory.
    ///
    /// # Errors
    /// If the directory cannot be used.
    pub fn check(path: &Path) -> Result<(u64, u64), DirectoryError> {
        let unusable = |error| DirectoryError::new(path, error);
        let directory = fs::metadata(path).map_err(unusable)?;
        refuse_foreign(path)?;
        let both = AccessFlags::R_OK | AccessFlags::W_OK;
        let check = |path: &Path, access| {
            faccessat(AT_FDCWD, path, access, AtFlags::AT_EACCESS)
                .map_err(|errno| DirectoryError::new(path, errno.into()))
        };
        check(path, both | AccessFlags::X_OK)?;
        for entry in fs::read_dir(path).map_err(unusable)? {
            let entry = entry.map_err(unusable)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name == LOCK || is_log_file(&name) {
                let path = entry.path();
                // A start opens no other file that begins like one of a binlog.
                let is_opened = !name.starts_with(BINLOG) || binlog_number(&name).is_some();
                let is_plain = if is_opened { plain_file::check(&path) } else { Ok(()) };
                let is_plain = is_plain.map_err(|error| DirectoryError::new(&path, error));
                match is_plain.and_then(|()| check(&path, both)) {
                    // A running server has removed the file since it was listed.
                    Err(DirectoryError::Unusable(_, error)) if error.kind() == ErrorKind::NotFound => {}
                    result => result?,
                }
            }
        }
        Ok(identity_of(directory))
    }

    /// Returns the device and inode of a directory that this user may not be able to read.
    ///
    /// # Errors
    /// If the path cannot be resolved.
    pub fn identity_at(path: &Path) -> io::Result<(u64, u64)> {
        fs::metadata(path).map(identity_of)
    }

    /// Returns the free space for this user on the disk of a directory, in bytes.
    ///
    /// # Errors
    /// If the path cannot be resolved.
    pub fn free_bytes(path: &Path) -> io::Result<u64> {
        let disk = statvfs(path)?;
        Ok(disk.blocks_available().saturating_mul(disk.fragment_size()))
    }

    /// Returns the device and inode.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn identity(&self) -> io::Result<(u64, u64)> {
        self.handle.metadata().map(identity_of)
    }

    /// The path that it was opened with.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of a file in the directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Returns all segments by number, with their sizes in bytes.
    ///
    /// # Errors
    /// If the directory cannot be read, or something else has the name of a segment.
    pub fn segments(&self) -> io::Result<BTreeMap<SegmentNumber, u64>> {
        segments_in(&self.path)
    }

    /// Cancels long operations in other threads: they end with an error.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// From now on the event loop reads signals, and long operations go on until they are [cancelled](Self::cancel).
    pub fn end_start(&self) {
        self.is_starting.store(false, Ordering::Relaxed);
    }

    /// # Errors
    /// After [`cancel`](Self::cancel), or if a signal to stop comes during the start.
    pub fn refuse_cancelled(&self) -> io::Result<()> {
        if self.is_cancelled.load(Ordering::Relaxed) {
            return Err(io::Error::other("the server is stopping"));
        }
        if self.is_starting.load(Ordering::Relaxed) { refuse_to_go_on() } else { Ok(()) }
    }

    /// Makes all creations, renames and removals durable.
    ///
    /// # Errors
    /// If the disk reports one.
    pub fn sync(&self) -> io::Result<()> {
        self.handle.sync_all()
    }

    /// Opens a segment for reading and writing.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open_segment(&self, segment: SegmentNumber, access: Access) -> io::Result<File> {
        let path = self.file(&segment.to_string());
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        match access {
            Access::Cached => plain_file::open(&path, &mut options, 0),
            Access::Durable => {
                let direct = plain_file::open(&path, &mut options, libc::O_DSYNC | libc::O_DIRECT);
                let file = match direct {
                    // Not every file system supports direct I/O.
                    Err(error) if to_errno(&error) == Errno::EINVAL => {
                        plain_file::open(&path, &mut options, libc::O_DSYNC)
                    }
                    result => result,
                }?;
                mark_in_flight(&file)?;
                Ok(file)
            }
        }
    }

    /// Changes which segments there are, durably.
    ///
    /// # Errors
    /// If there is no space, the disk reports an error, or the directory is [cancelled](Self::cancel).
    pub fn arrange(&self, arrangement: Arrangement) -> io::Result<()> {
        self.refuse_cancelled()?;
        match arrangement {
            Arrangement::Create { segment, bytes } => {
                self.create(segment, bytes, self.prewrites)?;
                return self.sync();
            }
            Arrangement::MarkEnd(mark) => {
                return if end_marks::write(&self.path, &mark)? { self.sync() } else { Ok(()) };
            }
            Arrangement::Recycle { from, to } => {
                fs::rename(self.file(&from.to_string()), self.file(&to.to_string()))?;
            }
            Arrangement::Remove(segment) => fs::remove_file(self.file(&segment.to_string()))?,
        }
        self.sync().map_err(after_change)
    }

    pub(super) fn create(&self, segment: SegmentNumber, bytes: u64, prewrites: bool) -> io::Result<()> {
        let path = self.file(&segment.to_string());
        self.create_at(&path, bytes, prewrites).inspect_err(|_| {
            // An incomplete file is created again when there is space.
            let _ = fs::remove_file(&path);
        })
    }

    fn create_at(&self, path: &Path, bytes: u64, prewrites: bool) -> io::Result<()> {
        let mut file = plain_file::create(path, 0o600)?;
        // To write zeros before gains nothing where the next write goes elsewhere.
        let prewrites = is_overwritten_in_place(&file) && prewrites;
        match self.allocate(&file, bytes) {
            Ok(()) if !prewrites || bytes > PREWRITTEN_BYTES_MAX => {}
            // Without fallocate(2), zeros allocate the space.
            Ok(()) | Err(Errno::EOPNOTSUPP) => self.write_zeros(&mut file, bytes)?,
            Err(errno) => return Err(errno.into()),
        }
        file.sync_all()
    }

    /// Allocates the space of a file. A signal, a debugger or the freezer (`docker pause`) interrupts the call, so it is
    /// repeated.
    pub(super) fn allocate(&self, file: &File, bytes: u64) -> Result<(), Errno> {
        loop {
            match fallocate(file, FallocateFlags::empty(), 0, bytes as i64) {
                Err(Errno::EINTR) if self.refuse_cancelled().is_ok() => thread::sleep(INTERRUPTED_PAUSE),
                result => return result,
            }
        }
    }

    pub(super) fn write_zeros(&self, file: &mut File, bytes: u64) -> io::Result<()> {
        let zeros = vec![0; 1 << 18];
        let mut left = bytes;
        while left > 0 {
            self.refuse_cancelled()?;
            let count = left.min(zeros.len() as u64);
            file.write_all(&zeros[..count as usize])?;
            // One large sync would delay the writes that replies wait for.
            file.sync_data()?;
            left -= count;
        }
        Ok(())
    }
}

/// The device and inode.
fn identity_of(found: Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

/// Out of space after a change must not have the change repeated.
fn after_change(error: io::Error) -> io::Error {
    io::Error::other(text_of(&error))
}

/// Keeps servers from writing to a directory while the value lives, and waits for the writes of a killed one. Returns none
/// if there is no file to lock: it is not created, since the directory must not change.
pub fn lock_to_read(path: &Path) -> Result<Option<Lock>, DirectoryError> {
    let unusable = |error| DirectoryError::new(path, error);
    let lock = match plain_file::open_to_read(&path.join(LOCK)) {
        Ok(lock) => lock,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(DirectoryError::new(&path.join(LOCK), error)),
    };
    let held = Lock::to_read(lock).map_err(unusable)?;
    if held.is_none() {
        return Err(DirectoryError::Locked(path.to_owned()));
    }
    wait_for_writes(path).map_err(unusable)?;
    Ok(held)
}

/// Returns all segments in a directory by number, with their sizes in bytes.
pub fn segments_in(path: &Path) -> io::Result<BTreeMap<SegmentNumber, u64>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if let Some(number) = entry.file_name().to_str().and_then(SegmentNumber::from_file_name) {
            // A link is refused: its own size would count as that of the segment, and renames and removals would affect it alone.
            let metadata = entry.metadata()?;
            FileRefusal::check_kind(&entry.path(), metadata.file_type())?;
            found.insert(number, metadata.len());
        }
    }
    Ok(found)
}

/// Refuses a directory that has files, and none of a job log: it has another purpose.
fn refuse_foreign(path: &Path) -> Result<(), DirectoryError> {
    let unusable = |error| DirectoryError::new(path, error);
    let mut foreign = None;
    for entry in fs::read_dir(path).map_err(unusable)? {
        let name = entry.map_err(unusable)?.file_name().to_string_lossy().into_owned();
        if is_log_file(&name) {
            return Ok(());
        }
        if name != LOST_AND_FOUND && !name.starts_with('.') && name != LOCK {
            foreign = Some(name);
        }
    }
    foreign.map_or(Ok(()), |name| Err(DirectoryError::Foreign(path.to_owned(), name)))
}

/// Whether a file belongs to a job log, or to a binlog of beanstalkd and its import.
fn is_log_file(name: &str) -> bool {
    let is_of_import = name.starts_with(BINLOG) || name == IMPORT_BEGUN || name == IMPORT_DONE;
    is_of_import || END_MARKS.contains(&name) || SegmentNumber::from_file_name(name).is_some()
}

/// Returns the number of a file of a binlog.
pub fn binlog_number(name: &str) -> Option<u32> {
    let number = name.strip_prefix(BINLOG)?.parse().ok()?;
    (name == format!("binlog.{number}")).then_some(number)
}

impl DirectoryError {
    /// Whether a signal has ended the wait for the directory.
    pub fn is_stop(&self) -> bool {
        matches!(self, Self::Unusable(_, error) if StopRequested::is(error))
    }

    fn new(path: &Path, error: io::Error) -> Self {
        if error.kind() == ErrorKind::PermissionDenied {
            Self::Denied { file: path.to_owned(), user: current_user() }
        } else {
            Self::Unusable(path.to_owned(), error)
        }
    }
}

// docs/RUNBOOK.md lists these messages.
fn unusable(error: &io::Error) -> String {
    let text = text_of(error);
    match error.kind() {
        ErrorKind::NotFound => "no such directory; create it first".to_owned(),
        ErrorKind::NotADirectory => "this is a file; name a directory".to_owned(),
        _ if matches!(to_errno(error), Errno::EMFILE | Errno::ENFILE) => {
            format!("{text}; raise the limit of open files (ulimit -n, LimitNOFILE=)")
        }
        _ if FileRefusal::of(error).is_some() => text,
        _ => format!("{text}; choose a directory that the server can write to"),
    }
}

/// Has an empty file written in place where possible. Returns whether the file system writes to a block in its place that was written
/// before. One that is not known here does. btrfs does in files with the attribute `C` of chattr(1). The attribute is an improvement: a
/// file that cannot have it is as good as on any other file system that copies on write.
fn is_overwritten_in_place(file: &File) -> bool {
    const ZFS: FsType = FsType(0x2fc1_2fc1);
    const BCACHEFS: FsType = FsType(0xca45_1a4e);
    match fstatfs(file).map(|found| found.filesystem_type()) {
        Ok(BTRFS_SUPER_MAGIC) => set_no_copy_on_write(file).is_ok(),
        Ok(ZFS | BCACHEFS) => false,
        _ => true,
    }
}

/// Sets the attribute `C` of chattr(1). btrfs accepts it for an empty file only. Such a file has no checksums of the
/// file system; each record of the job log has its own.
#[allow(unsafe_code)]
fn set_no_copy_on_write(file: &File) -> io::Result<()> {
    /// `FS_NOCOW_FL` of linux/fs.h.
    const NO_COPY_ON_WRITE: libc::c_int = 0x0080_0000;
    let mut flags: libc::c_int = 0;
    // SAFETY: the descriptor is open, and FS_IOC_GETFLAGS writes an int, which `flags` is, before it returns.
    Errno::result(unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_GETFLAGS, &raw mut flags) })?;
    flags |= NO_COPY_ON_WRITE;
    // SAFETY: the descriptor is open, and FS_IOC_SETFLAGS reads an int, which `flags` is, before it returns.
    Errno::result(unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_SETFLAGS, &raw const flags) })?;
    Ok(())
}
