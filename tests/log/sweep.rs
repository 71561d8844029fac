//! Faults of the files of four small job logs: each bit of heads and records flipped, each page zeroed, each file emptied, removed, doubled,
//! swapped with each other one, and replaced by one of another log or an older one. A server starts after each: it has all jobs, warns, or
//! refuses the log. `BEANRING_TEST_SWEEP=1` flips every bit, not one in 97.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use beanring::io::driver::Driver;
use beanring::io::wal_files::offline::{self, Outlook, Verdict};
use beanring::io::wal_files::{self, Directory, recover};
use beanring::queue::Engine;
use beanring::time::Time;
use beanring::wal::{Destination, Durability, WalConfig};
use beanring_testkit::client::{Client, put, start};
use beanring_testkit::scratch::Scratch;
use tracing::{Event, Level, Metadata, Subscriber, span};

use super::common::{FIRST, await_mark};

const SEGMENT_BYTES: u64 = 65_536;
const PAGE_BYTES: usize = 4096;
const NOW: Time = Time::from_nanos(1_000_000_000);
const CONFIG: WalConfig = WalConfig {
    durability: Durability::Always,
    segment_bytes: SEGMENT_BYTES,
    destination: Destination::Directory,
    keep_reservations: false,
};

/// The files of a directory.
type Files = BTreeMap<String, Vec<u8>>;

/// Bodies by id.
type Jobs = BTreeMap<u64, Vec<u8>>;

/// A log of a server.
struct Log {
    files: Files,
    /// The files when the server was stopped before.
    older: Files,
    /// The acknowledged jobs.
    jobs: Jobs,
    /// The jobs before the last command.
    before_last: Jobs,
    is_closed: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Fault {
    Flipped { file: String, at: usize, bit: u8 },
    ZeroPage { file: String, page: usize },
    Emptied(String),
    Removed(String),
    Doubled { file: String, to: String },
    Swapped(String, String),
    Foreign(String),
    Older(String),
}

/// What a server does after a fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Class {
    Recovered,
    Warned,
    Refused,
    /// It starts without a warning, and lacks what nothing outside the fault shows.
    Unnoticed,
}

fn files_of(dir: &Path) -> Files {
    let files = fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("a file"));
    let name = |entry: &fs::DirEntry| entry.file_name().into_string().expect("UTF-8");
    let logs = files.filter(|entry| name(entry).starts_with("log."));
    logs.map(|entry| (name(&entry), fs::read(entry.path()).expect("a file"))).collect()
}

/// Puts jobs, and deletes all but one in `kept`. Returns the jobs before the last command.
fn change(client: &mut Client, ids: RangeInclusive<u64>, kept: u64, jobs: &mut Jobs) -> Jobs {
    let mut before = jobs.clone();
    for id in ids {
        let body = format!("{id:0>120}");
        client.expect(&put(0, 0, &body), &format!("INSERTED {id}"));
        before.clone_from(jobs);
        jobs.insert(id, [body.as_bytes(), b"\r\n"].concat());
        if id % kept > 0 {
            client.expect(&format!("delete {id}\r\n"), "DELETED");
            before.clone_from(jobs);
            jobs.remove(&id);
        }
    }
    before
}

impl Log {
    /// Has a server write a log in two runs.
    fn written(is_closed: bool, is_recycled: bool) -> Self {
        let scratch = Scratch::in_memory("sweep");
        let flags = ["-f", "0", "-s", "65536", "-z", "1000"];
        let mut jobs = Jobs::new();
        let (count, more, kept) = if is_recycled { (60, 12, 5) } else { (12, 12, 1) };
        let (mut server, mut client) = start(&scratch.0, Driver::Epoll, &flags);
        change(&mut client, 1..=count, kept, &mut jobs);
        server.stop();
        let older = files_of(&scratch.0);
        let (mut server, mut client) = start(&scratch.0, Driver::Epoll, &flags);
        let before_last = change(&mut client, count + 1..=count + more, kept, &mut jobs);
        await_mark(&scratch.0);
        if is_closed {
            server.stop()
        } else {
            server.kill()
        }
        let files = files_of(&scratch.0);
        assert_eq!(files.contains_key(FIRST), !is_recycled, "{:?}", files.keys());
        Self { files, older, jobs, before_last, is_closed }
    }

    fn faults(&self, foreign: &Self) -> Vec<Fault> {
        let names: Vec<&String> = self.files.keys().collect();
        let stride = if env::var_os("BEANRING_TEST_SWEEP").is_some() { 1 } else { 97 };
        let mut faults = Vec::new();
        for &name in &names {
            let bytes = &self.files[name];
            let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
            let bits = (0..used * 8).filter(|bit| is_written(bytes, bit / 8)).step_by(stride);
            faults.extend(bits.map(|bit| Fault::Flipped {
                file: name.clone(),
                at: bit / 8,
                bit: (bit % 8) as u8,
            }));
            let pages = 0..used.div_ceil(PAGE_BYTES);
            faults.extend(pages.map(|page| Fault::ZeroPage { file: name.clone(), page }));
            faults.extend([Fault::Emptied(name.clone()), Fault::Removed(name.clone())]);
            faults.push(Fault::Doubled { file: name.clone(), to: "log.00000000000000ff".to_owned() });
            let others = names.iter().filter(|&&other| other > name);
            faults.extend(others.map(|&other| Fault::Swapped(name.clone(), other.clone())));
            faults.extend(foreign.files.contains_key(name).then(|| Fault::Foreign(name.clone())));
            faults.extend(self.older.contains_key(name).then(|| Fault::Older(name.clone())));
        }
        faults
    }

    /// Returns the files after a fault.
    fn after(&self, fault: &Fault, foreign: &Self) -> Files {
        let mut files = self.files.clone();
        let name = |name: &String| name.clone();
        match fault {
            Fault::Flipped { file, at, bit } => files.get_mut(file).expect("it is there")[*at] ^= 1 << bit,
            Fault::ZeroPage { file, page } => {
                let bytes = files.get_mut(file).expect("it is there");
                let end = (page * PAGE_BYTES + PAGE_BYTES).min(bytes.len());
                bytes[page * PAGE_BYTES..end].fill(0);
            }
            Fault::Emptied(file) => _ = files.insert(name(file), Vec::new()),
            Fault::Removed(file) => _ = files.remove(file),
            Fault::Doubled { file, to } => _ = files.insert(name(to), files[file].clone()),
            Fault::Swapped(one, other) => {
                let (first, second) = (files[one].clone(), files[other].clone());
                files.extend([(name(one), second), (name(other), first)]);
            }
            Fault::Foreign(file) => _ = files.insert(name(file), foreign.files[file].clone()),
            Fault::Older(file) => _ = files.insert(name(file), self.older[file].clone()),
        }
        files
    }

    fn class(&self, fault: &Fault, foreign: &Self) -> Class {
        let scratch = Scratch::in_memory("sweep-fault");
        for (name, bytes) in self.after(fault, foreign) {
            fs::write(scratch.join(&name), bytes).expect("there is memory");
        }
        let seen = Seen::of(&scratch.0, fault);
        let (found, warnings) = started(&scratch.0);
        let class = match found {
            None => Class::Refused,
            Some(found) if warnings > 0 => {
                assert!(found == self.jobs || !self.is_closed, "{fault:?}: {} jobs", found.len());
                Class::Warned
            }
            Some(found) if found == self.jobs => Class::Recovered,
            Some(found) => {
                let (found_jobs, jobs) = (found.len(), self.jobs.len());
                assert!(self.may_be_unnoticed(fault, &found), "{fault:?}: {found_jobs} of {jobs} jobs");
                Class::Unnoticed
            }
        };
        seen.agrees_with(class, fault, self.jobs.len());
        class
    }

    /// Whether a log that was killed looks like one from before its last changes: when the block with the last change is zeros, or the last
    /// segment is as it was when the log was closed before.
    fn may_be_unnoticed(&self, fault: &Fault, found: &Jobs) -> bool {
        let is_last = match fault {
            Fault::ZeroPage { .. } => *found == self.before_last,
            Fault::Older(file) => !file.starts_with("log.end"),
            _ => false,
        };
        is_last && !self.is_closed
    }
}

/// What those say that only read.
struct Seen {
    /// `beanring wal check` says that a server does not start.
    is_refused: bool,
    /// It names something else than the verdict that there is no damage.
    is_complaint: bool,
    /// The check before a restart in place lets the program start.
    passes_preflight: bool,
    /// The jobs of a backup, if there is one.
    backed_up: Option<usize>,
}

impl Seen {
    fn of(dir: &Path, fault: &Fault) -> Self {
        let verdict = offline::check(dir, NOW);
        let is_complaint = |verdict: &Verdict| {
            let Verdict { outlook, unrecorded, damage, .. } = verdict;
            let Outlook { discarded, hole, mark_fault, .. } = outlook;
            !discarded.is_empty()
                || hole.is_some()
                || mark_fault.is_some()
                || unrecorded.is_some()
                || !damage.is_empty()
        };
        // A backup waits between its attempts.
        let to = Scratch::in_memory("sweep-backup");
        let backup = || offline::backup(dir, &to.0, NOW).ok().map(|backup| backup.jobs);
        Self {
            is_refused: verdict.as_ref().map_or(true, |verdict| verdict.outlook.refusal.is_some()),
            is_complaint: verdict.as_ref().map_or(true, is_complaint),
            passes_preflight: wal_files::preflight(dir).is_ok(),
            backed_up: if matches!(fault, Fault::Flipped { .. }) { None } else { backup() },
        }
    }

    fn agrees_with(&self, class: Class, fault: &Fault, jobs: usize) {
        let is_refused = class == Class::Refused;
        assert_eq!(self.is_refused, is_refused, "check after {fault:?}");
        assert!(self.is_complaint || class != Class::Warned, "check is silent after {fault:?}");
        // It reads no records but those of the marked segment, and the first segments may have been retired.
        let is_shallow = matches!(fault, Fault::Emptied(_) | Fault::Swapped(..) | Fault::Foreign(_));
        assert!(
            self.passes_preflight != is_refused || is_refused && !is_shallow,
            "preflight after {fault:?}"
        );
        if let Some(backed_up) = self.backed_up {
            assert!(!is_refused, "a backup after {fault:?}");
            assert!(
                backed_up == jobs || class == Class::Unnoticed,
                "{backed_up} of {jobs} jobs after {fault:?}"
            );
        }
    }
}

/// Whether a byte is not among the zeros of padding.
fn is_written(bytes: &[u8], at: usize) -> bool {
    bytes[at.saturating_sub(32)..bytes.len().min(at + 32)].iter().any(|&byte| byte != 0)
}

/// Starts from a directory. Returns the jobs, or none if the log is refused, and the number of warnings.
fn started(dir: &Path) -> (Option<Jobs>, usize) {
    let warnings = Arc::new(AtomicUsize::new(0));
    let counting = Counting(warnings.clone());
    let found = tracing::subscriber::with_default(counting, || {
        let directory = Directory::open(dir, false).ok()?;
        let mut engine = Engine::new(0);
        recover(&directory, CONFIG, &mut engine, NOW).ok()?;
        engine.check();
        let jobs = engine.jobs().iter().map(|(key, job)| (job.id.0, engine.body(key).to_vec()));
        Some(jobs.collect())
    });
    (found, warnings.load(Ordering::Relaxed))
}

/// Counts warnings.
struct Counting(Arc<AtomicUsize>);

impl Subscriber for Counting {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

fn sweep(is_closed: bool, is_recycled: bool) {
    let (log, foreign) = (Log::written(is_closed, is_recycled), Log::written(is_closed, is_recycled));
    let mut counts: BTreeMap<(&str, Class), usize> = BTreeMap::new();
    for fault in log.faults(&foreign) {
        let class = log.class(&fault, &foreign);
        *counts.entry((fault.kind(), class)).or_default() += 1;
    }
    for ((kind, class), count) in counts {
        println!("{kind:10} {class:10?} {count}");
    }
}

impl Fault {
    const fn kind(&self) -> &'static str {
        match self {
            Self::Flipped { .. } => "flipped",
            Self::ZeroPage { .. } => "zero page",
            Self::Emptied(_) => "emptied",
            Self::Removed(_) => "removed",
            Self::Doubled { .. } => "doubled",
            Self::Swapped(..) => "swapped",
            Self::Foreign(_) => "foreign",
            Self::Older(_) => "older",
        }
    }
}

#[test]
fn of_a_closed_log() {
    sweep(true, false);
}

#[test]
fn of_a_killed_log() {
    sweep(false, false);
}

#[test]
fn of_a_closed_log_in_recycled_files() {
    sweep(true, true);
}

#[test]
fn of_a_killed_log_in_recycled_files() {
    sweep(false, true);
}
