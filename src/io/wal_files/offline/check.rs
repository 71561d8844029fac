//! Whether a server would start from a log, and what is in it.

use std::collections::BTreeMap;
use std::path::Path;

use super::salvage::{Damage, Rest, gather};
use super::{Discarded, Offline, ToolError};
use crate::io::wal_files::RecoveryError;
use crate::queue::{Engine, State};
use crate::time::Time;

/// What a log is like.
#[derive(Debug)]
pub struct Verdict {
    /// Segments that have records.
    pub segments: usize,
    /// Records that are as they were written.
    pub records: u64,
    /// Why a server does not start from it, if it does not.
    pub refusal: Option<RecoveryError>,
    /// What a server that starts from it leaves out.
    pub discarded: Vec<Discarded>,
    /// Where something is missing.
    pub damage: Vec<Damage>,
    /// The jobs that a server starts with, or that can be saved: how many of each tube are ready, delayed and buried.
    pub tubes: BTreeMap<String, [usize; 3]>,
}

/// Reads all of a log, and changes nothing.
pub fn check(path: &Path, now: Time) -> Result<Verdict, ToolError> {
    let log = Offline::open(path)?;
    let (strict, discarded, refusal) = match log.recover(now) {
        Ok((engine, discarded)) => (Some(engine), discarded, None),
        Err(ToolError::Log(refusal @ (RecoveryError::Damaged { .. } | RecoveryError::Missing(_)))) => {
            (None, Vec::new(), Some(refusal))
        }
        Err(error) => return Err(error),
    };
    let Rest { engine, damage, segments, records, .. } = gather(&log, now)?;
    let tubes = tubes(strict.as_ref().unwrap_or(&engine));
    Ok(Verdict { segments, records, refusal, discarded, damage, tubes })
}

fn tubes(engine: &Engine) -> BTreeMap<String, [usize; 3]> {
    let mut tubes: BTreeMap<String, [usize; 3]> = BTreeMap::new();
    for (key, job) in engine.jobs().iter() {
        let state = match job.state {
            State::Ready | State::Reserved => 0,
            State::Delayed => 1,
            State::Buried => 2,
        };
        let name = engine.tube_of(key).as_str();
        if !tubes.contains_key(name) {
            tubes.insert(name.to_owned(), [0; 3]);
        }
        tubes.get_mut(name).expect("it is there")[state] += 1;
    }
    tubes
}
