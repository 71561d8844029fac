//! The job log's writes. A write that has to be durable is a request on the ring, past the page cache, unless writes on a
//! thread were faster. Everything else is as under every driver.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use nix::errno::Errno;

use super::UringDriver;
use super::ring::Ring;
use crate::io::durable_write::{advance, block_of};
use crate::io::wal_files::Access;
use crate::io::wal_files::ways::Way;
use crate::server::Service;
use crate::wal::{Batch, DiskOperation, DiskOutcome};

/// A write that is in flight.
pub(super) struct LogWrite {
    file: Arc<File>,
    offset: u64,
    batch: Batch,
    written: usize,
}

impl LogWrite {
    /// Requests a write of what is left, from the last whole block.
    fn submit(&self, ring: &mut impl Ring) {
        let begin = block_of(self.written);
        let rest = &self.batch.bytes()[begin..];
        // SAFETY: the driver keeps the batch as it is until the completion, and leaks it if it ends before.
        #[allow(unsafe_code)]
        unsafe {
            ring.write(self.file.as_raw_fd(), self.offset + begin as u64, rest);
        }
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
        match advance(write.written, result.map(|bytes| bytes as usize).map_err(Into::into)) {
            Ok(written) if written < write.batch.len() => {
                write.written = written;
                write.submit(&mut self.ring);
                self.log_write = Some(write);
            }
            written => self.shell.disk_ended(DiskOutcome::Written(write.batch, written.map(drop))),
        }
    }
}
