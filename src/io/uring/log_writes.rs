//! The job log's writes. A write that has to be durable is a request on the ring, past the page cache, unless writes on a
//! thread were faster. Everything else is as under every driver.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use nix::errno::Errno;

use super::UringDriver;
use super::ring::Ring;
use crate::io::wal_files::Access;
use crate::io::wal_files::ways::Way;
use crate::server::Service;
use crate::wal::batch::BLOCK_BYTES;
use crate::wal::{Batch, DiskOperation, DiskOutcome};

/// A write that is in flight.
pub(super) struct LogWrite {
    file: Arc<File>,
    offset: u64,
    batch: Batch,
    written: usize,
}

/// The result of a completed request.
enum Progress {
    /// Another request is to write the rest.
    Continues,
    Done(io::Result<()>),
}

impl LogWrite {
    /// Requests a write of what is left, from the last whole block.
    fn submit(&self, ring: &mut impl Ring) {
        let begin = self.begin();
        let rest = &self.batch.bytes()[begin..];
        // SAFETY: the driver keeps the batch as it is until the completion, and leaks it if it ends before.
        #[allow(unsafe_code)]
        unsafe {
            ring.write(self.file.as_raw_fd(), self.offset + begin as u64, rest);
        }
    }

    /// Processes the completion of a request.
    fn complete(&mut self, result: Result<u32, Errno>) -> Progress {
        match result {
            Ok(bytes) => {
                let end = self.begin() + bytes as usize;
                match std::mem::replace(&mut self.written, end) {
                    before if end <= before => Progress::Done(Err(io::ErrorKind::WriteZero.into())),
                    _ if end < self.batch.len() => Progress::Continues,
                    _ => Progress::Done(Ok(())),
                }
            }
            Err(Errno::EINTR | Errno::EAGAIN) => Progress::Continues,
            Err(errno) => Progress::Done(Err(errno.into())),
        }
    }

    /// Where the next request begins: direct I/O writes whole blocks.
    const fn begin(&self) -> usize {
        self.written - self.written % BLOCK_BYTES
    }
}

impl<S: Service, R: Ring> UringDriver<S, R> {
    /// Begins an operation of the job log. Returns its outcome if it is complete.
    pub(super) fn begin_operation(&mut self, operation: DiskOperation) -> Option<DiskOutcome> {
        let disk = self.shell.disk.as_mut().expect("a server with a log has a disk");
        let (segment, offset, batch) = match operation {
            DiskOperation::Write { segment, offset, batch, sync: true, .. }
                if disk.choose_way(self.shell.now) == Way::Ring =>
            {
                (segment, offset, batch)
            }
            operation => return disk.begin(operation),
        };
        match disk.file(segment, Access::Durable) {
            Ok(file) => {
                let write = LogWrite { file, offset, batch, written: 0 };
                write.submit(&mut self.ring);
                let before = self.log_write.replace(write);
                assert!(before.is_none(), "the log has one write in flight");
                None
            }
            Err(error) => Some(DiskOutcome::Written(batch, Err(error))),
        }
    }

    pub(super) fn log_written(&mut self, result: Result<u32, Errno>) {
        let mut write = self.log_write.take().expect("a write was in flight");
        match write.complete(result) {
            Progress::Continues => {
                write.submit(&mut self.ring);
                self.log_write = Some(write);
            }
            Progress::Done(written) => {
                self.shell.disk_ended(DiskOutcome::Written(write.batch, written));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three_blocks() -> LogWrite {
        let mut batch = Batch::default();
        batch.pad_to(3 * BLOCK_BYTES);
        let file = Arc::new(File::open("/dev/null").expect("/dev/null opens"));
        LogWrite { file, offset: 0, batch, written: 0 }
    }

    #[test]
    fn a_short_write_continues_at_the_last_whole_block() {
        let mut write = three_blocks();
        assert!(matches!(write.complete(Ok(5000)), Progress::Continues));
        assert!(matches!(write.complete(Err(Errno::EINTR)), Progress::Continues));
        // From 4096 on.
        assert!(matches!(write.complete(Ok(4096)), Progress::Continues));
        assert!(matches!(write.complete(Ok(4096)), Progress::Done(Ok(()))));
    }

    #[test]
    fn a_write_without_progress_fails() {
        for count in [0, 904] {
            let mut write = three_blocks();
            assert!(matches!(write.complete(Ok(5000)), Progress::Continues));
            assert!(matches!(write.complete(Ok(count)), Progress::Done(Err(_))), "{count}");
        }
    }
}
