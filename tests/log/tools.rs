//! `beanring wal check`, `salvage` and `dump`, on sound and on damaged logs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use beanring::io::driver::Driver;
use beanring_testkit::client::{put, start};
use beanring_testkit::process::program;
use beanring_testkit::random::{Random, seeds};
use beanring_testkit::scratch::{Scratch, contents};

const FLAGS: [&str; 4] = ["-s", "65536", "-f", "1"];
const JOBS: u64 = 400;

/// Begins the line of `salvage` about lost jobs.
const LOST: &str = "ids of jobs that are lost, if they were not deleted: ";

/// The output of a tool, and its exit code.
struct ToolOutput {
    code: i32,
    out: String,
    error: String,
}

fn tool(name: &str, dirs: &[&Path]) -> ToolOutput {
    let output = Command::new(program()).args(["log", name]).args(dirs).output().expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("it is text");
    ToolOutput {
        code: output.status.code().expect("no signal ends it"),
        out: text(output.stdout),
        error: text(output.stderr),
    }
}

fn body(id: u64) -> String {
    format!("body {id} {}", "x".repeat((id * 37 % 900) as usize))
}

/// A log of many jobs in several files without compaction: some are delayed, some buried, every tenth is deleted.
fn written(name: &str) -> Scratch {
    let scratch = Scratch::new(name);
    let (server, mut client) = start(&scratch.0, Driver::Epoll, &FLAGS);
    for id in 1..=JOBS {
        let delay = if id % 4 == 1 { 3000 } else { 0 };
        client.expect(&put(5, delay, &body(id)), &format!("INSERTED {id}"));
        if id % 4 == 2 {
            client.send(&format!("reserve-job {id}\r\n"));
            client.reply().expect("it runs");
            client.expect(&format!("bury {id} 7\r\n"), "BURIED");
        }
        if id % 10 == 0 {
            client.expect(&format!("delete {id}\r\n"), "DELETED");
        }
    }
    drop((client, server));
    // Records after a start say that all records before it are on disk.
    let (_server, mut client) = start(&scratch.0, Driver::Epoll, &FLAGS);
    client.expect("pause-tube default 1000\r\n", "PAUSED");
    scratch
}

fn alive() -> BTreeSet<u64> {
    (1..=JOBS).filter(|id| id % 10 != 0).collect()
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    let is_used = |path: &PathBuf| {
        let is_segment = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("log."));
        is_segment && fs::read(path).expect("a file").starts_with(b"bean")
    };
    let mut segments: Vec<PathBuf> = entries.filter(is_used).collect();
    segments.sort();
    segments
}

fn name(path: &Path) -> String {
    path.file_name().expect("a file").to_string_lossy().into_owned()
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
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let to = Scratch::new(&format!("saved-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
    let result = tool("salvage", &[dir, &to.0]);
    // All lines but the last report a loss, except that of files which may be missing.
    let losses = result.out.lines().filter(|line| !line.contains(" was not closed, and the next file is "));
    let code = if losses.count() > 1 { 3 } else { 0 };
    assert_eq!(result.code, code, "{}{}", result.out, result.error);
    assert!(contents(dir) == before, "the log has not changed");
    assert_eq!(tool("check", &[&to.0]).code, 0, "the new log is sound");
    let (_server, mut client) = start(&to.0, Driver::Epoll, &FLAGS);
    let mut found = BTreeSet::new();
    for id in 1..=JOBS {
        let (line, data) = client.ask(&format!("peek {id}\r\n"));
        if line != "NOT_FOUND" {
            assert_eq!(data, format!("{}\r\n", body(id)), "the body of job {id}");
            found.insert(id);
        }
    }
    let count: usize =
        result.out.lines().last().and_then(|line| line.split(' ').next()?.parse().ok()).expect("a count");
    assert_eq!(count, found.len());
    (found, lost(&result.out))
}

#[test]
fn a_sound_log() {
    let log = written("sound");
    let before = contents(&log.0);
    let result = tool("check", &[&log.0]);
    assert_eq!((result.code, &*result.error), (0, ""));
    assert!(result.out.contains(&format!("{} jobs\n", alive().len())), "{}", result.out);
    let count = |rest| alive().iter().filter(|&&id| rest == id % 4).count();
    let states =
        format!("default: {} ready, {} delayed, {} buried\n", count(0) + count(3), count(1), count(2));
    assert!(result.out.contains(&states), "{}", result.out);
    let verdict = format!("no damage; beanring -b {} can start from it\n", log.0.display());
    assert!(result.out.ends_with(&verdict), "{}", result.out);

    let full = fs::File::create("/dev/full").expect("Linux has it");
    let mut command = Command::new(program());
    let output = command.args(["wal", "check"]).arg(&log.0).stdout(full).output().expect("it runs");
    let error = "beanring: cannot write the output: No space left on device\n";
    assert_eq!((output.status.code(), &*String::from_utf8_lossy(&output.stderr)), (Some(1), error));

    let result = tool("dump", &[&log.0]);
    assert_eq!((result.code, &*result.error), (0, ""));
    let lines: Vec<serde_json::Value> =
        result.out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of_kind = |kind: &'static str| lines.iter().filter(move |line| line["kind"] == kind);
    let puts: Vec<_> = of_kind("job").collect();
    assert_eq!(puts.len(), JOBS as usize);
    for (id, line) in (1..).zip(puts) {
        assert_eq!((line["id"].as_u64(), line["body"].as_str()), (Some(id), Some(&*body(id))));
        assert_eq!(line["state"], if id % 4 == 1 { "delayed" } else { "ready" });
    }
    assert_eq!(of_kind("deletion").count(), JOBS as usize / 10);
    assert_eq!(of_kind("pause").count(), 1);
    assert!(of_kind("change").all(|line| line["state"] == "buried" && line["pri"] == 7));
    assert_eq!(of_kind("segment").count(), segments(&log.0).len());
    assert_eq!(of_kind("gap").count(), 0);
    assert!(contents(&log.0) == before, "nothing has changed");

    assert_eq!(saved(&log.0), (alive(), BTreeSet::new()));
}

#[test]
fn bodies_that_are_not_text_are_shown_as_hex() {
    let log = Scratch::new("hex");
    let (server, mut client) = start(&log.0, Driver::Epoll, &FLAGS);
    client.stream.send(b"put 0 0 1 3\r\n\xff\x00a\r\n");
    assert_eq!(client.line().as_deref(), Some("INSERTED 1"));
    drop((client, server));
    assert!(tool("dump", &[&log.0]).out.contains("\"body_hex\":\"ff0061\""));
}

#[test]
fn a_record_that_has_changed() {
    let log = written("changed");
    let file = &segments(&log.0)[1];
    let mut bytes = fs::read(file).expect("a segment");
    let put_53 = "body 53 ".as_bytes();
    let segment_of_53 = segments(&log.0).into_iter().find_map(|file| {
        let bytes = fs::read(&file).expect("a segment");
        let at = bytes.windows(put_53.len()).position(|window| window == put_53)?;
        Some((file, at))
    });
    let (file_of_53, at) = segment_of_53.expect("job 53 is in a segment");
    if file_of_53 != *file {
        bytes = fs::read(&file_of_53).expect("a segment");
    }
    bytes[at] ^= 1;
    fs::write(&file_of_53, bytes).expect("a segment");
    // The frame (32 bytes) and the fixed fields of a job (60 bytes) precede the name of the tube.
    let offset = at - 32 - 60 - "default".len();
    let place = format!("{}:{offset}", name(&file_of_53));

    let result = tool("check", &[&log.0]);
    assert_eq!(result.code, 1, "{}", result.out);
    assert!(result.out.contains(&format!("{place}: ")), "{place}: {}", result.out);
    assert!(result.out.contains(&format!("{place}: checksum mismatch, ")), "{}", result.out);
    assert!(result.out.contains(&format!("{} jobs can be salvaged", alive().len() - 1)), "{}", result.out);
    let error = format!("{}: checksum mismatch at offset {offset}; restore a backup", name(&file_of_53));
    assert!(
        result.error.contains(&error) && result.error.contains("beanring wal salvage"),
        "{}",
        result.error
    );
    assert!(tool("dump", &[&log.0]).out.contains("\"kind\":\"gap\""));
    let to = Scratch::new("changed-saved");
    let salvaged = tool("salvage", &[&log.0, &to.0]);
    for line in ["a job whose deletion was there exists again", "further jobs may be missing"] {
        assert!(salvaged.out.contains(line), "{}", salvaged.out);
    }
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
        let bytes = fs::read(file).expect("a segment");
        let mut headless = bytes.clone();
        headless[..100].fill(0xee);
        fs::write(file, headless).expect("a segment");
        assert_eq!(saved(&log.0), (alive(), BTreeSet::new()), "{} without its header", name(file));
        let result = tool("check", &[&log.0]);
        assert!(
            result.code == 1
                && result.out.contains(&format!("{}:0: checksum mismatch in the header", name(file))),
            "{}",
            result.out
        );

        fs::remove_file(file).expect("a segment");
        let (found, lost) = saved(&log.0);
        assert!(found.len() < alive().len(), "it had jobs");
        let is_last = at + 1 == files.len();
        let result = tool("check", &[&log.0]);
        if at == 0 {
            assert!(result.error.contains(&format!("{} is missing", name(file))), "{}", result.error);
        } else if !is_last {
            let damage: Vec<&str> = result.out.lines().filter(|line| line.starts_with("log.")).collect();
            assert_eq!(damage, [format!("{}: the file is missing", name(file))]);
            let reported: BTreeSet<u64> = found.union(&lost).copied().collect();
            assert!(reported.is_superset(&alive()), "every job is found or reported as lost");
            let refusal = format!("the job log is damaged: {} is missing", name(file));
            assert!(result.error.contains(&refusal), "{}", result.error);
        }
        assert_eq!(
            result.code,
            i32::from(!is_last),
            "no file shows that the last one existed: {}",
            result.out
        );
        fs::write(file, bytes).expect("a segment");
    }
}

/// Kills a server while it writes the third segment, and starts it again: prepared files get new numbers.
fn killed(name: &str) -> Scratch {
    let log = Scratch::new(name);
    let (server, mut client) = start(&log.0, Driver::Epoll, &FLAGS);
    (1..=250).for_each(|id| client.expect(&put(0, 0, &"x".repeat(500)), &format!("INSERTED {id}")));
    drop((client, server));
    assert_eq!(segments(&log.0).len(), 3, "the jobs take a half of the third");
    drop(start(&log.0, Driver::Epoll, &FLAGS));
    log
}

/// The numbers of prepared files show that segments are missing only where the last one is full and not closed.
#[test]
fn the_newest_files_are_missing() {
    let log = killed("newest");
    let result = tool("check", &[&log.0]);
    assert!(result.code == 0 && result.out.contains("\nno damage; "), "{}", result.out);
    assert!(!result.out.contains("was not closed"), "a healthy log has no such line: {}", result.out);

    let files = segments(&log.0);
    fs::remove_file(&files[2]).expect("a segment");
    let line = format!("{} is full and was not closed, and the next file is log.", name(&files[1]));
    let result = tool("check", &[&log.0]);
    assert!(
        result.code == 0 && result.out.contains(&line) && !result.out.contains("no damage"),
        "{}",
        result.out
    );
    let to = Scratch::new("newest-saved");
    let result = tool("salvage", &[&log.0, &to.0]);
    assert!(result.code == 0 && result.out.contains(&line), "{}", result.out);
    let (code, said) = start_of(&log.0);
    assert!(code.is_none() && said.contains(&format!(" WARN {line}")), "{said}");
}

/// Tools say in their own words what a start discards, and print no line of a server's log.
#[test]
fn a_torn_write() {
    let log = killed("torn");
    let file = segments(&log.0).pop().expect("a segment");
    let mut bytes = fs::read(&file).expect("a segment");
    let end = bytes.iter().rposition(|&byte| byte != 0).expect("a record");
    bytes[end - 100] ^= 1;
    fs::write(&file, bytes).expect("a segment");
    let checked = tool("check", &[&log.0]);
    assert!(checked.code == 1 && checked.error.lines().count() == 1, "{}", checked.error);
    assert!(checked.error.starts_with("beanring: the next start discards "), "{}", checked.error);
    assert!(checked.error.contains(": normal after a crash, and needs nothing; "), "{}", checked.error);
    let to = log.0.with_extension("to");
    let exported = tool("export", &[&log.0, &to]);
    assert_eq!((exported.code, &*exported.error), (0, ""));
    let place = checked
        .error
        .split_once("discards ")
        .and_then(|(_, rest)| rest.split_once(": normal"))
        .expect("a place")
        .0;
    let line = format!("left out {place}, which a start discards too: normal after a crash; ");
    assert!(exported.out.starts_with(&line), "{line}: {}", exported.out);
    fs::remove_dir_all(to).expect("it was made");
}

/// Without a valid header, the records show the id of the log.
#[test]
fn no_file_has_a_valid_header() {
    for jobs in [2, JOBS] {
        let log = if jobs == JOBS { written("headless") } else { Scratch::new("headless-two") };
        if jobs < JOBS {
            let (_server, mut client) = start(&log.0, Driver::Epoll, &FLAGS);
            (1..=jobs).for_each(|id| client.expect(&put(0, 0, &body(id)), &format!("INSERTED {id}")));
        }
        for file in segments(&log.0) {
            let mut bytes = fs::read(&file).expect("a segment");
            bytes[..4096].fill(0xee);
            fs::write(&file, bytes).expect("a segment");
        }
        assert_refused(&log.0, "log.0000000000000001: checksum mismatch at offset 0; restore");
        let checked = tool("check", &[&log.0]);
        assert!(
            checked.out.contains("log.0000000000000001:0: checksum mismatch in the header"),
            "{}",
            checked.out
        );
        let expected = if jobs == JOBS { alive() } else { (1..=jobs).collect() };
        assert!(checked.out.contains(&format!("{} jobs can be salvaged", expected.len())), "{}", checked.out);
        assert_eq!(saved(&log.0), (expected, BTreeSet::new()));
        let to = Scratch::new("headless-saved");
        let salvaged = tool("salvage", &[&log.0, &to.0]);
        assert!(!salvaged.out.contains("may be missing"), "{}", salvaged.out);
    }
}

/// One record alone does not prove the id of the log.
#[test]
fn too_little_is_left_to_salvage() {
    let log = Scratch::new("hopeless");
    let (server, mut client) = start(&log.0, Driver::Epoll, &FLAGS);
    client.expect(&put(0, 0, "one"), "INSERTED 1");
    drop((client, server));
    let file = &segments(&log.0)[0];
    let sound = fs::read(file).expect("a segment");
    let mut bytes = sound.clone();
    bytes[..4096].fill(0xee);
    fs::write(file, bytes).expect("a segment");
    let to = log.0.with_extension("to");
    for name in ["check", "dump", "salvage"] {
        let dirs = [&*log.0, &*to];
        let result = tool(name, &dirs[..if name == "salvage" { 2 } else { 1 }]);
        let message = "salvage cannot help: restore a backup of the directory\n";
        assert!(result.code == 1 && result.error.ends_with(message), "{name}: {}", result.error);
    }
    let mut bytes = sound;
    bytes[16] = 5;
    let sum = crc32c::crc32c(&bytes[..72]).to_le_bytes();
    bytes[72..76].copy_from_slice(&sum);
    fs::write(file, bytes).expect("a segment");
    let result = tool("salvage", &[&log.0, &to]);
    assert!(
        result.code == 1
            && result.error.contains("has format 5 of a newer version of beanring; use that version"),
        "{}",
        result.error
    );
    assert!(!to.exists(), "nothing was written");
}

/// After a clean stop everything is synced.
#[test]
fn a_closed_log_has_no_unsynced_end() {
    let log = Scratch::new("closed");
    let (mut server, mut client) = start(&log.0, Driver::Epoll, &FLAGS);
    client.expect(&put(0, 0, "one"), "INSERTED 1");
    server.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(server.wait(), Some(0));
    let result = tool("check", &[&log.0]);
    assert!(result.code == 0 && !result.out.contains("unsynced"), "{}", result.out);
    assert!(result.out.contains("\nno damage; "), "{}", result.out);
}

#[test]
fn bytes_that_have_changed_anywhere() {
    let log = written("anywhere");
    let files = segments(&log.0);
    for seed in seeds(20) {
        let mut random = Random::new(seed);
        let before: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).expect("a segment")).collect();
        for _ in 0..1 + random.below(6) {
            let file = &files[random.below(files.len())];
            let mut bytes = fs::read(file).expect("a segment");
            let at = random.below(bytes.len());
            let end = (at + [1, 100, 5000][random.below(3)]).min(bytes.len());
            bytes[at..end].iter_mut().for_each(|byte| *byte ^= 1 + random.below(255) as u8);
            fs::write(file, bytes).expect("a segment");
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
        let verdict = tool("check", &[&log.0]);
        assert!([0, 1].contains(&verdict.code) && verdict.error.lines().count() <= 2, "{}", verdict.error);
        files.iter().zip(before).for_each(|(file, bytes)| fs::write(file, bytes).expect("a segment"));
    }
}

#[test]
fn directories_that_the_tools_refuse() {
    let log = written("refused");
    let empty = Scratch::new("refused-empty");
    let none = empty.0.join("none");
    for name in ["check", "dump"] {
        let result = tool(name, &[&empty.0]);
        assert!(
            result.code == 2 && result.error.contains("the directory contains no job log"),
            "{}",
            result.error
        );
        let result = tool(name, &[&none]);
        assert!(result.code == 2 && result.error.contains("no such directory"), "{}", result.error);
    }
    assert_eq!(fs::read_dir(&empty.0).expect("a directory").count(), 0, "no file was created");
    let export = empty.0.join("export");
    assert_eq!(tool("export", &[&log.0, &export]).code, 0);
    for name in ["check", "dump"] {
        let result = tool(name, &[&export]);
        assert!(
            result.code == 2 && result.error.contains("this is a binlog of beanstalkd and not a job log"),
            "{}",
            result.error
        );
    }
    let result = tool("salvage", &[&log.0, &log.0]);
    assert!(result.code == 2 && result.error.contains("the directory is not empty"), "{}", result.error);
    for name in ["salvage", "export"] {
        let inside = log.0.join("inside");
        let result = tool(name, &[&log.0, &inside]);
        assert!(result.code == 2 && result.error.contains("inside that of the job log"), "{}", result.error);
        assert!(!inside.exists(), "no directory was created");
    }
    let (_server, _client) = start(&log.0, Driver::Epoll, &FLAGS);
    for name in ["check", "dump"] {
        let result = tool(name, &[&log.0]);
        assert!(result.code == 1 && result.error.contains("a server uses this job log"), "{}", result.error);
    }
}

/// Starts a server, and kills it if it does not end at once. Returns its exit code, if it has one, and what it logs.
fn start_of(dir: &Path) -> (Option<i32>, String) {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "2", program(), "-l", "127.0.0.1", "-p", "0", "--io", "epoll"]);
    command.args(["--log-level", "warn", "-b"]);
    let output =
        command.arg(dir).args(FLAGS).args(["-z", "60000"]).stdin(Stdio::null()).output().expect("it ends");
    let said = String::from_utf8(output.stderr).expect("it is text");
    let last = said.lines().last().and_then(|line| line.split_once(" ERROR "));
    (output.status.code(), last.map_or(said.clone(), |(_, error)| format!("beanring: {error}\n")))
}

/// Asserts that a start is refused, and that `check` says the same.
fn assert_refused(dir: &Path, why: &str) {
    let (code, message) = start_of(dir);
    assert!(code == Some(1) && message.lines().count() == 1 && message.contains(why), "{why}: {message}");
    let source = format!("-b/--wal-dir \"{}\": ", dir.display());
    assert!(message.starts_with(&format!("beanring: {source}")), "{message}");
    let checked = tool("check", &[dir]);
    assert_eq!((checked.code, checked.error), (1, message.replacen(&source, "", 1)), "{why}");
    assert!(!checked.out.contains("can start from it"), "{why}: {}", checked.out);
}

#[test]
fn a_file_that_ends_within_its_header() {
    let log = written("short");
    for file in segments(&log.0) {
        let bytes = fs::read(&file).expect("a segment");
        for length in [1, 75, 76, 4000, 4095] {
            fs::write(&file, &bytes[..length]).expect("a segment");
            assert_refused(
                &log.0,
                &format!("{} ends after {length} bytes, within its header; restore", name(&file)),
            );
            let to = Scratch::new("short-saved");
            let result = tool("salvage", &[&log.0, &to.0]);
            assert!(
                result.code == 3 && result.out.contains(&name(&file)),
                "{length}: {}{}",
                result.out,
                result.error
            );
        }
        fs::write(&file, bytes).expect("a segment");
    }
    assert_eq!(tool("check", &[&log.0]).code, 0);
}

#[test]
fn a_header_whose_ids_could_run_out() {
    let log = written("ids");
    let file = segments(&log.0).pop().expect("a segment");
    let mut bytes = fs::read(&file).expect("a segment");
    bytes[48..56].copy_from_slice(&(3_u64 << 61).wrapping_add(2).to_le_bytes());
    let sum = crc32c::crc32c(&bytes[..72]).to_le_bytes();
    bytes[72..76].copy_from_slice(&sum);
    fs::write(&file, bytes).expect("a segment");
    assert_refused(&log.0, "ids above it could run out");
}

/// A server that was killed before it wrote anything leaves such a file, as does a power failure then.
#[test]
fn a_first_file_that_was_never_written() {
    for length in [0, 1000, 65536] {
        let log = Scratch::new("blank");
        fs::write(log.0.join("log.0000000000000001"), vec![0; length]).expect("a segment");
        let result = tool("check", &[&log.0]);
        assert_eq!((result.code, &*result.error), (0, ""), "{length}: {}", result.out);
        assert!(result.out.starts_with("0 records in 0 segments\n0 jobs\n"), "{}", result.out);
        assert_eq!(start_of(&log.0), (None, String::new()), "{length}: it runs");
    }
    let log = Scratch::new("blank");
    fs::write(log.0.join("log.0000000000000001"), [vec![0; 5000], vec![7; 100]].concat()).expect("a segment");
    let result = tool("check", &[&log.0]);
    assert!(
        result.code == 1 && result.error.contains("discards 100 bytes at log.0000000000000001:5000"),
        "{}",
        result.error
    );
    assert_eq!(start_of(&log.0).0, None, "it runs");
}

#[test]
fn numbers_and_words_agree() {
    let log = Scratch::new("one");
    let (server, mut client) = start(&log.0, Driver::Epoll, &FLAGS);
    client.expect(&put(0, 0, "one"), "INSERTED 1");
    drop((client, server));
    let result = tool("check", &[&log.0]);
    assert_eq!(
        (result.code, &*result.out),
        (
            0,
            &*format!(
                "1 record in 1 segment\n1 job\n  default: 1 ready, 0 delayed, 0 buried\nthe last 8192 bytes may be unsynced; \
                 the next start rewrites them (normal)\nno damage; beanring -b {} can start from it\n",
                log.0.display()
            )
        )
    );
    let to = log.0.with_extension("to");
    let result = tool("salvage", &[&log.0, &to]);
    assert_eq!(
        (result.code, result.out),
        (0, format!("1 job written to {0}; start the server with beanring -b {0}\n", to.display()))
    );
    fs::remove_dir_all(to).expect("it was made");
}

#[test]
fn keys_rules_and_tags() {
    let log = Scratch::new("extras");
    let (server, mut client) = start(&log.0, Driver::Epoll, &FLAGS);
    client.expect("put 0 0 60 1 idp:a:9000\r\nx\r\n", "INSERTED 1");
    client.expect("delete 1\r\n", "DELETED");
    client.expect("put 0 0 60 1 grp:parts\r\nx\r\n", "INSERTED 2");
    client.expect("put 0 0 60 1 aft:parts\r\nx\r\n", "INSERTED 3");
    client.expect("delete 2\r\n", "DELETED");
    for rule in ["max-jobs 5", "rate 7"] {
        client.expect(&format!("tube-config mail {rule}\r\n"), "CONFIGURED");
    }
    drop((client, server));
    let checked = tool("check", &[&log.0]);
    let counts = "1 job\n  default: 1 ready, 0 delayed, 0 buried\n1 kept idempotency key\n2 rules\n";
    assert!(checked.code == 0 && checked.out.contains(counts), "{}", checked.out);
    let dump = tool("dump", &[&log.0]).out;
    for kind in ["kept-key", "group-end", "rule"] {
        assert!(dump.contains(&format!("\"kind\":\"{kind}\"")), "{dump}");
    }
    let to = log.0.with_extension("to");
    let exported = tool("export", &[&log.0, &to]);
    let line = "left out 1 kept idempotency key, 2 rules, the tags of 1 job: a binlog has no place for them\n1 job written to ";
    assert!(exported.code == 0 && exported.out.starts_with(line), "{}", exported.out);
    fs::remove_dir_all(to).expect("it was made");
}
