//! Threads that wait for the disk. They own no state: each runs one task after another and reports the outcomes.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use nix::sys::eventfd::EventFd;

use super::{Access, Directory, ToSync};
use crate::io::descriptors::SpareDescriptors;
use crate::wal::batch::BLOCK_BYTES;
use crate::wal::{Arrangement, Batch, DiskOutcome};

/// A thread that runs one task after another.
#[derive(Debug)]
pub struct Worker {
    tasks: Sender<Task>,
    thread: JoinHandle<()>,
}

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
        (outcomes, outcome_fd): (Sender<DiskOutcome>, Arc<EventFd>),
        reserve: Arc<SpareDescriptors>,
    ) -> io::Result<Self> {
        let (tasks, queued) = mpsc::channel::<Task>();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            for task in queued {
                let outcome = task.run(&directory, &reserve);
                reserve.refill();
                if outcomes.send(outcome).is_err() || outcome_fd.write(1).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { tasks, thread })
    }

    pub fn end(self) {
        drop(self.tasks);
        self.thread.join().expect("the thread does not panic");
    }

    /// Queues a task.
    ///
    /// # Panics
    /// If the thread has panicked.
    pub fn queue(&self, task: Task) {
        self.tasks.send(task).expect("the thread runs as long as this value lives");
    }
}

impl Task {
    fn run(self, directory: &Directory, reserve: &SpareDescriptors) -> DiskOutcome {
        match self {
            Self::Write { file, offset, batch } => {
                let written = write_blocks(&file, batch.bytes(), offset);
                DiskOutcome::Written(batch, written)
            }
            // Files are opened one at a time: thousands may have been written since the last sync.
            Self::Sync(files) => {
                let open = |segment| {
                    reserve.open_in_time(|| {
                        directory.refuse_cancelled()?;
                        directory.open_segment(segment, Access::Cached)
                    })
                };
                let mut files = files.into_iter();
                DiskOutcome::Synced(files.try_for_each(|(segment, file)| match file {
                    Some(file) => file.sync_data(),
                    None => open(segment)?.sync_data(),
                }))
            }
            Self::Arrange(arrangement) => {
                // An attempt without a descriptor has changed nothing, so it can be repeated.
                let arranged = reserve.open_in_time(|| directory.arrange(arrangement));
                DiskOutcome::Arranged(arrangement, arranged)
            }
        }
    }
}

/// Writes all bytes. Each request begins with a block, also after a short write, since direct I/O needs that.
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
