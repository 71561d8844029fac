//! The lock of a log's directory.

use std::fs::File;
use std::io;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

/// A file that others find locked for as long as the value lives. The lock is one of the open file (`F_OFD_SETLK` of
/// fcntl(2)), which may go on to another program.
#[derive(Debug)]
pub struct Lock(Option<File>);

impl Lock {
    /// Keeps everybody else out. `None` if somebody has the file locked.
    pub fn to_write(file: File) -> io::Result<Option<Self>> {
        Self::take(file, libc::F_WRLCK)
    }

    /// Keeps out who writes. `None` if somebody does.
    pub fn to_read(file: File) -> io::Result<Option<Self>> {
        Self::take(file, libc::F_RDLCK)
    }

    fn take(file: File, kind: libc::c_int) -> io::Result<Option<Self>> {
        match set(&file, kind) {
            Ok(()) => Ok(Some(Self(Some(file)))),
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The file, which stays locked for as long as it is open anywhere.
    pub fn into_file(mut self) -> File {
        self.0.take().expect("it goes with the value alone")
    }
}

impl Drop for Lock {
    /// To close the file would not be enough: a child that has not become its program yet has it open too.
    fn drop(&mut self) {
        if let Some(file) = &self.0 {
            // Cannot fail for a lock that is held.
            let _ = set(file, libc::F_UNLCK);
        }
    }
}

fn set(file: &File, kind: libc::c_int) -> nix::Result<()> {
    let whole = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    fcntl(file, FcntlArg::F_OFD_SETLK(&whole)).map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};

    use super::*;

    #[test]
    fn it_ends_with_its_value_and_not_with_the_last_descriptor() {
        let path = std::env::temp_dir().join(format!("beanring-lock-{}", std::process::id()));
        let open = || {
            let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
            opened.expect("there is room")
        };
        let file = open();
        // As a child has it between its fork and its program.
        let copy = file.try_clone().expect("there are descriptors");
        let lock = Lock::to_write(file).unwrap().expect("nobody else has it");
        assert!(Lock::to_write(open()).unwrap().is_none());
        assert!(Lock::to_read(open()).unwrap().is_none());
        drop(lock);
        let readers = [open(), open()].map(|file| Lock::to_read(file).unwrap().expect("they read"));
        assert!(Lock::to_write(open()).unwrap().is_none());
        drop(readers);
        drop(copy);

        let kept = Lock::to_write(open()).unwrap().expect("nobody else has it").into_file();
        assert!(Lock::to_write(open()).unwrap().is_none(), "it went on with the file");
        drop(kept);
        fs::remove_file(path).expect("it is ours");
    }
}
