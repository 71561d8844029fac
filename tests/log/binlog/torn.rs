//! Binlogs with a torn end, with damage, and in the states that an interrupted import leaves.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use beanring::beanstalkd_binlog::{self as binlog, Job, State};
use beanring::io::binlog_import;
use beanring::io::wal_files::{self, Directory};
use beanring::queue::{Counts, Engine};
use beanring::time::{Seconds, Time};
use beanring::values::ids::JobId;
use beanring::values::tube_name::TubeName;
use beanring::wal::{Destination, Durability, SEGMENT_BYTES_MIN, WalConfig};
use beanring_testkit::scratch::Scratch;

use super::super::common::refusal;
use super::client::{Served, compare};
use super::{beanstalkd_for, binlogs, ours};

const NOW: Time = Time::from_nanos(1_800_000_000_000_000_000);

const CONFIG: WalConfig = WalConfig {
    durability: Durability::Never,
    segment_bytes: SEGMENT_BYTES_MIN,
    destination: Destination::Directory,
    keep_reservations: false,
};

/// Returns the ids and bodies of the jobs after an import, or the error.
fn import(dir: &Path) -> Result<Vec<(u64, Vec<u8>)>, String> {
    let directory = Directory::open(dir, false).map_err(|error| error.to_string())?;
    binlog_import::import(&directory, CONFIG).map_err(|error| error.to_string())?;
    let mut engine = Engine::new(1);
    wal_files::recover(&directory, CONFIG, &mut engine, NOW).map_err(|error| error.to_string())?;
    engine.check();
    let jobs = engine.jobs().iter().map(|(key, job)| (job.id.0, engine.body(key).to_vec()));
    let mut jobs: Vec<_> = jobs.collect();
    jobs.sort();
    Ok(jobs)
}

fn job(id: u64, body: &[u8]) -> Job {
    Job {
        id: JobId(id),
        created: Time::from_nanos(NOW.as_nanos() - id),
        ttr: Seconds::whole(60),
        pri: 1,
        delay: Seconds::ZERO,
        body_bytes: body.len() as u32,
        deadline: Time::ZERO,
        counts: Counts::default(),
        state: State::Ready,
    }
}

/// Returns a file of version 7 with jobs 1 to 9, of which 3 is deleted and 5 buried; and for each record its end and the ids
/// of the jobs up to there.
fn sample() -> (Vec<u8>, Vec<(usize, Vec<u64>)>) {
    let mut bytes = Vec::new();
    binlog::encode_version(&mut bytes);
    let mut jobs = Vec::new();
    let mut ends = vec![(bytes.len(), jobs.clone())];
    let mut made = Vec::new();
    for id in 1..=9 {
        let body = [vec![b'a'; 7 * id as usize], b"\r\n".to_vec()].concat();
        made.push(job(id, &body));
        binlog::encode_job(TubeName::new(b"tube").unwrap(), &job(id, &body), &body, &mut bytes);
        jobs.push(id);
        ends.push((bytes.len(), jobs.clone()));
        if id == 6 {
            binlog::encode_change(&Job { state: State::Deleted, ..made[2] }, &mut bytes);
            jobs.retain(|&id| id != 3);
            ends.push((bytes.len(), jobs.clone()));
            let counts = Counts { reserves: 1, buries: 1, ..Counts::default() };
            binlog::encode_change(&Job { state: State::Buried, counts, ..made[4] }, &mut bytes);
            ends.push((bytes.len(), jobs.clone()));
        }
    }
    (bytes, ends)
}

fn ids(jobs: &[(u64, Vec<u8>)]) -> Vec<u64> {
    jobs.iter().map(|&(id, _)| id).collect()
}

#[test]
fn a_torn_end_is_left_out() {
    let (bytes, ends) = sample();
    let scratch = Scratch::in_memory("binlog");
    let near = ends.iter().flat_map(|(at, _)| [at - 1, *at, at + 1]);
    let cuts: BTreeSet<usize> = (0..bytes.len()).step_by(11).chain(near).collect();
    for end in cuts.into_iter().filter(|&end| end <= bytes.len()) {
        let expected = ends.iter().rev().find(|(at, _)| *at <= end).map_or(&[][..], |(_, jobs)| jobs);
        let dir = scratch.dir("log");
        let mut torn = bytes[..end].to_vec();
        let is_filled = end % 2 == 0;
        torn.resize(end + if is_filled { 5000 } else { 0 }, 0);
        fs::write(dir.join("binlog.1"), torn).unwrap();
        let found = ids(&import(&dir).unwrap());
        // The state is the last field of a change, and 0 is a deletion. beanstalkd reads the same.
        let next = ends.iter().find(|(at, _)| end < *at).map_or(end, |(at, _)| *at);
        let may_be_deletion = is_filled && next - end < 84 - 52;
        let without_one = found.len() + 1 == expected.len() && found.iter().all(|id| expected.contains(id));
        assert!(found == expected || may_be_deletion && without_one, "{end}: {found:?}");
        fs::remove_dir_all(dir).unwrap();
    }
}

/// A restored log in a directory in which an import was interrupted.
#[test]
fn a_log_is_no_part_of_an_import_without_a_binlog() {
    let scratch = Scratch::in_memory("binlog-alone");
    let dir = scratch.dir("log");
    fs::write(dir.join("binlog.1"), sample().0).unwrap();
    let imported = import(&dir).unwrap();
    fs::write(dir.join("import.begun"), "binlog.1\n").unwrap();
    let error = import(&dir).unwrap_err();
    assert!(error.contains("import.begun is beside a job log"), "{error}");
    fs::remove_file(dir.join("import.begun")).unwrap();
    assert_eq!(import(&dir).unwrap(), imported);
}

#[test]
fn damage_is_refused_with_its_place() {
    let (bytes, ends) = sample();
    let scratch = Scratch::in_memory("binlog");
    let check = |name: &str, files: &[&[u8]], expected: &str| {
        let dir = scratch.dir(name);
        for (number, file) in files.iter().enumerate() {
            fs::write(dir.join(format!("binlog.{}", number + 1)), file).unwrap();
        }
        let before = binlogs(&dir);
        let error = import(&dir).unwrap_err();
        assert!(error.contains(expected), "{name}: {error}");
        assert_eq!(binlogs(&dir), before);
        assert!(fs::read_dir(&dir).unwrap().all(|entry| {
            let name = entry.unwrap().file_name();
            name.to_string_lossy().starts_with("binlog.") || name == "lock"
        }));
    };
    let changed = |at: usize, to: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = to;
        bytes
    };
    let (third, fifth, seventh) = (ends[2].0, ends[4].0, ends[6].0);
    let mut hole = bytes.clone();
    hole[fifth..ends[5].0].fill(0);
    let [in_third, in_fifth, in_seventh] =
        [third, fifth, seventh].map(|offset| format!("binlog.1:{offset} is damaged"));
    for (name, files, expected) in [
        ("length", &[&*changed(third, 0xc9)][..], &*in_third),
        ("name", &[&changed(third + 4, b' ')], &in_third),
        ("body-size", &[&changed(third + 8 + 34, 1)], &in_third),
        ("body-end", &[&changed(third + 8 + 80 + 21, b'.')], &in_third),
        ("state", &[&changed(third + 8 + 76, 9)], &in_third),
        ("change", &[&changed(seventh + 4 + 40, 1)], &in_seventh),
        ("hole", &[&hole], &in_fifth),
        ("older", &[&bytes[..third + 50], &bytes], &in_third),
        ("version", &[&[6, 0, 0, 0]], "binlog.1 has version 6, and beanring reads 5 and 7"),
    ] {
        check(name, files, expected);
    }
    let dir = scratch.dir("missing");
    fs::write(dir.join("binlog.1"), &bytes).unwrap();
    fs::write(dir.join("binlog.3"), &bytes).unwrap();
    assert!(import(&dir).unwrap_err().contains("binlog.2 is missing"));
}

/// The effect on the jobs depends on the byte. The queue is consistent in any case.
#[test]
fn any_byte_can_change() {
    let (bytes, _) = sample();
    let scratch = Scratch::in_memory("binlog");
    for at in (0..bytes.len()).step_by(17) {
        let dir = scratch.dir("log");
        let mut changed = bytes.clone();
        changed[at] ^= 0x55;
        fs::write(dir.join("binlog.1"), changed).unwrap();
        match import(&dir) {
            Ok(jobs) => assert!(jobs.len() <= 9, "{at}"),
            Err(error) => assert!(error.contains("binlog.1"), "{at}: {error}"),
        }
        fs::remove_dir_all(dir).unwrap();
    }
}

/// beanstalkd writes a record in four pieces, and continues in a new file after it was killed between two of them.
#[test]
fn a_record_torn_before_a_restart_is_left_out() {
    let (bytes, ends) = sample();
    let scratch = Scratch::in_memory("binlog");
    let third = ends[2].0;
    for piece in [4, 8, 88] {
        let dir = scratch.dir(&piece.to_string());
        let mut first = bytes[..third + piece].to_vec();
        first.resize(10_000, 0);
        fs::write(dir.join("binlog.1"), first).unwrap();
        let mut second = Vec::new();
        binlog::encode_version(&mut second);
        let body = b"later\r\n";
        binlog::encode_job(TubeName::DEFAULT, &job(20, body), body, &mut second);
        fs::write(dir.join("binlog.2"), second).unwrap();
        // A file that beanstalkd allocated ahead and did not use.
        fs::write(dir.join("binlog.3"), [7, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        fs::write(dir.join("binlog.4"), [0; 4096]).unwrap();
        assert_eq!(ids(&import(&dir).unwrap()), [1, 2, 20], "{piece}");
    }
}

#[test]
fn an_interrupted_import_is_completed() {
    let (bytes, ends) = sample();
    let expected = &ends.last().unwrap().1;
    let scratch = Scratch::in_memory("binlog");
    let fresh = |name: &str| {
        let dir = scratch.dir(name);
        fs::write(dir.join("binlog.1"), &bytes).unwrap();
        fs::write(dir.join("binlog.2"), [7, 0, 0, 0]).unwrap();
        dir
    };
    let check = |dir: &Path| {
        assert_eq!(ids(&import(dir).unwrap()), *expected);
        assert_eq!(binlogs(dir), ["binlog.1.imported", "binlog.2.imported"]);
        assert!(!dir.join("import.begun").exists() && !dir.join("import.done").exists());
        // A second start reads only the log of beanring.
        assert_eq!(ids(&import(dir).unwrap()), *expected);
    };
    check(&fresh("all"));

    let dir = fresh("begun");
    fs::write(dir.join("import.begun"), "").unwrap();
    check(&dir);
    let dir = fresh("half");
    fs::write(dir.join("import.begun"), "binlog.1\nbinlog.2\n").unwrap();
    fs::write(dir.join("log.0000000000000001"), vec![3; 65_536]).unwrap();
    check(&dir);

    for renamed in 0..2 {
        let dir = fresh(&format!("done{renamed}"));
        check(&dir);
        for number in renamed + 1..=2 {
            fs::rename(dir.join(format!("binlog.{number}.imported")), dir.join(format!("binlog.{number}")))
                .unwrap();
        }
        fs::write(dir.join("import.done"), "binlog.1\nbinlog.2\n").unwrap();
        check(&dir);
    }

    let dir = fresh("both");
    check(&dir);
    fs::write(dir.join("binlog.3"), &bytes).unwrap();
    assert_eq!(
        refusal(&dir, &[], 1),
        format!(
            "-b/--wal-dir {dir:?}: cannot import the binlog of beanstalkd: binlog.3 and a job log of beanring are in one \
             directory, and may contain the same jobs; move one of them out of the directory"
        )
    );
    let dir = fresh("taken");
    fs::write(dir.join("binlog.2.imported"), "precious").unwrap();
    assert!(import(&dir).unwrap_err().contains("binlog.2.imported exists from an earlier import"));
}

#[test]
fn beanstalkd_discards_the_same_end() {
    let Some(program) = beanstalkd_for("import of torn binlogs") else { return };
    let scratch = Scratch::in_memory("binlog");
    let dir = scratch.dir("log");
    let mut theirs = Served::start(&program, &dir, &[]);
    for number in 1..=20_u32 {
        theirs.put(number, 0, 60, &"x".repeat(number as usize * 10));
        if number % 5 == 0 {
            let id = theirs.job("reserve").unwrap();
            theirs.expect(&format!("bury {id} 7"), "BURIED");
        }
    }
    drop(theirs);
    let file = fs::read(dir.join("binlog.1")).unwrap();
    let end = file.iter().rposition(|&byte| byte != 0).unwrap();
    for cut in [1, 2, 60, 84, 85, 90, 170, 250, 300, 370, 380, 411, 700, 1000] {
        let copy = scratch.copy(&dir, &cut.to_string());
        fs::set_permissions(copy.join("binlog.1"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        fs::write(copy.join("binlog.1"), &file[..end - cut]).unwrap();
        let again = scratch.copy(&copy, &format!("{cut}-again"));
        let expected = Served::start(&program, &again, &[]).inspect(20);
        compare(&expected, &ours(&copy, &[]).inspect(20));
    }
}

/// Files of version 5, which no available server writes: beanring and beanstalkd 1.12 read the same jobs.
#[test]
fn version_5() {
    let Some(program) = beanstalkd_for("import of a binlog of version 5") else { return };
    let scratch = Scratch::in_memory("binlog");
    let dir = scratch.dir("log");
    fs::write(dir.join("binlog.1"), old_file()).unwrap();
    let copy = scratch.copy(&dir, "copy");
    let expected = Served::start(&program, &copy, &[]).inspect(5);
    assert_eq!(expected.keys().copied().collect::<Vec<_>>(), [1, 2, 4]);
    assert_eq!(expected[&4].stats["delay"], "1000000");
    compare(&expected, &ours(&dir, &[]).inspect(5));
}

fn old_file() -> Vec<u8> {
    let us = |seconds: u64| seconds * 1_000_000;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let record = |name: &[u8], id: u64, state: u8, body: &[u8]| {
        let mut bytes = (name.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(name);
        let delay = if state == 4 { us(1_000_000) } else { 0 };
        for word in [id, 77, delay, us(90), 8, us(now - 500), us(now + 1_000_000)] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        [1_u32, 2, 3, 4, 5].iter().for_each(|count| bytes.extend_from_slice(&count.to_le_bytes()));
        bytes.push(state);
        bytes.extend_from_slice(body);
        bytes
    };
    [
        5_u32.to_le_bytes().to_vec(),
        record(b"old", 1, 1, b"first.\r\n"),
        record(b"old", 2, 1, b"second\r\n"),
        record(b"older", 3, 1, b"third.\r\n"),
        record(b"older", 4, 4, b"fourth\r\n"),
        record(b"", 2, 3, b""),
        record(b"", 3, 0, b""),
        vec![0; 300],
    ]
    .concat()
}
