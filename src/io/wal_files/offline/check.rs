//! `beanring wal check`: whether a server would start from a job log, and which jobs it has.

use std::collections::BTreeMap;
use std::path::Path;

use super::salvage::{Damage, Remains, gather};
use super::{Extensions, Extent, Hole, JobBodies, Offline, Start, ToolError};
use crate::io::wal_files::{MarkFault, RecoveryError, Unrecorded};
use crate::queue::{Engine, JobState};
use crate::time::Time;

/// The state of a job log.
#[derive(Debug)]
pub struct Verdict {
    /// The number of segments with records.
    pub segments: usize,
    /// The number of valid records.
    pub records: u64,
    /// Why a server does not start from it, if it does not.
    pub refusal: Option<RecoveryError>,
    /// What a start discards.
    pub discarded: Vec<Extent>,
    /// Bytes that a start rewrites first, since nothing proves that they are on disk. None if the job log was closed.
    pub unproven_bytes: u64,
    /// Where files may be missing. A healthy job log may look the same.
    pub hole: Option<Hole>,
    /// Damage to the marks of the log's end.
    pub mark_fault: Option<MarkFault>,
    /// Jobs that have changes and no record.
    pub unrecorded: Option<Unrecorded>,
    /// Where records or files are damaged or missing.
    pub damage: Vec<Damage>,
    /// The numbers of ready, delayed, buried, held and reserved jobs by tube: jobs that a server starts with, or else those that can be
    /// salvaged.
    pub tubes: BTreeMap<String, [usize; 5]>,
    /// Kept keys, rules, schedules and tags, of the same queue.
    pub extensions: Extensions,
}

/// Reads a whole job log and changes nothing.
///
/// # Errors
/// If the job log cannot be read, or a server does not start from it for another reason than damage.
pub fn check(path: &Path, now: Time) -> Result<Verdict, ToolError> {
    let log = Offline::open(path)?;
    let (strict, discarded, unproven_bytes, hole, mark_fault, refusal) =
        match log.recover(now, JobBodies::Restored) {
            Ok(Start { engine, discarded, unproven_bytes, hole, mark_fault, refusal, .. }) => {
                (Some(engine), discarded, unproven_bytes, hole, mark_fault, refusal)
            }
            Err(ToolError::Log(
                refusal @ (RecoveryError::Damaged { .. }
                | RecoveryError::Truncated { .. }
                | RecoveryError::Missing(_)
                | RecoveryError::EndMissing(_)
                | RecoveryError::Misnamed { .. }
                | RecoveryError::OtherLog { .. }),
            )) => (None, Vec::new(), 0, None, None, Some(refusal)),
            Err(error) => return Err(error),
        };
    let Remains { content, damage, segments, records, .. } = gather(&log, now)?;
    let started = strict.as_ref().filter(|_| refusal.is_none());
    let engine = started.unwrap_or(&content.engine);
    let (tubes, extensions) = (tubes(engine), Extensions::of(engine));
    Ok(Verdict {
        segments,
        records,
        refusal,
        discarded,
        unproven_bytes,
        hole,
        mark_fault,
        unrecorded: Unrecorded::of(&content.recovered),
        damage,
        tubes,
        extensions,
    })
}

fn tubes(engine: &Engine) -> BTreeMap<String, [usize; 5]> {
    let mut tubes: BTreeMap<String, [usize; 5]> = BTreeMap::new();
    for (key, job) in engine.jobs().iter() {
        let state = match job.state {
            JobState::Ready => 0,
            JobState::Delayed => 1,
            JobState::Buried => 2,
            JobState::Held => 3,
            JobState::Reserved => 4,
        };
        tubes.entry(engine.tube_of(key).as_str().to_owned()).or_default()[state] += 1;
    }
    tubes
}
