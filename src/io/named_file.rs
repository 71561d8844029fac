//! Files that a user names: of settings, users, tokens, certificates and passwords. All are read here. The name may lead to
//! anything, so a read never waits for a peer and never takes more memory than its limit.

use std::fmt;
use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::libc;
use nix::unistd::{AccessFlags, access};

use super::privileges::current_user;
use super::sandbox;
use super::socket::text_of;

/// The largest file of certificates or of a key: hundreds of certificates.
pub const PEM_BYTES_MAX: usize = 1024 * 1024;

/// A file that was read.
#[derive(Debug)]
pub struct NamedFile {
    /// Its whole content.
    pub content: Vec<u8>,
    /// Its properties, from before it was read.
    pub metadata: Metadata,
}

/// Why a file was not read.
// docs/RUNBOOK.md lists these messages.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum FileError {
    #[error("there is no such file; correct the path")]
    Missing,
    #[error("it is a link to a file that does not exist; correct the link or the path")]
    DanglingLink,
    #[error(fmt = write_not_regular)]
    NotRegular(&'static str),
    #[error("the file is larger than its limit of {} KiB; name a smaller one", .0 / 1024)]
    TooLarge(usize),
    #[error("it is not UTF-8 text; save it as UTF-8")]
    NotText,
    #[error("permission denied: user {} must be able to read it", current_user())]
    Denied,
    /// The user may read it, but this process gave up access to other places than those of its files.
    #[error(fmt = write_out_of_reach)]
    OutOfReach { directory: PathBuf },
    #[error("{}", text_of(.0))]
    System(#[source] io::Error),
}

/// Reads a file that a user names. A link is followed: the user has named its target too.
///
/// # Errors
/// If it is not a regular file, has more than `bytes_max` bytes, or cannot be read.
pub fn read(path: &Path, bytes_max: usize) -> Result<NamedFile, FileError> {
    // To open a device may already have an effect.
    refuse_kind(fs::metadata(path).map_err(|error| FileError::of(path, error))?.file_type())?;
    // Something else may have got the name since: a FIFO would wait for its peer.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = opened.map_err(|error| FileError::of(path, error))?;
    let metadata = file.metadata().map_err(FileError::System)?;
    refuse_kind(metadata.file_type())?;
    let content = content(&file, &metadata, bytes_max)?;
    Ok(NamedFile { content, metadata })
}

/// Reads a file as [`read`] does, and returns its text.
///
/// # Errors
/// Those of [`read`], and if it is not UTF-8.
pub fn read_text(path: &Path, bytes_max: usize) -> Result<(String, Metadata), FileError> {
    let NamedFile { content, metadata } = read(path, bytes_max)?;
    let text = String::from_utf8(content).map_err(|_| FileError::NotText)?;
    Ok((text, metadata))
}

fn content(file: &File, metadata: &Metadata, bytes_max: usize) -> Result<Vec<u8>, FileError> {
    let mut content = Vec::new();
    if metadata.len() <= bytes_max as u64 {
        file.take(bytes_max as u64 + 1).read_to_end(&mut content).map_err(FileError::System)?;
        if content.len() <= bytes_max {
            return Ok(content);
        }
    }
    Err(FileError::TooLarge(bytes_max))
}

fn refuse_kind(kind: FileType) -> Result<(), FileError> {
    Err(FileError::NotRegular(match kind {
        kind if kind.is_file() => return Ok(()),
        kind if kind.is_dir() => "directory",
        kind if kind.is_fifo() => "FIFO",
        kind if kind.is_socket() => "socket",
        _ => "device",
    }))
}

impl FileError {
    fn of(path: &Path, error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::NotFound if fs::symlink_metadata(path).is_ok() => Self::DanglingLink,
            ErrorKind::NotFound => Self::Missing,
            // Landlock and its like restrict only the opening of a file.
            ErrorKind::PermissionDenied if access(path, AccessFlags::R_OK).is_ok() => {
                let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
                Self::OutOfReach { directory: sandbox::directory_of(&real) }
            }
            ErrorKind::PermissionDenied => Self::Denied,
            // open(2) of a socket.
            _ if error.raw_os_error() == Some(libc::ENXIO) => Self::NotRegular("socket"),
            _ => Self::System(error),
        }
    }

    /// Whether the path or the file is wrong. With other errors it may be readable later.
    pub const fn is_wrong(&self) -> bool {
        !matches!(self, Self::Denied | Self::OutOfReach { .. } | Self::System(_))
    }

    /// Whether another attempt may succeed although the file stays the same.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::System(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)))
    }
}

// docs/RUNBOOK.md lists these messages.
fn write_not_regular(kind: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match kind {
        "directory" => f.write_str("it is a directory; name a file"),
        kind => write!(f, "it is a {kind}, not a regular file; name a regular file"),
    }
}

// docs/RUNBOOK.md lists these messages.
fn write_out_of_reach(directory: &Path, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if sandbox::is_shared(directory) {
        return write!(
            f,
            "the directory {} is shared (docs/OPERATIONS.md), and a running server reads no new file there; overwrite the old \
             file in place, or restart the server",
            directory.display()
        );
    }
    write!(
        f,
        "a running server does not reach the directory {}; move the file, or the target of the link, beside the files that \
         the server was started with, or restart the server",
        directory.display()
    )
}

impl From<FileError> for io::Error {
    fn from(error: FileError) -> Self {
        match error {
            FileError::System(error) => error,
            error => Self::other(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    fn problem(path: &Path) -> String {
        read(path, 1024)
            .map_or_else(|error| error.to_string(), |file| format!("{} bytes", file.content.len()))
    }

    #[test]
    fn only_regular_files_are_read_and_none_beyond_its_limit() {
        let dir = std::env::temp_dir().join(format!("beanring-named-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).expect("there is space");
        let at = |name: &str| dir.join(name);
        fs::write(at("exact"), "x".repeat(1024)).expect("there is space");
        fs::write(at("long"), "x".repeat(1025)).expect("there is space");
        let _socket = UnixListener::bind(at("socket")).expect("it is new");
        symlink("exact", at("link")).expect("it is new");
        for (name, expected) in [
            ("exact", "1024 bytes"),
            ("link", "1024 bytes"),
            ("long", "the file is larger than its limit of 1 KiB; name a smaller one"),
            ("socket", "it is a socket, not a regular file; name a regular file"),
            ("nothing", "there is no such file; correct the path"),
            ("exact/below", "Not a directory"),
        ] {
            assert_eq!(problem(&at(name)), expected, "{name}");
        }
        fs::set_permissions(at("exact"), fs::Permissions::from_mode(0o000)).expect("it belongs to this test");
        if !nix::unistd::geteuid().is_root() {
            assert!(problem(&at("exact")).starts_with("permission denied: user "));
        }
        fs::remove_dir_all(&dir).expect("it belongs to this test");
    }
}
