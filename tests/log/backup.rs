//! `beanring wal backup`: copies of the job logs of running and of killed servers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use beanring::io::driver::Driver;
use beanring_testkit::client::{Client, put, start};
use beanring_testkit::process::{REPLY_PATIENCE, program};
use beanring_testkit::scratch::{Scratch, contents};
use nix::sys::signal::Signal;

/// Small segments, so that the server reuses them all the time.
const FLAGS: [&str; 4] = ["-s", "65536", "-z", "4000"];

/// Jobs that stay, which compaction rewrites.
const OLD: u64 = 200;

/// Jobs that the load keeps.
const KEPT: u64 = 100;

/// Exit code, output and error of a tool.
fn tool(name: &str, dirs: &[&Path]) -> (Option<i32>, String, String) {
    let output = Command::new(program()).args(["wal", name]).args(dirs).output().expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("it is text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn body(id: u64) -> String {
    format!("body {id} {}", "x".repeat((id * 37 % 900) as usize))
}

/// What a client knows of the jobs.
#[derive(Default, Clone)]
struct Known {
    put: BTreeSet<u64>,
    /// Deletions that were sent, so their jobs may be gone.
    deleting: BTreeSet<u64>,
    /// Deletions that were acknowledged.
    deleted: BTreeSet<u64>,
}

/// A client that puts jobs, ten at a time, and deletes older ones until the flag is set.
fn load(mut client: Client, known: &Mutex<Known>, stops: &AtomicBool) {
    let mut next = OLD + 1;
    while !stops.load(Ordering::Relaxed) {
        let ids = next..next + 10;
        next = ids.end;
        client.send(&ids.clone().map(|id| put(5, 0, &body(id))).collect::<String>());
        for id in ids.clone() {
            assert_eq!(client.line(), Some(format!("INSERTED {id}")));
            known.lock().expect("no panic").put.insert(id);
        }
        let old: Vec<u64> = ids.filter(|&id| id > OLD + KEPT).map(|id| id - KEPT).collect();
        known.lock().expect("no panic").deleting.extend(&old);
        client.send(&old.iter().map(|id| format!("delete {id}\r\n")).collect::<String>());
        for id in old {
            assert_eq!(client.line().as_deref(), Some("DELETED"));
            known.lock().expect("no panic").deleted.insert(id);
        }
        // A faster client reuses segments sooner than a busy machine can copy them.
        thread::sleep(Duration::from_millis(2));
    }
}

/// The bodies of all jobs up to an id, in a server that starts from the directory.
fn jobs_in(dir: &Path, last: u64) -> BTreeMap<u64, String> {
    let (_server, mut client) = start(dir, Driver::Epoll, &FLAGS);
    let mut jobs = BTreeMap::new();
    for id in 1..=last {
        let (line, data) = client.ask(&format!("peek {id}\r\n"));
        if line != "NOT_FOUND" {
            jobs.insert(id, data);
        }
    }
    jobs
}

#[test]
fn a_backup_under_load_has_every_acknowledged_job() {
    for mode in [&["-f", "0"][..], &["-f", "50"], &["-F"]] {
        let scratch = Scratch::new("backup-load");
        let log = scratch.dir("log");
        let (server, mut client) = start(&log, Driver::Epoll, &[&FLAGS, mode].concat());
        for id in 1..=OLD {
            client.expect(&put(5, 0, &body(id)), &format!("INSERTED {id}"));
        }
        let known = Arc::new(Mutex::new(Known::default()));
        let stops = Arc::new(AtomicBool::new(false));
        let loading = thread::spawn({
            let (known, stops) = (known.clone(), stops.clone());
            move || load(client, &known, &stops)
        });
        let patience = Instant::now() + REPLY_PATIENCE;
        while log.join("log.0000000000000001").exists() {
            assert!(Instant::now() < patience, "the server recycles its first segment");
            thread::sleep(Duration::from_millis(5));
        }
        let mut attempts = Vec::new();
        for round in 0..6 {
            let copy = scratch.join(&format!("copy-{round}"));
            let before = known.lock().expect("no panic").clone();
            let (code, out, error) = tool("backup", &[&log, &copy]);
            let after = known.lock().expect("no panic").clone();
            assert_eq!((code, &*error), (Some(0), ""), "{mode:?}: {out}");
            attempts
                .push(out.split(" in ").nth(2).and_then(|rest| rest.split(';').next()).map(str::to_owned));
            let (code, checked, error) = tool("check", &[&copy]);
            assert_eq!((code, &*error), (Some(0), ""), "{mode:?}: {checked}");

            let last = after.put.last().copied().unwrap_or(OLD) + 10;
            let found = jobs_in(&copy, last);
            let expected = (1..=OLD).chain(before.put.difference(&after.deleting).copied());
            let missing: Vec<u64> = expected.filter(|id| !found.contains_key(id)).collect();
            assert!(missing.is_empty(), "{mode:?}: missing after {out}: {missing:?}");
            let revived: Vec<u64> =
                before.deleted.iter().copied().filter(|id| found.contains_key(id)).collect();
            assert!(revived.is_empty(), "{mode:?}: deleted before, and in the copy: {revived:?}");
            assert!(found.iter().all(|(&id, data)| *data == format!("{}\r\n", body(id))), "bodies are whole");
        }
        stops.store(true, Ordering::Relaxed);
        loading.join().expect("the load ends");
        println!("{mode:?}: {attempts:?}, {} puts", known.lock().expect("no panic").put.len());
        drop(server);
    }
}

#[test]
fn an_idle_server_and_a_killed_one() {
    let scratch = Scratch::new("backup-idle");
    let log = scratch.dir("log");
    let (server, mut client) = start(&log, Driver::Epoll, &FLAGS);
    // It has no jobs yet.
    let blank = scratch.join("blank");
    let (code, out, error) = tool("backup", &[&log, &blank]);
    assert_eq!((code, &*error), (Some(0), ""));
    assert!(out.starts_with("0 jobs in "), "{out}");
    client.expect(&put(5, 0, &body(1)), "INSERTED 1");
    client.expect("tube-config default max-jobs 5\r\n", "CONFIGURED");
    let (running, killed) = (scratch.join("running"), scratch.dir("killed"));
    assert_eq!(tool("backup", &[&log, &running]).0, Some(0));
    drop((client, server));
    let before = contents(&log);
    let (code, out, error) = tool("backup", &[&log, &killed]);
    let shown = killed.display();
    let line =
        format!("1 job in 1 segment copied to {shown} in 1 attempt; beanring -b {shown} can start from it\n");
    assert_eq!((code, out, &*error), (Some(0), line, ""));
    assert!(contents(&log) == before, "the log has not changed");
    for (copy, mode) in [(&running, 0o700), (&killed, 0o755)] {
        let is_private = |path: &Path| fs::metadata(path).expect("a file").permissions().mode() & 0o777;
        assert_eq!(is_private(copy) | mode, mode, "{}", copy.display());
        for name in contents(copy).keys() {
            assert!(name.starts_with("log."), "{name}");
            assert_eq!(is_private(&copy.join(name)), 0o600, "{name}");
        }
        let (code, checked, _) = tool("check", &[copy]);
        assert!(code == Some(0) && checked.contains("1 rule\n"), "{checked}");
        assert_eq!(jobs_in(copy, 2), BTreeMap::from([(1, format!("{}\r\n", body(1)))]));
    }
}

#[test]
fn what_a_backup_refuses() {
    let scratch = Scratch::new("backup-refused");
    let log = scratch.dir("log");
    let (server, mut client) = start(&log, Driver::Epoll, &FLAGS);
    client.expect(&put(5, 0, &body(1)), "INSERTED 1");
    let (full, empty, file) = (scratch.dir("full"), scratch.dir("empty"), scratch.join("file"));
    fs::write(full.join("other"), "content")
        .and_then(|()| fs::write(&file, "content"))
        .expect("there is space");
    let binlog = scratch.join("binlog");
    drop((client, server));
    assert_eq!(tool("export", &[&log, &binlog]).0, Some(0));
    let (_server, mut client) = start(&log, Driver::Epoll, &FLAGS);
    let to = scratch.join("to");
    for (dirs, code, why) in [
        ([&*log, &*full], 2, "the directory is not empty"),
        ([&*log, &*log], 2, "the directory is not empty"),
        ([&*log, &*log.join("inside")], 2, "inside that of the job log"),
        ([&*empty, &*to], 2, "the directory contains no job log"),
        ([&*scratch.join("none"), &*to], 2, "no such directory"),
        ([&*file, &*to], 2, "is a file; name the directory of the job log"),
        ([&*binlog, &*to], 2, "this is a binlog of beanstalkd and not a job log"),
        ([&*log, &*scratch.join("none/to")], 2, "no such directory"),
    ] {
        let (found, out, error) = tool("backup", &dirs);
        assert!(found == Some(code) && out.is_empty() && error.contains(why), "{why}: {found:?} {error}");
        assert!(!to.exists() && !log.join("inside").exists(), "no directory was created");
    }
    fs::write(log.join("import.begun"), "").expect("there is space");
    let (code, _, error) = tool("backup", &[&log, &to]);
    assert!(code == Some(1) && error.contains("an import of beanstalkd's binlog is incomplete"), "{error}");
    assert_eq!(contents(&full).len(), 1, "it is as it was");
    // The server still has its lock, and goes on.
    client.expect(&put(5, 0, &body(2)), "INSERTED 2");
    assert!(tool("check", &[&log]).2.contains("a server uses this job log"));
}

/// The damage that no later attempt can mend ends the backup soon, with the error of the check.
#[test]
fn a_damaged_log_is_not_backed_up() {
    let scratch = Scratch::new("backup-damaged");
    let log = scratch.dir("log");
    let (mut server, mut client) = start(&log, Driver::Epoll, &FLAGS);
    for id in 1..=OLD {
        client.expect(&put(5, 0, &body(id)), &format!("INSERTED {id}"));
    }
    drop(client);
    // The log is synced and closed then. In that of a killed server, the bytes behind the last sync may be a torn write.
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait(), Some(0));
    let first = log.join("log.0000000000000001");
    let sound = fs::read(&first).expect("a segment");
    let (existing, to) = (scratch.dir("existing"), scratch.join("to"));
    let backup_is_refused = |why: &str| {
        for target in [&existing, &to] {
            let (code, out, error) = tool("backup", &[&log, target]);
            assert!(code == Some(1) && out.is_empty() && error.contains(why), "{why}: {code:?} {out}{error}");
        }
        assert!(contents(&existing).is_empty() && !to.exists(), "nothing is left of the copy");
        assert_eq!(fs::read_dir(&existing).expect("a directory").count(), 0);
    };
    let mut bytes = sound.clone();
    bytes[9000] ^= 1;
    fs::write(&first, &bytes).expect("a segment");
    backup_is_refused("the job log is damaged: log.0000000000000001: checksum mismatch");
    fs::remove_file(&first).expect("a segment");
    backup_is_refused("log.0000000000000001 is missing");
    fs::write(&first, &sound).expect("a segment");
    assert_eq!(tool("backup", &[&log, &to]).0, Some(0));
}

/// The last write of a killed server may be torn.
#[test]
fn a_torn_write_is_not_left_out_silently() {
    let scratch = Scratch::new("backup-torn");
    let log = scratch.dir("log");
    let (server, mut client) = start(&log, Driver::Epoll, &FLAGS);
    client.expect(&put(5, 0, &body(1)), "INSERTED 1");
    client.expect(&put(5, 0, &body(2)), "INSERTED 2");
    drop((client, server));
    let file = log.join("log.0000000000000001");
    let mut bytes = fs::read(&file).expect("a segment");
    let end = bytes.iter().rposition(|&byte| byte != 0).expect("records");
    bytes[end - 10] ^= 1;
    fs::write(&file, &bytes).expect("a segment");
    let to = scratch.join("to");
    let (code, out, error) = tool("backup", &[&log, &to]);
    assert!(code == Some(1) && out.is_empty(), "{out}");
    assert!(error.contains("a start discards ") && error.contains("normal after a crash"), "{error}");
    assert!(!to.exists(), "nothing is left of the copy");
}

#[test]
fn a_full_disk() {
    let scratch = Scratch::new("backup-full");
    let (log, disk) = (scratch.dir("log"), scratch.dir("disk"));
    let (_server, mut client) = start(&log, Driver::Epoll, &FLAGS);
    client.expect(&put(5, 0, &body(1)), "INSERTED 1");
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=48k", "tmpfs"])
        .arg(&disk)
        .stderr(Stdio::null())
        .status();
    if !mount.is_ok_and(|status| status.success()) {
        println!("skipped: no file system can be mounted here");
        return;
    }
    let (code, out, error) = tool("backup", &[&log, &disk.join("to")]);
    let is_left = disk.join("to").exists();
    let unmounted = Command::new("umount").arg(&disk).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
    let expected =
        format!("beanring: {}: No space left on device; nothing was copied\n", disk.join("to").display());
    assert_eq!((code, &*out, error), (Some(1), "", expected));
    assert!(!is_left, "nothing is left of the copy");
}
