//! The locks of a job log: that of its directory, and those of segments with writes in flight.
//!
//! Some writes outlive the process that began them. The end of a killed process does not wait for the disk to carry out the
//! requests of its ring, but it unlocks the directory. Without more, the next server would write records where such a
//! request then lands. So each segment that is written by such requests has a shared lock. It ends when the open file does,
//! and a request keeps that open. The next server waits for these locks before it reads a segment.

use std::fs::File;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use tracing::warn;

use super::directory::segments_in;
use super::plain_file;
use crate::io::retry_briefly;
use crate::io::signal::refuse_to_go_on;

const PAUSE: Duration = Duration::from_millis(10);

/// After this time of waiting, the log says why the server does not start.
const SILENCE_MAX: Duration = Duration::from_secs(1);

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

fn set(file: &File, kind: libc::c_int) -> nix::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&whole(kind))).map(drop)
}

/// The description of a lock of the whole file.
fn whole(kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

/// Locks an open segment until it is closed, and every request that writes to it has ended.
pub fn mark_in_flight(segment: &File) -> nix::Result<()> {
    set(segment, libc::F_RDLCK)
}

/// Waits until no request of an earlier process writes to a segment of the directory, whose own lock the caller has.
/// Ignores what cannot be read: reading the job log reports it.
///
/// # Errors
/// If a signal to stop comes. A user who can read a segment can lock it forever.
pub fn wait_for_writes(directory: &Path) -> io::Result<()> {
    let begun = Instant::now();
    let mut is_reported = false;
    for segment in segments_in(directory).unwrap_or_default().into_keys() {
        let Ok(file) = plain_file::open_to_read(&directory.join(segment.to_string())) else { continue };
        while is_marked(&file) == Ok(true) {
            if !is_reported && begun.elapsed() > SILENCE_MAX {
                warn!("{segment}: waiting for the disk to finish a write of the server before this one");
                is_reported = true;
            }
            refuse_to_go_on()?;
            thread::sleep(PAUSE);
        }
    }
    Ok(())
}

fn is_marked(segment: &File) -> Result<bool, Errno> {
    let mut found = whole(libc::F_WRLCK);
    fcntl(segment, FcntlArg::F_OFD_GETLK(&mut found))?;
    Ok(libc::c_int::from(found.l_type) != libc::F_UNLCK)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::sync::mpsc::{RecvTimeoutError, channel};

    use super::super::Access;
    use super::super::directory::Directory;
    use super::*;
    use crate::wal::{Arrangement, SegmentNumber};

    #[test]
    fn a_directory_opens_when_no_write_of_another_server_is_in_flight() {
        let path = std::env::temp_dir().join(format!("beanring-in-flight-{}", std::process::id()));
        fs::create_dir(&path).expect("there is space");
        let (segment, bytes) = (SegmentNumber(1), 4096);
        let killed = Directory::open(&path, false).expect("it is empty");
        killed.arrange(Arrangement::Create { segment, bytes }).expect("there is space");
        // Nothing in flight uses this one.
        let cached = killed.open_segment(segment, Access::Cached).expect("it was created");
        let written = killed.open_segment(segment, Access::Durable).expect("it was created");
        // As a request has it, whose process has closed its descriptors.
        let in_flight = written.try_clone().expect("there are descriptors");
        drop((killed, written));
        let (opened, results) = channel();
        let next = thread::spawn({
            let path = path.clone();
            move || opened.send(Directory::open(&path, false))
        });
        assert_eq!(results.recv_timeout(Duration::from_millis(200)).err(), Some(RecvTimeoutError::Timeout));
        drop(in_flight);
        let directory = results.recv().expect("the thread reports").expect("the directory is unlocked");
        next.join().expect("the thread ends").expect("this test receives");
        drop((directory, cached));
        fs::remove_dir_all(&path).expect("it belongs to this test");
    }

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
