//! Ways to write a job log, side by side: how long a batch takes, and how much CPU time. docs/internals/LOG.md has the choice
//! between them.
//!
//! Batches are written one at a time to segments that are made as the server makes them, in a directory of their own
//! below `target`. Two notes on the results:
//!
//! - tokio-uring makes the requests on a ring here, so these rows include the cost of its runtime: a completion
//!   wakes it through epoll. The driver `uring` makes the same requests itself.
//! - CPU time is that of this process, with the threads that the kernel has added to it for its rings. Work of other
//!   kernel threads is not included.
//!
//! `cargo bench --bench disk`

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use beanring::io::host::cpu_usage;
use beanring::io::wal_files::Directory;
use beanring::values::limits::WAL_FILE_BYTES_DEFAULT;
use beanring::wal::batch::BLOCK_BYTES;
use beanring::wal::{Arrangement, SegmentNumber};
use nix::libc::{O_DIRECT, O_DSYNC};
use tokio_uring::Runtime;
use tokio_uring::buf::{BoundedBuf, Slice};

use beanring_testkit::bench::machine::{Machine, first_line};
use beanring_testkit::bench::table::{Table, rounded};

const SIZES: [usize; 2] = [4 << 10, 64 << 10];
const BATCHES: usize = 500;
/// A slow disk gets fewer batches.
const TIME_MAX: Duration = Duration::from_secs(1);
const SEGMENT_BYTES: usize = WAL_FILE_BYTES_DEFAULT as usize;

struct Way {
    title: &'static str,
    by: By,
    /// Flags of open(2).
    flags: i32,
    /// An fdatasync follows each write.
    syncs: bool,
    segments: Segments,
}

#[derive(Clone, Copy)]
enum By {
    /// System calls.
    Call,
    /// Requests on a ring.
    Ring,
}

/// How a segment is prepared before it is used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Segments {
    /// Zeros are written once.
    Zeros,
    /// Its space is allocated, and no block of it was written.
    Reserved,
}

const PAST_CACHE: i32 = O_DIRECT | O_DSYNC;

const DURABLE: [Way; 7] = [
    Way::new("pwrite, then fdatasync", By::Call, 0, Segments::Zeros).synced(),
    Way::new("pwrite, O_DSYNC", By::Call, O_DSYNC, Segments::Zeros),
    Way::new("pwrite, O_DIRECT + O_DSYNC", By::Call, PAST_CACHE, Segments::Zeros),
    Way::new("pwrite, O_DIRECT + O_DSYNC", By::Call, PAST_CACHE, Segments::Reserved),
    Way::new("ring: write, then fdatasync", By::Ring, 0, Segments::Zeros).synced(),
    Way::new("ring: write, O_DIRECT + O_DSYNC", By::Ring, PAST_CACHE, Segments::Zeros),
    Way::new("ring: write, O_DIRECT + O_DSYNC", By::Ring, PAST_CACHE, Segments::Reserved),
];

/// The server writes zeros in advance only if each write has to be durable.
const NOT_DURABLE: [Way; 2] = [
    Way::new("not durable: pwrite", By::Call, 0, Segments::Reserved),
    Way::new("not durable: ring: write", By::Ring, 0, Segments::Reserved),
];

impl Way {
    const fn new(title: &'static str, by: By, flags: i32, segments: Segments) -> Way {
        Way { title, by, flags, syncs: false, segments }
    }

    const fn synced(mut self) -> Way {
        self.syncs = true;
        self
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("disk: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    let Machine { date, kernel, cpu, cores, .. } = Machine::inspect();
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let kind = first_line("findmnt", &["-n", "-o", "FSTYPE", "-T", &parent.to_string_lossy()]);
    let kind = kind.unwrap_or("unknown file system".to_owned());
    if matches!(&*kind, "tmpfs" | "ramfs") {
        return Err(io::Error::other(format!("{} is in memory, which is no disk", parent.display())));
    }
    let runtime = Runtime::new(&tokio_uring::builder());
    let runtime = runtime.inspect_err(|error| eprintln!("no rows with a ring: {error}")).ok();

    let mut head = vec!["a batch, µs".to_owned(), "segments".to_owned()];
    for bytes in SIZES {
        let size = format!("{} KiB", bytes >> 10);
        head.extend([format!("{size}: p50"), "p99".to_owned(), "CPU".to_owned()]);
    }
    let mut table = Table::new(head);
    for way in DURABLE.iter().chain(&NOT_DURABLE) {
        let segments = match way.segments {
            Segments::Zeros => "zeros",
            Segments::Reserved => "reserved",
        };
        let mut line = vec![way.title.to_owned(), segments.to_owned()];
        for bytes in SIZES {
            let measured = Place::make(parent).and_then(|place| place.measure(way, bytes, runtime.as_ref()));
            let measured = measured.inspect_err(|error| eprintln!("{}: {error}", way.title));
            line.extend(measured.unwrap_or([f64::NAN; 3]).map(rounded));
        }
        table.push(line);
    }
    println!("{date}, {kernel}, {cpu}, cores: {cores}, {kind}.\n\n{}", table.markdown());
    Ok(())
}

/// A directory for the segments of one measurement. It is removed when the value is dropped.
struct Place(PathBuf);

impl Place {
    fn make(parent: &Path) -> io::Result<Place> {
        let place = Place(parent.join("disk"));
        match fs::remove_dir_all(&place.0) {
            // A run that was killed has left it.
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        fs::create_dir_all(&place.0)?;
        Ok(place)
    }

    /// Measures p50 and p99 of a batch, and its CPU time, all in microseconds.
    fn measure(&self, way: &Way, bytes: usize, runtime: Option<&Runtime>) -> io::Result<[f64; 3]> {
        let files = self.segments(way, bytes)?;
        match way.by {
            By::Call => call(way, &files, bytes),
            By::Ring => match runtime {
                Some(runtime) => runtime.block_on(request(way, files, bytes)),
                None => Err(ErrorKind::Unsupported.into()),
            },
        }
    }

    /// Prepares as many segments as all batches need.
    fn segments(&self, way: &Way, bytes: usize) -> io::Result<Vec<File>> {
        let directory =
            Directory::open(&self.0, way.segments == Segments::Zeros).map_err(io::Error::other)?;
        let mut options = OpenOptions::new();
        options.write(true).custom_flags(way.flags);
        let count = (BATCHES * bytes).div_ceil(SEGMENT_BYTES) as u64;
        (1..=count)
            .map(|number| {
                let segment = SegmentNumber(number);
                directory.arrange(Arrangement::Create { segment, bytes: SEGMENT_BYTES as u64 })?;
                options.open(directory.file(&segment.to_string()))
            })
            .collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("{} is left: {error}", self.0.display());
        }
    }
}

fn call(way: &Way, files: &[File], bytes: usize) -> io::Result<[f64; 3]> {
    let batch = batch(bytes);
    let mut recorder = Recorder::begin();
    while let Some((segment, offset)) = recorder.next(bytes) {
        whole(files[segment].write_at(&batch[..], offset)?, bytes)?;
        if way.syncs {
            files[segment].sync_data()?;
        }
        recorder.done();
    }
    Ok(recorder.end())
}

async fn request(way: &Way, files: Vec<File>, bytes: usize) -> io::Result<[f64; 3]> {
    let files: Vec<_> = files.into_iter().map(tokio_uring::fs::File::from_std).collect();
    let mut batch = batch(bytes);
    let mut recorder = Recorder::begin();
    while let Some((segment, offset)) = recorder.next(bytes) {
        let (written, back) = files[segment].write_at(batch, offset).submit().await;
        whole(written?, bytes)?;
        batch = back;
        if way.syncs {
            files[segment].sync_data().await?;
        }
        recorder.done();
    }
    Ok(recorder.end())
}

/// Memory for direct I/O, aligned. It is not zero, since a disk may have short cuts for zeros.
fn batch(bytes: usize) -> Slice<Vec<u8>> {
    let memory = vec![b'x'; bytes + BLOCK_BYTES];
    let begin = memory.as_ptr().align_offset(BLOCK_BYTES);
    memory.slice(begin..begin + bytes)
}

fn whole(written: usize, bytes: usize) -> io::Result<()> {
    if written == bytes { Ok(()) } else { Err(ErrorKind::WriteZero.into()) }
}

struct Recorder {
    begin: Instant,
    cpu_begin_us: u64,
    batch_begin: Instant,
    latencies: Vec<Duration>,
}

impl Recorder {
    fn begin() -> Recorder {
        let begin = Instant::now();
        let latencies = Vec::with_capacity(BATCHES);
        Recorder { begin, cpu_begin_us: cpu_us(), batch_begin: begin, latencies }
    }

    /// Returns the segment and the offset of the next batch, and starts its time.
    fn next(&mut self, bytes: usize) -> Option<(usize, u64)> {
        let number = self.latencies.len();
        self.batch_begin = Instant::now();
        let goes_on = number < BATCHES && self.batch_begin - self.begin < TIME_MAX;
        let in_segment = SEGMENT_BYTES / bytes;
        goes_on.then_some((number / in_segment, (number % in_segment * bytes) as u64))
    }

    fn done(&mut self) {
        self.latencies.push(self.batch_begin.elapsed());
    }

    fn end(mut self) -> [f64; 3] {
        let cpu = (cpu_us() - self.cpu_begin_us) as f64 / self.latencies.len() as f64;
        self.latencies.sort_unstable();
        let share = |share: f64| self.latencies[((self.latencies.len() - 1) as f64 * share) as usize];
        let [p50, p99] = [share(0.5), share(0.99)].map(|latency| latency.as_nanos() as f64 / 1000.0);
        [p50, p99, cpu]
    }
}

/// Returns the CPU time of this process.
fn cpu_us() -> u64 {
    let usage = cpu_usage();
    usage.user_us + usage.system_us
}
