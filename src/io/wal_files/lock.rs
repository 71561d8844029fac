//! The lock of a job log's directory.

use std::fs::File;
use std::io;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use crate::io::retry_briefly;

/// A locked file, unlocked when the value is dropped. The lock belongs to the open file description (`F_OFD_SETLK` of
/// fcntl(2)), so it survives an in-place restart. A file that is locked is tried again for 350 ms: the kernel unlocks the
/// files of a process some time after tools such as pidof(1) show that it has ended.
#[derive(Debug)]
pub struct Lock(Option<File>);

impl Lock {
    /// Takes an exclusive lock. Returns none if another process has locked the file.
    pub fn to_write(file: File) -> io::Result<Option<Self>> {
        Self::take(file, libc::F_WRLCK)
    }

    /// Takes a shared lock. Returns none if another process has the exclusive one.
    pub fn to_read(file: File) -> io::Result<Option<Self>> {
        Self::take(file, libc::F_RDLCK)
    }

    fn take(file: File, kind: libc::c_int) -> io::Result<Option<Self>> {
        let is_locked = |&errno: &Errno| matches!(errno, Errno::EAGAIN | Errno::EACCES);
        match retry_briefly(|| set(&file, kind), is_locked) {
            Ok(()) => Ok(Some(Self(Some(file)))),
            Err(errno) if is_locked(&errno) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Returns the file, which stays locked while any process has it open.
    pub fn into_file(mut self) -> File {
        self.0.take().expect("only this takes the file, with the value")
    }
}

impl Drop for Lock {
    /// Closing the file would not be enough: a child between fork and exec has it open too.
    fn drop(&mut self) {
        if let Some(file) = &self.0 {
            // Unlocking a held lock cannot fail.
            let _ = set(file, libc::F_UNLCK);
        }
    }
}

pub(super) fn set(file: &File, kind: libc::c_int) -> nix::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&whole(kind))).map(drop)
}

/// The description of a lock of the whole file.
pub(super) fn whole(kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn dropping_the_value_unlocks_though_a_descriptor_is_open() {
        let path = std::env::temp_dir().join(format!("beanring-lock-{}", std::process::id()));
        let open = || {
            let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
            opened.expect("there is space")
        };
        let file = open();
        // A child has such a copy between fork and exec.
        let copy = file.try_clone().expect("there are descriptors");
        let lock = Lock::to_write(file).unwrap().expect("the lock is free");
        assert!(Lock::to_write(open()).unwrap().is_none());
        assert!(Lock::to_read(open()).unwrap().is_none());
        drop(lock);
        let readers =
            [open(), open()].map(|file| Lock::to_read(file).unwrap().expect("shared locks coexist"));
        assert!(Lock::to_write(open()).unwrap().is_none());
        drop(readers);
        drop(copy);

        let kept = Lock::to_write(open()).unwrap().expect("the lock is free").into_file();
        assert!(Lock::to_write(open()).unwrap().is_none(), "the open file keeps the lock");
        // As the kernel closes the files of a process that tools show no more.
        let closing = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            drop(kept);
        });
        Lock::to_write(open()).unwrap().expect("it is free soon");
        closing.join().expect("the thread does not panic");
        fs::remove_file(path).expect("it belongs to this test");
    }
}
