//! `beanring wal` and a start on any directory. They end with a message or agree with each other, and recovered jobs
//! were once written.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use beanring::io::binlog_import::{self, BinlogError, ImportError};
use beanring::io::wal_files::offline::{self, Verdict};
use beanring::io::wal_files::{self, Directory, RecoveryError};
use beanring::queue::{Engine, LoggedState};
use beanring::time::Time;
use beanring::values::ids::JobId;
use beanring::wal::{Destination, Durability, SegmentNumber, WalConfig};

use super::super::scratch::{Scratch, contents};
use super::input::Input;
use super::made_log::{BEGIN, Files, Jobs, MadeLog, SEGMENT_BYTES, check_bodies, damage, forge, jobs_of};

/// Large enough for a job of any of these logs.
const LARGE: WalConfig = WalConfig {
    durability: Durability::Never,
    segment_bytes: 2 * SEGMENT_BYTES,
    destination: Destination::Directory,
    keep_reservations: false,
};

/// Runs an input. The first byte selects what the rest is: files, records that get valid checksums, or steps of a
/// writer whose files are then damaged.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.below(4) {
        0 => {
            let mut files = Files::new();
            for _ in 0..1 + input.below(3) {
                let number = SegmentNumber(u64::from(input.byte()));
                let length = usize::from(input.half());
                files.insert(number, input.bytes(length).to_vec());
            }
            look(&files, false, BEGIN);
        }
        1 => {
            let mut files = forge(&mut input);
            damage(&mut input, &mut files);
            look(&files, false, BEGIN);
        }
        _ => {
            let made = MadeLog::write(&mut input);
            let mut files = made.files.clone();
            damage(&mut input, &mut files);
            let is_whole = files == made.files;
            let seen = look(&files, is_whole, made.now);
            seen.iter().flatten().for_each(|jobs| check_bodies(jobs, &made));
            if is_whole {
                assert_eq!(
                    seen,
                    [Some(made.jobs.clone()), Some(made.jobs)],
                    "nothing is lost of a whole log"
                );
            }
        }
    }
}

/// Runs every tool on the files. Returns the jobs of a start, and those that salvage recovers.
fn look(files: &Files, is_whole: bool, now: Time) -> [Option<Jobs>; 2] {
    let scratch = Scratch::in_memory("fuzz");
    let log = scratch.dir("log");
    for (number, bytes) in files {
        fs::write(log.join(number.to_string()), bytes).expect("a file");
    }
    let before = contents(&log);
    dump(&log);
    let verdict = offline::check(&log, now).ok();
    let saved = salvage(&log, &scratch.join("saved"), verdict.as_ref(), now);
    if is_whole {
        let verdict = verdict.as_ref().expect("a whole log can be checked");
        assert!(
            verdict.outlook.refusal.is_none() && verdict.damage.is_empty(),
            "a log is whole: {verdict:?}"
        );
    }
    let exported = export(&log, &scratch.join("exported"), now);
    assert!(contents(&log) == before, "the tools change nothing");

    let started = start(&log, now);
    if let Some(verdict) = &verdict {
        assert_eq!(
            started.is_ok(),
            verdict.outlook.refusal.is_none(),
            "check knows whether a server starts: {started:?}"
        );
        // A log whose ids could run out is exported to go on with beanstalkd.
        let is_read = matches!(verdict.outlook.refusal, None | Some(RecoveryError::Id { .. }));
        assert_eq!(exported.is_some(), is_read, "what can be started from can be exported");
    }
    if let Ok(jobs) = &started {
        if let Some(verdict) = &verdict {
            assert_eq!(counted(jobs), verdict.tubes, "check counts the jobs of a server");
        }
        if let Some(Ok(exported)) = &exported {
            assert_eq!(plain(jobs), plain(exported), "beanstalkd gets the same jobs");
        }
        match start(&log, now) {
            Ok(again) => assert_eq!(again, *jobs, "and the same once more"),
            // The first start may have removed a damaged file that was the only record of the first ids.
            Err(error) => assert!(!is_whole && error.contains("is missing"), "and once more: {error}"),
        }
    }
    let saved = saved.map(|(jobs, lost)| {
        assert!(!is_whole || lost.is_empty(), "nothing is lost of a whole log: {lost:?}");
        jobs
    });
    [started.ok(), saved]
}

fn dump(log: &Path) {
    let mut out = Vec::new();
    if offline::dump_json(log, &mut out).is_ok() {
        let text = str::from_utf8(&out).expect("it is text");
        for line in text.lines() {
            let line: serde_json::Value = serde_json::from_str(line).expect("it is JSON");
            assert!(line["kind"].is_string() && line["file"].is_string());
        }
    }
}

/// Returns the salvaged jobs, and the first and last ids of those that are lost. A log with ids that a server does not start from is
/// exported, and not salvaged: there are no jobs then.
fn salvage(log: &Path, to: &Path, verdict: Option<&Verdict>, now: Time) -> Option<(Jobs, Vec<(u64, u64)>)> {
    let salvaged = offline::salvage(log, to, now);
    let salvaged = match salvaged {
        Ok(salvaged) => salvaged,
        Err(error) => {
            let has_large_id = error.to_string().contains("has too large an id");
            assert!(verdict.is_none() || has_large_id, "what can be checked can be saved: {error:?}");
            return None;
        }
    };
    let again = offline::check(to, now).expect("a new log");
    assert!(again.damage.is_empty(), "a new log is whole: {again:?}");
    assert_eq!(again.tubes.values().flatten().sum::<usize>(), salvaged.jobs);
    if let Some(verdict) = verdict {
        assert_eq!(salvaged.damage, verdict.damage);
        let is_whole = verdict.outlook.refusal.is_none() && verdict.damage.is_empty();
        assert!(
            !is_whole || again.outlook.refusal.is_none(),
            "a server starts from a saved whole log: {again:?}"
        );
        if is_whole || verdict.outlook.refusal.is_some() {
            assert_eq!(again.tubes, verdict.tubes, "what check has counted is saved");
        }
    }
    assert!(again.outlook.refusal.is_none(), "a server starts from a new log: {:?}", again.outlook.refusal);
    let jobs = start(to, now).expect("a server starts from a new log");
    assert_eq!(counted(&jobs), again.tubes, "check counts the jobs of a server");
    Some((jobs, salvaged.lost))
}

/// Returns the jobs that this server recovers from the binlog, or the id that is too large for an import.
fn export(log: &Path, to: &Path, now: Time) -> Option<Result<Jobs, JobId>> {
    let exported = offline::export(log, to, now).ok()?;
    let directory = Directory::open(to, false).expect("a new directory");
    match binlog_import::import(&directory, LARGE) {
        Ok(()) => {}
        Err(ImportError::Binlog(BinlogError::Id { id, .. })) if id > JobId::IMPORT_MAX => {
            return Some(Err(id));
        }
        Err(error) => panic!("a new binlog: {error}"),
    }
    drop(directory);
    let jobs = start(to, now).expect("a server starts from a new log");
    assert_eq!(jobs.len(), exported.jobs);
    Some(Ok(jobs))
}

fn start(log: &Path, now: Time) -> Result<Jobs, String> {
    let directory = Directory::open(log, false).map_err(|error| error.to_string())?;
    let mut engine = Engine::new(0);
    wal_files::recover(&directory, LARGE, &mut engine, now).map_err(|error| error.to_string())?;
    engine.keep_reservations(true);
    // Held jobs whose group is done are released, and reservations end.
    while engine.step(now) {}
    engine.check();
    let jobs = jobs_of(&engine);
    assert!(jobs.values().all(|job| job.body.ends_with(b"\r\n")), "a body has its end");
    Ok(jobs)
}

/// Returns the numbers of jobs of each tube by their states.
fn counted(jobs: &Jobs) -> BTreeMap<String, [usize; 5]> {
    let mut tubes: BTreeMap<String, [usize; 5]> = BTreeMap::new();
    for job in jobs.values() {
        let at = match job.kept.state {
            LoggedState::Ready => 0,
            LoggedState::Delayed(_) => 1,
            LoggedState::Buried(_) => 2,
            LoggedState::Held(_) => 3,
            LoggedState::Reserved(_) => 4,
        };
        tubes.entry(job.tube.clone()).or_default()[at] += 1;
    }
    tubes
}

/// Returns jobs as a binlog can store them: held ones as buried, reserved ones as ready, without tags and losses, without numbers of burials, which are only counters, and with times
/// in its range.
fn plain(jobs: &Jobs) -> Jobs {
    let mut jobs = jobs.clone();
    for job in jobs.values_mut() {
        job.tags.clear();
        job.kept.counts.losses = 0;
        // Its times are signed, and end in the year 2262.
        job.created = job.created.min(Time::from_nanos(i64::MAX as u64));
        if let LoggedState::Delayed(until) = &mut job.kept.state {
            *until = (*until).min(Time::from_nanos(i64::MAX as u64));
        }
        match job.kept.state {
            LoggedState::Buried(_) | LoggedState::Held(_) => job.kept.state = LoggedState::Buried(0),
            LoggedState::Reserved(_) => job.kept.state = LoggedState::Ready,
            LoggedState::Ready | LoggedState::Delayed(_) => {}
        }
    }
    jobs
}
