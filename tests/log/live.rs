//! The job log with real server processes: killed, stopped, on a full disk, and in directories that it refuses.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use beanring::io::driver::Driver;
use beanring_testkit::client::{Client, put, start};
use beanring_testkit::driver;
use beanring_testkit::process::{REPLY_PATIENCE, ServerProcess, program};
use beanring_testkit::random::{Random, seeds};
use beanring_testkit::scratch::{Scratch, contents};
use beanring_testkit::statistics::field;
use nix::sys::signal::Signal;

/// Flags for each durability.
const MODES: [&[&str]; 3] = [&["-f", "0"], &["-f", "50"], &["-F"]];

/// Drivers that the kernel allows.
fn drivers(what: &str) -> impl Iterator<Item = Driver> {
    Driver::ALL.iter().copied().filter(move |&io| driver::is_allowed(io, what))
}

// Kills and stops.

#[test]
fn acknowledged_changes_survive_a_kill_and_a_stop() {
    let cycles = env::var("BEANRING_TEST_CYCLES").map_or(4, |text| text.parse().expect("a number"));
    for io in drivers("kill") {
        for mode in MODES {
            for seed in seeds(1) {
                let scratch = Scratch::new("kill");
                let mut crash = Crash::new(&scratch.0, io, mode, seed);
                (0..cycles).for_each(|_| crash.cycle());
                println!(
                    "{} {mode:?}, seed {seed}: {cycles} cycles, {} jobs acknowledged, {} alive",
                    io.name(),
                    crash.ids.len(),
                    crash.jobs.len()
                );
                assert!(crash.ids.len() > 100, "the server has served commands");
            }
        }
    }
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
    io: Driver,
    mode: &'static [&'static str],
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
    fn new(dir: &'a Path, io: Driver, mode: &'static [&'static str], seed: u64) -> Self {
        let (random, jobs, ids) = (Random::new(seed), BTreeMap::new(), BTreeSet::new());
        Self { dir, io, mode, random, jobs, gone: Vec::new(), ids, lost: Vec::new(), loads: 0 }
    }

    fn cycle(&mut self) {
        let flags = [self.mode, &["-s", "65536"]].concat();
        let (mut server, mut client) = start(self.dir, self.io, &flags);
        self.check(&mut client);
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
        for id in self.gone.drain(..) {
            client.expect(&format!("peek {id}\r\n"), "NOT_FOUND");
        }
        let known = std::mem::take(&mut self.jobs);
        let asked: String = known.keys().map(|id| format!("stats-job {id}\r\npeek {id}\r\n")).collect();
        client.send(&asked);
        let mut wrong = Vec::new();
        for (id, job) in known {
            let (stats, found) = (client.reply().expect("it runs"), client.reply().expect("it runs"));
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
    (state.expect("the job is not reserved"), field(stats, "pri").parse().expect("a number"))
}

/// A body that differs from every other in all its parts.
fn body_of(seed: u64) -> String {
    let mut random = Random::new(seed);
    let words = 2 + random.below(20) * random.below(6);
    (0..words).map(|_| format!("{:016x}", random.next())).collect()
}

// Full disks.

/// A small file system, which only root can mount.
struct SmallDisk(Scratch);

impl SmallDisk {
    fn new(name: &str) -> Option<Self> {
        let disk = Self(Scratch::new(name));
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(&disk.0.0);
        let is_mounted = command.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        if !is_mounted {
            println!("skipped: no file system can be mounted here");
        }
        is_mounted.then_some(disk)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0.0).stderr(Stdio::null()).status();
    }
}

#[test]
fn a_full_disk_refuses_puts_alone() {
    for io in drivers("full disk") {
        for mode in MODES {
            let Some(disk) = SmallDisk::new("full") else { return };
            println!("{} {mode:?}", io.name());
            fill_and_change_jobs(&disk.0.0, io, &[mode, &["-s", "65536"]].concat());
        }
    }
}

fn fill_and_change_jobs(dir: &Path, io: Driver, flags: &[&str]) {
    const PUTS: usize = 6000;
    const ROUNDS: usize = 20;
    const AT_ONCE: usize = 100;
    let (server, mut client) = start(dir, io, flags);
    let body = "y".repeat(400);
    client.send(&put(10, 0, &body).repeat(PUTS));
    let replies: Vec<String> = (0..PUTS).map(|_| client.line().expect("it runs")).collect();
    let jobs = replies.iter().filter(|line| line.starts_with("INSERTED ")).count();
    let refused = replies.iter().filter(|line| *line == "OUT_OF_MEMORY").count();
    assert!(jobs > 2500 && refused > 0 && jobs + refused == PUTS, "{jobs} {refused}");
    await_idle(&server);

    for round in 0..ROUNDS {
        let ids = (1..=AT_ONCE).map(|id| id + round * AT_ONCE % jobs.next_multiple_of(AT_ONCE) / 2);
        let text: String = ids
            .map(|id| {
                format!(
                    "reserve-job {id}\r\nrelease {id} 5 0\r\nreserve-job {id}\r\nbury {id} 6\r\nkick-job {id}\r\n"
                )
            })
            .collect();
        client.send(&text);
        for _ in 0..AT_ONCE {
            let words: Vec<String> = (0..5).map(|_| client.reply().expect("it runs").0).collect();
            assert!(words[0].starts_with("RESERVED ") && words[2].starts_with("RESERVED "), "{words:?}");
            assert_eq!((&*words[1], &*words[3], &*words[4]), ("RELEASED", "BURIED", "KICKED"));
        }
    }
    await_idle(&server);
    drop((client, server));

    for _ in 0..3 {
        let (_server, mut client) = start(dir, io, flags);
        assert_eq!(client.stat("current-jobs-ready"), jobs as u64);
    }
    let (server, mut client) = start(dir, io, flags);
    for id in 1..=jobs / 2 {
        client.send(&format!("delete {id}\r\n"));
    }
    for _ in 1..=jobs / 2 {
        assert_eq!(client.line().as_deref(), Some("DELETED"));
    }
    let started = Instant::now();
    while client.ask(&put(0, 0, &body)).0 == "OUT_OF_MEMORY" {
        assert!(started.elapsed() < REPLY_PATIENCE, "there is space again");
        thread::sleep(Duration::from_millis(20));
    }
    await_idle(&server);
}

#[test]
fn a_full_disk_refuses_large_puts_at_once() {
    // A body of nearly half a segment.
    let large = put(0, 0, &"l".repeat(30_000));
    for io in drivers("full disk") {
        for mode in MODES {
            let Some(disk) = SmallDisk::new("large") else { return };
            let other = disk.0.0.join(".other");
            fs::write(&other, vec![1; 700 << 10]).expect("there is space");
            let (server, mut client) = start(&disk.0.0, io, &[mode, &["-s", "65536"]].concat());
            client.send(&large.repeat(100));
            let replies: Vec<String> = (0..100).map(|_| client.line().expect("it runs")).collect();
            let jobs = replies.iter().filter(|line| line.starts_with("INSERTED ")).count();
            assert!((5..50).contains(&jobs) && replies[99] == "OUT_OF_MEMORY", "{jobs}: {replies:?}");
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
            let started = Instant::now();
            while client.ask(&large).0 == "OUT_OF_MEMORY" {
                let is_in_time = started.elapsed() < REPLY_PATIENCE;
                assert!(is_in_time, "{} {mode:?}: there is space\n{}", io.name(), space_on(&disk.0.0));
                thread::sleep(Duration::from_millis(20));
            }
            await_idle(&server);
        }
    }
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
    let asked = Instant::now();
    loop {
        let before = server.cpu_time();
        thread::sleep(Duration::from_millis(300));
        let used = server.cpu_time() - before;
        if used <= Duration::from_millis(60) {
            return;
        }
        assert!(asked.elapsed() < REPLY_PATIENCE, "it used {used:?} of 300 ms");
    }
}

// Size of the log.

#[test]
fn a_log_stays_small_beside_an_ancient_job() {
    let rounds = env::var("BEANRING_TEST_ROUNDS").map_or(100, |text| text.parse().expect("a number"));
    for io in drivers("space") {
        for mode in MODES {
            let scratch = Scratch::new("space");
            let largest = put_and_delete(&scratch.0, io, mode, rounds);
            println!("{} {mode:?}: at most {largest:?} bytes", io.name());
        }
    }
}

/// Returns the largest size of the log: by the lengths of files, and by their blocks.
fn put_and_delete(dir: &Path, io: Driver, mode: &[&str], rounds: u64) -> (u64, u64) {
    const SEGMENT_BYTES: u64 = 1 << 20;
    const AT_ONCE: u64 = 500;
    let flags = [mode, &["-s", "1048576"]].concat();
    let (server, mut client) = start(dir, io, &flags);
    client.expect(&put(0, 0, "ancient"), "INSERTED 1");
    let mut largest = (0, 0);
    for round in 0..rounds {
        let first = 2 + round * AT_ONCE;
        let pair = |id| format!("{}delete {id}\r\n", put(0, 0, &"z".repeat(64)));
        client.send(&(first..first + AT_ONCE).map(pair).collect::<String>());
        for id in first..first + AT_ONCE {
            assert_eq!(client.line(), Some(format!("INSERTED {id}")));
            assert_eq!(client.line().as_deref(), Some("DELETED"));
        }
        let (apparent, allocated) = disk_use(dir);
        largest = (apparent.max(largest.0), allocated.max(largest.1));
    }
    assert!(client.stat("binlog-oldest-index") > 5, "old segments have left the log");
    let limit = 4 * SEGMENT_BYTES;
    assert!(largest.0 <= limit && largest.1 <= limit + 64 * 1024, "{largest:?}");
    drop((client, server));
    for _ in 0..5 {
        let (_server, mut client) = start(dir, io, &flags);
        client.expect("peek 1\r\n", "FOUND 1 7");
    }
    assert!(disk_use(dir).0 <= limit, "restarts do not add up");
    largest
}

#[test]
fn compaction_adds_no_syncs() {
    const JOBS: u64 = 2000;
    for io in drivers("moving") {
        let scratch = Scratch::new("moving");
        let (_server, mut client) = start(&scratch.0, io, &["-f", "0", "-s", "65536"]);
        for id in 1..=JOBS {
            client.expect(&put(0, 0, &"m".repeat(64)), &format!("INSERTED {id}"));
        }
        let (moved, syncs) = (client.stat("binlog-records-migrated"), client.stat("wal-syncs"));
        assert!(moved > JOBS, "{moved} jobs were compacted");
        // One per put and not two; some more where segments are created so slowly that compaction cannot wait.
        assert!(syncs < JOBS + JOBS / 2, "{}: {syncs} syncs", io.name());
    }
}

#[test]
fn a_log_shrinks_with_its_jobs() {
    const JOBS: u64 = 20_000;
    const SEGMENT_BYTES: u64 = 65_536;
    for mode in MODES {
        let scratch = Scratch::new("shrink");
        let flags = [mode, &["-s", "65536"]].concat();
        let (server, mut client) = start(&scratch.0, Driver::Epoll, &flags);
        client.send(&put(0, 0, &"j".repeat(100)).repeat(JOBS as usize));
        (0..JOBS).for_each(|_| assert!(client.line().is_some()));
        let full = disk_use(&scratch.0).0;
        assert!(full > 50 * SEGMENT_BYTES, "{full}");
        // One job in a hundred stays.
        let gone = (1..=JOBS).filter(|id| id % 100 != 0);
        client.send(&gone.map(|id| format!("delete {id}\r\n")).collect::<String>());
        (0..JOBS / 100 * 99).for_each(|_| assert_eq!(client.line().as_deref(), Some("DELETED")));
        let live = client.stat("wal-live-bytes");
        let limit = (2 * live + 2 * SEGMENT_BYTES).max(4 * SEGMENT_BYTES);
        let started = Instant::now();
        while disk_use(&scratch.0).0 > limit {
            assert!(started.elapsed() < REPLY_PATIENCE, "{} of {limit}", disk_use(&scratch.0).0);
            thread::sleep(Duration::from_millis(10));
        }
        println!("{mode:?}: {full} bytes, then {limit} within {:?}", started.elapsed());
        await_idle(&server);
        drop((client, server));
        let (_server, mut client) = start(&scratch.0, Driver::Epoll, &flags);
        assert_eq!(client.stat("current-jobs-ready"), JOBS / 100);
    }
}

#[test]
fn pauses_of_many_tubes_survive_compaction() {
    const TUBES: usize = 600;
    let scratch = Scratch::new("pauses");
    let flags = ["-s", "65536", "-F"];
    let tube = |number: usize| format!("{number:0>200}");
    let (server, mut client) = start(&scratch.0, Driver::Epoll, &flags);
    let paused: String = (0..TUBES)
        .map(|number| format!("use {0}\r\n{1}pause-tube {0} 3600\r\n", tube(number), put(0, 0, "p")))
        .collect();
    client.send(&paused);
    (0..TUBES).for_each(|_| {
        assert!(client.line().is_some_and(|line| line.starts_with("USING ")));
        assert!(client.line().is_some_and(|line| line.starts_with("INSERTED ")));
        assert_eq!(client.line().as_deref(), Some("PAUSED"));
    });
    client.expect(&format!("pause-tube {} 0\r\n", tube(7)), "PAUSED");
    let before = client.stat("binlog-oldest-index");
    // Enough to replace every segment more than once.
    for round in 0..40 {
        let first = TUBES + 1 + round * 500;
        let pair = |id| format!("{}delete {id}\r\n", put(0, 0, &"z".repeat(64)));
        client.send(&(first..first + 500).map(pair).collect::<String>());
        (0..1000).for_each(|_| assert!(client.line().is_some()));
    }
    assert!(client.stat("binlog-oldest-index") > before + 20, "old segments have left the log");
    drop((client, server));
    let (_server, mut client) = start(&scratch.0, Driver::Epoll, &flags);
    for number in 0..TUBES {
        let (_, stats) = client.ask(&format!("stats-tube {}\r\n", tube(number)));
        let pause: u64 = field(&stats, "pause").parse().expect("a number");
        assert_eq!(pause, if number == 7 { 0 } else { 3600 }, "tube {number}");
    }
}

/// Returns the size of all files: by their lengths, and by their blocks.
fn disk_use(dir: &Path) -> (u64, u64) {
    let files = fs::read_dir(dir).expect("a directory").filter_map(|entry| entry.ok()?.metadata().ok());
    files.fold((0, 0), |(bytes, blocks), file| (bytes + file.len(), blocks + 512 * file.blocks()))
}

// Refused directories.

#[test]
fn a_refused_directory_gets_one_line_and_does_not_change() {
    let scratch = Scratch::new("bad");
    let dir = |name: &str| {
        let path = scratch.0.join(name);
        fs::create_dir(&path).expect("a new directory");
        path
    };
    let (server, mut client) = start(&dir("good"), Driver::Epoll, &["-s", "65536", "-f", "0"]);
    let good = scratch.0.join("good");
    (0..2).for_each(|_| {
        let text = put(0, 0, &"g".repeat(500)).repeat(100);
        client.send(&text);
        (0..100).for_each(|_| assert!(client.line().is_some_and(|line| line.starts_with("INSERTED "))));
    });
    refuses(&good, &[], "another server uses this job log");
    drop((client, server));
    let copy = |name: &str| {
        let to = dir(name);
        contents(&good)
            .into_iter()
            .for_each(|(file, bytes)| fs::write(to.join(file), bytes).expect("a copy"));
        to
    };
    let change = |dir: &Path, file: &str, at: usize| {
        let mut bytes = fs::read(dir.join(file)).expect("a segment");
        bytes[at] ^= 1;
        fs::write(dir.join(file), bytes).expect("a segment");
    };
    let segments = contents(&good).into_keys().filter(|name| name.starts_with("log.")).collect::<Vec<_>>();
    assert!(segments.len() >= 3, "{segments:?}");

    refuses(&scratch.0.join("none"), &[], NO_DIRECTORY);
    let foreign = dir("foreign");
    fs::write(foreign.join("photo.jpg"), b"precious").expect("a file");
    refuses(&foreign, &[], FOREIGN);
    fs::write(foreign.join("lock"), b"").expect("a file");
    refuses(&foreign, &[], FOREIGN);
    let damaged = copy("damaged");
    change(&damaged, &segments[0], 4096 + 40);
    refuses(&damaged, &[], &format!("{}: checksum mismatch at offset 4096", segments[0]));
    let beheaded = copy("beheaded");
    let mut bytes = fs::read(beheaded.join(&segments[0])).expect("a segment");
    bytes[..4096].fill(0);
    fs::write(beheaded.join(&segments[0]), bytes).expect("a segment");
    refuses(&beheaded, &[], &format!("{}: checksum mismatch at offset 0", segments[0]));
    let newer = copy("newer");
    let mut bytes = fs::read(newer.join(&segments[0])).expect("a segment");
    bytes[16] += 2;
    let why = format!("has format {}", bytes[16]);
    let sum = crc32c::crc32c(&bytes[..72]).to_le_bytes();
    bytes[72..76].copy_from_slice(&sum);
    fs::write(newer.join(&segments[0]), bytes).expect("a segment");
    refuses(&newer, &[], &why);
    let mixed = copy("mixed");
    let mut bytes = fs::read(mixed.join(&segments[1])).expect("a segment");
    bytes[32] ^= 1;
    let sum = crc32c::crc32c(&bytes[..72]).to_le_bytes();
    bytes[72..76].copy_from_slice(&sum);
    fs::write(mixed.join(&segments[1]), bytes).expect("a segment");
    refuses(&mixed, &[], &format!("{} belongs to another job log", segments[1]));
    let incomplete = copy("incomplete");
    fs::remove_file(incomplete.join(&segments[0])).expect("a segment");
    refuses(&incomplete, &[], &format!("{} is missing", segments[0]));
}

#[test]
fn a_directory_of_another_user_is_refused() {
    if !nix::unistd::geteuid().is_root() {
        return println!("skipped: a directory of another user, because only root can become one");
    }
    let scratch = Scratch::new("roots");
    refuses(&scratch.0, &["-u", "nobody"], "permission denied: user nobody must be able to read and write");
}

/// Wrong configurations, exit code 2; the others are failures at run time.
const NO_DIRECTORY: &str = "no such directory; create it first";
const FOREIGN: &str = "the directory contains \"photo.jpg\" and no job log";

/// Asserts that a server does not start in the directory, says why in one line, and changes nothing.
fn refuses(dir: &Path, flags: &[&str], why: &str) {
    let before = contents(dir);
    // A server that starts fails the test, too.
    let mut command = Command::new("timeout");
    command.args([
        "60",
        program(),
        "-l",
        "127.0.0.1",
        "-p",
        "0",
        "--io",
        "epoll",
        "--log-level",
        "error",
        "-b",
    ]);
    command.arg(dir).args(flags);
    let output = command.stdin(Stdio::null()).output().expect("it ends");
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        output.status.code(),
        Some(if [NO_DIRECTORY, FOREIGN].contains(&why) { 2 } else { 1 }),
        "{message}"
    );
    assert!(message.lines().count() == 1 && message.contains(why), "{message:?}, not {why:?}");
    assert!(contents(dir) == before, "nothing has changed in {}", dir.display());
}
