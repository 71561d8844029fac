//! `beanring wal backup`: copies of the job logs of running and of killed servers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use beanring::io::driver::Driver;
use beanring_testkit::client::{Client, put, start};
use beanring_testkit::scratch::{Scratch, contents};
use beanring_testkit::wait::{self, Stop};

use super::common::{FIRST, MODES, body, change, in_parallel, remove_marks, tool};

/// Small segments, so that the server reuses them all the time.
const FLAGS: [&str; 4] = ["-s", "65536", "-z", "4000"];

/// Jobs that stay, which compaction rewrites.
const OLD: u64 = 200;

/// Jobs that the load keeps.
const KEPT: u64 = 100;

/// What a client knows of the jobs.
#[derive(Default, Clone)]
struct Known {
    put: BTreeSet<u64>,
    /// Deletions that were sent, so their jobs may be gone.
    deleting: BTreeSet<u64>,
    /// Deletions that were acknowledged.
    deleted: BTreeSet<u64>,
}

fn delete(id: u64) -> String {
    format!("delete {id}\r\n")
}

/// A client that puts jobs, ten at a time, and deletes older ones until the flag is set.
fn load(mut client: Client, known: &Mutex<Known>, stops: &AtomicBool) {
    let known = || known.lock().expect("no panic");
    for first in (OLD + 1..).step_by(10).take_while(|_| !stops.load(Ordering::Relaxed)) {
        let ids = first..=first + 9;
        client.insert(ids.clone(), |id| put(5, 0, &body(id)));
        known().put.extend(ids.clone());
        let old: Vec<u64> = ids.filter(|&id| id > OLD + KEPT).map(|id| id - KEPT).collect();
        known().deleting.extend(&old);
        client.expect_all(old.iter().copied().map(delete), "DELETED");
        known().deleted.extend(old);
        // A faster client reuses segments sooner than a busy machine can copy them.
        thread::sleep(Duration::from_millis(2));
    }
}

/// The bodies of all these jobs, in a server that starts from the directory.
fn jobs_in(dir: &Path, ids: Range<u64>) -> BTreeMap<u64, String> {
    let (_server, mut client) = start(dir, Driver::Epoll, &FLAGS);
    let replies = client.ask_all(ids.clone().map(|id| format!("peek {id}\r\n")));
    let found = ids.zip(replies).filter(|(_, (line, _))| line != "NOT_FOUND");
    found.map(|(id, (_, data))| (id, data)).collect()
}

#[test]
fn a_backup_under_load_has_every_acknowledged_job() {
    in_parallel(MODES, |mode| {
        let scratch = Scratch::in_memory("backup-load");
        let log = scratch.dir("log");
        let (_server, mut client) = start(&log, Driver::Epoll, &[&FLAGS, mode].concat());
        client.insert(1..=OLD, |id| put(5, 0, &body(id)));
        let (known, stops) = (Mutex::new(Known::default()), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| load(client, &known, &stops));
            let stopper = Stop(&stops);
            wait::until("the server recycles its first segment", || !log.join(FIRST).exists());
            for round in 0..6 {
                check_copy(&log, &scratch.join(&format!("copy-{round}")), &known);
            }
            drop(stopper);
        });
        println!("{} puts", known.lock().expect("no panic").put.len());
    });
}

/// Copies a log, and compares the copy with what a client knew before and after.
fn check_copy(log: &Path, copy: &Path, known: &Mutex<Known>) {
    let known = || known.lock().expect("no panic").clone();
    let before = known();
    let out = tool("backup", &[log, copy]).succeeds("").out;
    let after = known();
    println!("{out}");
    tool("check", &[copy]).succeeds("");

    let last = after.put.last().copied().unwrap_or(OLD) + 10;
    let found = jobs_in(copy, 1..last + 1);
    let expected = (1..=OLD).chain(before.put.difference(&after.deleting).copied());
    let missing: Vec<u64> = expected.filter(|id| !found.contains_key(id)).collect();
    assert!(missing.is_empty(), "missing after {out}: {missing:?}");
    let revived: Vec<u64> = before.deleted.into_iter().filter(|id| found.contains_key(id)).collect();
    assert!(revived.is_empty(), "deleted before, and in the copy: {revived:?}");
    assert!(found.iter().all(|(&id, data)| *data == format!("{}\r\n", body(id))), "bodies are whole");
}

#[test]
fn an_idle_server_and_a_killed_one() {
    let scratch = Scratch::in_memory("backup-idle");
    let log = scratch.dir("log");
    let (server, mut client) = start(&log, Driver::Epoll, &FLAGS);
    // It has no jobs yet.
    let blank = tool("backup", &[&log, &scratch.join("blank")]).succeeds("");
    assert!(blank.out.starts_with("0 jobs in "), "{blank:?}");
    client.expect(&put(5, 0, &body(1)), "INSERTED 1");
    client.expect("tube-config default max-jobs 5\r\n", "CONFIGURED");
    let (running, killed) = (scratch.join("running"), scratch.dir("killed"));
    tool("backup", &[&log, &running]).succeeds("");
    drop((client, server));
    let before = contents(&log);
    let shown = killed.display();
    let line =
        format!("1 job in 1 segment copied to {shown} in 1 attempt; beanring -b {shown} can start from it\n");
    assert_eq!(tool("backup", &[&log, &killed]).succeeds("").out, line);
    assert!(contents(&log) == before, "the log has not changed");
    for (copy, mode) in [(&running, 0o700), (&killed, 0o755)] {
        let is_private = |path: &Path| fs::metadata(path).expect("a file").permissions().mode() & 0o777;
        assert_eq!(is_private(copy) | mode, mode, "{}", copy.display());
        for name in contents(copy).keys() {
            assert!(name.starts_with("log."), "{name}");
            assert_eq!(is_private(&copy.join(name)), 0o600, "{name}");
        }
        tool("check", &[copy]).succeeds("1 rule\n");
        assert_eq!(jobs_in(copy, 1..3), BTreeMap::from([(1, format!("{}\r\n", body(1)))]));
    }
}

#[test]
fn what_a_backup_refuses() {
    let scratch = Scratch::in_memory("backup-refused");
    let log = scratch.dir("log");
    let (server, mut client) = start(&log, Driver::Epoll, &FLAGS);
    client.expect(&put(5, 0, &body(1)), "INSERTED 1");
    let (full, empty, file) = (scratch.dir("full"), scratch.dir("empty"), scratch.join("file"));
    for file in [&full.join("other"), &file] {
        fs::write(file, "content").expect("there is space");
    }
    let binlog = scratch.join("binlog");
    drop((client, server));
    tool("export", &[&log, &binlog]).succeeds("");
    let (_server, mut client) = start(&log, Driver::Epoll, &FLAGS);
    let to = scratch.join("to");
    for (dirs, why) in [
        ([&*log, &*full], "the directory is not empty"),
        ([&*log, &*log], "the directory is not empty"),
        ([&*log, &*log.join("inside")], "inside that of the job log"),
        ([&*empty, &*to], "the directory contains no job log"),
        ([&*scratch.join("none"), &*to], "no such directory"),
        ([&*file, &*to], "is a file; name the directory of the job log"),
        ([&*binlog, &*to], "this is a binlog of beanstalkd and not a job log"),
        ([&*log, &*scratch.join("none/to")], "no such directory"),
    ] {
        let ended = tool("backup", &dirs).fails(2, why);
        assert!(ended.out.is_empty(), "{ended:?}");
        assert!(!to.exists() && !log.join("inside").exists(), "no directory was created");
    }
    fs::write(log.join("import.begun"), "").expect("there is space");
    tool("backup", &[&log, &to]).fails(1, "an import of beanstalkd's binlog is incomplete");
    assert_eq!(contents(&full).len(), 1, "it is as it was");
    // The server still has its lock, and goes on.
    client.expect(&put(5, 0, &body(2)), "INSERTED 2");
    tool("check", &[&log]).fails(1, "a server uses this job log");
}

/// The damage that no later attempt can mend ends the backup soon, with the error of the check.
#[test]
fn a_damaged_log_is_not_backed_up() {
    let scratch = Scratch::in_memory("backup-damaged");
    let log = scratch.dir("log");
    let (mut server, mut client) = start(&log, Driver::Epoll, &FLAGS);
    for id in 1..=OLD {
        client.expect(&put(5, 0, &body(id)), &format!("INSERTED {id}"));
    }
    drop(client);
    // The log is synced and closed then. In that of a killed server, the bytes behind the last sync may be a torn write.
    server.stop();
    let first = log.join(FIRST);
    let sound = fs::read(&first).expect("a segment");
    let (existing, to) = (scratch.dir("existing"), scratch.join("to"));
    let backup_is_refused = |why: &str| {
        for target in [&existing, &to] {
            let ended = tool("backup", &[&log, target]).fails(1, why);
            assert!(ended.out.is_empty(), "{ended:?}");
        }
        assert!(!to.exists(), "nothing is left of the copy");
        assert_eq!(fs::read_dir(&existing).expect("a directory").count(), 0);
    };
    change(&first, |bytes| bytes[9000] ^= 1);
    backup_is_refused("the job log is damaged: log.0000000000000001: checksum mismatch");
    fs::remove_file(&first).expect("a segment");
    backup_is_refused("log.0000000000000001 is missing");
    fs::write(&first, &sound).expect("a segment");
    tool("backup", &[&log, &to]).succeeds("");
}

/// The last write of a killed server may be torn.
#[test]
fn a_torn_write_is_not_left_out_silently() {
    let scratch = Scratch::in_memory("backup-torn");
    let log = scratch.dir("log");
    let (server, mut client) = start(&log, Driver::Epoll, &FLAGS);
    client.expect(&put(5, 0, &body(1)), "INSERTED 1");
    client.expect(&put(5, 0, &body(2)), "INSERTED 2");
    drop((client, server));
    // They may show that the last record was synced.
    remove_marks(&log);
    change(&log.join(FIRST), |bytes| {
        let end = bytes.iter().rposition(|&byte| byte != 0).expect("records");
        bytes[end - 10] ^= 1;
    });
    let to = scratch.join("to");
    let ended = tool("backup", &[&log, &to]).fails(1, "a start discards ").fails(1, "normal after a crash");
    assert!(ended.out.is_empty(), "{ended:?}");
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
    let to = disk.join("to");
    let ended = tool("backup", &[&log, &to]);
    let is_left = to.exists();
    let unmounted = Command::new("umount").arg(&disk).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
    let expected = format!("beanring: {}: No space left on device; nothing was copied\n", to.display());
    assert_eq!((ended.code, &*ended.out, ended.error), (Some(1), "", expected));
    assert!(!is_left, "nothing is left of the copy");
}
