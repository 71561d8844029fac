//! The job log with real server processes: killed, stopped, on a full disk, and in directories that it refuses.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use beanring::io::driver::Driver;
use beanring::io::wal_files;
use beanring::wal::segment::FORMAT;
use beanring_testkit::client::{Client, put, start};
use beanring_testkit::process::{REPLY_PATIENCE, ServerProcess};
use beanring_testkit::random::{Random, seeds};
use beanring_testkit::scratch::{Scratch, contents};
use beanring_testkit::statistics::{field, number};
use beanring_testkit::wait;
use nix::sys::signal::Signal;

use super::common::{Case, MODES, cases, change, change_header, in_parallel, refusal, segments};
use super::disks::mount;

/// Small segments.
const SMALL: [&str; 2] = ["-s", "65536"];

fn delete(id: u64) -> String {
    format!("delete {id}\r\n")
}

// Kills and stops.

#[test]
fn acknowledged_changes_survive_a_kill_and_a_stop() {
    let cycles = env::var("BEANRING_TEST_CYCLES").map_or(4, |text| text.parse().expect("a number"));
    in_parallel(cases("kill", &MODES), |case| {
        for seed in seeds(1) {
            let scratch = Scratch::new("kill");
            let mut crash = Crash::new(&scratch.0, &case, seed);
            let mut done = 0;
            // A kill comes after some milliseconds, in which a busy machine serves few commands.
            while done < cycles || crash.ids.len() <= 100 && done < 20 * cycles {
                crash.cycle();
                done += 1;
            }
            let (known, alive) = (crash.ids.len(), crash.jobs.len());
            println!("{case:?}, seed {seed}: {done} cycles, {known} jobs acknowledged, {alive} alive");
            assert!(known > 100, "the server has served commands");
        }
    });
}

/// The state of a job and its priority.
type JobState = (&'static str, u32);

/// A job that was acknowledged.
#[derive(Clone)]
struct Known {
    body: u64,
    now: JobState,
    /// The number of the load that `now` comes from.
    load: u32,
    /// A change that was sent and not acknowledged; `None` in it is a deletion.
    maybe: Option<Option<JobState>>,
}

#[derive(Clone, Copy)]
enum Asked {
    Put(u64, JobState),
    Change(u64, Option<JobState>),
}

struct Crash<'a> {
    dir: &'a Path,
    case: &'a Case,
    random: Random,
    jobs: BTreeMap<u64, Known>,
    /// Deleted since the last check.
    gone: Vec<u64>,
    /// All ids that were ever given.
    ids: BTreeSet<u64>,
    /// Puts without a reply.
    lost: Vec<(u64, JobState)>,
    /// How often commands were sent.
    loads: u32,
}

impl<'a> Crash<'a> {
    fn new(dir: &'a Path, case: &'a Case, seed: u64) -> Self {
        let (random, jobs, ids) = (Random::new(seed), BTreeMap::new(), BTreeSet::new());
        Self { dir, case, random, jobs, gone: Vec::new(), ids, lost: Vec::new(), loads: 0 }
    }

    fn cycle(&mut self) {
        let (mut server, mut client) = self.case.start(self.dir, &SMALL);
        self.check(&mut client);
        self.anchor(&mut client);
        let stops = self.random.below(4) == 0;
        let span = Duration::from_micros(2_000 + self.random.below(40_000) as u64);
        thread::scope(|scope| {
            let server = &server;
            scope.spawn(move || {
                thread::sleep(span);
                server.signal(if stops { Signal::SIGTERM } else { Signal::SIGKILL });
            });
            while self.load(&mut client) {}
        });
        assert_eq!(server.wait(), stops.then_some(0));
    }

    /// Puts a job whose id is known: a server may leave ids out when it starts, and the ids of puts without a reply follow this one.
    fn anchor(&mut self, client: &mut Client) {
        let (body, pri) = (self.random.next(), self.random.below(5000) as u32);
        let (line, _) = client.ask(&put(pri, 0, &body_of(body)));
        self.note(Asked::Put(body, ("ready", pri)), &line);
    }

    /// Sends pipelined commands and notes the replies. Returns false when the server has ended.
    fn load(&mut self, client: &mut Client) -> bool {
        self.loads += 1;
        let mut asked = Vec::new();
        let mut text = String::new();
        for _ in 0..60 {
            let body = self.random.next();
            let pri = self.random.below(5000) as u32;
            let (delay, state) = [(0, "ready"), (3000, "delayed")][self.random.below(2)];
            text += &put(pri, delay, &body_of(body));
            asked.push((1, Asked::Put(body, (state, pri))));
        }
        let mut touched: Vec<u64> = self.jobs.keys().copied().collect();
        let surplus = touched.len().saturating_sub(400);
        for index in 0..touched.len().min(60 + surplus) {
            let other = index + self.random.below(touched.len() - index);
            touched.swap(index, other);
            let (id, pri) = (touched[index], self.random.below(5000) as u32);
            let (commands, count, to) = match self.random.below(if surplus > 0 { 4 } else { 7 }) {
                0 => (format!("reserve-job {id}\r\nbury {id} {pri}\r\n"), 2, Some(("buried", pri))),
                1 => (format!("reserve-job {id}\r\nrelease {id} {pri} 0\r\n"), 2, Some(("ready", pri))),
                2 => (format!("reserve-job {id}\r\nrelease {id} {pri} 900\r\n"), 2, Some(("delayed", pri))),
                3 => (format!("delete {id}\r\n"), 1, None),
                _ => {
                    let pri = self.jobs[&id].now.1;
                    (
                        format!("reserve-job {id}\r\nbury {id} {pri}\r\nkick-job {id}\r\n"),
                        3,
                        Some(("ready", pri)),
                    )
                }
            };
            text += &commands;
            // The states between the first and the last command are possible too: only the last reply of three settles it.
            asked.push((count, Asked::Change(id, to)));
        }
        client.send(&text);
        let mut answers = asked.iter();
        for &(count, asked) in answers.by_ref() {
            let last = (0..count).map(|_| client.reply()).last().flatten();
            let Some((line, _)) = last else {
                self.note_unanswered(asked);
                break;
            };
            self.note(asked, &line);
        }
        let rest: Vec<Asked> = answers.map(|&(_, asked)| asked).collect();
        let is_over = !rest.is_empty();
        rest.into_iter().for_each(|asked| self.note_unanswered(asked));
        !is_over
    }

    fn note(&mut self, asked: Asked, line: &str) {
        match asked {
            Asked::Put(body, now) => {
                let id = line.strip_prefix("INSERTED ").and_then(|id| id.parse().ok());
                let id: u64 = id.unwrap_or_else(|| panic!("{line}"));
                assert!(self.ids.insert(id), "job {id} is given twice");
                self.jobs.insert(id, Known { body, now, load: self.loads, maybe: None });
            }
            Asked::Change(id, Some(now)) => {
                assert!(["BURIED", "RELEASED", "KICKED"].contains(&line), "{line}");
                let job = self.jobs.get_mut(&id).expect("it is known");
                (job.now, job.load) = (now, self.loads);
            }
            Asked::Change(id, None) => {
                assert_eq!(line, "DELETED");
                self.jobs.remove(&id);
                self.gone.push(id);
            }
        }
    }

    fn note_unanswered(&mut self, asked: Asked) {
        match asked {
            Asked::Put(body, now) => self.lost.push((body, now)),
            Asked::Change(id, to) => self.jobs.get_mut(&id).expect("it is known").maybe = Some(to),
        }
    }

    /// Asserts that every acknowledged change is there, and that no impossible one is.
    fn check(&mut self, client: &mut Client) {
        client.expect_all(self.gone.drain(..).map(|id| format!("peek {id}\r\n")), "NOT_FOUND");
        let known = std::mem::take(&mut self.jobs);
        let asked = known.keys().flat_map(|id| [format!("stats-job {id}\r\n"), format!("peek {id}\r\n")]);
        let replies = client.ask_all(asked);
        let mut wrong = Vec::new();
        for ((id, job), [stats, found]) in known.into_iter().zip(replies.as_chunks().0) {
            if stats.0 == "NOT_FOUND" {
                assert_eq!(job.maybe, Some(None), "job {id} is lost");
                continue;
            }
            let now = state_of(&stats.1);
            let is_buried_halfway = job.maybe.is_some() && now == ("buried", job.now.1);
            // A connection that ended may have reserved the job.
            let is_returned = job.maybe.is_some() && now == ("ready", job.now.1);
            let may_be = now == job.now || job.maybe == Some(Some(now)) || is_buried_halfway || is_returned;
            if !may_be {
                wrong.push(format!(
                    "job {id} is {now:?}, not {:?} of load {} or {:?}",
                    job.now, job.load, job.maybe
                ));
            }
            assert_eq!(found.1, format!("{}\r\n", body_of(job.body)), "the body of job {id}");
            self.jobs.insert(id, Known { now, maybe: None, ..job });
        }
        // All of them: whether one change is lost or the last ones of a load tells where to look.
        assert!(wrong.is_empty(), "after {} loads:\n{}", self.loads, wrong.join("\n"));
        self.adopt(client);
        let states = ["ready", "delayed", "buried", "reserved"];
        let count: u64 = states.iter().map(|state| client.stat(&format!("current-jobs-{state}"))).sum();
        assert_eq!(count, self.jobs.len() as u64, "there are no other jobs");
    }

    /// Unanswered puts may have happened: a prefix of them.
    fn adopt(&mut self, client: &mut Client) {
        let first = self.ids.last().map_or(1, |last| last + 1);
        let mut is_end = false;
        for (id, (body, state)) in (first..).zip(std::mem::take(&mut self.lost)) {
            let (line, found) = client.ask(&format!("peek {id}\r\n"));
            is_end |= line == "NOT_FOUND";
            if line == "NOT_FOUND" {
                continue;
            }
            assert!(!is_end, "job {id} is there and one before it is not");
            assert_eq!(found, format!("{}\r\n", body_of(body)), "the body of job {id}");
            self.ids.insert(id);
            self.jobs.insert(id, Known { body, now: state, load: self.loads, maybe: None });
        }
    }
}

fn state_of(stats: &str) -> JobState {
    let state = ["ready", "delayed", "buried"].into_iter().find(|state| *state == field(stats, "state"));
    (state.expect("the job is not reserved"), number(stats, "pri") as u32)
}

/// A body that differs from every other in all its parts.
fn body_of(seed: u64) -> String {
    let mut random = Random::new(seed);
    let words = 2 + random.below(20) * random.below(6);
    (0..words).map(|_| format!("{:016x}", random.next())).collect()
}

// Full disks.

/// Runs a test on small file systems, which only root can mount.
fn on_small_disks(name: &str, test: impl Fn(&Path, &Case) + Sync) {
    in_parallel(cases("full disk", &MODES), |case| {
        let disk = Scratch::new(name);
        match mount(&["-t", "tmpfs", "-o", "size=2m", "tmpfs"], &disk.0) {
            Ok(_mounted) => test(&disk.0, &case),
            Err(_) => println!("skipped: no file system can be mounted here"),
        }
    });
}

#[test]
fn a_full_disk_refuses_puts_alone() {
    on_small_disks("full", fill_and_change_jobs);
}

fn fill_and_change_jobs(dir: &Path, case: &Case) {
    const PUTS: usize = 6000;
    const ROUNDS: usize = 20;
    const AT_ONCE: usize = 100;
    let (server, mut client) = case.start(dir, &SMALL);
    let body = "y".repeat(400);
    let replies = client.ask_all(vec![put(10, 0, &body); PUTS]);
    let jobs = replies.iter().filter(|(line, _)| line.starts_with("INSERTED ")).count();
    let refused = replies.iter().filter(|(line, _)| line == "OUT_OF_MEMORY").count();
    assert!(jobs > 2500 && refused > 0 && jobs + refused == PUTS, "{jobs} {refused}");
    await_idle(&server);

    for round in 0..ROUNDS {
        let ids = (1..=AT_ONCE).map(|id| id + round * AT_ONCE % jobs.next_multiple_of(AT_ONCE) / 2);
        let commands = ids.flat_map(|id| {
            let reserve = format!("reserve-job {id}\r\n");
            let (release, bury) = (format!("release {id} 5 0\r\n"), format!("bury {id} 6\r\n"));
            [reserve.clone(), release, reserve, bury, format!("kick-job {id}\r\n")]
        });
        for replies in client.ask_all(commands).as_chunks::<5>().0 {
            let words = replies.each_ref().map(|(line, _)| line.split(' ').next().expect("a word"));
            assert_eq!(words, ["RESERVED", "RELEASED", "RESERVED", "BURIED", "KICKED"]);
        }
    }
    await_idle(&server);
    drop((client, server));

    for _ in 0..3 {
        let (_server, mut client) = case.start(dir, &SMALL);
        assert_eq!(client.stat("current-jobs-ready"), jobs as u64);
    }
    let (server, mut client) = case.start(dir, &SMALL);
    client.expect_all((1..=jobs as u64 / 2).map(delete), "DELETED");
    await_space(&mut client, &put(0, 0, &body), dir);
    await_idle(&server);
}

/// Waits until a put is accepted.
fn await_space(client: &mut Client, put: &str, dir: &Path) {
    let started = Instant::now();
    while client.ask(put).0 == "OUT_OF_MEMORY" {
        assert!(started.elapsed() < REPLY_PATIENCE, "there is space\n{}", space_on(dir));
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_full_disk_refuses_large_puts_at_once() {
    on_small_disks("large", refuse_large_puts);
}

fn refuse_large_puts(dir: &Path, case: &Case) {
    // A body of nearly half a segment.
    let large = put(0, 0, &"l".repeat(30_000));
    let other = dir.join(".other");
    fs::write(&other, vec![1; 700 << 10]).expect("there is space");
    let (server, mut client) = case.start(dir, &SMALL);
    let replies = client.ask_all(vec![large.clone(); 100]);
    let jobs = replies.iter().filter(|(line, _)| line.starts_with("INSERTED ")).count();
    assert!((5..50).contains(&jobs) && replies[99].0 == "OUT_OF_MEMORY", "{jobs}: {replies:?}");
    for round in 0..30 {
        let id = 1 + round % jobs;
        assert!(client.ask(&format!("reserve-job {id}\r\n")).0.starts_with("RESERVED "));
        client.expect(&format!("bury {id} 3\r\n"), "BURIED");
        client.expect(&format!("kick-job {id}\r\n"), "KICKED");
    }
    assert_eq!(client.ask(&large).0, "OUT_OF_MEMORY");
    await_idle(&server);
    // Another process frees space.
    fs::remove_file(&other).expect("it was written");
    await_space(&mut client, &large, dir);
    await_idle(&server);
}

/// The files of a directory, and the space of its disk.
fn space_on(dir: &Path) -> String {
    let shown = |command: &mut Command| {
        let output = command.arg(dir).output().map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&output).into_owned()
    };
    shown(Command::new("ls").arg("-las")) + &shown(&mut Command::new("df"))
}

/// Waits until the server uses no CPU: an idle server does nothing once its log is closed.
fn await_idle(server: &ServerProcess) {
    wait::until("the server uses little CPU", || {
        let before = server.cpu_time();
        thread::sleep(Duration::from_millis(300));
        server.cpu_time() - before <= Duration::from_millis(60)
    });
}

// Size of the log.

#[test]
fn a_log_stays_small_beside_an_ancient_job() {
    let rounds = env::var("BEANRING_TEST_ROUNDS").map_or(100, |text| text.parse().expect("a number"));
    in_parallel(cases("space", &MODES), |case| {
        let largest = put_and_delete(&Scratch::in_memory("space").0, &case, rounds);
        println!("{case:?}: at most {largest:?} bytes");
    });
}

/// Puts jobs and deletes each.
fn churn(client: &mut Client, first: u64, count: u64) {
    let pair = |id| [put(0, 0, &"z".repeat(64)), delete(id)];
    let replies = client.ask_all((first..first + count).flat_map(pair));
    for (id, [inserted, deleted]) in (first..).zip(replies.as_chunks().0) {
        assert_eq!((&*inserted.0, &*deleted.0), (&*format!("INSERTED {id}"), "DELETED"));
    }
}

/// Returns the largest size of the log: by the lengths of files, and by their blocks.
fn put_and_delete(dir: &Path, case: &Case, rounds: u64) -> (u64, u64) {
    const SEGMENT_BYTES: u64 = 1 << 20;
    const AT_ONCE: u64 = 500;
    let flags = ["-s", "1048576"];
    let (server, mut client) = case.start(dir, &flags);
    client.expect(&put(0, 0, "ancient"), "INSERTED 1");
    let mut largest = (0, 0);
    for round in 0..rounds {
        churn(&mut client, 2 + round * AT_ONCE, AT_ONCE);
        let (apparent, allocated) = disk_use(dir);
        largest = (apparent.max(largest.0), allocated.max(largest.1));
    }
    assert!(client.stat("binlog-oldest-index") > 5, "old segments have left the log");
    let limit = 4 * SEGMENT_BYTES;
    assert!(largest.0 <= limit && largest.1 <= limit + 64 * 1024, "{largest:?}");
    drop((client, server));
    for _ in 0..5 {
        let (_server, mut client) = case.start(dir, &flags);
        client.expect("peek 1\r\n", "FOUND 1 7");
    }
    assert!(disk_use(dir).0 <= limit, "restarts do not add up");
    largest
}

#[test]
fn compaction_adds_no_syncs() {
    const JOBS: u64 = 2000;
    in_parallel(cases("moving", &MODES[..1]), |case| {
        let scratch = Scratch::in_memory("moving");
        let (_server, mut client) = case.start(&scratch.0, &SMALL);
        let command = put(0, 0, &"m".repeat(64));
        (1..=JOBS).for_each(|id| client.expect(&command, &format!("INSERTED {id}")));
        let (moved, syncs) = (client.stat("binlog-records-migrated"), client.stat("wal-syncs"));
        assert!(moved > JOBS, "{moved} jobs were compacted");
        // One per put and not two; some more where segments are created so slowly that compaction cannot wait.
        assert!(syncs < JOBS + JOBS / 2, "{syncs} syncs");
    });
}

#[test]
fn a_log_shrinks_with_its_jobs() {
    const JOBS: u64 = 20_000;
    const SEGMENT_BYTES: u64 = 65_536;
    in_parallel(MODES.map(|mode| Case { io: Driver::Epoll, mode }), |case| {
        let scratch = Scratch::new("shrink");
        let (server, mut client) = case.start(&scratch.0, &SMALL);
        client.insert(1..=JOBS, |_| put(0, 0, &"j".repeat(100)));
        let full = disk_use(&scratch.0).0;
        assert!(full > 50 * SEGMENT_BYTES, "{full}");
        // One job in a hundred stays.
        client.expect_all((1..=JOBS).filter(|id| id % 100 != 0).map(delete), "DELETED");
        let live = client.stat("wal-live-bytes");
        let limit = (2 * live + 2 * SEGMENT_BYTES).max(4 * SEGMENT_BYTES);
        wait::until("the log is small", || disk_use(&scratch.0).0 <= limit);
        println!("{case:?}: {full} bytes, then {limit}");
        await_idle(&server);
        drop((client, server));
        let (_server, mut client) = case.start(&scratch.0, &SMALL);
        assert_eq!(client.stat("current-jobs-ready"), JOBS / 100);
    });
}

#[test]
fn pauses_of_many_tubes_survive_compaction() {
    const TUBES: u64 = 600;
    let scratch = Scratch::in_memory("pauses");
    let case = Case { io: Driver::Epoll, mode: MODES[2] };
    let tube = |number: u64| format!("{number:0>200}");
    let (server, mut client) = case.start(&scratch.0, &SMALL);
    let commands = (0..TUBES)
        .map(tube)
        .flat_map(|tube| [format!("use {tube}\r\n"), put(0, 0, "p"), format!("pause-tube {tube} 3600\r\n")]);
    for replies in client.ask_all(commands).as_chunks::<3>().0 {
        let words = replies.each_ref().map(|(line, _)| line.split(' ').next().expect("a word"));
        assert_eq!(words, ["USING", "INSERTED", "PAUSED"]);
    }
    client.expect(&format!("pause-tube {} 0\r\n", tube(7)), "PAUSED");
    let before = client.stat("binlog-oldest-index");
    // Enough to replace every segment more than once.
    (0..40).for_each(|round| churn(&mut client, TUBES + 1 + round * 500, 500));
    assert!(client.stat("binlog-oldest-index") > before + 20, "old segments have left the log");
    drop((client, server));
    let (_server, mut client) = case.start(&scratch.0, &SMALL);
    let stats = client.ask_all((0..TUBES).map(|number| format!("stats-tube {}\r\n", tube(number))));
    for (at, (_, stats)) in stats.iter().enumerate() {
        assert_eq!(number(stats, "pause"), if at == 7 { 0 } else { 3600 }, "tube {at}");
    }
}

/// Returns the size of all segments: by their lengths, and by their blocks.
fn disk_use(dir: &Path) -> (u64, u64) {
    let files = segments(dir).into_iter().filter_map(|path| fs::metadata(path).ok());
    files.fold((0, 0), |(bytes, blocks), file| (bytes + file.len(), blocks + 512 * file.blocks()))
}

/// The check before a restart in place reads what a server is writing, renaming and removing.
#[test]
fn a_busy_log_passes_the_check_before_a_restart() {
    let scratch = Scratch::in_memory("busy-preflight");
    let (server, mut client) = start(&scratch.0, Driver::Epoll, &["-s", "65536", "-F"]);
    let is_over = AtomicBool::new(false);
    let rounds = thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut rounds = 0;
            while !is_over.load(Ordering::Relaxed) {
                churn(&mut client, 1 + rounds * 100, 100);
                rounds += 1;
            }
            rounds
        });
        let checks = (0..5000).map(|_| wal_files::preflight(&scratch.0));
        let refused: Vec<_> = checks.filter_map(Result::err).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(refused.is_empty(), "{refused:?}");
        load.join().expect("the server serves")
    });
    assert!(rounds > 10, "{rounds} rounds");
    drop(server);
}

// Refused directories.

#[test]
fn a_refused_directory_gets_one_line_and_does_not_change() {
    let scratch = Scratch::in_memory("bad");
    let good = scratch.dir("good");
    let (server, mut client) = start(&good, Driver::Epoll, &["-s", "65536", "-f", "0"]);
    (0..2).for_each(|round| {
        client.insert(round * 100 + 1..=round * 100 + 100, |_| put(0, 0, &"g".repeat(500)));
    });
    // It prepares files and closes the log without a command.
    server.signal(Signal::SIGSTOP);
    wait::until("the server is stopped", || server.state() == 'T');
    refuses(&good, &[], 1, "another server uses this job log");
    drop((client, server));
    let segments = contents(&good).into_keys().filter(|name| name.starts_with("log.0")).collect::<Vec<_>>();
    assert!(segments.len() >= 3, "{segments:?}");

    refuses(&scratch.join("none"), &[], 2, "no such directory; create it first");
    let foreign = scratch.dir("foreign");
    for file in ["photo.jpg", "lock"] {
        fs::write(foreign.join(file), b"precious").expect("a file");
        refuses(&foreign, &[], 2, "the directory contains \"photo.jpg\" and no job log");
    }
    let damaged = |name: &str, damage: &dyn Fn(&Path), why: &str| {
        let dir = scratch.copy(&good, name);
        damage(&dir);
        refuses(&dir, &[], 1, why);
    };
    let [first, second, ..] = &segments[..] else { unreachable!("there are more") };
    damaged(
        "damaged",
        &|dir| change(&dir.join(first), |bytes| bytes[4096 + 40] ^= 1),
        &format!("{first}: checksum mismatch at offset 4096"),
    );
    damaged(
        "beheaded",
        &|dir| change(&dir.join(first), |bytes| bytes[..4096].fill(0)),
        &format!("{first}: checksum mismatch at offset 0"),
    );
    damaged(
        "newer",
        &|dir| change_header(&dir.join(first), |bytes| bytes[16] += 2),
        &format!("has format {}", FORMAT + 2),
    );
    damaged(
        "mixed",
        &|dir| change_header(&dir.join(second), |bytes| bytes[32] ^= 1),
        &format!("{second} belongs to another job log"),
    );
    damaged(
        "incomplete",
        &|dir| fs::remove_file(dir.join(first)).expect("a segment"),
        &format!("{first} is missing"),
    );
}

#[test]
fn a_directory_of_another_user_is_refused() {
    if !nix::unistd::geteuid().is_root() {
        return println!("skipped: a directory of another user, because only root can become one");
    }
    let scratch = Scratch::new("roots");
    refuses(
        &scratch.0,
        &["-u", "nobody"],
        1,
        "permission denied: user nobody must be able to read and write",
    );
}

/// Asserts that a server does not start in the directory, says why in one line, and changes nothing. Wrong configurations have exit
/// code 2; the others are failures at run time.
#[track_caller]
fn refuses(dir: &Path, flags: &[&str], code: i32, why: &str) {
    let before = contents(dir);
    let message = refusal(dir, flags, code);
    assert!(message.contains(why), "{message:?}, not {why:?}");
    assert!(contents(dir) == before, "nothing has changed in {}", dir.display());
}
