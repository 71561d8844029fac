//! Import of binlogs that Debian's beanstalkd has written, and export back.

mod client;
mod ids;
mod torn;
mod workload;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use beanring_testkit::beanstalkd::installed;
use beanring_testkit::process::program;
use beanring_testkit::random::Random;
use beanring_testkit::scratch::Scratch;
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

fn beanring() -> &'static Path {
    Path::new(program())
}

fn export(from: &Path, to: &Path) -> Output {
    Command::new(program()).args(["wal", "export"]).args([from, to]).output().unwrap()
}

/// Returns the message of a server that does not start.
fn refusal(log: &Path) -> String {
    // timeout(1) ends a server that starts.
    let mut command = Command::new("timeout");
    command.args(["60", program(), "-l", "127.0.0.1", "-p", "0", "-b"]).arg(log).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    let last = said.lines().last().unwrap();
    last.split_once(" ERROR ").map_or(last, |(_, message)| message).to_owned()
}

fn binlogs(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
    names.retain(|name| name.starts_with("binlog."));
    names.sort();
    names
}

/// Compares the jobs that beanstalkd reads from its binlog, that beanring imports from it, and that beanstalkd reads from the
/// export of beanring. Returns the names of the original files.
fn there_and_back(program: &Path, flags: &[&str], work: impl FnOnce(&mut Workload)) -> Vec<String> {
    let scratch = Scratch::new("binlog");
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

    let mut ours = Served::start(beanring(), &dir, &[]);
    compare(&expected, &ours.inspect(last_id));
    assert_eq!(binlogs(&dir), imported);
    drop(ours);
    let back = scratch.0.join("back");
    let output = export(&dir, &back);
    assert!(output.status.success(), "{output:?}");

    let mut theirs = Served::start(program, &back, &[]);
    compare(&expected, &theirs.inspect(last_id));
    let mut ours = Served::start(beanring(), &dir, &[]);
    compare(&expected, &ours.inspect(last_id));
    for (tube, buried) in TUBES.iter().zip(buried) {
        assert_eq!(theirs.kick_buried(tube), buried, "{tube}");
        assert_eq!(ours.kick_buried(tube), buried, "{tube}");
    }
    let next = ours.put(0, 0, 1, b"");
    assert_eq!(theirs.put(0, 0, 1, b""), next);
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
    let scratch = Scratch::new("binlog");
    let dir = scratch.dir("log");
    let flags = ["-s", "65536"];
    let mut workload = Workload::begin(Served::start(&program, &dir, &flags));
    workload.run(300, 300, 10);
    workload.kill();
    let mut again = Served::start(&program, &dir, &flags);
    for number in 0..200 {
        again.put(number, 0, 10, b"later");
    }
    drop(again);
    // The short delays end before the first comparison.
    thread::sleep(Duration::from_millis(1100));
    let copy = scratch.copy(&dir, "copy");
    let expected = Served::start(&program, &copy, &[]).inspect(600);
    compare(&expected, &Served::start(beanring(), &dir, &[]).inspect(600));
}

#[test]
fn a_server_that_still_runs_keeps_its_binlog() {
    let Some(program) = beanstalkd_for("the lock of a binlog") else { return };
    let scratch = Scratch::new("binlog");
    let dir = scratch.dir("log");
    let mut theirs = Served::start(&program, &dir, &[]);
    theirs.put(0, 0, 1, b"mine");
    let refusal = refusal(&dir);
    assert!(refusal.contains("another server uses this job log"), "{refusal}");
    assert_eq!(binlogs(&dir), ["binlog.1"]);
    drop(theirs);
    let mut ours = Served::start(beanring(), &dir, &[]);
    assert_eq!(ours.ask_for_body("peek 1").1, b"mine");

    let output = export(&dir, &scratch.0.join("back"));
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr, format!("beanring: {}: a server uses this job log; stop it first\n", dir.display()));
    assert!(!scratch.0.join("back").exists());
}

#[test]
fn an_export_does_not_change_the_log() {
    let scratch = Scratch::new("binlog");
    let dir = scratch.dir("log");
    let mut ours = Served::start(beanring(), &dir, &["-f", "0"]);
    ours.put(0, 0, 1, b"a job");
    drop(ours);
    let contents = || -> Vec<(String, Vec<u8>)> {
        let entries = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap());
        let mut found: Vec<_> = entries
            .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
            .collect();
        found.sort();
        found
    };
    let before = contents();
    let full = scratch.dir("full");
    fs::write(full.join("file"), "precious").unwrap();
    let output = export(&dir, &full);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("the directory is not empty"));
    let empty = scratch.dir("empty");
    assert!(export(&dir, &empty).status.success());
    assert_eq!(binlogs(&empty), ["binlog.1"]);
    assert!(contents() == before);
    let output = export(&empty, &scratch.0.join("more"));
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("this is a binlog of beanstalkd and not a job log")
    );
}

/// beanstalkd drops jobs of a binlog, also small ones, if one is larger than its `-z`.
#[test]
fn beanstalkd_has_all_jobs_with_the_flags_that_an_export_names() {
    for (bytes, flags) in [(65_533, ""), (65_534, " -z 65536"), (100_000, " -z 100002")] {
        let scratch = Scratch::new("binlog");
        let (dir, back) = (scratch.dir("log"), scratch.0.join("back"));
        let mut ours = Served::start(beanring(), &dir, &["-z", "100000"]);
        let last_id =
            [1, bytes, 2].map(|bytes| ours.put(0, 0, 1, &vec![b'x'; bytes])).into_iter().max().unwrap();
        drop(ours);
        let output = export(&dir, &back);
        let said = String::from_utf8(output.stdout).unwrap();
        let hint = format!("start beanstalkd -b {}{flags}", back.display());
        let line = said.lines().last().unwrap();
        let (_, start) =
            line.split_once("3 jobs written to ").and_then(|(_, rest)| rest.split_once("; ")).unwrap();
        assert_eq!(start.split(" (").next(), Some(&*hint), "{said}");
        assert_eq!(start.contains("it drops jobs, also small ones"), !flags.is_empty(), "{said}");
        let Some(program) = beanstalkd_for("start from an export") else { return };
        let flags: Vec<&str> = flags.split_whitespace().collect();
        assert_eq!(Served::start(&program, &back, &flags).inspect(last_id).len(), 3, "{hint}");
    }
}

/// If an import is killed at any point, the next start completes it, and each job is imported once.
#[test]
fn an_import_that_is_killed() {
    const JOBS: u32 = 3000;
    let Some(program) = beanstalkd_for("an import that is killed") else { return };
    let scratch = Scratch::new("binlog");
    let dir = scratch.dir("log");
    let mut theirs = Served::start(&program, &dir, &["-s", "131072"]);
    for number in 0..JOBS {
        theirs.put(number, 0, 1, &vec![b'x'; (number % 500) as usize]);
    }
    let expected = theirs.inspect(u64::from(JOBS));
    drop(theirs);
    let started = Instant::now();
    let whole = scratch.copy(&dir, "whole");
    drop(Served::start(beanring(), &whole, &["-s", "65536"]));
    let span = started.elapsed();

    let mut random = Random::new(1);
    for round in 0..12 {
        let copy = scratch.copy(&dir, &round.to_string());
        for _ in 0..3 {
            let mut command = Command::new(beanring());
            command.args(["-l", "127.0.0.1", "-p", "0", "-s", "65536", "-b"]).arg(&copy);
            let mut child = command.stderr(Stdio::null()).spawn().unwrap();
            thread::sleep(span * random.below(100) as u32 / 100);
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let mut ours = Served::start(beanring(), &copy, &["-s", "65536"]);
        compare(&expected, &ours.inspect(u64::from(JOBS)));
        let (_, stats) = ours.ask_for_body("stats");
        let stats = String::from_utf8(stats).unwrap();
        assert!(stats.contains(&format!("current-jobs-ready: {JOBS}\n")), "{stats}");
        assert!(binlogs(&copy).iter().all(|name| name.ends_with(".imported")));
        drop(ours);
        fs::remove_dir_all(copy).unwrap();
    }
}
