//! `beanring wal check`, `salvage` and `dump`, on sound and on damaged logs.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use beanring::io::driver::Driver;
use beanring_testkit::client::{Client, put, start};
use beanring_testkit::process::program;
use beanring_testkit::random::{Random, seeds};
use beanring_testkit::scratch::{Scratch, contents};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::common::{
    Ended, FIRST, Run, await_mark, body, change, change_header, name, refusal, remove_marks, tool,
    used_segments as segments,
};

const FLAGS: [&str; 6] = ["-s", "65536", "-f", "1", "-z", "60000"];
const JOBS: u64 = 400;

/// Begins the line of `salvage` about lost jobs.
const LOST: &str = "ids of jobs that are lost, if they were not deleted: ";

/// Runs a tool that needs no other directory.
fn tool_on(name: &str, log: &Scratch) -> Ended {
    tool(name, &[&log.0])
}

/// Runs a tool that writes to a new directory beside the log.
fn tool_to(name: &str, log: &Path) -> Ended {
    let to = Scratch::in_memory("to");
    tool(name, &[log, &to.join("new")])
}

/// A log that a client writes, and whose server is killed.
fn log_of(name: &str, write: impl FnOnce(&mut Client)) -> Scratch {
    let log = Scratch::in_memory(name);
    let (_server, mut client) = start(&log.0, Driver::Epoll, &FLAGS);
    write(&mut client);
    await_mark(&log.0);
    log
}

fn put_each(client: &mut Client, ids: impl Iterator<Item = u64>, put: impl Fn(u64) -> String) {
    ids.for_each(|id| client.expect(&put(id), &format!("INSERTED {id}")));
}

/// A log of many jobs in several files without compaction: some are delayed, some buried, every tenth is deleted.
fn written(name: &str) -> Scratch {
    let log = log_of(name, |client| {
        for id in 1..=JOBS {
            let delay = if id % 4 == 1 { 3000 } else { 0 };
            put_each(client, id..=id, |id| put(5, delay, &body(id)));
            if id % 4 == 2 {
                client.ask(&format!("reserve-job {id}\r\n"));
                client.expect(&format!("bury {id} 7\r\n"), "BURIED");
            }
            if id % 10 == 0 {
                client.expect(&format!("delete {id}\r\n"), "DELETED");
            }
        }
    });
    // Records after a start say that all records before it are on disk.
    let (_server, mut client) = start(&log.0, Driver::Epoll, &FLAGS);
    client.expect("pause-tube default 1000\r\n", "PAUSED");
    log
}

fn alive() -> BTreeSet<u64> {
    (1..=JOBS).filter(|id| id % 10 != 0).collect()
}

/// The ids that a line of `salvage` lists.
fn lost(output: &str) -> BTreeSet<u64> {
    let Some(list) = output.lines().find_map(|line| line.strip_prefix(LOST)) else {
        return BTreeSet::new();
    };
    let range = |word: &str| {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        first.parse::<u64>().expect("a number")..=last.parse().expect("a number")
    };
    list.split(' ').flat_map(range).collect()
}

/// Salvages the log. Returns the ids of the jobs that a server then has, with the right bodies, and the ids that are lost.
fn saved(dir: &Path) -> (BTreeSet<u64>, BTreeSet<u64>) {
    let before = contents(dir);
    let to = Scratch::in_memory("saved");
    let result = tool("salvage", &[dir, &to.0]);
    // All lines but the last report a loss, except that of files which may be missing.
    let losses = result.out.lines().filter(|line| !line.contains(" was not closed, and the next file is "));
    let code = if losses.count() > 1 { 3 } else { 0 };
    assert_eq!(result.code, Some(code), "{result:?}");
    assert!(contents(dir) == before, "the log has not changed");
    tool_on("check", &to).succeeds("");
    let (_server, mut client) = start(&to.0, Driver::Epoll, &FLAGS);
    let replies = client.ask_all((1..=JOBS).map(|id| format!("peek {id}\r\n")));
    let mut found = BTreeSet::new();
    for (id, (_, data)) in (1..).zip(replies).filter(|(_, (line, _))| line != "NOT_FOUND") {
        assert_eq!(data, format!("{}\r\n", body(id)), "the body of job {id}");
        found.insert(id);
    }
    let count = result.out.lines().last().and_then(|line| line.split(' ').next()?.parse().ok());
    assert_eq!(count, Some(found.len()), "{result:?}");
    (found, lost(&result.out))
}

#[test]
fn a_sound_log() {
    let log = written("sound");
    let before = contents(&log.0);
    let count = |rest| alive().iter().filter(|&&id| rest == id % 4).count();
    let states =
        format!("default: {} ready, {} delayed, {} buried\n", count(0) + count(3), count(1), count(2));
    let checked = tool_on("check", &log).succeeds(&states).succeeds(&format!("{} jobs\n", alive().len()));
    let verdict = format!("no damage; beanring -b {} can start from it\n", log.0.display());
    assert!(checked.out.ends_with(&verdict), "{checked:?}");

    let full = File::create("/dev/full").expect("Linux has it");
    let mut command = Command::new(program());
    let output = command.args(["wal", "check"]).arg(&log.0).stdout(full).output().expect("it runs");
    let error = "beanring: cannot write the output: No space left on device\n";
    assert_eq!((output.status.code(), &*String::from_utf8_lossy(&output.stderr)), (Some(1), error));

    let dumped = tool_on("dump", &log).succeeds("");
    let lines: Vec<Value> =
        dumped.out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of_kind = |kind: &'static str| lines.iter().filter(move |line| line["kind"] == kind);
    let puts: Vec<_> = of_kind("job").collect();
    assert_eq!(puts.len(), JOBS as usize);
    for (id, line) in (1..).zip(puts) {
        assert_eq!((line["id"].as_u64(), line["body"].as_str()), (Some(id), Some(&*body(id))));
        assert_eq!(line["state"], if id % 4 == 1 { "delayed" } else { "ready" });
    }
    let counts = ["deletion", "pause", "segment", "gap"].map(|kind| of_kind(kind).count());
    assert_eq!(counts, [JOBS as usize / 10, 1, segments(&log.0).len(), 0]);
    assert!(of_kind("change").all(|line| line["state"] == "buried" && line["pri"] == 7));
    assert!(contents(&log.0) == before, "nothing has changed");

    assert_eq!(saved(&log.0), (alive(), BTreeSet::new()));
}

#[test]
fn bodies_that_are_not_text_are_shown_as_hex() {
    let log = log_of("hex", |client| {
        client.stream.send(b"put 0 0 1 3\r\n\xff\x00a\r\n");
        assert_eq!(client.line().as_deref(), Some("INSERTED 1"));
    });
    tool_on("dump", &log).succeeds("\"body_hex\":\"ff0061\"");
}

#[test]
fn a_record_that_has_changed() {
    let log = written("changed");
    let find = |bytes: &[u8]| bytes.windows(8).position(|window| window == b"body 53 ");
    let holder =
        segments(&log.0).into_iter().find(|file| find(&fs::read(file).expect("a segment")).is_some());
    let file = holder.expect("job 53 is in a segment");
    // The frame (32 bytes) and the fixed fields of a job (60 bytes) precede the name of the tube.
    let mut offset = 0;
    change(&file, |bytes| {
        let at = find(bytes).expect("it is there");
        bytes[at] ^= 1;
        offset = at - 32 - 60 - "default".len();
    });
    let name = name(&file);

    tool_on("check", &log)
        .fails(1, &format!("{name}: checksum mismatch at offset {offset}; restore a backup"))
        .fails(1, "beanring wal salvage")
        .prints(&format!("{name}:{offset}: checksum mismatch, "))
        .prints(&format!("{} jobs can be salvaged", alive().len() - 1));
    tool_on("dump", &log).prints("\"kind\":\"gap\"");
    tool_to("salvage", &log.0)
        .prints("a job whose deletion was there exists again")
        .prints("further jobs may be missing");
    let (found, lost) = saved(&log.0);
    assert_eq!(lost, BTreeSet::from([53]));
    assert_eq!(found, alive().into_iter().filter(|&id| id != 53).collect());
}

#[test]
fn files_that_are_missing_or_have_no_header() {
    let log = written("files");
    let files = segments(&log.0);
    assert!(files.len() >= 4, "{files:?}");
    for (at, file) in files.iter().enumerate() {
        let (bytes, name) = (fs::read(file).expect("a segment"), name(file));
        change(file, |bytes| bytes[..100].fill(0xee));
        assert_eq!(saved(&log.0), (alive(), BTreeSet::new()), "{name} without its header");
        tool_on("check", &log).fails(1, "").prints(&format!("{name}:0: checksum mismatch in the header"));

        fs::remove_file(file).expect("a segment");
        let (found, lost) = saved(&log.0);
        assert!(found.len() < alive().len(), "it had jobs");
        // The mark of the end shows that the last one existed.
        let result = tool_on("check", &log).fails(1, &format!("{name} is missing"));
        let damage: Vec<&str> = result.out.lines().filter(|line| line.starts_with("log.")).collect();
        assert!(at == 0 || damage == [format!("{name}: the file is missing")], "{damage:?}");
        let reported: BTreeSet<u64> = found.union(&lost).copied().collect();
        let last = found.last().copied().unwrap_or_default();
        let are_reported = if at + 1 < files.len() { reported.is_superset(&alive()) } else { last < JOBS };
        assert!(
            at == 0 || are_reported,
            "every job is found or reported as lost, but those behind the last one"
        );
        fs::write(file, bytes).expect("a segment");
    }
}

/// Files of another log at either end, which a copy to the wrong place leaves.
#[test]
fn files_of_another_log() {
    let (log, other) = (written("own"), written("foreign"));
    let files = segments(&log.0);
    for file in [&files[0], &files[files.len() - 1]] {
        let (own, name) = (fs::read(file).expect("a segment"), name(file));
        fs::copy(other.join(&name), file).expect("the other log has as many");
        assert_refused(&log.0, &format!("{name} belongs to another job log, with the id "))
            .fails(1, "; this one has ");
        tool_to("salvage", &log.0)
            .fails(3, "")
            .prints(&format!("{name}: the file belongs to another job log, with the id "));
        let (found, _) = saved(&log.0);
        fs::remove_file(file).expect("it is there");
        assert_eq!(found, saved(&log.0).0, "nothing of it is read");
        fs::write(file, own).expect("a segment");
    }
    tool_on("check", &log).succeeds("no damage");
    // The marks decide, where there are as many files of each.
    let (one, another) = (with_one_job("one-of-two"), written("second-of-two"));
    let second = name(&segments(&another.0)[1]);
    fs::copy(another.join(&second), one.join(&second)).expect("it is prepared");
    assert_refused(&one.0, &format!("{second} belongs to another job log, with the id "));
    for file in &files {
        fs::copy(other.join(&name(file)), file).expect("the other log has as many");
    }
    assert_refused(&log.0, "log.end.1 belongs to another job log, with the id ");
}

#[test]
fn files_that_have_exchanged_their_names() {
    let log = written("exchanged");
    let files = segments(&log.0);
    let between = log.join("between");
    for (from, to) in [(&files[0], &between), (&files[2], &files[0]), (&between, &files[2])] {
        fs::rename(from, to).expect("the name is free");
    }
    assert_refused(&log.0, &format!("{FIRST} is {} by its header: files", name(&files[2])));
    assert_eq!(saved(&log.0), (alive(), BTreeSet::new()));
}

/// Without it no segment is left. A start that took it for a recycled one would begin an empty log.
#[test]
fn the_only_segment_has_the_name_of_a_later_one() {
    let log = with_one_job("only");
    let files = segments(&log.0);
    files[1..].iter().for_each(|prepared| fs::remove_file(prepared).expect("it is there"));
    fs::rename(&files[0], log.join("log.0000000000000003")).expect("the name is free");
    remove_marks(&log.0);
    assert_refused(&log.0, &format!("log.0000000000000003 is {FIRST} by its header: files"));
    tool_to("salvage", &log.0).succeeds("1 job written to ");
}

/// Kills a server while it writes the third segment, and starts it again: prepared files get new numbers.
fn killed(name: &str) -> Scratch {
    let log = log_of(name, |client| put_each(client, 1..=250, |_| put(0, 0, &"x".repeat(500))));
    assert_eq!(segments(&log.0).len(), 3, "the jobs take a half of the third");
    drop(start(&log.0, Driver::Epoll, &FLAGS));
    log
}

/// The numbers of prepared files show that segments are missing only where the last one is full and not closed.
#[test]
fn the_newest_files_are_missing() {
    let log = killed("newest");
    let healthy = tool_on("check", &log).succeeds("\nno damage; ");
    assert!(!healthy.out.contains("was not closed"), "a healthy log has no such line: {healthy:?}");

    let files = segments(&log.0);
    fs::remove_file(&files[2]).expect("a segment");
    assert_refused(&log.0, &format!("{} is missing", name(&files[2])));
    remove_marks(&log.0);
    let line = format!("{} is full and was not closed, and the next file is log.", name(&files[1]));
    let checked = tool_on("check", &log).succeeds(&line);
    assert!(!checked.out.contains("no damage"), "{checked:?}");
    tool_to("salvage", &log.0).succeeds(&line);
    let complaints = assert_serves(&log.0);
    assert!(complaints.contains(&format!(" WARN {line}")), "{complaints}");
}

/// Tools say in their own words what a start discards, and print no line of a server's log.
#[test]
fn a_torn_write() {
    let log = killed("torn");
    // They may show that the last record was synced.
    remove_marks(&log.0);
    change(&segments(&log.0).pop().expect("a segment"), |bytes| {
        let end = bytes.iter().rposition(|&byte| byte != 0).expect("a record");
        bytes[end - 100] ^= 1;
    });
    let checked = tool_on("check", &log).fails(1, ": normal after a crash, and needs nothing; ");
    assert_eq!(checked.error.lines().count(), 1, "{checked:?}");
    let place = checked.error.strip_prefix("beanring: the next start discards ").expect("it says what");
    let (place, _) = place.split_once(": normal").expect("a place");
    let exported = tool_to("export", &log.0).succeeds("");
    let line = format!("left out {place}, which a start discards too: normal after a crash; ");
    assert!(exported.out.starts_with(&line), "{line}: {exported:?}");
}

/// Without a valid header or a mark, the records show the id of the log.
#[test]
fn no_file_has_a_valid_header() {
    for jobs in [2, JOBS] {
        let log = if jobs == JOBS {
            written("headless")
        } else {
            log_of("headless-two", |client| put_each(client, 1..=jobs, |id| put(0, 0, &body(id))))
        };
        segments(&log.0).iter().for_each(|file| change(file, |bytes| bytes[..4096].fill(0xee)));
        remove_marks(&log.0);
        let expected = if jobs == JOBS { alive() } else { (1..=jobs).collect() };
        assert_refused(&log.0, &format!("{FIRST}: checksum mismatch at offset 0; restore"))
            .prints(&format!("{FIRST}:0: checksum mismatch in the header"))
            .prints(&format!("{} jobs can be salvaged", expected.len()));
        assert_eq!(saved(&log.0), (expected, BTreeSet::new()));
        let salvaged = tool_to("salvage", &log.0);
        assert!(!salvaged.out.contains("may be missing"), "{salvaged:?}");
    }
}

/// A log with one job.
fn with_one_job(name: &str) -> Scratch {
    log_of(name, |client| client.expect(&put(0, 0, "one"), "INSERTED 1"))
}

/// One record alone does not prove the id of the log, and the mark of its end does.
#[test]
fn too_little_is_left_to_salvage() {
    let log = with_one_job("hopeless");
    let (file, to) = (log.join(FIRST), log.0.with_extension("to"));
    let sound = fs::read(&file).expect("a segment");
    change(&file, |bytes| bytes[..4096].fill(0xee));
    tool_to("salvage", &log.0).fails(3, "").prints("1 job written to ");
    remove_marks(&log.0);
    for name in ["check", "dump", "salvage"] {
        let dirs = [&*log.0, &*to];
        let result = tool(name, &dirs[..if name == "salvage" { 2 } else { 1 }]);
        result.fails(1, "salvage cannot help: restore a backup of the directory\n");
    }
    fs::write(&file, sound).expect("a segment");
    change_header(&file, |bytes| bytes[16] = 9);
    tool("salvage", &[&log.0, &to]).fails(1, "has format 9 of a newer version of beanring; use that version");
    assert!(!to.exists(), "nothing was written");
}

/// Format 5 has no notes and no losses, and is otherwise the same.
#[test]
fn a_log_of_the_format_before_is_read() {
    let log = with_one_job("format-5");
    change_header(&log.join(FIRST), |bytes| bytes[16] = 5);
    tool_on("check", &log).succeeds("1 job\n").succeeds("no damage");
    let (_server, mut client) = start(&log.0, Driver::Epoll, &FLAGS);
    client.expect("reserve-job 1\r\n", "RESERVED 1 3");
    client.expect("job-note 1 1\r\nx\r\n", "NOTED");
}

/// After a clean stop everything is synced.
#[test]
fn a_closed_log_has_no_unsynced_end() {
    let log = Scratch::in_memory("closed");
    let (mut server, mut client) = start(&log.0, Driver::Epoll, &FLAGS);
    client.expect(&put(0, 0, "one"), "INSERTED 1");
    server.stop();
    let result = tool_on("check", &log).succeeds("\nno damage; ");
    assert!(!result.out.contains("unsynced"), "{result:?}");
}

#[test]
fn bytes_that_have_changed_anywhere() {
    let log = written("anywhere");
    let files = segments(&log.0);
    for seed in seeds(20) {
        let mut random = Random::new(seed);
        let before: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).expect("a segment")).collect();
        for _ in 0..1 + random.below(6) {
            change(&files[random.below(files.len())], |bytes| {
                let at = random.below(bytes.len());
                let end = (at + [1, 100, 5000][random.below(3)]).min(bytes.len());
                bytes[at..end].iter_mut().for_each(|byte| *byte ^= 1 + random.below(255) as u8);
            });
        }
        let (found, lost) = saved(&log.0);
        let reported: BTreeSet<u64> = found.union(&lost).copied().collect();
        let unreported: Vec<u64> = alive().difference(&reported).copied().collect();
        // No record shows what was behind the last valid one.
        let last = found.iter().chain(&lost).max().copied().unwrap_or(0);
        assert!(
            unreported.iter().all(|&id| id > last),
            "BEANRING_TEST_SEED={seed}: not reported: {unreported:?}"
        );
        let verdict = tool_on("check", &log);
        let is_clear = matches!(verdict.code, Some(0 | 1)) && verdict.error.lines().count() <= 2;
        assert!(is_clear, "{verdict:?}");
        files.iter().zip(before).for_each(|(file, bytes)| fs::write(file, bytes).expect("a segment"));
    }
}

#[test]
fn directories_that_the_tools_refuse() {
    let log = with_one_job("refused");
    let empty = Scratch::in_memory("refused-empty");
    let (none, export, inside) = (empty.join("none"), empty.join("export"), log.join("inside"));
    for name in ["check", "dump"] {
        tool_on(name, &empty).fails(2, "the directory contains no job log");
        tool(name, &[&none]).fails(2, "no such directory");
    }
    assert_eq!(fs::read_dir(&empty.0).expect("a directory").count(), 0, "no file was created");
    tool("export", &[&log.0, &export]).succeeds("");
    for name in ["check", "dump"] {
        tool(name, &[&export]).fails(2, "this is a binlog of beanstalkd and not a job log");
    }
    tool("salvage", &[&log.0, &log.0]).fails(2, "the directory is not empty");
    for name in ["salvage", "export"] {
        tool(name, &[&log.0, &inside]).fails(2, "inside that of the job log");
        assert!(!inside.exists(), "no directory was created");
    }
    let (_server, _client) = start(&log.0, Driver::Epoll, &FLAGS);
    for name in ["check", "dump"] {
        tool_on(name, &log).fails(1, "a server uses this job log");
    }
}

/// Asserts that a server starts and serves, and kills it. Returns its warnings.
#[track_caller]
fn assert_serves(dir: &Path) -> String {
    let ended = Run::server(dir, &FLAGS).end_or_serve(Signal::SIGKILL);
    assert_eq!(ended.code, None, "{ended:?}");
    ended.complaints()
}

/// Asserts that a start is refused, and that `check` says the same. Returns what that has printed.
#[track_caller]
fn assert_refused(dir: &Path, why: &str) -> Ended {
    let message = refusal(dir, &FLAGS, 1);
    let rest = message
        .strip_prefix(&format!("-b/--wal-dir \"{}\": ", dir.display()))
        .expect("it names the directory");
    assert!(rest.contains(why), "{why}: {message}");
    let checked = tool("check", &[dir]);
    assert_eq!((checked.code, &*checked.error), (Some(1), &*format!("beanring: {rest}\n")), "{why}");
    assert!(!checked.out.contains("can start from it"), "{why}: {checked:?}");
    checked
}

#[test]
fn a_file_that_ends_within_its_header() {
    let log = written("short");
    for file in segments(&log.0) {
        let (bytes, name) = (fs::read(&file).expect("a segment"), name(&file));
        for length in [1, 75, 76, 4000, 4095] {
            fs::write(&file, &bytes[..length]).expect("a segment");
            assert_refused(&log.0, &format!("{name} ends after {length} bytes, within its header; restore"));
            tool_to("salvage", &log.0).fails(3, "").prints(&name);
        }
        fs::write(&file, bytes).expect("a segment");
    }
    tool_on("check", &log).succeeds("");
}

#[test]
fn a_header_whose_ids_could_run_out() {
    let log = written("ids");
    let next_id = (3_u64 << 61).wrapping_add(2).to_le_bytes();
    change_header(&segments(&log.0).pop().expect("a segment"), |bytes| {
        bytes[48..56].copy_from_slice(&next_id)
    });
    assert_refused(&log.0, "ids above it could run out");
}

/// A server that was killed before it wrote anything leaves such a file, as does a power failure then.
#[test]
fn a_first_file_that_was_never_written() {
    let log = Scratch::in_memory("blank");
    let begin = |bytes: Vec<u8>| {
        fs::remove_dir_all(&log.0).and_then(|()| fs::create_dir(&log.0)).expect("it is empty again");
        fs::write(log.join(FIRST), bytes).expect("a segment");
    };
    for length in [0, 1000, 65536] {
        begin(vec![0; length]);
        let checked = tool_on("check", &log).succeeds("");
        assert!(checked.out.starts_with("0 records in 0 segments\n0 jobs\n"), "{checked:?}");
        assert_eq!(assert_serves(&log.0), "", "{length}");
    }
    begin([vec![0; 5000], vec![7; 100]].concat());
    tool_on("check", &log).fails(1, &format!("discards 100 bytes at {FIRST}:5000"));
    assert_serves(&log.0);
}

#[test]
fn numbers_and_words_agree() {
    let log = with_one_job("one");
    remove_marks(&log.0);
    let printed = format!(
        "1 record in 1 segment\n1 job\n  default: 1 ready, 0 delayed, 0 buried\nthe last 8192 bytes may be unsynced; \
         the next start rewrites them (normal)\nno damage; beanring -b {} can start from it\n",
        log.0.display()
    );
    assert_eq!(tool_on("check", &log).succeeds("").out, printed);
    let to = Scratch::in_memory("one-to");
    let printed = format!("1 job written to {0}; start the server with beanring -b {0}\n", to.0.display());
    assert_eq!(tool("salvage", &[&log.0, &to.0]).succeeds("").out, printed);
}

#[test]
fn keys_rules_and_tags() {
    let log = log_of("extras", |client| {
        for (command, reply) in [
            ("put 0 0 60 1 idp:a:9000\r\nx", "INSERTED 1"),
            ("delete 1", "DELETED"),
            ("put 0 0 60 1 grp:parts\r\nx", "INSERTED 2"),
            ("put 0 0 60 1 aft:parts\r\nx", "INSERTED 3"),
            ("delete 2", "DELETED"),
            ("tube-config mail max-jobs 5", "CONFIGURED"),
            ("tube-config mail rate 7", "CONFIGURED"),
        ] {
            client.expect(&format!("{command}\r\n"), reply);
        }
    });
    let counts = "1 job\n  default: 1 ready, 0 delayed, 0 buried\n1 kept idempotency key\n2 rules\n";
    tool_on("check", &log).succeeds(counts);
    let dumped = tool_on("dump", &log).succeeds("");
    for kind in ["kept-key", "group-end", "rule"] {
        assert!(dumped.out.contains(&format!("\"kind\":\"{kind}\"")), "{dumped:?}");
    }
    let exported = tool_to("export", &log.0).succeeds("");
    let line = "left out 1 kept idempotency key, 2 rules, the tags of 1 job: a binlog has no place for them\n1 job written to ";
    assert!(exported.out.starts_with(line), "{exported:?}");
}
