//! The directory of a log.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, DirEntry, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, FallocateFlags, fallocate};
use nix::libc;
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, FsType, fstatfs};
use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, faccessat};

use super::Access;
use super::lock::Lock;
use crate::io::socket::to_errno;
use crate::limits::LOG_PREWRITTEN_BYTES_MAX;
use crate::wal::{Arrangement, SegmentNumber};

/// A directory that nobody else writes a log in.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// For its own entries.
    handle: File,
    /// New segments are written once with zeros: a write to a block that has been written before is durable
    /// sooner.
    prewrites: bool,
    is_given_up: AtomicBool,
    lock: Lock,
}

/// Why a directory cannot be used. Nothing in it was changed.
#[derive(Debug)]
pub enum DirectoryError {
    /// It cannot be opened, or written to.
    Unusable(PathBuf, io::Error),
    /// Another process holds its lock.
    Locked(PathBuf),
    /// It is not empty, and what is in it is not a log.
    Foreign(PathBuf, String),
}

const LOCK: &str = "lock";

/// Are there while the reference's files are imported: see `import.rs`.
pub const IMPORT_BEGUN: &str = "import.begun";
pub const IMPORT_DONE: &str = "import.done";

/// What an empty file system may have.
const NOBODYS: &str = "lost+found";

impl Directory {
    /// Opens a directory, and locks it where the reference does, which takes note: a file `lock`. The lock ends with
    /// the process, unless its file goes on to the [next program](Self::into_lock).
    pub fn open(path: &Path, prewrites: bool) -> Result<Self, DirectoryError> {
        Self::take_over(path, prewrites, None)
    }

    /// The same with a lock that was [left](Self::into_lock) to this program, if it is one of this directory.
    pub fn take_over(path: &Path, prewrites: bool, left: Option<File>) -> Result<Self, DirectoryError> {
        let unusable = |error| DirectoryError::Unusable(path.to_owned(), error);
        let handle = File::open(path).map_err(unusable)?;
        refuse_foreign(path)?;
        let file = path.join(LOCK);
        let identity = |found: Metadata| (found.dev(), found.ino());
        let is_there = fs::metadata(&file).map(identity).ok();
        let left = left.filter(|lock| lock.metadata().map(identity).ok() == is_there);
        let lock = match left {
            Some(lock) => lock,
            None => {
                let opened = OpenOptions::new().write(true).create(true).truncate(false).open(&file);
                opened.map_err(unusable)?
            }
        };
        let lock = Lock::to_write(lock).map_err(unusable)?;
        let lock = lock.ok_or_else(|| DirectoryError::Locked(path.to_owned()))?;
        let prewrites = prewrites && !is_copy_on_write(&handle);
        Ok(Self { path: path.to_owned(), handle, prewrites, is_given_up: AtomicBool::new(false), lock })
    }

    /// The file that is locked, for as long as it is open anywhere.
    pub fn into_lock(self) -> File {
        self.lock.into_file()
    }

    /// Whether [`open`](Self::open) would find a directory that it can use, as far as that can be told without a change
    /// to it, and while another process may hold its lock. Returns its device and inode.
    pub fn check(path: &Path) -> Result<(u64, u64), DirectoryError> {
        let unusable = |error| DirectoryError::Unusable(path.to_owned(), error);
        let directory = fs::metadata(path).map_err(unusable)?;
        refuse_foreign(path)?;
        let both = AccessFlags::R_OK | AccessFlags::W_OK;
        let check = |path: &Path, access| {
            faccessat(AT_FDCWD, path, access, AtFlags::AT_EACCESS).map_err(|errno| unusable(errno.into()))
        };
        check(path, both | AccessFlags::X_OK)?;
        for entry in fs::read_dir(path).map_err(unusable)? {
            let entry = entry.map_err(unusable)?;
            let name = entry.file_name();
            if name == LOCK || is_log_file(&name.to_string_lossy()) {
                match check(&entry.path(), both) {
                    // The server that uses the directory has done with it meanwhile.
                    Err(DirectoryError::Unusable(_, error)) if error.kind() == ErrorKind::NotFound => {}
                    result => result?,
                }
            }
        }
        Ok((directory.dev(), directory.ino()))
    }

    /// The device and inode of a directory that may be out of reach otherwise.
    pub fn identity_at(path: &Path) -> io::Result<(u64, u64)> {
        fs::metadata(path).map(|directory| (directory.dev(), directory.ino()))
    }

    /// What is free on its disk for this user, in bytes.
    pub fn free_bytes(path: &Path) -> io::Result<u64> {
        let disk = statvfs(path)?;
        Ok(disk.blocks_available().saturating_mul(disk.fragment_size()))
    }

    /// Its device and inode.
    pub fn identity(&self) -> io::Result<(u64, u64)> {
        self.handle.metadata().map(|directory| (directory.dev(), directory.ino()))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the file of this name is.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// All segments by number, with the bytes of their files.
    pub fn segments(&self) -> io::Result<BTreeMap<SegmentNumber, u64>> {
        segments_in(&self.path)
    }

    /// Ends what takes long in other threads, with an error.
    pub fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
    }

    /// # Errors
    /// If the directory is [given up](Self::give_up).
    pub fn goes_on(&self) -> io::Result<()> {
        if self.is_given_up.load(Ordering::Relaxed) {
            Err(io::Error::other("the server ends"))
        } else {
            Ok(())
        }
    }

    /// Brings to disk which files there are.
    pub fn sync(&self) -> io::Result<()> {
        self.handle.sync_all()
    }

    /// Opens a segment to write to it.
    pub fn open_segment(&self, segment: SegmentNumber, access: Access) -> io::Result<File> {
        let path = self.file(&segment.to_string());
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        match access {
            Access::Cached => options.open(path),
            Access::Durable => {
                let direct = options.custom_flags(libc::O_DSYNC | libc::O_DIRECT).open(&path);
                match direct {
                    // Not every file system can do without its cache.
                    Err(error) if to_errno(&error) == Errno::EINVAL => {
                        options.custom_flags(libc::O_DSYNC).open(path)
                    }
                    result => result,
                }
            }
        }
    }

    /// Gives a segment another size, and all the space that it needs. What is in it stays, as far as it fits.
    pub fn resize_segment(&self, segment: SegmentNumber, bytes: u64) -> io::Result<()> {
        let mut file = OpenOptions::new().append(true).open(self.file(&segment.to_string()))?;
        let before = file.metadata()?.len();
        if before > bytes {
            file.set_len(bytes)?;
        }
        match self.allocate(&file, bytes) {
            Ok(()) => {}
            Err(Errno::EOPNOTSUPP) => self.write_zeros(&mut file, bytes.saturating_sub(before))?,
            Err(errno) => return Err(errno.into()),
        }
        file.sync_all()
    }

    /// Changes the files, and brings that to disk.
    pub fn arrange(&self, arrangement: Arrangement) -> io::Result<()> {
        self.goes_on()?;
        match arrangement {
            Arrangement::Create { segment, bytes } => self.create(segment, bytes, self.prewrites)?,
            Arrangement::Recycle { from, to } => {
                fs::rename(self.file(&from.to_string()), self.file(&to.to_string()))?;
            }
            Arrangement::Remove(segment) => fs::remove_file(self.file(&segment.to_string()))?,
        }
        self.sync()
    }

    /// Makes a segment when somebody waits for that, and so without zeros. Brings that to disk.
    pub fn create_unwritten(&self, segment: SegmentNumber, bytes: u64) -> io::Result<()> {
        self.create(segment, bytes, false)?;
        self.sync()
    }

    fn create(&self, segment: SegmentNumber, bytes: u64, prewrites: bool) -> io::Result<()> {
        let path = self.file(&segment.to_string());
        self.create_at(&path, bytes, prewrites).inspect_err(|_| {
            // What is half there is made anew when there is space.
            let _ = fs::remove_file(&path);
        })
    }

    fn create_at(&self, path: &Path, bytes: u64, prewrites: bool) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        match self.allocate(&file, bytes) {
            Ok(()) if !prewrites || bytes > LOG_PREWRITTEN_BYTES_MAX => {}
            // What cannot be reserved has to be written.
            Ok(()) | Err(Errno::EOPNOTSUPP) => self.write_zeros(&mut file, bytes)?,
            Err(errno) => return Err(errno.into()),
        }
        file.sync_all()
    }

    /// Gives a file all the space that it needs. A signal, a debugger or the freezer (`docker pause`) interrupts that.
    fn allocate(&self, file: &File, bytes: u64) -> Result<(), Errno> {
        loop {
            match fallocate(file, FallocateFlags::empty(), 0, bytes as i64) {
                Err(Errno::EINTR) if self.goes_on().is_ok() => {}
                result => return result,
            }
        }
    }

    fn write_zeros(&self, file: &mut File, bytes: u64) -> io::Result<()> {
        let zeros = vec![0; 1 << 18];
        let mut left = bytes;
        while left > 0 {
            self.goes_on()?;
            let count = left.min(zeros.len() as u64);
            file.write_all(&zeros[..count as usize])?;
            // All at once would keep the disk from what somebody waits for.
            file.sync_data()?;
            left -= count;
        }
        Ok(())
    }
}

/// Whether a block that was written is never written again in its place, so that writing it before gains nothing.
fn is_copy_on_write(directory: &File) -> bool {
    const ZFS: FsType = FsType(0x2fc1_2fc1);
    const BCACHEFS: FsType = FsType(0xca45_1a4e);
    let kind = fstatfs(directory).map(|found| found.filesystem_type());
    kind.is_ok_and(|kind| [BTRFS_SUPER_MAGIC, ZFS, BCACHEFS].contains(&kind))
}

/// Keeps servers from writing to a directory, for as long as the value lives. The directory stays as it is: where
/// no server ever was, there is nothing to be locked.
pub fn lock_to_read(path: &Path) -> Result<Option<Lock>, DirectoryError> {
    let unusable = |error| DirectoryError::Unusable(path.to_owned(), error);
    let lock = match File::open(path.join(LOCK)) {
        Ok(lock) => lock,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unusable(error)),
    };
    match Lock::to_read(lock).map_err(unusable)? {
        None => Err(DirectoryError::Locked(path.to_owned())),
        held => Ok(held),
    }
}

/// All segments in a directory by number, with the bytes of their files.
pub fn segments_in(path: &Path) -> io::Result<BTreeMap<SegmentNumber, u64>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if let Some(number) = entry.file_name().to_str().and_then(SegmentNumber::from_file_name) {
            found.insert(number, segment_metadata(&entry)?.len());
        }
    }
    Ok(found)
}

/// A link or a directory under the name of a segment is refused: a link's own size would be taken for the segment's, and
/// a segment is renamed and removed by its name.
fn segment_metadata(entry: &DirEntry) -> io::Result<Metadata> {
    let found = entry.metadata()?;
    if found.is_file() {
        return Ok(found);
    }
    let name = entry.file_name();
    let kind = if found.is_symlink() { "a symbolic link" } else { "not a regular file" };
    Err(io::Error::other(format!("{} is {kind}; put the file of the log itself there", name.display())))
}

/// A directory that has files and none of a log is meant for something else.
fn refuse_foreign(path: &Path) -> Result<(), DirectoryError> {
    let unusable = |error| DirectoryError::Unusable(path.to_owned(), error);
    let mut foreign = None;
    for entry in fs::read_dir(path).map_err(unusable)? {
        let name = entry.map_err(unusable)?.file_name().to_string_lossy().into_owned();
        if is_log_file(&name) {
            return Ok(());
        }
        if name != NOBODYS && !name.starts_with('.') && name != LOCK {
            foreign = Some(name);
        }
    }
    foreign.map_or(Ok(()), |name| Err(DirectoryError::Foreign(path.to_owned(), name)))
}

/// The reference's files are imported, and stay under other names.
fn is_log_file(name: &str) -> bool {
    let is_of_import = name.starts_with("binlog.") || name == IMPORT_BEGUN || name == IMPORT_DONE;
    is_of_import || SegmentNumber::from_file_name(name).is_some()
}

impl fmt::Display for DirectoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unusable(path, error) if error.kind() == ErrorKind::NotFound => {
                write!(f, "-b {}: there is no such directory; make it first", path.display())
            }
            Self::Unusable(path, error) => {
                write!(
                    f,
                    "-b {}: {error}; it has to be a directory that this user may write to",
                    path.display()
                )
            }
            Self::Locked(path) => write!(
                f,
                "-b {}: another server uses this log; stop it, or choose another directory",
                path.display()
            ),
            Self::Foreign(path, name) => write!(
                f,
                "-b {}: there is {name:?} in it and no log; choose an empty directory",
                path.display()
            ),
        }
    }
}

impl std::error::Error for DirectoryError {}
