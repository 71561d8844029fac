//! The log's writes. One that has to be durable is a request on the ring, past the page cache; the rest is as under
//! every driver.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use nix::errno::Errno;

use super::Driver;
use super::ring::Ring;
use crate::io::wal_files::{Access, Disk};
use crate::server::{Event, Service};
use crate::wal::batch::BLOCK_BYTES;
use crate::wal::{Batch, Operation, Outcome};

/// The disk, and the write under way.
pub struct LogFiles {
    disk: Option<Disk>,
    write: Option<Write>,
}

/// A write that the ring has.
struct Write {
    file: Arc<File>,
    offset: u64,
    batch: Batch,
    /// How much of it is written.
    written: usize,
}

impl LogFiles {
    pub const fn new(disk: Option<Disk>) -> Self {
        Self { disk, write: None }
    }

    /// The disk. The write under way, if any, stays in memory.
    pub fn forget_write(self) -> Option<Disk> {
        std::mem::forget(self.write);
        self.disk
    }

    /// Waits for the bell.
    pub fn watch(&self, ring: &mut impl Ring) {
        if let Some(disk) = &self.disk {
            ring.watch_bell(disk.outcome_fd().as_raw_fd());
        }
    }

    /// Asks for what is left of the write.
    fn go_on(&mut self, ring: &mut impl Ring) {
        let Some(write) = &self.write else { return };
        let begin = write.written - write.written % BLOCK_BYTES;
        let rest = &write.batch.bytes()[begin..];
        // SAFETY: the batch stays here, and as it is, until the completion; and for good if the driver ends
        // before.
        #[allow(unsafe_code)]
        unsafe {
            ring.write(write.file.as_raw_fd(), write.offset + begin as u64, rest);
        }
    }

    /// A piece is written. Returns the outcome when it was the last.
    fn has_written(&mut self, result: Result<u32, Errno>) -> Option<Outcome> {
        let write = self.write.as_mut().expect("a write was under way");
        let outcome = match result {
            Ok(bytes) => {
                let end = write.written - write.written % BLOCK_BYTES + bytes as usize;
                match std::mem::replace(&mut write.written, end) {
                    before if end <= before => Err(io::ErrorKind::WriteZero.into()),
                    _ if end < write.batch.len() => return None,
                    _ => Ok(()),
                }
            }
            Err(Errno::EINTR | Errno::EAGAIN) => return None,
            Err(errno) => Err(errno.into()),
        };
        let Write { batch, .. } = self.write.take().expect("it was under way");
        Some(Outcome::Written(batch, outcome))
    }
}

impl<S: Service, R: Ring> Driver<S, R> {
    /// Begins what the server has for the disk. What is done at once is told at once.
    pub(super) fn use_disk(&mut self) {
        while let Some(operation) = self.server.disk(self.now) {
            let disk = self.log.disk.as_mut().expect("a server with a log has a disk");
            let outcome = match operation {
                Operation::Write { segment, offset, batch, sync: true } => {
                    match disk.file(segment, Access::Durable) {
                        Ok(file) => {
                            self.log.write = Some(Write { file, offset, batch, written: 0 });
                            self.log.go_on(&mut self.ring);
                            None
                        }
                        Err(error) => Some(Outcome::Written(batch, Err(error))),
                    }
                }
                operation => disk.begin(operation),
            };
            if let Some(outcome) = outcome {
                self.tell(Event::Disk(outcome));
            }
        }
    }

    pub(super) fn has_written(&mut self, result: Result<u32, Errno>) {
        match self.log.has_written(result) {
            Some(outcome) => self.tell(Event::Disk(outcome)),
            None => self.log.go_on(&mut self.ring),
        }
    }

    /// The disk has done something.
    pub(super) fn hear_disk(&mut self) {
        let disk = self.log.disk.as_mut().expect("it has rung");
        disk.clear_outcome_fd();
        let outcomes: Vec<Outcome> = std::iter::from_fn(|| disk.finished()).collect();
        self.log.watch(&mut self.ring);
        for outcome in outcomes {
            self.tell(Event::Disk(outcome));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three_blocks() -> LogFiles {
        let mut batch = Batch::default();
        batch.pad_to(3 * BLOCK_BYTES);
        let file = Arc::new(File::open("/dev/null").expect("it is everywhere"));
        LogFiles { disk: None, write: Some(Write { file, offset: 0, batch, written: 0 }) }
    }

    #[test]
    fn a_short_write_goes_on_with_a_whole_block() {
        let mut files = three_blocks();
        assert!(files.has_written(Ok(5000)).is_none());
        assert!(files.has_written(Err(Errno::EINTR)).is_none());
        // From 4096 on.
        assert!(files.has_written(Ok(4096)).is_none());
        assert!(matches!(files.has_written(Ok(4096)), Some(Outcome::Written(_, Ok(())))));
    }

    #[test]
    fn a_write_that_gets_nowhere_fails() {
        for count in [0, 904] {
            let mut files = three_blocks();
            assert!(files.has_written(Ok(5000)).is_none());
            assert!(matches!(files.has_written(Ok(count)), Some(Outcome::Written(_, Err(_)))), "{count}");
        }
    }
}
