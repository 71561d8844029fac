//! Job logs in memory for other targets: written by the server's own writer, or forged, and then damaged.

use std::collections::BTreeMap;

use beanring::bodies::Slot;
use beanring::queue::{Counts, Engine, KeptKey, LoggedSchedule, LoggedState, NewJob, PersistedState};
use beanring::time::{Seconds, Span, Time};
use beanring::values::ids::{ClientKey, ConnId, JobId};
use beanring::values::notes::{Note, Notes};
use beanring::values::schedules::{Missed, Plan, Progress};
use beanring::values::tags::Tags;
use beanring::values::tube_name::TubeName;
use beanring::values::when::When;
use beanring::wal::SEGMENT_BYTES_MIN;
use beanring::wal::batch::Batch;
use beanring::wal::record::{JobOfRun, JobRecord, Lsn, PauseRecord, ProgressRecord, Record, Stamp};
use beanring::wal::segment::{FORMAT, FORMAT_WITH_RESERVATIONS, HEADER_BYTES, Header};
use beanring::wal::{
    Arrangement, Destination, DiskOperation, DiskOutcome, Durability, PutSpace, Replay, SegmentNumber, Wal,
    WalConfig,
};

use super::input::{Input, filler};

pub const SEGMENT_BYTES: u64 = SEGMENT_BYTES_MIN;
pub const BEGIN: Time = Time::from_nanos(1_800_000_000_000_000_000);
const LOG_ID: u64 = 0x1234_5678_9abc_def0;
const TUBES: [&str; 4] = ["default", "a", "bc", "d/e"];
const STEPS_MAX: usize = 256;

const DELAYS: [Seconds; 7] = [
    Seconds::ZERO,
    Seconds::ZERO,
    Seconds::ONE,
    Seconds::whole(100),
    millis(0, 1),
    millis(100, 999),
    Seconds::whole(u32::MAX),
];

const fn millis(whole: u32, millis: u16) -> Seconds {
    Seconds::new(whole, millis).expect("it is below a second")
}

/// The files of a job log by their numbers.
pub type Files = BTreeMap<SegmentNumber, Vec<u8>>;

/// A job as the log stores it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptJob {
    pub created: Time,
    pub ttr: Seconds,
    pub tube: String,
    pub tags: String,
    pub kept: PersistedState,
    pub body: Vec<u8>,
}

pub type Jobs = BTreeMap<u64, KeptJob>;

/// Times at which keys of deleted jobs are forgotten, by tube, key and id.
pub type KeptKeys = BTreeMap<(String, String, u64), Time>;

/// A job log and its content.
pub struct MadeLog {
    pub files: Files,
    /// The jobs at the end.
    pub jobs: Jobs,
    /// The keys of deleted jobs at the end.
    pub kept_keys: KeptKeys,
    /// All jobs that were ever written.
    pub bodies: BTreeMap<u64, Vec<u8>>,
    /// The end of the log.
    pub now: Time,
}

/// Returns the jobs of a queue.
pub fn jobs_of(engine: &Engine) -> Jobs {
    let jobs = engine.jobs().iter().map(|(key, job)| {
        let (tube, kept) = (engine.tube_of(key).as_str().to_owned(), engine.persisted_state(key));
        let (created, ttr, body) = (job.created, engine.jobs().ttr(key), engine.body(key).to_vec());
        let tags = engine.tags(key).as_str().to_owned();
        (job.id.0, KeptJob { created, ttr, tube, tags, kept, body })
    });
    jobs.collect()
}

/// Returns the keys of deleted jobs that a queue keeps.
pub fn kept_keys_of(engine: &Engine) -> KeptKeys {
    let kept = engine.kept_keys().map(|KeptKey { id, tube, key, until, .. }| {
        ((tube.as_str().to_owned(), key.as_str().to_owned(), id.0), until)
    });
    kept.collect()
}

/// Asserts that jobs have the bodies of their puts.
pub fn check_bodies(jobs: &Jobs, made: &MadeLog) {
    for (id, job) in jobs {
        assert!(made.bodies.get(id) == Some(&job.body), "job {id} has a body that was never its own");
    }
}

// Written logs.

/// Begins an empty log. Returns it with its files.
pub fn begin(config: WalConfig, engine: &mut Engine) -> (Wal, Files) {
    let mut recovered = Replay::default().finish(engine, BEGIN);
    recovered.log_id = LOG_ID;
    let first = SegmentNumber(1);
    let log = Wal::new(config, recovered, vec![first], engine);
    (log, Files::from([(first, vec![0; config.segment_bytes as usize])]))
}

/// Carries out an operation of the log.
pub fn carry_out(operation: DiskOperation, files: &mut Files) -> DiskOutcome {
    match operation {
        DiskOperation::Write { segment, offset, batch, .. } => {
            let at = offset as usize..offset as usize + batch.len();
            files.get_mut(&segment).expect("it is prepared")[at].copy_from_slice(batch.bytes());
            DiskOutcome::Written(batch, Ok(()))
        }
        DiskOperation::Sync(_) => DiskOutcome::Synced(Ok(())),
        DiskOperation::Arrange(arrangement) => {
            arrange(files, arrangement);
            DiskOutcome::Arranged(arrangement, Ok(()))
        }
    }
}

struct Writer {
    engine: Engine,
    log: Wal,
    client: ClientKey,
    now: Time,
    made: MadeLog,
}

impl MadeLog {
    /// Writes a log by the steps of the input.
    pub fn write(input: &mut Input<'_>) -> Self {
        let durability =
            input.pick(&[Durability::Always, Durability::Within(Span::from_millis(50)), Durability::Never]);
        let keep_reservations = input.pick(&[false, true]);
        let mut writer = Writer::new(WalConfig {
            durability,
            segment_bytes: SEGMENT_BYTES,
            destination: Destination::Directory,
            keep_reservations,
        });
        for _ in 0..input.below(STEPS_MAX) {
            writer.step(input);
        }
        writer.finish()
    }
}

impl Writer {
    fn new(config: WalConfig) -> Self {
        let mut engine = Engine::new(0);
        let (log, files) = begin(config, &mut engine);
        engine.record_changes(true);
        engine.keep_reservations(config.keep_reservations);
        let client = engine.connect(ConnId { slot: 0, generation: 1 });
        let made = MadeLog {
            files,
            jobs: Jobs::new(),
            kept_keys: KeptKeys::new(),
            bodies: BTreeMap::new(),
            now: BEGIN,
        };
        Self { engine, log, client, now: BEGIN, made }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let (now, client) = (self.now, self.client);
        let what = input.byte();
        let id = JobId(1 + input.below(64) as u64);
        match what & 0x0f {
            0 => self.put(input, true),
            1..5 => self.put(input, false),
            5 | 6 => _ = self.engine.delete(client, id, now),
            7 if what & 0x20 == 0 => _ = self.engine.reserve_job(client, id, now),
            7 => _ = self.engine.touch(client, id, now),
            8 => _ = self.engine.bury(client, id, u32::from(input.byte()), now),
            9 => {
                let delay = input.pick(&DELAYS);
                self.engine.release(client, id, u32::from(input.byte()), delay, now);
            }
            10 => _ = self.engine.kick_job(id, now),
            11 => {
                let length = Span::from_secs(input.pick(&[0, 1, 100, u32::MAX]));
                self.engine.pause(tube(input), length, now);
            }
            12 => self.engine.use_tube(client, tube(input)),
            13 => _ = self.engine.kick(client, u32::from(input.byte()), now),
            14 => {
                self.now = now + Span::from_millis(u32::from(input.half()));
                self.work_off();
            }
            _ => self.flood(input),
        }
        self.record();
        if what & 0x10 == 0 {
            self.use_disk();
        }
    }

    /// Works as the server does before it serves a command.
    fn record(&mut self) {
        self.log.record(&mut self.engine, self.now);
        self.log.compact(&self.engine, self.now);
        for round in 0.. {
            assert!(round < 10_000, "the log never catches up");
            if !self.log.must_wait() {
                break;
            }
            self.use_disk();
            self.log.compact(&self.engine, self.now);
        }
    }

    fn put(&mut self, input: &mut Input<'_>, has_key: bool) {
        let bytes = input.pick(&[0, 5, 40, 300, 1_000, 4_000, 9_000, 30_000]);
        let (pri, delay) = (u32::from(input.byte()), input.pick(&DELAYS));
        let tags = format!("idp:k{}:{}", bytes / 1_000, delay.as_whole());
        self.put_one(bytes, pri, delay, if has_key { &tags } else { "" });
    }

    /// Puts many jobs of one size, and deletes most of those before them.
    fn flood(&mut self, input: &mut Input<'_>) {
        let bytes = input.pick(&[20, 200, 2_000]);
        for number in 0..40 {
            let tags = format!("idp:flood-{number}:1000");
            self.put_one(bytes, number, Seconds::ZERO, if number % 3 == 0 { &tags } else { "" });
            self.record();
            let last = self.engine.upcoming_id().0;
            if number % 4 > 0 {
                let id = JobId(last.saturating_sub(1 + u64::from(number)));
                self.engine.delete(self.client, id, self.now);
            }
            self.record();
        }
    }

    fn put_one(&mut self, bytes: usize, pri: u32, delay: Seconds, tags: &str) {
        let tube_bytes = self.engine.used(self.client).name().as_bytes().len();
        let tags = Tags::new(tags.as_bytes()).unwrap_or(Tags::NONE);
        let space = self.log.space_for_put(tube_bytes, tags, bytes + 2);
        self.record();
        if space == PutSpace::Unavailable {
            return;
        }
        let id = self.engine.next_id();
        let tags_key = self.engine.store_tags(tags);
        if tags_key.is_some_and(|tags_key| self.engine.repeat(self.client, tags_key, pri, self.now).is_some())
        {
            return self.engine.free_tags(tags_key);
        }
        let body = [filler(id.0, bytes), b"\r\n".to_vec()].concat();
        let slot = store(&mut self.engine, &body);
        let ttr = Seconds::new(60, (bytes % 1000) as u16).expect("it is below a second");
        self.engine.put(self.client, NewJob { id, pri, delay, ttr, body: slot, tags_key }, self.now);
        self.made.bodies.insert(id.0, body);
    }

    fn work_off(&mut self) {
        while self.engine.next_deadline().is_some_and(|due| due <= self.now) {
            self.engine.step(self.now);
            self.record();
        }
    }

    /// Carries out all operations of the log.
    fn use_disk(&mut self) {
        loop {
            self.log.close_when_idle(&self.engine, self.now);
            let Some(operation) = self.log.next_operation(self.now) else { break };
            let outcome = carry_out(operation, &mut self.made.files);
            self.log.complete(outcome, self.now);
        }
        self.log.check();
    }

    fn finish(mut self) -> MadeLog {
        if !self.engine.keeps_reservations() {
            self.engine.disconnect(self.client, self.now);
        }
        self.work_off();
        self.record();
        self.log.stop();
        self.use_disk();
        assert!(self.log.is_settled(), "everything is written");
        self.engine.check();
        let (jobs, kept_keys) = (jobs_of(&self.engine), kept_keys_of(&self.engine));
        MadeLog { jobs, kept_keys, now: self.now, ..self.made }
    }
}

fn arrange(files: &mut Files, arrangement: Arrangement) {
    match arrangement {
        Arrangement::Create { segment, bytes } => {
            assert!(files.insert(segment, vec![0; bytes as usize]).is_none(), "a segment is made once");
        }
        Arrangement::Recycle { from, to } => {
            let file = files.remove(&from).expect("it is there");
            assert!(files.insert(to, file).is_none(), "its new name is new");
        }
        Arrangement::Remove(segment) => assert!(files.remove(&segment).is_some(), "it is there"),
        Arrangement::MarkEnd(_) => {}
    }
}

fn store(engine: &mut Engine, body: &[u8]) -> Slot {
    let bodies = engine.bodies_mut();
    let mut slot = bodies.allocate(body.len() as u32).expect("memory");
    bodies.bytes_mut(&mut slot).copy_from_slice(body);
    slot
}

fn tube(input: &mut Input<'_>) -> TubeName<'static> {
    TubeName::new(input.pick(&TUBES).as_bytes()).expect("it is a name")
}

// Forged logs.

/// Makes segments with valid checksums around any content.
pub fn forge(input: &mut Input<'_>) -> Files {
    let mut files = Files::new();
    let mut number = SegmentNumber(u64::from(input.byte()));
    let mut end = Lsn(0);
    for _ in 0..1 + input.below(3) {
        number = SegmentNumber(if input.byte() == 0xff { input.word() } else { number.0.wrapping_add(1) });
        let previous = SegmentNumber(number.0.wrapping_sub(any(input, 0).wrapping_add(1)));
        let first = if input.byte() == 0xff { Lsn(input.word()) } else { end };
        let oldest = SegmentNumber(any(input, 0));
        let next_id = JobId(any(input, 1));
        let format = input.pick(&[FORMAT, FORMAT_WITH_RESERVATIONS]);
        let header = Header { format, log_id: LOG_ID, number, first, next_id, oldest, previous };
        let mut batch = Batch::default();
        header.encode(&mut batch);
        end = first;
        for _ in 0..input.below(32) {
            if input.is_empty() {
                break;
            }
            let durable = Lsn(any(input, 0));
            forge_record(input, &Stamp { seed: header.seed(), at: end, durable }, &mut batch);
            end = Lsn(first.0.wrapping_add(batch.len() as u64 - HEADER_BYTES));
        }
        batch.pad_to(SEGMENT_BYTES as usize);
        files.insert(number, batch.bytes().to_vec());
    }
    files
}

/// Returns a small number most of the time, else any number.
fn any(input: &mut Input<'_>, usual: u64) -> u64 {
    match input.byte() {
        0xff => input.word(),
        byte => usual + u64::from(byte % 16),
    }
}

fn forge_record(input: &mut Input<'_>, stamp: &Stamp, batch: &mut Batch) {
    let begin = batch.len();
    let what = input.byte();
    let id = JobId(any(input, 1));
    let pick_tube = tube(input);
    match what & 0x0f {
        0..3 => {
            let body = match input.byte() {
                0xff => Vec::new(),
                0xfe => filler(id.0, 2),
                byte => [filler(id.0, usize::from(byte)), b"\r\n".to_vec()].concat(),
            };
            let (created, ttr) = (Time::from_nanos(1 + (any(input, 0) >> 1)), forge_seconds(input));
            let state = forge_state(input);
            let tags = if what & 0x10 > 0 { Tags::new(b"aft:g grp:h idp:k:60") } else { None };
            let tags = tags.unwrap_or(Tags::NONE);
            let text = filler(id.0, usize::from(what >> 5));
            let note = (what & 0x20 > 0).then_some(Note { at: created, text: &text });
            let notes = Notes::new(note.into_iter());
            let job = JobRecord { id, created, ttr, tube: pick_tube, tags, notes, state, body: &body };
            if what & 0xb0 == 0x80 {
                Record::Run(Box::new(JobOfRun { job, run: forge_run(input) })).encode(stamp, batch);
            } else {
                Record::Job(job).encode(stamp, batch);
            }
        }
        3 => Record::Change { id, state: forge_state(input) }.encode(stamp, batch),
        4 if what & 0x10 > 0 => {
            let key = TubeName::new(b"k").expect("it is a name");
            let until = Time::from_nanos(BEGIN.as_nanos().wrapping_add(u64::from(what) << 24));
            Record::KeptKey(KeptKey { id, tube: pick_tube, key, until, ttl: 60 }).encode(stamp, batch);
        }
        4 => Record::Deleted(id).encode(stamp, batch),
        5 => {
            let (until, length) = (Time::from_nanos(input.word()), Span::from_nanos(any(input, 0)));
            Record::Paused(PauseRecord { tube: pick_tube, until, length }).encode(stamp, batch);
        }
        6 => Record::Oldest(SegmentNumber(any(input, 0))).encode(stamp, batch),
        7 => {
            let text = filler(id.0, usize::from(input.byte()));
            let note = Note { at: Time::from_nanos(any(input, 0) >> 1), text: &text };
            Record::Noted { id, note }.encode(stamp, batch);
        }
        8 => Record::Moved { id, state: forge_state(input), tube: pick_tube }.encode(stamp, batch),
        9 => {
            let ProgressRecord { schedule: name, progress } = forge_run(input);
            let when = input.pick(&["every:1", "0 3 * * *", "30 2 * * * Europe/Berlin", "*/5 * * * *"]);
            let when = When::restore(when).expect("a line");
            let (delay, ttr) = (forge_seconds(input), forge_seconds(input));
            let missed = input.pick(&Missed::ALL);
            let text = filler(id.0, usize::from(input.byte()));
            let body = [&text[..], b"\r\n"].concat();
            Record::Schedule(Box::new(LoggedSchedule {
                name,
                tube: pick_tube,
                plan: Plan { when, pri: id.0 as u32, delay, ttr, missed, overlaps: what & 0x20 > 0 },
                is_configured: what & 0x40 > 0,
                created: Time::from_nanos(any(input, 0)),
                progress,
                body: &body,
            }))
            .encode(stamp, batch);
        }
        10 => Record::ScheduleGone(pick_tube).encode(stamp, batch),
        11 => Record::Progress(forge_run(input)).encode(stamp, batch),
        _ => Record::Padding(32 + 8 * usize::from(input.byte())).encode(stamp, batch),
    }
    if what & 0x10 > 0 {
        change_payload(input, stamp.seed, &mut batch.bytes_mut()[begin..]);
    }
}

fn forge_run(input: &mut Input<'_>) -> ProgressRecord<'static> {
    let schedule = tube(input);
    let progress = Progress {
        handled: Time::from_nanos(any(input, 0)),
        job: JobId(any(input, 0)),
        caught_up: input.byte(),
        ..Progress::default()
    };
    ProgressRecord { schedule, progress }
}

fn forge_state(input: &mut Input<'_>) -> PersistedState {
    let counts = Counts { reserves: any(input, 0) as u32, ..Counts::default() };
    let state = match input.below(4) {
        0 => LoggedState::Ready,
        1 => LoggedState::Delayed(Time::from_nanos(any(input, 0) >> 1)),
        2 => LoggedState::Held(Time::from_nanos(any(input, 0) >> 1)),
        3 => LoggedState::Reserved(Time::from_nanos(any(input, 0) >> 1)),
        _ => LoggedState::Buried(any(input, 0)),
    };
    PersistedState { pri: u32::from(input.byte()), delay: forge_seconds(input), state, counts }
}

fn forge_seconds(input: &mut Input<'_>) -> Seconds {
    let any = any(input, 0);
    Seconds::new(any as u32, (any >> 32) as u16 % 1000).expect("it is below a second")
}

/// Changes the kind of a record or some of its payload, and recomputes its checksum.
fn change_payload(input: &mut Input<'_>, seed: u32, record: &mut [u8]) {
    let payload = u32::from_le_bytes(record[4..8].try_into().expect("four bytes")) as usize;
    match input.below(payload + 1) {
        0 => record[24] = input.byte(),
        at => record[31 + at] = input.byte(),
    }
    let crc = crc32c::crc32c_append(seed, &record[4..32 + payload]);
    record[..4].copy_from_slice(&crc.to_le_bytes());
}

// Damage.

/// Damages the files as disks and people do. No written value is the input's own, so that the fuzzer cannot find out
/// checksums.
pub fn damage(input: &mut Input<'_>, files: &mut Files) {
    while !input.is_empty() && !files.is_empty() {
        let what = input.byte();
        let number = *files.keys().nth(input.below(files.len())).expect("the index is in range");
        let file = files.get_mut(&number).expect("it is there");
        let at = usize::from(input.half()).min(file.len().saturating_sub(1));
        let end = (at + [1, 8, 100, 4096][usize::from(what >> 6)]).min(file.len());
        match what & 0x0f {
            0..4 if at < file.len() => file[at] ^= 1 << ((what >> 4) & 7),
            4 => file[at..end].fill(0),
            5 => file[at..end].copy_from_slice(&filler(u64::from(what), end - at)),
            6 => {
                let to = usize::from(input.half()).min(file.len() - (end - at));
                file.copy_within(at..end, to);
            }
            7 => file.truncate(at),
            8 => file.extend(vec![0; end - at]),
            9 => file[at..].fill(0),
            10 => _ = files.remove(&number),
            11 => {
                let other = *files.keys().nth(input.below(files.len())).expect("the index is in range");
                let copy = files[&number].clone();
                let of_other = files.insert(other, copy).expect("it was there");
                files.insert(number, of_other);
            }
            12 => {
                let last = *files.keys().next_back().expect("there are some");
                let file = files.remove(&number).expect("it is there");
                files.insert(SegmentNumber(last.0.saturating_add(1)), file);
            }
            13 => {
                let other = *files.keys().nth(input.below(files.len())).expect("the index is in range");
                let piece = files[&number][at..end].to_vec();
                let other = files.get_mut(&other).expect("it is there");
                let end = (at + piece.len()).min(other.len());
                let length = end.saturating_sub(at);
                other[end - length..end].copy_from_slice(&piece[..length]);
            }
            _ => file[at..end].reverse(),
        }
    }
}
