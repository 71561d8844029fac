//! The log's files. What has to wait for the disk is a request on the runtime's ring, made by a task for writes
//! and one for syncs; the rest is as under every driver.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;

use nix::errno::Errno;
use tokio_uring::buf::{BoundedBuf, IoBuf};
use tokio_uring::fs::File;

use super::Shared;
use super::state::Awaited;
use crate::io::socket::to_errno;
use crate::io::wal_files::{Access, Disk};
use crate::server::Service;
use crate::wal::batch::BLOCK_BYTES;
use crate::wal::{Batch, Operation, Outcome, SegmentNumber};

/// More segments than that are left to the thread, which opens one after the other.
const SYNCED_BY_RING: usize = 8;

/// The disk, and what waits for its task to begin it. Each task has one operation under way and is told of
/// no other before that is done, as the log asks for one of each kind at a time.
pub struct LogFiles {
    pub disk: Disk,
    /// The segment that was written last.
    durable: Option<(SegmentNumber, Rc<File>)>,
    write: Awaited<Write>,
    sync: Awaited<Vec<File>>,
}

/// A write that has to be durable.
struct Write {
    file: Rc<File>,
    offset: u64,
    batch: Batch,
}

/// A batch that the kernel reads.
struct InFlight(Batch);

// SAFETY: the bytes are on the heap and stay there when the value moves. The runtime owns it until the request
// has completed, also if nobody waits for that any more, and so nobody else can change or free them.
#[allow(unsafe_code)]
unsafe impl IoBuf for InFlight {
    fn stable_ptr(&self) -> *const u8 {
        self.0.bytes().as_ptr()
    }

    fn bytes_init(&self) -> usize {
        self.0.len()
    }

    fn bytes_total(&self) -> usize {
        self.0.len()
    }
}

impl LogFiles {
    pub fn new(disk: Disk) -> Self {
        Self { disk, durable: None, write: Awaited::default(), sync: Awaited::default() }
    }

    /// Begins an operation. Returns its outcome if it is over already.
    pub fn begin(&mut self, operation: Operation) -> Option<Outcome> {
        match operation {
            Operation::Write { segment, offset, batch, sync: true } => match self.durable(segment) {
                Ok(file) => self.write.set(Write { file, offset, batch }),
                Err(error) => return Some(Outcome::Written(batch, Err(error))),
            },
            Operation::Sync(segments) if segments.len() <= SYNCED_BY_RING => {
                // A copy of the descriptor that wrote: the open file is the same.
                let files = segments.iter().map(|&segment| self.open(segment, Access::Cached));
                match files.collect() {
                    Ok(files) => {
                        self.disk.to_sync(segments);
                        self.sync.set(files);
                    }
                    // The thread has more patience, where there are no descriptors.
                    Err(_) => return self.disk.begin(Operation::Sync(segments)),
                }
            }
            operation => return self.disk.begin(operation),
        }
        None
    }

    fn durable(&mut self, segment: SegmentNumber) -> io::Result<Rc<File>> {
        if let Some((_, file)) = self.durable.as_ref().filter(|&&(number, _)| number == segment) {
            return Ok(file.clone());
        }
        let file = Rc::new(self.open(segment, Access::Durable)?);
        self.durable = Some((segment, file.clone()));
        Ok(file)
    }

    /// A segment as a file of the runtime's, which is closed apart from the disk's.
    fn open(&mut self, segment: SegmentNumber, access: Access) -> io::Result<File> {
        let file = self.disk.file(segment, access)?;
        Ok(File::from_std(self.disk.reserve().open(|| file.try_clone())?))
    }
}

/// Writes what has to be durable.
pub async fn writes<S: Service>(shared: Shared<S>) {
    loop {
        let write = poll_fn(|cx| shared.borrow_mut().log().write.poll(cx)).await;
        let (batch, written) = write_all(&write.file, write.offset, write.batch).await;
        drop(write.file);
        shared.borrow_mut().disk_has_done(Outcome::Written(batch, written));
    }
}

/// Syncs what was written without.
pub async fn syncs<S: Service>(shared: Shared<S>) {
    loop {
        let files = poll_fn(|cx| shared.borrow_mut().log().sync.poll(cx)).await;
        let synced = sync_all(&files).await;
        drop(files);
        shared.borrow_mut().disk_has_done(Outcome::Synced(synced));
    }
}

async fn write_all(file: &File, offset: u64, batch: Batch) -> (Batch, io::Result<()>) {
    let bytes = batch.len();
    let mut batch = InFlight(batch);
    let mut written = 0;
    while written < bytes {
        let begin = block_of(written);
        let (result, slice) = file.write_at(batch.slice(begin..), offset + begin as u64).submit().await;
        batch = slice.into_inner();
        match go_on(written, result) {
            Ok(end) => written = end,
            Err(error) => return (batch.0, Err(error)),
        }
    }
    (batch.0, Ok(()))
}

/// Where direct I/O goes on: where a block begins.
const fn block_of(written: usize) -> usize {
    written - written % BLOCK_BYTES
}

/// How much is written after one more request.
fn go_on(written: usize, result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Ok(bytes) if block_of(written) + bytes > written => Ok(block_of(written) + bytes),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(error) if matches!(to_errno(&error), Errno::EINTR | Errno::EAGAIN) => Ok(written),
        Err(error) => Err(error),
    }
}

async fn sync_all(files: &[File]) -> io::Result<()> {
    for file in files {
        file.sync_data().await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::super::runtime;
    use super::*;

    #[test]
    fn a_short_write_goes_on_at_the_last_whole_block() {
        let check = |written, result: Result<usize, Errno>, expect| {
            let end = go_on(written, result.map_err(Into::into)).map_err(|error| error.kind());
            assert_eq!(end, expect, "{written} bytes, then {result:?}");
        };
        check(0, Ok(8192), Ok(8192));
        check(0, Ok(5000), Ok(5000));
        check(5000, Ok(4096), Ok(8192));
        check(5000, Ok(904), Err(ErrorKind::WriteZero));
        check(8192, Ok(0), Err(ErrorKind::WriteZero));
        check(5000, Err(Errno::EINTR), Ok(5000));
        check(0, Err(Errno::ENOSPC), Err(ErrorKind::StorageFull));
    }

    #[test]
    fn what_fails_is_told_with_its_batch() {
        let write = async |path: &str| {
            let file = std::fs::OpenOptions::new().write(true).open(path).expect("it is everywhere");
            let mut batch = Batch::default();
            batch.push(&[1; 3 * BLOCK_BYTES]);
            let (batch, written) = write_all(&File::from_std(file), 0, batch).await;
            assert_eq!(batch.bytes(), [1; 3 * BLOCK_BYTES]);
            written.map_err(|error| error.kind())
        };
        let runtime = match runtime() {
            Ok(runtime) => runtime,
            Err(error) => return println!("skipped: a write on a ring, because {error}"),
        };
        runtime.block_on(async {
            assert_eq!(write("/dev/null").await, Ok(()));
            assert_eq!(write("/dev/full").await, Err(ErrorKind::StorageFull));
        });
    }
}
