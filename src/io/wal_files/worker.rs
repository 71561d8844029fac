//! The threads that wait for the disk. They own no state: each runs one task after another and reports its outcome.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use nix::sys::eventfd::EventFd;

use super::{Access, Directory, ToSync};
use crate::io::descriptors::Reserve;
use crate::wal::batch::BLOCK_BYTES;
use crate::wal::{Arrangement, Batch, Outcome};

/// A thread that does one thing after the other.
#[derive(Debug)]
pub struct Worker {
    to_do: Sender<Task>,
    thread: JoinHandle<()>,
}

/// What a thread is told to do.
#[derive(Debug)]
pub enum Task {
    Write { file: Arc<File>, offset: u64, batch: Batch },
    Sync(Vec<ToSync>),
    Arrange(Arrangement),
}

impl Worker {
    pub fn start(
        name: &str,
        directory: Arc<Directory>,
        (outcomes, bell): (Sender<Outcome>, Arc<EventFd>),
        reserve: Arc<Reserve>,
    ) -> io::Result<Self> {
        let (to_do, tasks) = mpsc::channel::<Task>();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            for task in tasks {
                let outcome = task.carry_out(&directory, &reserve);
                reserve.refill();
                if outcomes.send(outcome).is_err() || bell.write(1).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { to_do, thread })
    }

    pub fn end(self) {
        drop(self.to_do);
        self.thread.join().expect("the thread does not panic");
    }

    pub fn hand_over(&self, task: Task) -> Option<Outcome> {
        self.to_do.send(task).expect("the thread ends with this");
        None
    }
}

impl Task {
    fn carry_out(self, directory: &Directory, reserve: &Reserve) -> Outcome {
        match self {
            Self::Write { file, offset, batch } => {
                let written = write_blocks(&file, batch.bytes(), offset);
                Outcome::Written(batch, written)
            }
            // One after the other: there may be thousands since the last sync.
            Self::Sync(files) => {
                let open = |segment| {
                    reserve.open_in_time(|| {
                        directory.goes_on()?;
                        directory.open_segment(segment, Access::Cached)
                    })
                };
                let mut files = files.into_iter();
                Outcome::Synced(files.try_for_each(|(segment, file)| match file {
                    Some(file) => file.sync_data(),
                    None => open(segment)?.sync_data(),
                }))
            }
            Self::Arrange(arrangement) => {
                // Nothing is half done where there was no descriptor.
                let arranged = reserve.open_in_time(|| directory.arrange(arrangement));
                Outcome::Arranged(arrangement, arranged)
            }
        }
    }
}

/// Writes all of it, in whole blocks as long as it can: what is left of a short write begins with one too.
fn write_blocks(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let mut written = 0;
    while written < bytes.len() {
        let begin = written - written % BLOCK_BYTES;
        match file.write_at(&bytes[begin..], offset + begin as u64) {
            Ok(count) if begin + count > written => written = begin + count,
            Ok(_) => return Err(ErrorKind::WriteZero.into()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
