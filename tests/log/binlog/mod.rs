//! Import of binlogs that Debian's beanstalkd has written, and export back.

mod client;
mod ids;
mod torn;
mod workload;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use beanring_testkit::beanstalkd::installed;
use beanring_testkit::process::program;
use beanring_testkit::random::Random;
use beanring_testkit::scratch::{Scratch, contents};

use super::common::{refusal, tool};
use client::{Served, compare};
use workload::{TUBES, Workload};

/// Returns the path of Debian's beanstalkd. Without it, prints which test is skipped.
fn beanstalkd_for(what: &str) -> Option<PathBuf> {
    let program = installed();
    if program.is_none() {
        println!("skipped: {what}, because beanstalkd is not installed");
    }
    program
}

/// Starts a server of ours.
fn ours(log: &Path, flags: &[&str]) -> Served {
    Served::start(Path::new(program()), log, flags)
}

fn binlogs(directory: &Path) -> Vec<String> {
    contents(directory).into_keys().filter(|name| name.starts_with("binlog.")).collect()
}

/// Compares the jobs that beanstalkd reads from its binlog, that beanring imports from it, and that beanstalkd reads from the
/// export of beanring. Returns the names of the original files.
fn there_and_back(program: &Path, flags: &[&str], work: impl FnOnce(&mut Workload)) -> Vec<String> {
    let scratch = Scratch::in_memory("binlog");
    let dir = scratch.dir("log");
    let mut workload = Workload::begin(Served::start(program, &dir, flags));
    work(&mut workload);
    let (buried, last_id) = workload.kill();
    // Some delays end while no server runs.
    thread::sleep(Duration::from_millis(1100));

    let copy = scratch.copy(&dir, "copy");
    let expected = Served::start(program, &copy, &[]).inspect(last_id);
    for state in ["ready", "delayed", "buried"] {
        let count = expected.values().filter(|seen| seen.stats["state"] == state).count();
        assert!(count >= 20, "{count} {state} jobs");
    }
    assert!((expected.len() as u64) < last_id, "some were deleted");
    let files = binlogs(&dir);
    let imported: Vec<String> = files.iter().map(|name| format!("{name}.imported")).collect();

    let mut own = ours(&dir, &[]);
    compare(&expected, &own.inspect(last_id));
    assert_eq!(binlogs(&dir), imported);
    drop(own);
    let back = scratch.join("back");
    tool("export", &[&dir, &back]).succeeds("");

    let mut theirs = Served::start(program, &back, &[]);
    compare(&expected, &theirs.inspect(last_id));
    let mut own = ours(&dir, &[]);
    compare(&expected, &own.inspect(last_id));
    for (tube, buried) in TUBES.iter().zip(buried) {
        assert_eq!(theirs.kick_buried(tube), buried, "{tube}");
        assert_eq!(own.kick_buried(tube), buried, "{tube}");
    }
    let next = own.put(0, 0, 1, "");
    assert_eq!(theirs.put(0, 0, 1, ""), next);
    assert!(next > last_id);
    files
}

#[test]
fn two_thousand_jobs_in_every_state() {
    let Some(program) = beanstalkd_for("import of a binlog") else { return };
    there_and_back(&program, &[], |workload| workload.run(2000, 4000, 0));
}

#[test]
fn a_binlog_that_is_being_compacted() {
    let Some(program) = beanstalkd_for("import of a compacted binlog") else { return };
    let files = there_and_back(&program, &["-s", "131072"], |workload| workload.run(3000, 5000, 40));
    assert!(files.len() > 3 && !files.contains(&"binlog.1".to_owned()), "{files:?}");
}

#[test]
fn a_binlog_that_was_continued_after_a_kill() {
    let Some(program) = beanstalkd_for("import after a restart") else { return };
    let scratch = Scratch::in_memory("binlog");
    let dir = scratch.dir("log");
    let flags = ["-s", "65536"];
    let mut workload = Workload::begin(Served::start(&program, &dir, &flags));
    workload.run(300, 300, 10);
    workload.kill();
    let mut again = Served::start(&program, &dir, &flags);
    for number in 0..200 {
        again.put(number, 0, 10, "later");
    }
    drop(again);
    // The short delays end before the first comparison.
    thread::sleep(Duration::from_millis(1100));
    let copy = scratch.copy(&dir, "copy");
    let expected = Served::start(&program, &copy, &[]).inspect(600);
    compare(&expected, &ours(&dir, &[]).inspect(600));
}

#[test]
fn a_server_that_still_runs_keeps_its_binlog() {
    let Some(program) = beanstalkd_for("the lock of a binlog") else { return };
    let scratch = Scratch::in_memory("binlog");
    let dir = scratch.dir("log");
    let mut theirs = Served::start(&program, &dir, &[]);
    theirs.put(0, 0, 1, "mine");
    let message = refusal(&dir, &[], 1);
    assert!(message.contains("another server uses this job log"), "{message}");
    assert_eq!(binlogs(&dir), ["binlog.1"]);
    drop(theirs);
    let mut own = ours(&dir, &[]);
    assert_eq!(own.client.ask("peek 1\r\n").1, "mine\r\n");

    let ended = tool("export", &[&dir, &scratch.join("back")]).fails(1, "");
    let error = format!("beanring: {}: a server uses this job log; stop it first\n", dir.display());
    assert_eq!(ended.error, error);
    assert!(!scratch.join("back").exists());
}

#[test]
fn an_export_does_not_change_the_log() {
    let scratch = Scratch::in_memory("binlog");
    let dir = scratch.dir("log");
    ours(&dir, &["-f", "0"]).put(0, 0, 1, "a job");
    let before = contents(&dir);
    let (full, empty) = (scratch.dir("full"), scratch.dir("empty"));
    fs::write(full.join("file"), "precious").unwrap();
    tool("export", &[&dir, &full]).fails(2, "the directory is not empty");
    tool("export", &[&dir, &empty]).succeeds("");
    assert_eq!(binlogs(&empty), ["binlog.1"]);
    assert!(contents(&dir) == before);
    tool("export", &[&empty, &scratch.join("more")])
        .fails(2, "this is a binlog of beanstalkd and not a job log");
}

/// beanstalkd drops jobs of a binlog, also small ones, if one is larger than its `-z`.
#[test]
fn beanstalkd_has_all_jobs_with_the_flags_that_an_export_names() {
    for (bytes, flags) in [(65_533, ""), (65_534, " -z 65536"), (100_000, " -z 100002")] {
        let scratch = Scratch::in_memory("binlog");
        let (dir, back) = (scratch.dir("log"), scratch.join("back"));
        let mut own = ours(&dir, &["-z", "100000"]);
        let ids = [1, bytes, 2].map(|bytes| own.put(0, 0, 1, &"x".repeat(bytes)));
        drop(own);
        let said = tool("export", &[&dir, &back]).succeeds("").out;
        let hint = format!("start beanstalkd -b {}{flags}", back.display());
        let line = said.lines().last().unwrap();
        let (_, start) =
            line.split_once("3 jobs written to ").and_then(|(_, rest)| rest.split_once("; ")).unwrap();
        assert_eq!(start.split(" (").next(), Some(&*hint), "{said}");
        assert_eq!(start.contains("it drops jobs, also small ones"), !flags.is_empty(), "{said}");
        let Some(program) = beanstalkd_for("start from an export") else { return };
        let flags: Vec<&str> = flags.split_whitespace().collect();
        assert_eq!(Served::start(&program, &back, &flags).inspect(ids[2]).len(), 3, "{hint}");
    }
}

/// If an import is killed at any point, the next start completes it, and each job is imported once.
#[test]
fn an_import_that_is_killed() {
    const JOBS: u64 = 3000;
    let Some(beanstalkd) = beanstalkd_for("an import that is killed") else { return };
    let scratch = Scratch::in_memory("binlog");
    let dir = scratch.dir("log");
    let mut theirs = Served::start(&beanstalkd, &dir, &["-s", "131072"]);
    theirs.client.insert(1..=JOBS, |id| {
        let bytes = id as usize % 500;
        format!("put {id} 0 1 {bytes}\r\n{}\r\n", "x".repeat(bytes))
    });
    let expected = theirs.inspect(JOBS);
    drop(theirs);
    let started = Instant::now();
    let whole = scratch.copy(&dir, "whole");
    drop(ours(&whole, &["-s", "65536"]));
    let span = started.elapsed();

    let mut random = Random::new(1);
    for round in 0..12 {
        let copy = scratch.copy(&dir, &round.to_string());
        for _ in 0..3 {
            let mut command = Command::new(program());
            command.args(["-l", "127.0.0.1", "-p", "0", "-s", "65536", "-b"]).arg(&copy);
            let mut child = command.stderr(Stdio::null()).spawn().unwrap();
            thread::sleep(span * random.below(100) as u32 / 100);
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let mut own = ours(&copy, &["-s", "65536"]);
        compare(&expected, &own.inspect(JOBS));
        assert_eq!(own.client.stat("current-jobs-ready"), JOBS);
        assert!(binlogs(&copy).iter().all(|name| name.ends_with(".imported")));
        drop(own);
        fs::remove_dir_all(copy).unwrap();
    }
}
