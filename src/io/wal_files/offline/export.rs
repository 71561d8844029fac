//! `beanring wal export`: from a job log to a binlog that beanstalkd starts from.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::mem;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::{Extensions, Extent, JobBodies, Offline, PUBLIC, Start, ToolError, make_empty};
use crate::beanstalkd_binlog::{self, Job, State};
use crate::queue::{Engine, LoggedState, PersistedState};
use crate::time::{Seconds, Time};
use crate::values::ids::{JobId, JobKey};
use crate::values::limits::WAL_FILE_BYTES_DEFAULT;
use crate::values::tube_name::TubeName;

/// The result of an export.
#[derive(Debug)]
pub struct Exported {
    /// The number of jobs in the binlog.
    pub jobs: usize,
    /// The size of the largest body with its CR LF, which beanstalkd compares with its `-z` when it reads a binlog.
    pub largest_bytes: u64,
    /// Bytes that were left out, since a start discards them.
    pub discarded: Vec<Extent>,
    /// Kept keys, rules, schedules, tags and notes: a binlog has no place for them.
    pub left_out: Extensions,
}

/// Writes all jobs of the job log in `from` as a binlog into `to`.
///
/// # Errors
/// If the job log cannot be read, or `to` is not empty or cannot be written.
pub fn export(from: &Path, to: &Path, now: Time) -> Result<Exported, ToolError> {
    let log = Offline::open(from)?;
    let Start { engine, outlook, .. } = log.recover(now, JobBodies::Restored)?;
    make_empty(to, from, PUBLIC)?;
    write(&engine, to, now).map_err(|error| ToolError::Unwritable(to.to_owned(), error))?;
    let sizes = engine.jobs().iter().map(|(key, _)| engine.body(key).len() as u64);
    let (jobs, largest_bytes) = (engine.jobs().len(), sizes.max().unwrap_or(0));
    let (discarded, left_out) = (outlook.discarded, Extensions::of(&engine));
    Ok(Exported { jobs, largest_bytes, discarded, left_out })
}

fn write(engine: &Engine, to: &Path, now: Time) -> io::Result<()> {
    let mut files = Files { directory: to, number: 1, gathered: Vec::new() };
    beanstalkd_binlog::encode_version(&mut files.gathered);
    let mut jobs: Vec<(u64, JobId, JobKey)> =
        engine.jobs().iter().map(|(key, job)| (burial(&engine.persisted_state(key)), job.id, key)).collect();
    // beanstalkd buries jobs in the order of their records.
    jobs.sort_unstable();
    let last = jobs.iter().map(|&(_, id, _)| id.0).max().unwrap_or(0);
    write_last_id(last, engine.upcoming_id(), now, &mut files.gathered);
    for (_, id, key) in jobs {
        let (record, body) = (engine.jobs().get(key), engine.body(key));
        let job = Job::new(
            id,
            record.created,
            engine.jobs().ttr(key),
            &engine.persisted_state(key),
            body.len() as u32,
        );
        files.append(engine.tube_of(key), &job, body)?;
    }
    files.write()?;
    File::open(to)?.sync_all()
}

const fn burial(state: &PersistedState) -> u64 {
    match state.state {
        LoggedState::Buried(before) => before,
        LoggedState::Ready | LoggedState::Delayed(_) | LoggedState::Reserved(_) => 0,
        // It is exported as a buried job, behind the others.
        LoggedState::Held(_) => u64::MAX,
    }
}

/// Writes a record of the last id that was given, if its job is deleted: beanstalkd continues from the largest id it reads.
fn write_last_id(last: u64, next: JobId, now: Time, out: &mut Vec<u8>) {
    if last + 1 >= next.0 {
        return;
    }
    let state = PersistedState {
        pri: 0,
        delay: Seconds::ZERO,
        state: LoggedState::Ready,
        counts: Default::default(),
    };
    let job = Job::new(JobId(next.0 - 1), now, Seconds::ONE, &state, 2);
    beanstalkd_binlog::encode_job(TubeName::DEFAULT, &job, b"\r\n", out);
    beanstalkd_binlog::encode_change(&Job { state: State::Deleted, ..job }, out);
}

/// Writes the files one after another.
struct Files<'a> {
    directory: &'a Path,
    number: u32,
    gathered: Vec<u8>,
}

impl Files<'_> {
    fn append(&mut self, tube: TubeName<'_>, job: &Job, body: &[u8]) -> io::Result<()> {
        let bytes = beanstalkd_binlog::HEAD_BYTES_MAX + body.len();
        let is_full = (self.gathered.len() + bytes) as u64 > WAL_FILE_BYTES_DEFAULT;
        if is_full && self.gathered.len() > beanstalkd_binlog::VERSION_BYTES {
            self.write()?;
            beanstalkd_binlog::encode_version(&mut self.gathered);
        }
        beanstalkd_binlog::encode_job(tube, job, body, &mut self.gathered);
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        let path = self.directory.join(format!("binlog.{}", self.number));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(&mem::take(&mut self.gathered))?;
        self.number += 1;
        file.sync_all()
    }
}
