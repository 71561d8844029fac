//! The job log of a directory as a value: `beanring replicate import` writes it elsewhere, and `export` writes one that comes from
//! elsewhere.

use std::path::Path;

use super::backup::BackupTarget;
use super::{Content, Extent, Hole, JobBodies, Offline, Outlook, Start, ToolError};
use crate::time::Time;

/// A job log that was read. No server writes to it while the value lives.
pub struct SourceLog<'a> {
    /// Everything in it.
    pub content: Content,
    /// Bytes that were left out, since a start discards them.
    pub discarded: Vec<Extent>,
    /// Where files may be missing. A healthy job log may look the same.
    pub hole: Option<Hole>,
    _log: Offline<'a>,
}

/// Reads the job log in a directory as a server does that starts from it.
///
/// # Errors
/// If a server uses the directory, or would not start from it.
pub fn read(from: &Path, now: Time) -> Result<SourceLog<'_>, ToolError> {
    let log = Offline::open(from)?;
    let Start { engine, recovered, outlook } = log.recover(now, JobBodies::Restored)?;
    let Outlook { refusal, discarded, hole, .. } = outlook;
    match refusal {
        Some(error) => Err(ToolError::Log(error)),
        None => Ok(SourceLog { content: Content::new(engine, recovered, now), discarded, hole, _log: log }),
    }
}

/// Writes a job log into a directory that is empty or new. It is checked there before it gets its name, so a server starts from
/// all of it or refuses it. What an interrupted call has left is removed.
///
/// # Errors
/// If the directory is not empty, or cannot be written. It is then empty, or does not exist if it did not before.
pub fn write(content: &Content, to: &Path, now: Time) -> Result<(), ToolError> {
    BackupTarget::alone(to)?.write(content, content.segment_bytes(), now)
}
