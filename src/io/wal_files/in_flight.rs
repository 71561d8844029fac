//! Writes that outlive the process that began them. The end of a killed process does not wait for the disk to carry out the
//! requests of its ring, but it unlocks the directory. Without more, the next server would write records where such a
//! request then lands.
//!
//! So each segment that is written by such requests has a shared lock. It ends when the open file does, and a request keeps
//! that open. The next server waits for these locks before it reads a segment.

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
use super::lock::{set, whole};
use super::plain_file;
use crate::io::signal::refuse_to_go_on;

const PAUSE: Duration = Duration::from_millis(10);

/// After this time of waiting, the log says why the server does not start.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// Locks an open segment until it is closed, and every request that writes to it has ended.
pub fn mark(segment: &File) -> nix::Result<()> {
    set(segment, libc::F_RDLCK)
}

/// Waits until no request of an earlier process writes to a segment of the directory, whose own lock the caller has.
/// Ignores what cannot be read: reading the job log reports it.
///
/// # Errors
/// If a signal to stop comes. A user who can read a segment can lock it forever.
pub fn wait(directory: &Path) -> io::Result<()> {
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
    use std::fs;
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
}
