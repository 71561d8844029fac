//! Opens files of a directory that another user may be able to write to. There a name may lead to a secret, to a FIFO that
//! nothing writes to, or to a device, so only regular files of the directory itself are opened.

use std::ffi::OsStr;
use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;

/// Modes in which users other than the owner can create names in a directory.
const OTHERS_WRITE: u32 = 0o022;

/// Why a file is not opened.
// docs/RUNBOOK.md lists these messages.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum FileRefusal {
    #[error("{0} is a symbolic link; replace it by the file itself, or remove it")]
    Link(String),
    #[error("{0} is a {1} and not a regular file; move it out of the directory")]
    NotRegular(String, &'static str),
    /// Another user may have made this name for a file of somebody else: link(2) needs no right to read it.
    #[error(
        "{0} has another name (a hard link), and another user may have made one of them; replace it by a copy, or remove it"
    )]
    OtherNames(String),
}

/// Opens a file with further flags of open(2). The kernel neither follows a link nor waits for a peer.
///
/// # Errors
/// A [`FileRefusal`] unless it is a regular file of the directory, and those of open(2).
pub fn open(path: &Path, options: &mut OpenOptions, flags: libc::c_int) -> io::Result<File> {
    // To open a device may already have an effect.
    refuse_kind(path)?;
    let flags = flags | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let opened = options.custom_flags(flags).open(path);
    // Something else may have got the name since.
    let file = opened.map_err(|error| refuse_kind(path).err().unwrap_or(error))?;
    refuse(path, &file.metadata()?)?;
    // io_uring would answer EAGAIN where it has to wait for the disk.
    let flags = OFlag::from_bits_retain(fcntl(file.as_fd(), FcntlArg::F_GETFL)?);
    fcntl(file.as_fd(), FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK))?;
    Ok(file)
}

/// Opens a file for reading, as [`open`] does.
///
/// # Errors
/// Those of [`open`].
pub fn open_to_read(path: &Path) -> io::Result<File> {
    open(path, OpenOptions::new().read(true), 0)
}

/// Opens a file for writing as [`open`] does, without the content that it may have, or creates it.
///
/// # Errors
/// Those of [`open`].
pub fn create(path: &Path, mode: u32) -> io::Result<File> {
    let file = open(path, OpenOptions::new().write(true).create(true).truncate(false).mode(mode), 0)?;
    // Only now: the content of a foreign file must stay.
    file.set_len(0)?;
    Ok(file)
}

/// Checks whether [`open`] would refuse an existing file.
///
/// # Errors
/// A [`FileRefusal`], or that of stat(2).
pub fn check(path: &Path) -> io::Result<()> {
    refuse(path, &fs::symlink_metadata(path)?)
}

/// Whether a name exists, whatever it stands for.
pub fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Refuses what is no regular file; a file that does not exist may be created.
fn refuse_kind(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) => FileRefusal::check_kind(path, found.file_type()),
        Err(_) => Ok(()),
    }
}

fn refuse(path: &Path, found: &Metadata) -> io::Result<()> {
    FileRefusal::check_kind(path, found.file_type())?;
    if found.nlink() > 1 {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = fs::metadata(parent.unwrap_or(Path::new(".")))?;
        // The only user who can make names here owns the file.
        let is_of_owner = found.uid() == directory.uid() && directory.mode() & OTHERS_WRITE == 0;
        if !is_of_owner {
            return Err(FileRefusal::OtherNames(name_of(path)).into());
        }
    }
    Ok(())
}

/// The name of a file as messages show it.
fn name_of(path: &Path) -> String {
    path.file_name().map(OsStr::to_string_lossy).unwrap_or_default().escape_debug().to_string()
}

impl FileRefusal {
    /// Refuses a file that is of another kind than a regular one.
    pub fn check_kind(path: &Path, kind: FileType) -> io::Result<()> {
        if kind.is_file() {
            return Ok(());
        }
        let name = name_of(path);
        Err(match kind {
            kind if kind.is_symlink() => Self::Link(name),
            kind if kind.is_dir() => Self::NotRegular(name, "directory"),
            kind if kind.is_fifo() => Self::NotRegular(name, "FIFO"),
            kind if kind.is_socket() => Self::NotRegular(name, "socket"),
            _ => Self::NotRegular(name, "device"),
        }
        .into())
    }

    /// Returns the refusal that an error stands for.
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<FileRefusal> for io::Error {
    fn from(refusal: FileRefusal) -> Self {
        Self::other(refusal)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A directory with a file of two names, and the refusal of the file with this mode of the directory.
    fn refusal_of_linked(mode: u32) -> Option<String> {
        let directory = std::env::temp_dir().join(format!("beanring-links-{}-{mode:o}", std::process::id()));
        fs::create_dir(&directory).expect("there is space");
        let (first, second) = (directory.join("first"), directory.join("second"));
        fs::write(&first, "content").and_then(|()| fs::hard_link(&first, &second)).expect("there is space");
        fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).expect("it belongs to this test");
        let refusal = open_to_read(&second).err().map(|error| error.to_string());
        assert_eq!(create(&second, 0o600).err().map(|error| error.to_string()), refusal);
        let content = fs::read_to_string(&first).expect("it exists");
        assert_eq!(content == "content", refusal.is_some(), "a refused file keeps its content");
        fs::remove_dir_all(&directory).expect("it belongs to this test");
        refusal
    }

    #[test]
    fn a_file_with_two_names_is_opened_only_where_one_user_makes_names() {
        assert_eq!(refusal_of_linked(0o755), None);
        for mode in [0o775, 0o777, 0o1777] {
            let refusal = refusal_of_linked(mode).expect("a refusal");
            assert!(refusal.starts_with("second has another name"), "{refusal}");
        }
    }

    #[test]
    fn an_open_file_blocks_as_usual() {
        let path = std::env::temp_dir().join(format!("beanring-plain-{}", std::process::id()));
        let file = create(&path, 0o600).expect("there is space");
        let flags = fcntl(&file, FcntlArg::F_GETFL).map(OFlag::from_bits_retain).expect("it is open");
        assert!(!flags.contains(OFlag::O_NONBLOCK));
        fs::remove_file(path).expect("it belongs to this test");
    }
}
