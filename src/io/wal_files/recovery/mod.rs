//! Recovery: from a directory to a queue, and a WAL that continues.
//!
//! 1. `read`: replay the records of all segments in order. Nothing is changed; damage ends the start here.
//! 2. `secure`: rewrite what is not proven to be on disk.
//! 3. `prepare`: remove what is not needed, and make segments ready.

mod error;
mod preflight;
mod reader;

use std::collections::BTreeMap;
use std::io;

use tracing::warn;

pub use self::error::RecoveryError;
pub use self::preflight::preflight;
pub use self::reader::{Extent, Findings, Hole, JobBodies, Tail};
use self::reader::{Piece, Reader};
use super::directory::Directory;
use super::storage::{Segments, Storage};
use crate::io::host;
use crate::queue::Engine;
use crate::time::Time;
use crate::values::ids::JobId;
use crate::wal::batch::BLOCK_BYTES;
use crate::wal::record::{Lsn, padding_bytes};
use crate::wal::scan::Scanner;
use crate::wal::segment::HEADER_BYTES;
use crate::wal::{Arrangement, Recovered, SegmentNumber, Wal, WalConfig, is_full};

impl Directory {
    /// As [`recover`]. It is not generic, so that the library compiles it.
    ///
    /// # Errors
    /// Those of [`recover`].
    pub fn recover(&self, config: WalConfig, engine: &mut Engine, now: Time) -> Result<Wal, RecoveryError> {
        recover(self, config, engine, now)
    }
}

/// Reads the job log, restores the jobs into the queue, and prepares the directory for new records.
///
/// # Errors
/// If the job log is damaged, is not one that this version continues, or cannot be read or written.
pub fn recover(
    storage: &impl Storage,
    config: WalConfig,
    engine: &mut Engine,
    now: Time,
) -> Result<Wal, RecoveryError> {
    let files = storage.list().map_err(RecoveryError::of_directory)?;
    let (mut recovered, mut findings, tail) = read(storage, &files, engine, now, JobBodies::Restored)?;
    if let Some(tail) = &tail
        && let Some(Extent { file, offset, bytes }) = tail.discarded()
    {
        warn!(
            "{file}: discarded the unsynced tail that the last run left: {bytes} bytes from offset {offset} on, \
             whole records in them: {}",
            tail.left
        );
    }
    // Nothing before such a file shows that it was durable.
    for segment in &findings.lost {
        warn!(
            "{segment}: discarded the unsynced segment that the last run left: its records do not follow those before it"
        );
    }
    if let Some(fault) = findings.mark_fault {
        warn!("{fault}");
    }
    if let Some(unrecorded) = Unrecorded::of(&recovered) {
        warn!("{unrecorded}");
    }
    if let Some(Hole { last, next }) = findings.hole {
        warn!(
            "{last} is full and was not closed, and the next file is {next}: if a file between them was removed, its jobs are \
             missing; restore a backup of the directory"
        );
    }
    if let Some(refusal) = findings.refusal.take() {
        return Err(refusal);
    }
    let needed = HEADER_BYTES + recovered.largest;
    if needed > config.segment_bytes {
        return Err(RecoveryError::JobTooLarge { bytes: needed });
    }
    let has_other_size = |&(number, bytes): &(&SegmentNumber, &u64)| {
        *bytes != config.segment_bytes && !findings.unused.contains(number) && !findings.lost.contains(number)
    };
    let of_other_size = files.iter().filter(has_other_size).map(|(&number, _)| number);
    recovered.other_size_up_to = of_other_size.max().unwrap_or(SegmentNumber(0));
    let continued = tail.as_ref().filter(|tail| findings.lost.is_empty() && tail.can_continue(config));
    let filling = continued.map(Tail::filling).unwrap_or_default();
    secure(storage, &mut findings, filling.bytes())?;
    if let Some(tail) = continued {
        recovered.end.0 += padding_bytes(tail.offset, tail.bytes) as u64;
        recovered.active = Some(tail.header);
    }
    let prepared = prepare(storage, &files, &findings, config, recovered.active.is_some())?;
    storage.sync().map_err(RecoveryError::of_directory)?;
    Ok(Wal::new(config, recovered, prepared, engine))
}

/// What reading a job log gives.
type ReadLog = Result<(Recovered, Findings, Option<Tail>), RecoveryError>;

/// Reads the job log and restores the jobs into the queue. Changes nothing in the directory.
pub fn read<S: Segments + ?Sized>(
    segments: &S,
    files: &BTreeMap<SegmentNumber, u64>,
    engine: &mut Engine,
    now: Time,
    bodies: JobBodies,
) -> ReadLog {
    let (replay, tail, mut findings) = Reader::new(segments, engine, bodies).read_all(files)?;
    let mut recovered = replay.finish(engine, now);
    match &tail {
        Some(tail) => {
            (recovered.log_id, recovered.end) = (tail.header.log_id, tail.end);
            recovered.closed_end = tail.closed_end;
            recovered.mark = findings.agreed_mark;
            findings.note_hole(tail, recovered.largest);
        }
        // Files that are left belong to it.
        None => match findings.log_id {
            Some(log_id) => recovered.log_id = log_id,
            None => {
                let random = host::random_word();
                recovered.log_id = random.map_err(|errno| io_error("random numbers", errno.into()))?;
            }
        },
    }
    Ok((recovered, findings, tail))
}

/// Jobs of a log that have changes and no record: their puts are lost.
// docs/RUNBOOK.md lists these messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "jobs whose puts are missing, while their changes are there: {jobs}; the first is {first}; restore a backup of the directory, \
    or run beanring wal salvage, which lists them"
)]
pub struct Unrecorded {
    /// The smallest id.
    pub first: JobId,
    /// How many there are.
    pub jobs: usize,
}

impl Unrecorded {
    /// Returns those of a recovered log, if there are any.
    pub fn of(recovered: &Recovered) -> Option<Self> {
        recovered.unrecorded.first().map(|&first| Self { first, jobs: recovered.unrecorded.len() })
    }
}

/// Rewrites what is not proven to be on disk, with `filling` behind it: the next record will say that it is durable. To
/// have read it proves nothing, and a sync does not either. After a failed write the kernel may keep the page and mark it
/// clean: it is read until it is evicted, and never written.
fn secure(storage: &impl Storage, findings: &mut Findings, filling: &[u8]) -> Result<(), RecoveryError> {
    let mut window = Vec::new();
    let last = findings.read.last().map(|piece| piece.header.number);
    // The filling of the last block with records is counted with that block.
    let block_bytes = BLOCK_BYTES as u64;
    let needed = findings.unproven_bytes() + filling.len() as u64 / block_bytes * block_bytes;
    let needed = needed.max(block_bytes);
    for piece in &findings.read {
        let &Piece { header, end, bytes } = piece;
        let then = if Some(header.number) == last { filling } else { &[] };
        let (from, to) = match findings.unproven(piece) {
            Some(unproven) => unproven,
            None if then.is_empty() => continue,
            None => {
                let to = header.offset(end);
                (to / block_bytes * block_bytes, to)
            }
        };
        let failed = |error| io_error(&header.number.to_string(), error);
        let mut written = storage.rewrite(header.number, from, to, then);
        while let Err(error) = &written
            && is_full(error)
            && let Some(spare) = findings.unused.iter().rposition(|unused| !findings.markers.contains(unused))
        {
            // The file system takes new space for the write; an unused file frees some.
            storage.remove(findings.unused.remove(spare)).and_then(|()| storage.sync()).map_err(failed)?;
            written = storage.rewrite(header.number, from, to, then);
        }
        written.map_err(|error| match is_full(&error) {
            true => RecoveryError::NoSpace { file: header.number.to_string(), bytes: needed },
            false => failed(error),
        })?;
        // The kernel may have evicted an unwritten page since the first read. Proven records were on disk.
        let mut has_records = |from: Lsn| -> io::Result<bool> {
            let file = storage.open(header.number)?;
            let mut scanner =
                Scanner::new(file, bytes, header, std::mem::take(&mut window)).starting_at(from);
            while scanner.end() < end && scanner.next_record()?.is_some() {}
            let is_whole = scanner.end() == end;
            window = scanner.into_window();
            Ok(is_whole)
        };
        let proven = findings.proven.clamp(header.first, end);
        // A log that was changed may prove a position within a record.
        if !has_records(proven).map_err(failed)? && !has_records(header.first).map_err(failed)? {
            return Err(RecoveryError::Unstable(header.number.to_string()));
        }
    }
    Ok(())
}

/// Removes files that are not needed, and makes sure that there is a segment to continue in. Returns the prepared ones.
fn prepare(
    storage: &impl Storage,
    files: &BTreeMap<SegmentNumber, u64>,
    findings: &Findings,
    config: WalConfig,
    is_continued: bool,
) -> Result<Vec<SegmentNumber>, RecoveryError> {
    let mut prepared = Vec::new();
    let mut next = findings.last.map_or(SegmentNumber(1), SegmentNumber::next);
    let remove =
        |number: SegmentNumber| storage.remove(number).map_err(|error| io_error(&number.to_string(), error));
    findings.lost.iter().rev().try_for_each(|&number| remove(number))?;
    for &number in &findings.unused {
        let fits = files[&number] == config.segment_bytes;
        let is_marker = findings.markers.contains(&number);
        let is_kept = is_marker || fits && findings.lost.is_empty();
        if !is_kept {
            remove(number)?;
            continue;
        }
        let resized = if fits { Ok(()) } else { storage.resize(number, config.segment_bytes) };
        // A power failure may have left records without their header in the file. Under another number they are invalid.
        match resized.and_then(|()| storage.rename(number, next)) {
            Ok(()) => {
                prepared.push(next);
                next = next.next();
            }
            // A new name takes space on btrfs, which has space in reserve for removals.
            Err(error) if is_full(&error) && !is_marker => remove(number)?,
            Err(error) => return Err(io_error(&number.to_string(), error)),
        }
    }
    if prepared.is_empty() {
        let bytes = config.segment_bytes;
        let created = if is_continued {
            storage.create_unwritten(next, bytes)
        } else {
            storage.arrange(Arrangement::Create { segment: next, bytes })
        };
        match created {
            Ok(()) => prepared.push(next),
            // The server starts: clients can delete jobs, which frees space.
            Err(error) if is_continued && is_full(&error) => {}
            Err(error) => return Err(io_error(&next.to_string(), error)),
        }
    }
    Ok(prepared)
}

fn io_error(file: &str, error: io::Error) -> RecoveryError {
    RecoveryError::Io(file.to_owned(), error)
}
