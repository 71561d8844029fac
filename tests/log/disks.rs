//! The job log on file systems of its own, on loop devices: on btrfs, with and without copy-on-write files, and
//! on ext4 whose device fails or is slow when the test wants it to.

use std::fs::{self, File};
use std::io::Write;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use beanring::io::driver::Driver;
use beanring_testkit::client::{Client, launch, put, start};
use beanring_testkit::driver;
use beanring_testkit::peer::Received;
use beanring_testkit::process::{REPLY_PATIENCE, ServerProcess, program};
use beanring_testkit::random::Random;
use beanring_testkit::scratch::{Scratch, lines_of};
use beanring_testkit::wait;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::signal::Signal;

use super::common::{Case, MODES, cases, in_parallel, segments};

const BLOCK_BYTES: u64 = 4096;

/// Runs a command. Returns its output, or why it fails.
fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(format!("{program} {}: {}", arguments.join(" "), text(&output.stderr))),
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a name in UTF-8")
}

/// A mount or a loop device, undone when the value is dropped.
pub struct Held(&'static str, Vec<String>);

impl Drop for Held {
    /// A disk may be busy for a moment: the kernel closes the files of a killed process some time after its end if the process
    /// had a ring (liburing, issue 1627).
    fn drop(&mut self) {
        let arguments: Vec<&str> = self.1.iter().map(String::as_str).collect();
        let asked = Instant::now();
        while let Err(error) = run(self.0, &arguments) {
            if !error.contains("busy") || asked.elapsed() > REPLY_PATIENCE {
                return println!("{error}");
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

pub fn mount(arguments: &[&str], at: &Path) -> Result<Held, String> {
    run("mount", &[arguments, &[text(at)]].concat())?;
    Ok(Held("umount", vec![text(at).to_owned()]))
}

/// A loop device with a new file system on it, in a file in memory.
struct LoopDisk {
    // Fields are dropped in this order.
    mounted: Option<Held>,
    _device_held: Held,
    _memory: Held,
    scratch: Scratch,
    device: String,
    kind: &'static str,
    at: PathBuf,
}

impl LoopDisk {
    /// Memory beside the file.
    const SPARE_BYTES: u64 = 8 << 20;

    fn new(name: &str, bytes: u64, kind: &'static str, options: &[&str]) -> Result<Self, String> {
        let scratch = Scratch::new(name);
        let (memory, at) = (scratch.dir("memory"), scratch.dir("at"));
        let size = format!("size={}", bytes + Self::SPARE_BYTES);
        let memory = mount(&["-t", "tmpfs", "-o", &size, "tmpfs"], &memory)?;
        let image = scratch.join("memory/image");
        File::create(&image).and_then(|file| file.set_len(bytes)).expect("an image");
        let device = run("losetup", &["--find", "--show", text(&image)])?;
        let held = Held("losetup", vec!["--detach".to_owned(), device.clone()]);
        run(&format!("mkfs.{kind}"), &[&["-q"], options, &[&device]].concat())?;
        let mut disk = Self { mounted: None, _device_held: held, _memory: memory, scratch, device, kind, at };
        disk.mount()?;
        Ok(disk)
    }

    fn mount(&mut self) -> Result<(), String> {
        self.mounted = Some(mount(&["-t", self.kind, &self.device], &self.at)?);
        Ok(())
    }

    /// Unmounts and mounts, so that only what is on the disk is left.
    fn lose_page_cache(&mut self) {
        self.mounted = None;
        self.mount().expect("it was mounted before");
    }

    /// Creates a directory on it.
    fn dir(&self, name: &str) -> PathBuf {
        let path = self.at.join(name);
        fs::create_dir(&path).expect("a new directory");
        path
    }
}

/// Uses up all free space. Space that is only reserved would leave btrfs less for the writes of others.
fn fill(path: &Path) {
    let Ok(mut file) = File::create(path) else { return };
    for bytes in [1 << 20, 1 << 16, BLOCK_BYTES as usize] {
        while file.write_all(&vec![1; bytes]).and_then(|()| file.sync_data()).is_ok() {}
    }
}

// Copy on write.

const BTRFS_BYTES: u64 = 160 << 20;

/// A server's own btrfs.
struct Stage {
    case: Case,
    disk: LoopDisk,
}

impl Stage {
    /// The file that the server logs to.
    fn stderr(&self) -> PathBuf {
        self.disk.scratch.join("stderr")
    }

    /// The lines of the server's log with this text.
    fn lines(&self, part: &str) -> usize {
        let logged = fs::read_to_string(self.stderr()).unwrap_or_default();
        logged.lines().filter(|line| line.contains(part)).count()
    }

    /// Starts a server on a directory of the disk, and connects to it.
    fn start(&self, dir: &Path) -> (ServerProcess, Client) {
        let mut command = Command::new(program());
        command.stderr(File::options().create(true).append(true).open(self.stderr()).expect("a file"));
        launch(command, dir, self.case.io, &[self.case.mode, &["-s", "1048576"]].concat())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if thread::panicking() {
            let logged = fs::read_to_string(self.stderr());
            println!("{:?} has logged: {}", self.case, logged.unwrap_or_default());
        }
    }
}

/// Runs a test under each driver and in each of these modes.
fn on_btrfs(what: &str, modes: &[&'static [&'static str]], options: &[&str], test: impl Fn(&Stage) + Sync) {
    in_parallel(cases(what, modes), |case| {
        match LoopDisk::new(&what.replace(' ', "-"), BTRFS_BYTES, "btrfs", options) {
            Ok(disk) => test(&Stage { case, disk }),
            Err(error) => println!("skipped: a log on btrfs, because {error}"),
        }
    });
}

fn is_written_in_place(segment: &Path) -> bool {
    let listing = run("lsattr", &[text(segment)]).expect("btrfs has attributes");
    listing.split(' ').next().expect("attributes").contains('C')
}

/// Returns a body that cannot be compressed.
fn large_body() -> String {
    let mut random = Random::new(7);
    (0..20_000).map(|_| char::from(b'0' + random.below(75) as u8)).collect()
}

/// btrfs has separate space for metadata by default.
#[test]
fn a_full_btrfs_deletes_every_job() {
    on_btrfs("a full btrfs", &MODES, &[], |stage| {
        // Other files use most of the disk.
        let other = File::create(stage.disk.at.join("other")).expect("there is space");
        fallocate(&other, FallocateFlags::empty(), 0, 54 << 20).expect("there is space");
        let dir = stage.disk.dir("log");
        let started = Instant::now();
        let (mut server, mut client) = stage.start(&dir);
        let commands = vec![put(0, 0, &large_body()); 20];
        let (mut jobs, mut is_full) = (0, false);
        while !is_full {
            for (line, _) in client.ask_all(commands.clone()) {
                if line == "OUT_OF_MEMORY" {
                    is_full = true;
                } else {
                    jobs += 1;
                    assert_eq!(line, format!("INSERTED {jobs}"));
                }
            }
        }
        println!("{jobs} jobs");
        assert!(jobs > 1000, "{jobs} jobs fit");
        let filler = stage.disk.at.join("filler");
        fill(&filler);
        for id in 1..=jobs {
            client.expect(&format!("delete {id}\r\n"), "DELETED");
        }
        fs::remove_file(filler).expect("it is there");
        insert_when_possible(&mut client, "after");
        server.stop();
        assert!(segments(&dir).iter().all(|segment| is_written_in_place(segment)));
        let warnings = stage.lines("WARN the disk of the job log (-b) is full");
        let at_most = 1 + started.elapsed().as_secs() as usize / 60;
        assert!((1..=at_most).contains(&warnings), "{warnings} warnings");
        let (_server, mut client) = stage.start(&dir);
        assert_eq!(client.stat("current-jobs-ready"), 1);
    });
}

fn insert_when_possible(client: &mut Client, body: &str) {
    assert!(is_inserted(client, body), "the server runs");
}

/// Puts a job once there is space. Returns false if the server ends before, because it cannot write.
fn is_inserted(client: &mut Client, body: &str) -> bool {
    let mut is_running = true;
    wait::until("there is space again", || {
        client.send(&put(0, 0, body));
        let line = client.reply().map(|(line, _)| line).filter(|line| line != "INTERNAL_ERROR");
        is_running = line.is_some();
        match line.as_deref() {
            Some("OUT_OF_MEMORY") => false,
            Some(line) => line.starts_with("INSERTED ") || panic!("{line}"),
            None => true,
        }
    });
    is_running
}

/// On a btrfs whose data and metadata share their space, not even a new name for a segment has room.
#[test]
fn a_server_on_a_full_btrfs_starts_again() {
    on_btrfs("a start on a full btrfs", &MODES, &["--mixed"], |stage| {
        let dir = stage.disk.dir("log");
        let (mut server, mut client) = stage.start(&dir);
        client.insert(1..=20, |_| put(0, 0, "before"));
        let mut left = 20;
        for round in 1..=3 {
            fill(&stage.disk.at.join(format!("filler{round}")));
            client.expect(&format!("delete {round}\r\n"), "DELETED");
            let is_synced = round == 1 || has_stopped(stage, &mut server);
            if round == 1 {
                server.kill();
            }
            (server, client) = stage.start(&dir);
            let ready = client.stat("current-jobs-ready");
            assert!(ready == left - 1 || ready == left && !is_synced, "{ready} jobs of {left}");
            left = ready;
        }
        for round in 1..=3 {
            let _ = fs::remove_file(stage.disk.at.join(format!("filler{round}")));
        }
        insert_when_possible(&mut client, "after");
    });
}

/// Stops the server. Returns false if its last sync finds no space: what it has not synced may be lost, except with `-f 0`.
fn has_stopped(stage: &Stage, server: &mut ServerProcess) -> bool {
    server.signal(Signal::SIGTERM);
    let code = server.wait();
    if code == Some(0) {
        return true;
    }
    println!("{:?}: the last sync found no space", stage.case);
    assert_eq!(code, Some(1));
    assert!(stage.lines("cannot write the job log: No space left on device") > 0);
    assert_ne!(stage.case.mode, MODES[0], "a reply has waited for its sync");
    false
}

/// Files of an older version, and all files of some file systems, copy on write.
#[test]
fn a_full_copy_on_write_file_system_refuses_puts_alone() {
    on_btrfs("copy on write", &MODES, &["--mixed"], |stage| {
        let dir = stage.disk.dir("log");
        // New files inherit this attribute, which excludes C.
        run("chattr", &["+m", text(&dir)]).expect("btrfs has attributes");
        fill_and_change_jobs(stage, &dir);
    });
}

fn fill_and_change_jobs(stage: &Stage, dir: &Path) {
    let disk = &stage.disk.at;
    let (server, mut client) = stage.start(dir);
    assert!(!segments(dir).iter().any(|segment| is_written_in_place(segment)));
    let body = "c".repeat(4000);
    let command = put(0, 0, &body);
    // Until segments have been recycled.
    for round in 0..10 {
        let ids = round * 200 + 1..=round * 200 + 200;
        client.insert(ids.clone(), |_| command.clone());
        client.expect_all(ids.map(|id| format!("delete {id}\r\n")), "DELETED");
    }
    let ids = 2001..=2300;
    client.insert(ids.clone(), |_| command.clone());
    let filler = disk.join("filler");
    fill(&filler);
    run("sync", &["-f", text(disk)]).expect("it syncs");

    let Some(refused) = change_on_a_full_disk(stage, &mut client, &command, ids.clone(), &filler) else {
        // It is gone if a write waited for space.
        let _ = fs::remove_file(&filler);
        return end_at_a_sync(stage, server, dir, ids);
    };
    println!("{:?}: {refused} of 600 puts were refused", stage.case);
    for id in 2001..=2100 {
        client.send(&format!("delete {id}\r\n"));
        let Some(reply) = reply_of_a_running(stage, &mut client, &filler) else {
            let _ = fs::remove_file(&filler);
            return end_at_a_sync(stage, server, dir, 2101..=2300);
        };
        assert_eq!(reply, "DELETED");
    }
    let was_stalled = fs::remove_file(&filler).is_err();
    assert!(refused > 0 || was_stalled, "the disk was full");
    // The last sync may have begun before there was space.
    if !is_inserted(&mut client, &body) {
        return end_at_a_sync(stage, server, dir, 2101..=2300);
    }
    let jobs = client.stat("current-jobs-ready");
    drop((client, server));
    let (_server, mut client) = stage.start(dir);
    assert_eq!(client.stat("current-jobs-ready"), jobs);
}

/// Returns how many of 600 puts were refused, or none if the server has ended.
fn change_on_a_full_disk(
    stage: &Stage,
    client: &mut Client,
    command: &str,
    ids: RangeInclusive<u64>,
    filler: &Path,
) -> Option<usize> {
    let mut refused = 0;
    for round in 0..60 {
        client.send(&command.repeat(10));
        for _ in 0..10 {
            refused += usize::from(reply_of_a_running(stage, client, filler)? == "OUT_OF_MEMORY");
        }
        for id in ids.clone().skip(round % 30 * 10).take(10) {
            // One at a time: a larger write may find no space.
            let steps =
                [("reserve-job", "", "RESERVED "), ("bury", " 3", "BURIED"), ("kick-job", "", "KICKED")];
            for (verb, priority, expected) in steps {
                client.send(&format!("{verb} {id}{priority}\r\n"));
                let line = reply_of_a_running(stage, client, filler)?;
                assert!(line.starts_with(expected), "{verb} {id}: {line}");
            }
        }
    }
    Some(refused)
}

/// Returns the line of the next reply, or none if the server ends because it cannot write. If the segments that it gives back free no space,
/// the reply comes once the filler is gone.
fn reply_of_a_running(stage: &Stage, client: &mut Client, filler: &Path) -> Option<String> {
    if client.is_silent(Duration::from_secs(10)) {
        assert!(stage.lines("a write waits for space") > 0, "the server is silent without a reason");
        println!("{:?}: a write waited for space", stage.case);
        fs::remove_file(filler).expect("one write waits until there is space");
    }
    client.reply().map(|(line, _)| line).filter(|line| line != "INTERNAL_ERROR")
}

/// The file system has promised space to writes that the sync after them does not find: the server ends, and loses nothing that was
/// synced before.
fn end_at_a_sync(stage: &Stage, mut server: ServerProcess, dir: &Path, synced: RangeInclusive<u64>) {
    println!("{:?}: a sync found no space", stage.case);
    assert_eq!(server.wait(), Some(1));
    assert_eq!(stage.lines("cannot write the job log: No space left on device"), 1);
    let (_server, mut client) = stage.start(dir);
    for id in synced {
        assert!(client.ask(&format!("peek {id}\r\n")).0.starts_with("FOUND "), "{id}");
    }
}

/// A snapshot shares the blocks that are overwritten in place otherwise: the next write to each takes new space, and
/// removed files free none.
#[test]
fn a_stalled_write_succeeds_once_there_is_space() {
    on_btrfs("a wait for space", &MODES[..2], &[], |stage| {
        let (dir, snapshot) = (stage.disk.at.join("log"), stage.disk.at.join("snapshot"));
        run("btrfs", &["subvolume", "create", text(&dir)]).expect("a subvolume");
        let (mut server, mut client) = stage.start(&dir);
        client.expect(&put(0, 0, "first"), "INSERTED 1");
        client.expect(&put(0, 0, "second"), "INSERTED 2");
        run("btrfs", &["subvolume", "snapshot", text(&dir), text(&snapshot)]).expect("a snapshot");
        wait_for_space(stage, &server, &mut client);
        server.stop();
        let (_server, mut client) = stage.start(&dir);
        assert_eq!(client.stat("current-jobs-ready"), 3);
    });
}

fn wait_for_space(stage: &Stage, server: &ServerProcess, client: &mut Client) {
    const COMMANDS: usize = 300;
    let mut fillers = Vec::new();
    let mut is_waiting = false;
    for count in 0..COMMANDS {
        if count % 10 == 0 {
            fillers.push(stage.disk.at.join(format!("filler{count}")));
            fill(fillers.last().expect("a filler was added"));
        }
        client.send("pause-tube default 0\r\n");
        // A server that finds no space removes prepared files, and may find some then.
        is_waiting = matches!(client.stream.receive(Duration::from_secs(3)), Received::Silence);
        if is_waiting {
            break;
        }
    }
    assert!(is_waiting, "a write is stalled");
    let mut other = server.client();
    assert_eq!(other.stat("current-jobs-ready"), 2);
    assert_eq!(other.ask("peek 1\r\n").1, "first\r\n");
    other.expect(&put(0, 0, "third"), "OUT_OF_MEMORY");
    let refused = other.stat("put-refusals-disk");
    assert!(refused >= 1);
    // Refused at its line: it counts, although its client leaves within the body.
    server.client().send("put 0 0 60 100\r\nabc");
    wait::until("it is refused", || other.stat("put-refusals-disk") > refused);
    assert_eq!(other.stat("put-refusals-disk"), refused + 1);
    assert_eq!(stage.lines("a write waits for space"), 1);
    fillers.iter().for_each(|filler| _ = fs::remove_file(filler));
    assert_eq!(client.line().as_deref(), Some("PAUSED"));
    insert_when_possible(client, "third");
}

// Failing writes.

/// An ext4 file system in a file in memory. A write to a block that was punched out of the file fails when memory is full.
struct FailingDisk(LoopDisk);

impl FailingDisk {
    fn new(name: &str) -> Result<Self, String> {
        run("filefrag", &["-V"])?;
        let options = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
        let disk = Self(LoopDisk::new(name, EXT4_BYTES, "ext4", &["-b", "4096", "-E", options])?);
        // No other write fails: every block has its memory.
        fallocate(disk.image(), FallocateFlags::empty(), 0, EXT4_BYTES as i64).expect("there is memory");
        Ok(disk)
    }

    fn image(&self) -> File {
        File::options().write(true).open(self.0.scratch.join("memory/image")).expect("the image")
    }

    fn filler(&self) -> PathBuf {
        self.0.scratch.join("memory/filler")
    }

    /// Makes writes fail to all blocks of these files behind the first `written` bytes.
    fn fail(&self, files: &[PathBuf], written: u64) {
        let image = self.image();
        for file in files {
            let listing = run("filefrag", &["-v", "-b4096", text(file)]).expect("it lists the blocks");
            for line in listing.lines() {
                let fields: Vec<&str> =
                    line.split([':', '.']).map(str::trim).filter(|word| !word.is_empty()).collect();
                let [_, first, _, begin, _, count, ..] = fields[..] else { continue };
                let [Ok(first), Ok(begin), Ok(count)] = [first, begin, count].map(str::parse::<u64>) else {
                    continue;
                };
                let skipped = written.div_ceil(BLOCK_BYTES).saturating_sub(first).min(count);
                let (offset, bytes) = ((begin + skipped) * BLOCK_BYTES, (count - skipped) * BLOCK_BYTES);
                let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
                if bytes > 0 {
                    fallocate(&image, flags, offset as i64, bytes as i64).expect("a hole");
                }
            }
        }
        fill(&self.filler());
    }

    fn repair(&self) {
        fs::remove_file(self.filler()).expect("it is there");
    }
}

const EXT4_BYTES: u64 = 32 << 20;

/// The kernel keeps pages that it could not write, and marks them clean.
#[test]
fn recovery_does_not_trust_the_page_cache_after_a_failed_sync() {
    for io in driver::allowed("a failed sync") {
        let mut failing = match FailingDisk::new("failing") {
            Ok(failing) => failing,
            Err(error) => return println!("skipped: a disk that fails, because {error}"),
        };
        let dir = failing.0.dir("log");
        let flags = ["-f", "20", "-s", "65536"];
        let (mut server, mut client) = start(&dir, io, &flags);
        client.expect(&put(0, 0, "before"), "INSERTED 1");
        server.stop();
        // The next write begins in a new block, and its first block fails: a loop device reports success for a write that
        // fails behind its first block.
        let (mut server, mut client) = start(&dir, io, &flags);
        failing.fail(&segments(&dir), 2 * BLOCK_BYTES);
        // The body takes further pages, which no other write touches.
        let body = "lost?".repeat(5000);
        client.expect(&put(0, 0, &body), "INSERTED 2");
        assert_eq!(server.wait(), Some(1), "the sync fails");
        drop((client, server));

        failing.repair();
        let (mut server, mut client) = start(&dir, io, &flags);
        let found = client.ask("peek 2\r\n").0;
        println!("{}: after the restart job 2 is {found}", io.name());
        client.expect(&put(0, 0, "after"), "INSERTED 3");
        await_sync(&mut client);
        server.kill();
        failing.0.lose_page_cache();
        let (_server, mut client) = start(&dir, io, &flags);
        assert_eq!(client.ask("peek 1\r\n").1, "before\r\n");
        assert_eq!(client.ask("peek 2\r\n").0, found, "{}: a job that was served is still found", io.name());
        assert_eq!(client.ask("peek 3\r\n").1, "after\r\n");
    }
}

/// Waits until a sync has begun and ended after this.
fn await_sync(client: &mut Client) {
    let before = client.stat("wal-syncs");
    wait::until("it syncs", || {
        // Something to sync.
        client.expect("pause-tube default 0\r\n", "PAUSED");
        client.stat("wal-syncs") >= before + 2
    });
}

// Slow disks.

/// A limit of writes per second for the processes in it, on one device.
struct Throttle {
    group: PathBuf,
    device: String,
}

impl Throttle {
    fn new(device: &str) -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("beanring-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let group = Path::new("/sys/fs/cgroup/blkio").join(name);
        fs::create_dir(&group).map_err(|error| format!("{}: {error}", group.display()))?;
        let device = run("lsblk", &["--noheadings", "--nodeps", "--output", "MAJ:MIN", device]);
        let throttle = Self { group, device: device.clone().unwrap_or_default() };
        device.map(|_| throttle)
    }

    fn add(&self, server: &ServerProcess) {
        fs::write(self.group.join("cgroup.procs"), server.pid().to_string()).expect("it runs");
    }

    /// Limits writes, or with 0 no longer.
    fn limit(&self, writes_per_s: u32) {
        let file = self.group.join("blkio.throttle.write_iops_device");
        fs::write(file, format!("{} {writes_per_s}", self.device)).expect("a limit");
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        self.limit(0);
        let asked = Instant::now();
        while fs::remove_dir(&self.group).is_err() && asked.elapsed() < REPLY_PATIENCE {
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The kernel ends a killed process while the disk still carries out its writes.
#[test]
fn a_write_of_a_killed_server_does_not_replace_a_later_one() {
    let rounds = driver::allowed("a write in flight").flat_map(|io| (0..3).map(move |round| (io, round)));
    in_parallel(rounds, |(io, _)| {
        let made = LoopDisk::new("slow", EXT4_BYTES, "ext4", &[]);
        match made.and_then(|disk| Throttle::new(&disk.device).map(|throttle| (disk, throttle))) {
            Ok((mut disk, throttle)) => kill_during_a_write(io, &throttle, &mut disk),
            Err(error) => println!("skipped: a slow disk, because {error}"),
        }
    });
}

fn kill_during_a_write(io: Driver, throttle: &Throttle, disk: &mut LoopDisk) {
    let dir = disk.dir("log");
    let flags = ["-f", "0", "-s", "1048576"];
    let body = |letter: &str| letter.repeat(6000);
    let (mut server, mut client) = start(&dir, io, &flags);
    throttle.add(&server);
    client.expect(&put(0, 0, "first"), "INSERTED 1");
    // A thread that prepares a segment would delay the end of the process.
    wait::until("the next segments are prepared", || client.stat("wal-disk-bytes") == 3 << 20);
    throttle.limit(1);
    for _ in 0..6 {
        client.send(&put(0, 0, &body("o")));
        thread::sleep(Duration::from_millis(10));
    }
    server.kill();

    let (mut server, mut client) = start(&dir, io, &flags);
    let inserted: Vec<String> = (0..4).map(|_| client.ask(&put(0, 0, &body("n"))).0).collect();
    throttle.limit(0);
    server.kill();
    // The disk has done everything when it is unmounted.
    disk.lose_page_cache();
    let (mut server, mut client) = start(&dir, io, &flags);
    for line in &inserted {
        let id = line.strip_prefix("INSERTED ").expect("there is space");
        assert_eq!(client.ask(&format!("peek {id}\r\n")).1, body("n") + "\r\n", "job {id}");
    }
    server.kill();
}

// Interrupted calls.

/// Whether strace is there. Without it, prints what is skipped.
fn can_interrupt() -> bool {
    let version = run("strace", &["-V"]);
    if let Err(error) = &version {
        println!("skipped: an interrupted fallocate, because {error}");
    }
    version.is_ok()
}

/// The freezer of `docker pause` interrupts fallocate(2), and some kernels and file systems do not restart it.
#[test]
fn an_interrupted_fallocate_is_repeated() {
    if !can_interrupt() {
        return;
    }
    let scratch = Scratch::new("interrupted");
    let mut traced = Command::new("strace");
    // strace -D is not the parent of the server, so the test can end the server itself.
    traced.args(["-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fallocate"]);
    traced.args(["-e", "inject=fallocate:error=EINTR:when=1..3", program()]);
    let (_server, mut client) = launch(traced, &scratch.0, Driver::Epoll, &["-s", "65536", "-f", "0"]);
    // The thread that creates further files is interrupted too.
    client.insert(1..=200, |_| put(0, 0, &"i".repeat(4000)));
}

/// Interruptions may go on for minutes.
#[test]
fn interruptions_do_not_keep_a_core_busy() {
    if !can_interrupt() {
        return;
    }
    let scratch = Scratch::new("busy");
    let (dir, calls) = (scratch.dir("log"), scratch.join("calls"));
    File::create(&calls).expect("a file");
    let mut traced = Command::new("strace");
    traced.args(["-D", "-f", "-qq", "-o", text(&calls), "-e", "trace=fallocate"]);
    traced.args(["-e", "inject=fallocate:error=EINTR", program(), "-l", "127.0.0.1", "-p", "0", "-b"]);
    traced.arg(&dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let _server = Traced(traced.spawn().expect("strace starts"));
    lines_of(&calls, 3);
    thread::sleep(Duration::from_secs(2));
    let count = lines_of(&calls, 3).len();
    assert!(count < 1000, "{count} calls in two seconds");
}

/// A server that `strace -D` became. It is killed when the value is dropped.
struct Traced(Child);

impl Drop for Traced {
    fn drop(&mut self) {
        self.0.kill().expect("it is ours");
        self.0.wait().expect("it is ours");
    }
}
