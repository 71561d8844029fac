//! `beanring wal check`: whether a server would start from a job log, and which jobs it has.

use std::collections::BTreeMap;
use std::path::Path;

use super::salvage::{Damage, Remains, gather};
use super::{Extensions, JobBodies, Offline, Outlook, Start, ToolError};
use crate::io::wal_files::{RecoveryError, Unrecorded};
use crate::queue::{Engine, JobState};
use crate::time::Time;

/// The state of a job log.
#[derive(Debug)]
pub struct Verdict {
    /// The number of segments with records.
    pub segments: usize,
    /// The number of valid records.
    pub records: u64,
    /// What a start would find. If a damaged log is refused, only the refusal is known.
    pub outlook: Outlook,
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
    let (strict, outlook) = match log.recover(now, JobBodies::Restored) {
        Ok(Start { engine, outlook, .. }) => (Some(engine), outlook),
        Err(ToolError::Log(
            refusal @ (RecoveryError::Damaged { .. }
            | RecoveryError::Truncated { .. }
            | RecoveryError::Missing(_)
            | RecoveryError::EndMissing(_)
            | RecoveryError::Misnamed { .. }
            | RecoveryError::OtherLog { .. }),
        )) => (None, Outlook { refusal: Some(refusal), ..Outlook::default() }),
        Err(error) => return Err(error),
    };
    let Remains { content, damage, segments, records, .. } = gather(&log, now)?;
    let started = strict.as_ref().filter(|_| outlook.refusal.is_none());
    let engine = started.unwrap_or(&content.engine);
    let (tubes, extensions) = (tubes(engine), Extensions::of(engine));
    let unrecorded = Unrecorded::of(&content.recovered);
    Ok(Verdict { segments, records, outlook, unrecorded, damage, tubes, extensions })
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
