//! `beanring wal salvage`: writes the valid records of a damaged job log as a new one.

use std::path::Path;

use super::backup::BackupTarget;
use super::losses::Losses;
use super::survey::{Finding, survey};
use super::{Content, Count, Hole, JobBodies, Offline, ToolError};
use crate::bodies::OutOfMemory;
use crate::io::wal_files::{EndMarks, RecoveryError};
use crate::time::Time;
use crate::wal::batch::BLOCK_BYTES;
use crate::wal::record::{Lsn, Record};
use crate::wal::segment::HEADER_BYTES;
use crate::wal::{Replay, SEGMENT_BYTES_MIN, SegmentNumber};

/// Damage to a job log.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Damage {
    /// The header of a segment is invalid.
    #[error("{file}:0: checksum mismatch in the header")]
    Header { file: String },
    /// A file ends within its header.
    #[error("{file}:{bytes}: the file ends here, within its header")]
    Short { file: String, bytes: u64 },
    /// Records are invalid or missing.
    #[error("{file}:{offset}: {}", damaged(*.bytes, *.were_durable))]
    Records {
        /// The file that they were in, or the one before theirs.
        file: String,
        offset: u64,
        bytes: u64,
        /// Whether they were durable. If not, they may be a torn write.
        were_durable: bool,
    },
    /// A file is missing.
    #[error("{file}: the file is missing")]
    Missing { file: String },
    /// A file belongs to another job log, so nothing of it was read.
    #[error(
        "{file}: the file belongs to another job log, with the id {log_id:016x}; this one has {expected:016x}"
    )]
    OtherLog {
        file: String,
        log_id: u64,
        /// The id of the log in this directory.
        expected: u64,
    },
}

fn damaged(bytes: u64, were_durable: bool) -> String {
    let bytes = Count(bytes, "byte");
    if were_durable {
        format!("checksum mismatch, {bytes} of records are damaged")
    } else {
        format!(
            "{bytes} of records are damaged, or a torn write: no later record shows that they were synced"
        )
    }
}

/// The result of a salvage.
#[derive(Debug)]
pub struct Salvaged {
    /// The number of jobs in the new log.
    pub jobs: usize,
    /// First and last ids of jobs that are lost.
    pub lost: Vec<(u64, u64)>,
    /// Where records or files are damaged or missing.
    pub damage: Vec<Damage>,
    /// Where files may be missing. A healthy job log may look the same.
    pub hole: Option<Hole>,
}

/// Everything that can be read of a job log.
pub(super) struct Remains {
    pub content: Content,
    pub lost: Vec<(u64, u64)>,
    pub damage: Vec<Damage>,
    pub segments: usize,
    pub records: u64,
}

/// Writes the valid records of the job log in `from` as a new job log into `to`.
///
/// # Errors
/// If no record can be read, or `to` is not empty or cannot be written.
pub fn salvage(from: &Path, to: &Path, now: Time) -> Result<Salvaged, ToolError> {
    let log = Offline::open(from)?;
    let hole = log.recover(now, JobBodies::Restored).ok().and_then(|start| start.outlook.hole);
    let remains = gather(&log, now)?;
    let target = BackupTarget::new(to, from)?;
    let largest = log.files.values().copied().max().unwrap_or(0);
    let segment_bytes = largest.next_multiple_of(BLOCK_BYTES as u64).max(SEGMENT_BYTES_MIN);
    target.write(&remains.content, segment_bytes, now)?;
    let Remains { content, lost, damage, .. } = remains;
    Ok(Salvaged { jobs: content.engine.jobs().len(), lost, damage, hole })
}

/// Reads all valid records.
pub(super) fn gather(log: &Offline<'_>, now: Time) -> Result<Remains, ToolError> {
    let mut engine = log.new_engine()?;
    let (mut replay, mut losses) = (Replay::default(), Losses::default());
    let mut gaps: Vec<(Lsn, Damage)> = Vec::new();
    let (mut segments, mut records, mut log_id) = (0, 0, None);
    let (mut first, mut oldest) = (None, SegmentNumber(0));
    let (mut end, mut proven) = ((Lsn(0), String::new(), 0), Lsn(0));
    survey(log.path, &log.files, |finding| {
        let (at, damage) = match finding {
            Finding::Segment { file, header, is_headless, bytes } => {
                replay.open(header);
                if bytes < HEADER_BYTES {
                    losses.gap();
                    gaps.push((Lsn(0), Damage::Short { file: file.to_owned(), bytes }));
                }
                segments += 1;
                log_id = Some(header.log_id);
                first.get_or_insert(header.previous);
                if is_headless {
                    gaps.push((Lsn(0), Damage::Header { file: file.to_owned() }));
                } else {
                    losses.segment(header);
                    oldest = oldest.max(header.oldest);
                }
                return Ok(());
            }
            Finding::Gap { file, offset, at, bytes } => {
                (at, Damage::Records { file: file.to_owned(), offset, bytes, were_durable: false })
            }
            Finding::OtherLog { file, log_id, expected } => {
                (Lsn(0), Damage::OtherLog { file: file.to_owned(), log_id, expected })
            }
            Finding::Missing { file, at, .. } => (at, Damage::Missing { file: file.to_owned() }),
            Finding::Record { file, offset, at, framed } => {
                records += 1;
                losses.record(&framed.record);
                proven = proven.max(framed.durable);
                if let Record::Oldest(segment) = framed.record {
                    oldest = oldest.max(segment);
                }
                let bytes = framed.bytes as u64;
                end = (Lsn(at.0 + bytes), file.to_owned(), offset + bytes);
                let applied = replay.apply(&framed.record, framed.bytes, &mut engine);
                applied.map_err(|OutOfMemory| ToolError::Log(RecoveryError::Memory))?;
                return Ok(());
            }
        };
        losses.gap();
        gaps.push((at, damage));
        Ok(())
    })?;
    let marks = EndMarks::read(log.path).map_err(|error| ToolError::Unusable(log.path.to_owned(), error))?;
    let mark = log_id.map_or_else(|| marks.last().map(|(_, mark)| mark), |log_id| marks.last_of(log_id));
    proven = proven.max(mark.map_or(Lsn(0), |mark| mark.end));
    let (end, file, offset) = end;
    let is_told = |(at, damage): &(Lsn, Damage)| {
        *at == end && matches!(damage, Damage::Records { .. } | Damage::Missing { .. })
    };
    if end < proven && !gaps.iter().any(is_told) {
        losses.gap();
        gaps.push((end, Damage::Records { file, offset, bytes: proven.0 - end.0, were_durable: true }));
    }
    if let Some(previous) = first.filter(|&previous| previous.0 > 0 && previous >= oldest) {
        gaps.insert(0, (Lsn(0), Damage::Missing { file: previous.to_string() }));
    }
    let damage = gaps.into_iter().map(|(at, damage)| complete(at, damage, proven)).collect();
    let recovered = replay.finish(&mut engine, now);
    let lost = losses.finish(&recovered.unrecorded);
    let content = Content::new(engine, recovered, now);
    Ok(Remains { content, lost, damage, segments, records })
}

/// Completes a damage once it is known up to where the job log was durable.
fn complete(at: Lsn, mut damage: Damage, proven: Lsn) -> Damage {
    if let Damage::Records { were_durable, .. } = &mut damage {
        *were_durable |= at < proven;
    }
    damage
}
