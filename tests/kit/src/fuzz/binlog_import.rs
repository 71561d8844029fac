//! Binlogs of beanstalkd. A sound one is imported completely. Any other is refused or cut at its end, and stays
//! unchanged.

use std::fs;
use std::path::Path;

use beanring::beanstalkd_binlog::{self as binlog, Job, State, Version};
use beanring::io::binlog_import::import;
use beanring::io::wal_files::{Directory, recover};
use beanring::queue::{Counts, Engine, LoggedState, PersistedState};
use beanring::time::{Seconds, Time};
use beanring::values::ids::JobId;
use beanring::values::tube_name::TubeName;
use beanring::wal::{Destination, Durability, WalConfig};

use super::super::scratch::{Scratch, contents};
use super::input::{Input, filler};
use super::made_log::{BEGIN, Jobs, KeptJob, jobs_of};

const CONFIG: WalConfig = WalConfig {
    durability: Durability::Never,
    segment_bytes: 128 * 1024,
    destination: Destination::Directory,
    keep_reservations: false,
};
const TUBES: [&str; 4] = ["default", "a", "bc", "d/e"];
const A_US: u64 = 1_000;

/// Runs an input. The first byte selects whether the rest is files, or steps of a beanstalkd whose files may then be
/// damaged.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let what = input.byte();
    if what & 3 == 0 {
        return arbitrary(&mut input);
    }
    let mut written = Written::default();
    for _ in 0..1 + input.below(3) {
        written.file(&mut input);
    }
    if what & 3 == 1 {
        damage(&mut input, &mut written.files);
        import_any(&written.files);
    } else {
        let jobs = import_any(&written.files).expect("nothing is wrong with it");
        assert_eq!(jobs, written.jobs(), "what was written comes over");
    }
}

fn arbitrary(input: &mut Input<'_>) {
    let mut files = Vec::new();
    for _ in 0..1 + input.below(3) {
        let length = usize::from(input.half());
        let version: &[u8] = input.pick(&[&[7, 0, 0, 0], &[5, 0, 0, 0], &[]]);
        files.push([version, input.bytes(length)].concat());
    }
    import_any(&files);
}

/// Imports the files twice. Returns none if they are refused.
fn import_any(files: &[Vec<u8>]) -> Option<Jobs> {
    let scratch = Scratch::in_memory("fuzz");
    for (number, bytes) in (1..).zip(files) {
        fs::write(scratch.join(&format!("binlog.{number}")), bytes).expect("a file");
    }
    let before = contents(&scratch.0);
    let jobs = import_once(&scratch.0);
    let mut after = contents(&scratch.0);
    after.remove("lock");
    let Some(jobs) = jobs else {
        assert!(after == before, "what is refused stays as it was");
        return None;
    };
    for (name, bytes) in &before {
        assert!(after.get(&format!("{name}.imported")) == Some(bytes), "{name} has its new name");
    }
    assert!(after.keys().all(|name| name.ends_with(".imported") || name.starts_with("log.")));
    assert_eq!(import_once(&scratch.0).as_ref(), Some(&jobs), "and again from the log alone");
    Some(jobs)
}

fn import_once(dir: &Path) -> Option<Jobs> {
    let directory = Directory::open(dir, false).expect("no other process uses it");
    import(&directory, CONFIG).ok()?;
    let mut engine = Engine::new(0);
    recover(&directory, CONFIG, &mut engine, BEGIN).expect("what was imported is a sound log");
    engine.check();
    let jobs = jobs_of(&engine);
    for (id, job) in &jobs {
        assert!(job.body.ends_with(b"\r\n"), "the body of job {id} has its end");
        assert!(*id < engine.upcoming_id().0, "no id is used twice");
    }
    Some(jobs)
}

// A writer that writes as beanstalkd does.

#[derive(Default)]
struct Written {
    files: Vec<Vec<u8>>,
    jobs: Vec<Known>,
    last_id: u64,
    burials: u64,
}

struct Known {
    job: Job,
    tube: TubeName<'static>,
    body: Vec<u8>,
    /// Number of burials before its own.
    buried: u64,
}

impl Written {
    fn file(&mut self, input: &mut Input<'_>) {
        let version = if input.below(4) == 0 { Version::V5 } else { Version::V7 };
        let mut file = Vec::new();
        match version {
            Version::V7 => binlog::encode_version(&mut file),
            _ => file.extend_from_slice(&5_u32.to_le_bytes()),
        }
        for _ in 0..input.below(40) {
            if input.is_empty() {
                break;
            }
            match (input.below(4), self.jobs.is_empty()) {
                (0 | 1, _) | (_, true) => self.put(version, input, &mut file),
                (2, false) => self.change(version, input, &mut file),
                (_, false) => {
                    // Compaction moves the jobs of the oldest file.
                    let at = input.below(self.jobs.len());
                    self.jobs[at].append(version, &mut file);
                }
            }
        }
        file.extend(vec![0; input.below(200)]);
        self.files.push(file);
    }

    fn put(&mut self, version: Version, input: &mut Input<'_>, file: &mut Vec<u8>) {
        self.last_id += 1 + input.below(3) as u64;
        let bytes = input.pick(&[0, 1, 30, 500, 9_000]);
        let body = [filler(self.last_id, bytes), b"\r\n".to_vec()].concat();
        let delay: u32 = input.pick(&[0, 0, 10, 4_000_000]);
        let created = Time::from_nanos(BEGIN.as_nanos() - A_US * u64::from(input.half()) - A_US);
        let job = Job {
            id: JobId(self.last_id),
            created,
            ttr: Seconds::whole(1 + u32::from(input.byte())),
            pri: u32::from(input.half()),
            delay: delay.into(),
            body_bytes: body.len() as u32,
            deadline: Time::from_nanos(created.as_nanos() + 1_000_000_000 * u64::from(delay)),
            counts: Counts::default(),
            state: if delay > 0 { State::Delayed } else { State::Ready },
        };
        let tube = TubeName::new(input.pick(&TUBES).as_bytes()).expect("it is a name");
        let known = Known { job, tube, body, buried: 0 };
        known.append(version, file);
        self.jobs.push(known);
    }

    fn change(&mut self, version: Version, input: &mut Input<'_>, file: &mut Vec<u8>) {
        let at = input.below(self.jobs.len());
        let Known { job, buried, .. } = &mut self.jobs[at];
        match input.below(4) {
            0 => {
                job.state = State::Deleted;
                append_change(version, job, file);
                self.jobs.remove(at);
                return;
            }
            1 => {
                (job.state, job.counts.buries) = (State::Buried, job.counts.buries + 1);
                (*buried, self.burials) = (self.burials, self.burials + 1);
            }
            2 => (job.state, job.counts.kicks) = (State::Ready, job.counts.kicks + 1),
            _ => (job.state, job.counts.releases) = (State::Ready, job.counts.releases + 1),
        }
        job.pri = u32::from(input.half());
        append_change(version, job, file);
    }

    /// Returns the jobs that an import must recover.
    fn jobs(&self) -> Jobs {
        let mut buried: Vec<(u64, JobId)> = Vec::new();
        buried.extend(
            self.jobs
                .iter()
                .filter(|known| known.job.state == State::Buried)
                .map(|known| (known.buried, known.job.id)),
        );
        buried.sort_unstable();
        let place = |id| buried.iter().position(|&(_, other)| other == id).unwrap_or(0) as u64;
        let kept = |Known { job, tube, body, .. }: &Known| {
            let state = match job.state {
                State::Buried => LoggedState::Buried(place(job.id)),
                State::Delayed if job.deadline > BEGIN => LoggedState::Delayed(job.deadline),
                _ => LoggedState::Ready,
            };
            let kept = PersistedState { pri: job.pri, delay: job.delay, state, counts: job.counts };
            let (tube, body) = (tube.as_str().to_owned(), body.clone());
            (job.id.0, KeptJob { created: job.created, ttr: job.ttr, tube, tags: String::new(), kept, body })
        };
        self.jobs.iter().map(kept).collect()
    }
}

impl Known {
    fn append(&self, version: Version, file: &mut Vec<u8>) {
        match version {
            Version::V7 => binlog::encode_job(self.tube, &self.job, &self.body, file),
            _ => {
                let name = self.tube.as_bytes();
                file.extend_from_slice(&(name.len() as u64).to_le_bytes());
                file.extend_from_slice(name);
                file.extend_from_slice(&old_job(&self.job));
                file.extend_from_slice(&self.body);
            }
        }
    }
}

fn append_change(version: Version, job: &Job, file: &mut Vec<u8>) {
    match version {
        Version::V7 => binlog::encode_change(job, file),
        _ => {
            file.extend_from_slice(&[0; 8]);
            file.extend_from_slice(&old_job(job));
        }
    }
}

/// A job in version 5 of the format, which counts microseconds and has no zeros at its end.
fn old_job(job: &Job) -> Vec<u8> {
    let mut with_zeros = Vec::new();
    binlog::encode_change(job, &mut with_zeros);
    let mut bytes = with_zeros[4..4 + 77].to_vec();
    for at in [16, 24, 40, 48] {
        let nanos = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        bytes[at..at + 8].copy_from_slice(&(nanos / A_US).to_le_bytes());
    }
    bytes
}

/// A binlog has no checksums, so an import may recover anything, but must not crash.
fn damage(input: &mut Input<'_>, files: &mut Vec<Vec<u8>>) {
    while !input.is_empty() && !files.is_empty() {
        let what = input.byte();
        let number = input.below(files.len());
        let file = &mut files[number];
        if file.is_empty() {
            continue;
        }
        let at = usize::from(input.half()) % file.len();
        let end = (at + 1 + usize::from(what >> 4) * 8).min(file.len());
        match what & 7 {
            0 | 1 => file[at] = input.byte(),
            2 => file[at] ^= 1 << (what >> 5),
            3 => file[at..end].fill(0),
            4 => file.truncate(at),
            5 => _ = file.drain(at..end),
            6 => {
                let word = input.word().to_le_bytes();
                let length = word.len().min(file.len() - at);
                file[at..at + length].copy_from_slice(&word[..length]);
            }
            _ => _ = files.remove(number),
        }
    }
}
