//! The job log's files. Durable writes, unless a thread was faster, and syncs are requests on the runtime's ring, made by one
//! task for each kind. Everything else is as under every driver.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;

use tokio_uring::buf::{BoundedBuf, IoBuf};
use tokio_uring::fs::File;

use super::Shared;
use super::driver::Awaited;
use crate::io::durable_write::{advance, block_of};
use crate::io::wal_files::ways::Way;
use crate::io::wal_files::{Access, Disk};
use crate::server::Service;
use crate::time::Time;
use crate::wal::{Arrangement, Batch, DiskOperation, DiskOutcome, SegmentNumber};

/// A sync of more segments is left to the thread, which opens one after the other.
const RING_SYNC_SEGMENTS_MAX: usize = 8;

/// The operations that wait for their tasks. The job log has one write and one sync in flight at a time, and so has each task.
#[derive(Default)]
pub struct LogFiles {
    /// The segment that was last written durably.
    durable: Option<(SegmentNumber, Rc<File>)>,
    write: Awaited<Write>,
    sync: Awaited<Vec<File>>,
}

/// A durable write.
struct Write {
    file: Rc<File>,
    offset: u64,
    batch: Batch,
}

/// A batch that the kernel reads.
struct InFlight(Batch);

// SAFETY: the bytes are on the heap and stay there when the value moves. The runtime owns the value until the request has
// completed, even if the task is gone, so nothing else can change or free them.
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
    /// Begins an operation. Returns its outcome if it is complete.
    pub fn begin(&mut self, disk: &mut Disk, operation: DiskOperation, now: Time) -> Option<DiskOutcome> {
        match operation {
            DiskOperation::Write { segment, offset, batch, sync: true, .. }
                if disk.choose_way(now) == Way::Ring =>
            {
                match self.durable(disk, segment) {
                    Ok(file) => self.write.set(Write { file, offset, batch }),
                    Err(error) => return Some(DiskOutcome::Written(batch, Err(error))),
                }
            }
            DiskOperation::Sync(segments) if segments.len() <= RING_SYNC_SEGMENTS_MAX => {
                // A copy of the descriptor that wrote: the open file description is the same.
                let files = segments.iter().map(|&segment| open(disk, segment, Access::Cached));
                match files.collect() {
                    Ok(files) => {
                        disk.to_sync(segments);
                        self.sync.set(files);
                    }
                    // The thread waits for descriptors, if there are none.
                    Err(_) => return disk.begin(DiskOperation::Sync(segments)),
                }
            }
            operation => {
                if let DiskOperation::Arrange(Arrangement::Recycle { from, .. } | Arrangement::Remove(from)) =
                    operation
                {
                    // A removed file keeps its space while it is open.
                    self.durable.take_if(|(segment, _)| *segment == from);
                }
                return disk.begin(operation);
            }
        }
        None
    }

    fn durable(&mut self, disk: &mut Disk, segment: SegmentNumber) -> io::Result<Rc<File>> {
        if let Some((_, file)) = self.durable.as_ref().filter(|&&(number, _)| number == segment) {
            return Ok(file.clone());
        }
        let file = Rc::new(open(disk, segment, Access::Durable)?);
        self.durable = Some((segment, file.clone()));
        Ok(file)
    }
}

/// Opens a segment as a file of the runtime, which closes its own copy of the descriptor.
fn open(disk: &mut Disk, segment: SegmentNumber, access: Access) -> io::Result<File> {
    let file = disk.file(segment, access)?;
    Ok(File::from_std(disk.reserve().open(|| file.try_clone())?))
}

/// Makes the durable writes.
pub async fn write<S: Service>(shared: Shared<S>) {
    loop {
        let write = poll_fn(|cx| shared.borrow_mut().log.write.poll(cx)).await;
        let (batch, written) = write_all(&write.file, write.offset, write.batch).await;
        drop(write.file);
        shared.borrow_mut().disk_completed(DiskOutcome::Written(batch, written));
    }
}

/// Makes the syncs.
pub async fn sync<S: Service>(shared: Shared<S>) {
    loop {
        let files = poll_fn(|cx| shared.borrow_mut().log.sync.poll(cx)).await;
        let synced = sync_all(&files).await;
        drop(files);
        shared.borrow_mut().disk_completed(DiskOutcome::Synced(synced));
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
        match advance(written, result) {
            Ok(end) => written = end,
            Err(error) => return (batch.0, Err(error)),
        }
    }
    (batch.0, Ok(()))
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
    use crate::wal::batch::BLOCK_BYTES;

    #[test]
    fn a_failed_write_returns_its_batch() {
        let write = async |path: &str| {
            let file = std::fs::OpenOptions::new().write(true).open(path).expect("the device opens");
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
