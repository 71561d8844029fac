//! The job log on file systems of its own, on loop devices: on btrfs, with and without copy-on-write files, and
//! on ext4 whose device fails or is slow when the test wants it to.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use beanring::io::driver::Driver;
use beanring_testkit::client::{Client, launch, put, start};
use beanring_testkit::driver;
use beanring_testkit::peer::Received;
use beanring_testkit::process::{REPLY_PATIENCE, ServerProcess, program};
use beanring_testkit::random::Random;
use beanring_testkit::scratch::{Scratch, lines_of};
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::signal::Signal;

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

/// A mount or a loop device, undone when the value is dropped.
struct Held(&'static str, Vec<String>);

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

fn mount(arguments: &[&str], at: &Path) -> Result<Held, String> {
    let at = at.to_str().expect("a name in UTF-8");
    run("mount", &[arguments, &[at]].concat())?;
    Ok(Held("umount", vec![at.to_owned()]))
}

fn directory(path: PathBuf) -> PathBuf {
    fs::create_dir(&path).expect("a new directory");
    path
}

/// A loop device with a new file system on it.
struct LoopDisk {
    // Fields are dropped in this order.
    mounted: Option<Held>,
    _device_held: Held,
    device: String,
    kind: &'static str,
    image: PathBuf,
    at: PathBuf,
}

impl LoopDisk {
    fn new(
        image: PathBuf,
        bytes: u64,
        at: PathBuf,
        kind: &'static str,
        make: &[&str],
    ) -> Result<Self, String> {
        let file = File::create(&image).expect("an image");
        file.set_len(bytes).expect("an image");
        let device = run("losetup", &["--find", "--show", image.to_str().expect("a name in UTF-8")])?;
        let held = Held("losetup", vec!["--detach".to_owned(), device.clone()]);
        run(make[0], &[&make[1..], &[device.as_str()]].concat())?;
        let mut disk = Self { mounted: None, _device_held: held, device, kind, image, at };
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
}

/// Uses up all free space.
fn fill(path: &Path) {
    let Ok(mut file) = File::create(path) else { return };
    for bytes in [1 << 20, 1 << 16, BLOCK_BYTES as usize] {
        while file.write_all(&vec![1; bytes]).and_then(|()| file.sync_data()).is_ok() {}
    }
}

fn drivers(what: &str) -> impl Iterator<Item = Driver> {
    Driver::ALL.iter().copied().filter(move |&io| driver::is_allowed(io, what))
}

// Copy on write.

const BTRFS_BYTES: u64 = 160 << 20;
const MODES: [&[&str]; 3] = [&["-f", "0"], &["-f", "50"], &["-F"]];

/// A server's own btrfs.
struct Stage {
    io: Driver,
    mode: &'static [&'static str],
    disk: LoopDisk,
    // Dropped after the disk is unmounted.
    scratch: Scratch,
}

impl Stage {
    /// The file that the server logs to.
    fn stderr(&self) -> PathBuf {
        self.scratch.0.join("stderr")
    }

    /// Starts a server on a directory of the disk, and connects to it.
    fn start(&self, dir: &Path) -> (ServerProcess, Client) {
        let mut command = Command::new(program());
        command.stderr(File::options().create(true).append(true).open(self.stderr()).expect("a file"));
        launch(command, dir, self.io, &[self.mode, &["-s", "1048576"]].concat())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if thread::panicking() {
            let logged = fs::read_to_string(self.stderr());
            println!("{} {:?} has logged: {}", self.io.name(), self.mode, logged.unwrap_or_default());
        }
    }
}

/// Runs a test under each driver and in each of these modes, in parallel: each waits for its disk most of the time.
fn on_btrfs(what: &str, modes: &[&'static [&'static str]], make: &[&str], test: impl Fn(&Stage) + Sync) {
    let mut stages = Vec::new();
    for io in drivers(what) {
        for &mode in modes {
            let scratch = Scratch::new(&format!("{}-{}", what.replace(' ', "-"), stages.len()));
            let (image, at) = (scratch.0.join("image"), directory(scratch.0.join("at")));
            match LoopDisk::new(image, BTRFS_BYTES, at, "btrfs", &[&["mkfs.btrfs", "-q"], make].concat()) {
                Ok(disk) => stages.push(Stage { io, mode, disk, scratch }),
                Err(error) => return println!("skipped: a log on btrfs, because {error}"),
            }
        }
    }
    thread::scope(|scope| {
        for stage in &stages {
            scope.spawn(|| test(stage));
        }
    });
}

fn is_written_in_place(segment: &Path) -> bool {
    let listing = run("lsattr", &[segment.to_str().expect("UTF-8")]).expect("btrfs has attributes");
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
        let disk = &stage.disk.at;
        let dir = directory(disk.join("log"));
        let started = Instant::now();
        let (mut server, mut client) = stage.start(&dir);
        let command = put(0, 0, &large_body()).repeat(20);
        let (mut jobs, mut is_full) = (0, false);
        while !is_full {
            client.send(&command);
            for _ in 0..20 {
                match client.line().as_deref() {
                    Some("OUT_OF_MEMORY") => is_full = true,
                    line => {
                        jobs += 1;
                        assert_eq!(line, Some(&*format!("INSERTED {jobs}")));
                    }
                }
            }
        }
        assert!(jobs > 1000, "{jobs} jobs fit");
        let filler = disk.join("filler");
        fill(&filler);
        for id in 1..=jobs {
            client.expect(&format!("delete {id}\r\n"), "DELETED");
        }
        fs::remove_file(filler).expect("it is there");
        insert_when_possible(&mut client, "after");
        server.signal(Signal::SIGTERM);
        assert_eq!(server.wait(), Some(0));
        assert!(segments(&dir).iter().all(|segment| is_written_in_place(segment)));
        let logged = fs::read_to_string(stage.stderr()).expect("it was made");
        let warnings =
            logged.lines().filter(|line| line.contains("WARN the disk of the job log (-b) is full")).count();
        let at_most = 1 + started.elapsed().as_secs() as usize / 60;
        assert!((1..=at_most).contains(&warnings), "{logged}");
        let (_server, mut client) = stage.start(&dir);
        assert_eq!(client.stat("current-jobs-ready"), 1);
    });
}

fn insert_when_possible(client: &mut Client, body: &str) {
    let started = Instant::now();
    loop {
        match &*client.ask(&put(0, 0, body)).0 {
            "OUT_OF_MEMORY" => assert!(started.elapsed() < REPLY_PATIENCE, "there is space again"),
            line => break assert!(line.starts_with("INSERTED "), "{line}"),
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Files of an older version, and all files of some file systems, copy on write.
#[test]
fn a_full_copy_on_write_file_system_refuses_puts_alone() {
    on_btrfs("copy on write", &MODES, &["--mixed"], |stage| {
        let dir = directory(stage.disk.at.join("log"));
        // New files inherit this attribute, which excludes C.
        run("chattr", &["+m", dir.to_str().expect("UTF-8")]).expect("btrfs has attributes");
        fill_and_change_jobs(stage, &dir);
    });
}

fn fill_and_change_jobs(stage: &Stage, dir: &Path) {
    let disk = &stage.disk.at;
    let (server, mut client) = stage.start(dir);
    assert!(!segments(dir).iter().any(|segment| is_written_in_place(segment)));
    let body = "c".repeat(4000);
    // Until segments have been recycled.
    for _ in 0..10 {
        client.send(&put(0, 0, &body).repeat(200));
        let ids: Vec<String> =
            (0..200).map(|_| client.line().expect("it runs").replace("INSERTED ", "")).collect();
        client.send(&ids.iter().map(|id| format!("delete {id}\r\n")).collect::<String>());
        (0..200).for_each(|_| assert_eq!(client.line().as_deref(), Some("DELETED")));
    }
    client.send(&put(0, 0, &body).repeat(300));
    let lines: Vec<String> = (0..300).map(|_| client.line().expect("it runs")).collect();
    let ids: Vec<u64> =
        lines.iter().map(|line| line.replace("INSERTED ", "").parse().expect("an id")).collect();
    let filler = disk.join("filler");
    fill(&filler);
    run("sync", &["-f", disk.to_str().expect("UTF-8")]).expect("it syncs");

    let mut refused = 0;
    for round in 0..60 {
        client.send(&put(0, 0, &body).repeat(10));
        refused += (0..10).filter(|_| client.line().expect("the server runs") == "OUT_OF_MEMORY").count();
        for id in ids.iter().skip(round % 30 * 10).take(10) {
            assert!(client.ask(&format!("reserve-job {id}\r\n")).0.starts_with("RESERVED "), "{id}");
            client.expect(&format!("bury {id} 3\r\n"), "BURIED");
            client.expect(&format!("kick-job {id}\r\n"), "KICKED");
        }
    }
    println!("{} {:?}: {refused} of 600 puts were refused", stage.io.name(), stage.mode);
    assert!(refused > 0, "the disk was full");
    for id in &ids[..100] {
        client.expect(&format!("delete {id}\r\n"), "DELETED");
    }
    fs::remove_file(filler).expect("it is there");
    insert_when_possible(&mut client, &body);
    let jobs = client.stat("current-jobs-ready");
    drop((client, server));
    let (_server, mut client) = stage.start(dir);
    assert_eq!(client.stat("current-jobs-ready"), jobs);
}

/// A snapshot shares the blocks that are overwritten in place otherwise: the next write to each takes new space, and
/// removed files free none.
#[test]
fn a_stalled_write_succeeds_once_there_is_space() {
    on_btrfs("a wait for space", &MODES[..2], &[], |stage| {
        let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        let (dir, snapshot) = (stage.disk.at.join("log"), stage.disk.at.join("snapshot"));
        run("btrfs", &["subvolume", "create", &text(&dir)]).expect("a subvolume");
        let (mut server, mut client) = stage.start(&dir);
        client.expect(&put(0, 0, "first"), "INSERTED 1");
        client.expect(&put(0, 0, "second"), "INSERTED 2");
        run("btrfs", &["subvolume", "snapshot", &text(&dir), &text(&snapshot)]).expect("a snapshot");
        wait_for_space(stage, &server, &mut client);
        server.signal(Signal::SIGTERM);
        assert_eq!(server.wait(), Some(0));
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
        is_waiting = matches!(client.stream.receive(Duration::from_secs(3)), Received::Silence);
        if is_waiting {
            break;
        }
    }
    assert!(is_waiting, "{} {:?}: a write is stalled", stage.io.name(), stage.mode);
    let mut other = Client::new(server.connect());
    assert_eq!(other.stat("current-jobs-ready"), 2);
    assert_eq!(other.ask("peek 1\r\n").1, "first\r\n");
    other.expect(&put(0, 0, "third"), "OUT_OF_MEMORY");
    let refused = other.stat("put-refusals-disk");
    assert!(refused >= 1);
    // Refused at its line: it counts, although its client leaves within the body.
    Client::new(server.connect()).send("put 0 0 60 100\r\nabc");
    while other.stat("put-refusals-disk") == refused {
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(other.stat("put-refusals-disk"), refused + 1);
    let before = server.cpu_time();
    thread::sleep(Duration::from_secs(1));
    println!("CPU in one second: {:?}", server.cpu_time() - before);
    let logged = lines_of(&stage.stderr(), 1);
    let warnings = logged.iter().filter(|line| line.contains("a write waits for space")).count();
    assert_eq!(warnings, 1, "{logged:?}");
    fillers.iter().for_each(|filler| _ = fs::remove_file(filler));
    assert_eq!(client.line().as_deref(), Some("PAUSED"));
    insert_when_possible(client, "third");
}

// Failing writes.

/// An ext4 file system in a file in memory. A write to a block that was punched out of the file fails when memory is full.
struct FailingDisk {
    disk: LoopDisk,
    filler: PathBuf,
    _memory: Held,
    _scratch: Scratch,
}

impl FailingDisk {
    const BYTES: u64 = 32 << 20;

    fn new(name: &str) -> Result<Self, String> {
        let scratch = Scratch::new(name);
        let memory = directory(scratch.0.join("memory"));
        let held = mount(&["-t", "tmpfs", "-o", "size=40m", "tmpfs"], &memory)?;
        let (image, at) = (memory.join("image"), directory(scratch.0.join("at")));
        let options = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
        let make = ["mkfs.ext4", "-q", "-b", "4096", "-E", options];
        let disk = LoopDisk::new(image, Self::BYTES, at, "ext4", &make)?;
        // No other write fails: every block has its memory.
        let file = File::options().write(true).open(&disk.image).expect("the image");
        fallocate(&file, FallocateFlags::empty(), 0, Self::BYTES as i64).expect("there is memory");
        run("filefrag", &["-V"])?;
        Ok(Self { disk, filler: memory.join("filler"), _memory: held, _scratch: scratch })
    }

    /// Makes writes fail to all blocks of these files behind the first `written` bytes.
    fn fail(&self, files: &[PathBuf], written: u64) {
        let image = File::options().write(true).open(&self.disk.image).expect("the image");
        for file in files {
            let name = file.to_str().expect("UTF-8");
            let listing = run("filefrag", &["-v", "-b4096", name]).expect("it lists the blocks");
            for line in listing.lines() {
                let fields: Vec<&str> =
                    line.split([':', '.']).map(str::trim).filter(|word| !word.is_empty()).collect();
                let [_, first, _, begin, _, count, ..] = fields[..] else { continue };
                let (Ok(first), Ok(begin), Ok(count)) =
                    (first.parse::<u64>(), begin.parse::<u64>(), count.parse::<u64>())
                else {
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
        fill(&self.filler);
    }

    fn repair(&self) {
        fs::remove_file(&self.filler).expect("it is there");
    }
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    let mut segments: Vec<PathBuf> = paths
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("log.")))
        .collect();
    segments.sort();
    segments
}

/// The kernel keeps pages that it could not write, and marks them clean.
#[test]
fn recovery_does_not_trust_the_page_cache_after_a_failed_sync() {
    for io in drivers("a failed sync") {
        let failing = FailingDisk::new("failing");
        let mut failing = match failing {
            Ok(failing) => failing,
            Err(error) => return println!("skipped: a disk that fails, because {error}"),
        };
        let dir = directory(failing.disk.at.join("log"));
        let flags = ["-f", "20", "-s", "65536"];
        let (mut server, mut client) = start(&dir, io, &flags);
        client.expect(&put(0, 0, "before"), "INSERTED 1");
        server.signal(Signal::SIGTERM);
        assert_eq!(server.wait(), Some(0));
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
        let (server, mut client) = start(&dir, io, &flags);
        let found = client.ask("peek 2\r\n").0;
        println!("{}: after the restart job 2 is {found}", io.name());
        client.expect(&put(0, 0, "after"), "INSERTED 3");
        await_sync(&mut client);
        stop_by_force(server, client);
        failing.disk.lose_page_cache();
        let (_server, mut client) = start(&dir, io, &flags);
        assert_eq!(client.ask("peek 1\r\n").1, "before\r\n");
        assert_eq!(client.ask("peek 2\r\n").0, found, "{}: a job that was served is still found", io.name());
        assert_eq!(client.ask("peek 3\r\n").1, "after\r\n");
    }
}

/// Waits until a sync has begun and ended after this.
fn await_sync(client: &mut Client) {
    let (before, asked) = (client.stat("wal-syncs"), Instant::now());
    client.expect("pause-tube default 0\r\n", "PAUSED");
    while client.stat("wal-syncs") < before + 2 {
        assert!(asked.elapsed() < REPLY_PATIENCE, "it syncs");
        // Something to sync.
        client.expect("pause-tube default 0\r\n", "PAUSED");
        thread::sleep(Duration::from_millis(10));
    }
}

fn stop_by_force(mut server: ServerProcess, client: Client) {
    server.signal(Signal::SIGKILL);
    assert_eq!(server.wait(), None);
    drop(client);
}

// Slow disks.

/// A limit of one write per second for the processes in it, on one device.
struct Throttle {
    group: PathBuf,
    device: String,
}

impl Throttle {
    const LIMIT: &str = "blkio.throttle.write_iops_device";

    fn new(device: &str) -> Result<Self, String> {
        let group = PathBuf::from(format!("/sys/fs/cgroup/blkio/beanring-test-{}", std::process::id()));
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
        fs::write(self.group.join(Self::LIMIT), format!("{} {writes_per_s}", self.device)).expect("a limit");
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
    for io in drivers("a write in flight") {
        let scratch = Scratch::new("slow");
        let (image, at) = (scratch.0.join("image"), directory(scratch.0.join("at")));
        let made = LoopDisk::new(image, FailingDisk::BYTES, at, "ext4", &["mkfs.ext4", "-q"]);
        let made = made.and_then(|disk| Throttle::new(&disk.device).map(|throttle| (throttle, disk)));
        let (throttle, mut disk) = match made {
            Ok(made) => made,
            Err(error) => return println!("skipped: a slow disk, because {error}"),
        };
        for round in 0..3 {
            kill_during_a_write(io, &throttle, &mut disk, &format!("log{round}"));
        }
    }
}

fn kill_during_a_write(io: Driver, throttle: &Throttle, disk: &mut LoopDisk, name: &str) {
    let dir = directory(disk.at.join(name));
    let flags = ["-f", "0", "-s", "1048576"];
    let body = |letter: &str| letter.repeat(6000);
    let (server, mut client) = start(&dir, io, &flags);
    throttle.add(&server);
    client.expect(&put(0, 0, "first"), "INSERTED 1");
    // The next segment is prepared by then: a thread that does it would delay the end of the process.
    thread::sleep(Duration::from_secs(1));
    throttle.limit(1);
    for _ in 0..6 {
        client.send(&put(0, 0, &body("o")));
        thread::sleep(Duration::from_millis(10));
    }
    stop_by_force(server, client);

    let (server, mut client) = start(&dir, io, &flags);
    let inserted: Vec<String> = (0..4).map(|_| client.ask(&put(0, 0, &body("n"))).0).collect();
    throttle.limit(0);
    stop_by_force(server, client);
    // The disk has done everything when it is unmounted.
    disk.lose_page_cache();
    let (server, mut client) = start(&dir, io, &flags);
    for line in &inserted {
        let id = line.strip_prefix("INSERTED ").expect("there is space");
        assert_eq!(client.ask(&format!("peek {id}\r\n")).1, body("n") + "\r\n", "{}: job {id}", io.name());
    }
    stop_by_force(server, client);
}

// Interrupted calls.

/// The freezer of `docker pause` interrupts fallocate(2), and some kernels and file systems do not restart it.
#[test]
fn an_interrupted_fallocate_is_repeated() {
    if let Err(error) = run("strace", &["-V"]) {
        return println!("skipped: an interrupted fallocate, because {error}");
    }
    let scratch = Scratch::new("interrupted");
    let mut traced = Command::new("strace");
    // strace -D is not the parent of the server, so the test can end the server itself.
    traced.args(["-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fallocate"]);
    traced.args(["-e", "inject=fallocate:error=EINTR:when=1..3", program()]);
    let (_server, mut client) = launch(traced, &scratch.0, Driver::Epoll, &["-s", "65536", "-f", "0"]);
    // The thread that creates further files is interrupted too.
    client.send(&put(0, 0, &"i".repeat(4000)).repeat(200));
    for id in 1..=200 {
        assert_eq!(client.line(), Some(format!("INSERTED {id}")));
    }
}

/// Interruptions may go on for minutes.
#[test]
fn interruptions_do_not_keep_a_core_busy() {
    if let Err(error) = run("strace", &["-V"]) {
        return println!("skipped: an interrupted fallocate, because {error}");
    }
    let scratch = Scratch::new("busy");
    let (dir, calls) = (directory(scratch.0.join("log")), scratch.0.join("calls"));
    File::create(&calls).expect("a file");
    let mut traced = Command::new("strace");
    traced.args(["-D", "-f", "-qq", "-o"]).arg(&calls).args(["-e", "trace=fallocate"]);
    traced
        .args(["-e", "inject=fallocate:error=EINTR", program(), "-l", "127.0.0.1", "-p", "0", "-b"])
        .arg(&dir);
    traced.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
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
