//! A small job log, cut at every byte and with every bit flipped: recovery returns the jobs before the damage, or refuses
//! the log.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use beanring::io::driver::Driver;
use beanring::io::wal_files::offline;
use beanring::io::wal_files::{Directory, RecoveryError, Unrecorded, recover};
use beanring::queue::{Counts, Engine, JobState, LoggedState, PersistedState};
use beanring::time::{Seconds, Time};
use beanring::values::ids::{ClientKey, ConnId, JobId};
use beanring::values::limits::BURIALS_MAX;
use beanring::values::notes::Notes;
use beanring::values::tags::Tags;
use beanring::values::tube_name::TubeName;
use beanring::wal::batch::{BLOCK_BYTES, Batch};
use beanring::wal::record::{JobRecord, Lsn, Record, Stamp};
use beanring::wal::segment::{FORMAT, FORMAT_MIN, FORMAT_WITH_RESERVATIONS, Header};
use beanring::wal::{
    Destination, DiskOperation, DiskOutcome, Durability, PutSpace, SegmentNumber, Wal, WalConfig,
};
use beanring_testkit::client::{put, start};
use beanring_testkit::scratch::Scratch;

use super::common::{FIRST as FILE, change, change_header, put_job};

const SEGMENT_BYTES: u64 = 5 * BLOCK_BYTES as u64;
const CONFIG: WalConfig = WalConfig {
    durability: Durability::Always,
    segment_bytes: SEGMENT_BYTES,
    destination: Destination::Directory,
    keep_reservations: false,
};
const NOW: Time = Time::from_nanos(1_000_000_000);
/// The kind of a padding record.
const PADDING: u8 = 6;
const NEXT_FILE: &str = "log.0000000000000002";

/// Bodies by id.
type Jobs = BTreeMap<u64, Vec<u8>>;

/// A record, parsed as docs/internals/LOG.md describes the format and without the code of the server.
struct Frame {
    at: usize,
    /// The offset behind the payload.
    end: usize,
    /// The offset behind the zeros that follow the payload.
    padded_end: usize,
    position: u64,
    durable: u64,
    is_padding: bool,
}

/// Recovers the log, and begins to record changes.
fn open(dir: &Path, engine: &mut Engine) -> (Wal, Directory) {
    let directory = Directory::open(dir, false).expect("the lock is free");
    let log = recover(&directory, CONFIG, engine, NOW).unwrap_or_else(|error| panic!("{error}"));
    engine.record_changes(true);
    (log, directory)
}

fn connect(engine: &mut Engine) -> ClientKey {
    engine.connect(ConnId { slot: 0, generation: 1 })
}

/// Returns the jobs that recovery finds.
fn jobs_of(dir: &Path) -> Result<Jobs, RecoveryError> {
    let directory = Directory::open(dir, false).expect("the lock is free");
    let mut engine = Engine::new(0);
    recover(&directory, CONFIG, &mut engine, NOW)?;
    engine.check();
    Ok(engine.jobs().iter().map(|(key, job)| (job.id.0, engine.body(key).to_vec())).collect())
}

/// Writes a log of several batches. Returns its bytes, and the jobs after each of its records.
fn written(scratch: &Scratch) -> (Vec<u8>, Vec<Jobs>) {
    let mut engine = Engine::new(0);
    let (mut log, _directory) = open(&scratch.0, &mut engine);
    let client = connect(&mut engine);
    let (mut jobs, mut after) = (Jobs::new(), vec![Jobs::new()]);
    for step in 0..9_u8 {
        if step % 4 == 3 {
            let (id, _) = jobs.pop_first().expect("there are jobs");
            assert!(engine.delete(client, JobId(id), NOW));
        } else {
            let body = [vec![b'a' + step; 5 + 7 * usize::from(step)], b"\r\n".to_vec()].concat();
            jobs.insert(put_job(&mut engine, client, &body, "", NOW).0, body);
        }
        after.push(jobs.clone());
        log.record(&mut engine, NOW);
        if step % 3 == 2 {
            write(&mut log, scratch);
        }
    }
    log.check();
    (fs::read(scratch.join(FILE)).expect("a segment"), after)
}

/// The state of a job that was just put.
fn ready() -> PersistedState {
    PersistedState { pri: 0, delay: Seconds::ZERO, state: LoggedState::Ready, counts: Counts::default() }
}

/// Does the writes that the WAL asks for, and no other operation.
fn write(log: &mut Wal, scratch: &Scratch) {
    while let Some(operation) = log.next_operation(NOW) {
        if let DiskOperation::Write { segment, offset, batch, .. } = operation {
            let place = offset as usize..offset as usize + batch.len();
            let file = scratch.join(&segment.to_string());
            change(&file, |bytes| bytes[place].copy_from_slice(batch.bytes()));
            log.complete(DiskOutcome::Written(batch, Ok(())), NOW);
        }
    }
}

/// Removes all files.
fn empty(scratch: &Scratch) {
    fs::remove_dir_all(&scratch.0).expect("the directory is there");
    fs::create_dir(&scratch.0).expect("the directory is gone");
}

/// Starts from the log and puts a job. Returns its id.
fn put_new(scratch: &Scratch) -> JobId {
    let mut engine = Engine::new(0);
    let (mut log, _directory) = open(&scratch.0, &mut engine);
    let client = connect(&mut engine);
    let id = put_job(&mut engine, client, b"new\r\n", "", NOW);
    log.record(&mut engine, NOW);
    write(&mut log, scratch);
    id
}

fn frames(bytes: &[u8]) -> Vec<Frame> {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let mut frames: Vec<Frame> = Vec::new();
    let mut at = BLOCK_BYTES;
    while at < bytes.len() {
        let payload = (word(at) >> 32) as usize;
        if bytes[at + 24] == 0 {
            break;
        }
        let (end, padded_end) = (at + 32 + payload, (at + 32 + payload).next_multiple_of(8));
        let (position, durable) = (word(at + 8), word(at + 16));
        frames.push(Frame { at, end, padded_end, position, durable, is_padding: bytes[at + 24] == PADDING });
        at = padded_end;
    }
    frames
}

/// The number of records about jobs.
fn steps(frames: &[Frame]) -> usize {
    frames.iter().filter(|frame| !frame.is_padding).count()
}

/// Whether a byte belongs to padding behind its first bytes: it is large and all zeros.
fn is_filler(frames: &[Frame], at: usize) -> bool {
    frames.iter().any(|frame| frame.is_padding && (frame.at + 40..frame.end).contains(&at))
}

/// Returns whether the job is there and held, after everything that is due.
fn is_held(engine: &mut Engine, id: JobId) -> bool {
    while engine.step(NOW) {}
    engine.check();
    let job = engine.jobs().find(id);
    job.is_some_and(|job| engine.jobs().get(job).state == JobState::Held)
}

/// The log may end between the last deletion of a group and the record of its end.
#[test]
fn a_log_cut_anywhere_releases_a_job_once() {
    let scratch = Scratch::in_memory("damage-group");
    let mut engine = Engine::new(0);
    let (mut log, _) = open(&scratch.0, &mut engine);
    let client = connect(&mut engine);
    let member = put_job(&mut engine, client, b"x\r\n", "grp:parts", NOW);
    log.record(&mut engine, NOW);
    let held = put_job(&mut engine, client, b"x\r\n", "aft:parts", NOW);
    log.record(&mut engine, NOW);
    assert!(engine.delete(client, member, NOW));
    log.record(&mut engine, NOW);
    write(&mut log, &scratch);
    let bytes = fs::read(scratch.join(FILE)).expect("a segment");
    let frames = frames(&bytes);
    let end = frames.last().expect("there are some").padded_end;
    let mut released = 0;
    let zeros = vec![0; bytes.len()];
    // A segment has its full size from the beginning, and zeros where nothing was written. A copy may lack them.
    let cuts = (BLOCK_BYTES..=end).filter(|&length| length % 64 == 0 || !is_filler(&frames, length));
    for (length, size) in cuts.flat_map(|length| [(length, length), (length, bytes.len())]) {
        empty(&scratch);
        let torn = [&bytes[..length], &zeros[length..size]].concat();
        fs::write(scratch.join(FILE), torn).expect("a segment");
        let mut engine = Engine::new(0);
        let (mut log, directory) = open(&scratch.0, &mut engine);
        if engine.jobs().find(held).is_none() {
            continue;
        }
        let was_held = is_held(&mut engine, held);
        assert_eq!(was_held, engine.jobs().find(member).is_some(), "cut at {length} of {size}");
        // Another group begins.
        let client = connect(&mut engine);
        put_job(&mut engine, client, b"x\r\n", "grp:parts", NOW);
        log.record(&mut engine, NOW);
        write(&mut log, &scratch);
        drop((log, directory));
        let mut engine = Engine::new(0);
        open(&scratch.0, &mut engine);
        assert_eq!(is_held(&mut engine, held), was_held, "cut at {length} of {size}, next start");
        released += usize::from(!was_held);
    }
    assert!(released > 0, "some cuts come behind the deletion");
}

#[test]
fn a_log_cut_anywhere_recovers_what_is_before() {
    let scratch = Scratch::in_memory("damage-cut");
    let (bytes, after) = written(&scratch);
    let frames = frames(&bytes);
    assert_eq!(steps(&frames) + 1, after.len(), "a record for each step");
    assert!(steps(&frames) < frames.len(), "there is padding");
    assert_eq!(&jobs_of(&scratch.0).expect("nothing is wrong"), after.last().expect("steps"));
    let end = frames.last().expect("there are some").padded_end;
    for length in (BLOCK_BYTES..=end).filter(|&length| length % 64 == 0 || !is_filler(&frames, length)) {
        empty(&scratch);
        fs::write(scratch.join(FILE), &bytes[..length]).expect("a segment");
        let lacks_zeros = |frame: &&Frame| {
            bytes[length.min(frame.padded_end)..frame.padded_end].iter().all(|&byte| byte == 0)
        };
        let whole = frames.iter().take_while(lacks_zeros).count();
        let found = jobs_of(&scratch.0).unwrap_or_else(|error| panic!("cut at {length}: {error}"));
        let mut expected = after[steps(&frames[..whole])].clone();
        assert_eq!(found, expected, "cut at {length}");
        // The log goes on in the next file, which the first must not contradict.
        let id = put_new(&scratch);
        expected.insert(id.0, b"new\r\n".to_vec());
        let found =
            jobs_of(&scratch.0).unwrap_or_else(|error| panic!("cut at {length}, next start: {error}"));
        assert_eq!(found, expected, "cut at {length}, next start");
    }
}

#[test]
fn a_flipped_bit_is_noticed() {
    let scratch = Scratch::in_memory("damage-flip");
    let (bytes, after) = written(&scratch);
    let frames = frames(&bytes);
    let (mut refused, mut shortened) = (0, 0);
    let records = frames.iter().flat_map(|frame| frame.at..frame.padded_end);
    for at in (0..76).chain(records) {
        // Without optimization a test of all bits takes minutes.
        let is_filler = is_filler(&frames, at);
        let is_tested = |&bit: &usize| match is_filler {
            true => at % 16 == 2 * bit,
            false => !cfg!(debug_assertions) || bit == at % 8,
        };
        for bit in (0..8).filter(is_tested) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            fs::write(scratch.join(FILE), damaged).expect("a segment");
            let found = jobs_of(&scratch.0);
            let Some(hit) = frames.iter().position(|frame| (frame.at..frame.padded_end).contains(&at)) else {
                assert!(
                    matches!(found, Err(RecoveryError::Damaged { offset: 0, .. })),
                    "byte {at} of the header"
                );
                continue;
            };
            let proven = frames[hit + 1..].iter().any(|later| later.durable > frames[hit].position);
            let expected = if at < frames[hit].end { hit } else { frames.len() };
            match found {
                Err(RecoveryError::Damaged { file, offset }) => {
                    assert!(
                        proven && file == FILE && offset as usize == frames[hit].at,
                        "{at}: {file}:{offset}"
                    );
                    refused += 1;
                }
                Err(error) => panic!("byte {at}: {error}"),
                Ok(found) => {
                    assert!(!proven || at >= frames[hit].end, "byte {at} was durable");
                    assert_eq!(found, after[steps(&frames[..expected])], "byte {at}, bit {bit}");
                    shortened += 1;
                }
            }
        }
    }
    assert!(refused > 200 && shortened > 200, "{refused} refused, {shortened} shortened");
}

/// A header whose oldest segment is the first.
fn header(number: u64, first: u64) -> Header {
    let (number, first, previous) = (SegmentNumber(number), Lsn(first), SegmentNumber(number - 1));
    Header { format: FORMAT, log_id: 7, number, first, next_id: JobId(5), oldest: SegmentNumber(1), previous }
}

/// Writes a segment with this header and these records into the file of this number.
fn write_segment(scratch: &Scratch, file: u64, header: &Header, records: &[Record<'_>], bytes: u64) {
    let mut batch = Batch::default();
    header.encode(&mut batch);
    let mut at = header.first;
    for record in records {
        record.encode(&Stamp { seed: header.seed(), at, durable: Lsn(0) }, &mut batch);
        at.0 += record.bytes() as u64;
    }
    batch.pad_to(bytes as usize);
    fs::write(scratch.0.join(SegmentNumber(file).to_string()), batch.bytes()).expect("a segment");
}

/// On a full disk only the new name of a recycled file shows that its old segment is not needed.
#[test]
fn a_recycled_first_file_is_not_missing() {
    for (bytes, is_torn) in [(SEGMENT_BYTES, false), (2 * SEGMENT_BYTES, false), (SEGMENT_BYTES, true)] {
        let scratch = Scratch::in_memory(&format!("damage-renamed-{bytes}-{is_torn}"));
        write_segment(&scratch, 2, &header(2, 0), &[], bytes);
        if is_torn {
            write_segment(&scratch, 3, &header(3, 640), &[], bytes);
        }
        write_segment(&scratch, 4, &header(1, 0), &[], bytes);
        // Servers that end before they write anything.
        for start in 1..4 {
            let found = jobs_of(&scratch.0);
            assert!(found.is_ok_and(|jobs| jobs.is_empty()), "start {start} of {bytes}, {is_torn}");
        }
    }
}

fn job(id: u64) -> JobRecord<'static> {
    let (ttr, tube) = (Seconds::whole(60), TubeName::DEFAULT);
    let (tags, notes) = (Tags::NONE, Notes::NONE);
    JobRecord { id: JobId(id), created: NOW, ttr, tube, tags, notes, state: ready(), body: b"body\r\n" }
}

/// A checksum does not prove that a server wrote the record.
#[test]
fn impossible_jobs_are_not_read() {
    let buried = |order| PersistedState { state: LoggedState::Buried(order), ..ready() };
    let impossible = [
        Record::Job(job(0)),
        Record::Job(job(u64::MAX)),
        Record::Job(JobRecord { ttr: Seconds::ZERO, ..job(2) }),
        Record::Job(JobRecord { created: Time::ZERO, ..job(2) }),
        Record::Job(JobRecord { body: b"", ..job(2) }),
        Record::Job(JobRecord { body: b"no end", ..job(2) }),
        Record::Job(JobRecord { state: buried(u64::MAX), ..job(2) }),
        Record::Change { id: JobId(1), state: buried(u64::MAX) },
    ];
    let scratch = Scratch::in_memory("damage-impossible");
    for record in impossible {
        let records = [Record::Job(job(1)), record];
        write_segment(&scratch, 1, &header(1, 0), &records, SEGMENT_BYTES);
        let expected = Jobs::from([(1, b"body\r\n".to_vec())]);
        assert_eq!(jobs_of(&scratch.0).expect("nothing is proven"), expected, "{records:?}");
    }
}

/// A change of a job of which nothing else is there.
#[test]
fn changes_of_jobs_that_are_missing_are_reported() {
    let scratch = Scratch::in_memory("damage-unrecorded");
    let change = |id| Record::Change { id: JobId(id), state: ready() };
    write_segment(&scratch, 1, &header(1, 0), &[change(2), change(4), Record::Job(job(4))], SEGMENT_BYTES);
    let verdict = offline::check(&scratch.0, NOW).expect("it is read");
    let expected = Unrecorded { first: JobId(2), jobs: 1 };
    assert_eq!(verdict.unrecorded, Some(expected), "compaction has appended job 4 behind its change");
    let to = Scratch::in_memory("damage-unrecorded-to");
    let salvaged = offline::salvage(&scratch.0, &to.0, NOW).expect("it is read");
    assert_eq!(salvaged.lost, [(2, 2)]);
}

#[test]
fn ids_that_could_run_out_are_refused() {
    let most = JobId::START_MAX;
    for (id, is_refused) in [(most, false), (JobId(most.0 + 1), true), (JobId::LAST, true)] {
        let next_id = JobId(id.0 + 1);
        let headers = [header(1, 0), Header { next_id, ..header(1, 0) }];
        for (header, records) in headers.iter().zip([&[Record::Job(job(id.0))][..], &[]]) {
            let scratch = Scratch::in_memory("damage-ids");
            write_segment(&scratch, 1, header, records, SEGMENT_BYTES);
            match jobs_of(&scratch.0) {
                Err(error @ RecoveryError::Id { .. }) if is_refused => {
                    let message = error.to_string();
                    assert!(message.contains(FILE) && message.contains(&id.to_string()), "{message}");
                }
                found => assert!(!is_refused && found.is_ok(), "{id}"),
            }
        }
    }
}

/// A log with numbers at their limits: what a server acknowledges, the next one has.
#[test]
fn a_server_writes_nothing_that_the_next_one_refuses() {
    let last = SegmentNumber::LAST.0;
    let buried = PersistedState { state: LoggedState::Buried(BURIALS_MAX), ..ready() };
    let logs = [
        ("an id", header(1, 0), Record::Job(job(JobId::START_MAX.0)), 0),
        ("a burial", header(1, 0), Record::Job(JobRecord { state: buried, ..job(1) }), 5),
        ("a segment", Header { previous: SegmentNumber(0), ..header(last, 0) }, Record::Job(job(1)), 1),
        ("a position", header(1, Lsn::LAST.0), Record::Job(job(1)), 1),
    ];
    // Files of another size are not continued: the server begins the next segment.
    let sizes = |(what, header, record, puts_min)| {
        [(what, header, record, puts_min, 1), ("the next of a segment", header, Record::Job(job(1)), 0, 2)]
    };
    for (what, header, record, puts_min, size) in logs.into_iter().flat_map(sizes) {
        let scratch = Scratch::in_memory("damage-edge");
        write_segment(&scratch, header.number.0, &header, &[record], size * SEGMENT_BYTES);
        let acknowledged = after_puts(&scratch, 300);
        assert!(acknowledged.len() > puts_min, "{what}: {} jobs", acknowledged.len());
        for start in ["next", "second"] {
            let found = jobs_of(&scratch.0).unwrap_or_else(|error| panic!("{what}, {start} start: {error}"));
            assert_eq!(found, acknowledged, "{what}, {start} start");
        }
    }
}

/// The failure comes without an operation of the disk, and no client waits for a reply.
#[test]
fn a_server_ends_at_the_largest_position() {
    let scratch = Scratch::in_memory("damage-largest");
    write_segment(&scratch, 1, &header(1, Lsn::LAST.0), &[Record::Job(job(1))], 65_536);
    let (mut server, mut client) =
        start(&scratch.0, Driver::Epoll, &["-s", "65536", "-z", "20000", "-f", "0"]);
    let command = put(0, 0, &"x".repeat(20_000));
    let mut puts = 0;
    loop {
        client.send(&command);
        match client.reply() {
            Some((line, _)) if line.starts_with("INSERTED ") => puts += 1,
            end => break assert!(end.is_none_or(|(line, _)| line == "INTERNAL_ERROR")),
        }
    }
    assert!((1..10).contains(&puts), "{puts} puts");
    assert_eq!(server.wait(), Some(1));
    let (mut server, mut client) =
        start(&scratch.0, Driver::Epoll, &["-s", "65536", "-z", "20000", "-f", "0"]);
    assert_eq!(client.stat("current-jobs-ready"), puts + 1);
    server.kill();
}

/// Starts from a log, and puts and buries jobs as long as it accepts any. Returns the acknowledged jobs.
fn after_puts(scratch: &Scratch, puts: usize) -> Jobs {
    let mut engine = Engine::new(0);
    let (mut log, directory) = open(&scratch.0, &mut engine);
    let client = connect(&mut engine);
    let jobs = |engine: &Engine| {
        engine.jobs().iter().map(|(key, job)| (job.id.0, engine.body(key).to_vec())).collect::<Jobs>()
    };
    let mut acknowledged = jobs(&engine);
    for _ in 0..=puts {
        carry_out_all(&mut log, &directory, scratch);
        if log.failure().is_some() {
            break;
        }
        acknowledged = jobs(&engine);
        if log.space_for_put(7, Tags::NONE, 3) == PutSpace::Available {
            let id = put_job(&mut engine, client, b"x\r\n", "", NOW);
            assert!(engine.reserve_job(client, id, NOW).is_some() && engine.bury(client, id, 0, NOW));
        }
        log.record(&mut engine, NOW);
    }
    acknowledged
}

/// Does all that the WAL asks for.
fn carry_out_all(log: &mut Wal, directory: &Directory, scratch: &Scratch) {
    while let Some(operation) = log.next_operation(NOW) {
        let outcome = match operation {
            DiskOperation::Write { segment, offset, batch, .. } => {
                let place = offset as usize..offset as usize + batch.len();
                change(&scratch.join(&segment.to_string()), |bytes| {
                    bytes[place].copy_from_slice(batch.bytes())
                });
                DiskOutcome::Written(batch, Ok(()))
            }
            DiskOperation::Sync(_) => DiskOutcome::Synced(Ok(())),
            DiskOperation::Arrange(arrangement) => {
                DiskOutcome::Arranged(arrangement, directory.arrange(arrangement))
            }
        };
        log.complete(outcome, NOW);
    }
}

/// A file without a header, whose first record has a position from which no segment can begin.
#[test]
fn an_impossible_position_begins_no_segment() {
    let scratch = Scratch::in_memory("damage-position");
    for at in [Lsn(u64::MAX - 7), Lsn(Lsn::LAST.0 + 1)] {
        write_segment(&scratch, 1, &header(1, 0), &[Record::Job(job(1))], SEGMENT_BYTES);
        let mut batch = Batch::default();
        batch.pad_to(BLOCK_BYTES);
        let seed = header(2, 0).seed();
        Record::Deleted(JobId(1)).encode(&Stamp { seed, at, durable: Lsn(0) }, &mut batch);
        batch.pad_to(SEGMENT_BYTES as usize);
        fs::write(scratch.join(NEXT_FILE), batch.bytes()).expect("there is memory");
        assert!(offline::check(&scratch.0, NOW).is_ok(), "{at:?}");
        assert_eq!(jobs_of(&scratch.0).expect("it is no segment").len(), 1, "{at:?}");
    }
}

/// A forged record in a full segment, which says that more was durable than there is.
#[test]
fn a_proof_of_nothing_is_refused() {
    for bytes in [SEGMENT_BYTES, BLOCK_BYTES as u64 + 40] {
        let scratch = Scratch::in_memory("damage-proof");
        let mut batch = Batch::default();
        let header = header(1, 0);
        header.encode(&mut batch);
        let stamp = Stamp { seed: header.seed(), at: header.first, durable: Lsn(1 << 40) };
        Record::Deleted(JobId(1)).encode(&stamp, &mut batch);
        let mut file = batch.bytes().to_vec();
        file.resize(bytes as usize, 0);
        fs::write(scratch.join(FILE), file).expect("there is memory");
        assert!(matches!(jobs_of(&scratch.0), Err(RecoveryError::Damaged { .. })), "{bytes}");
        assert!(offline::check(&scratch.0, NOW).expect("it is read").outlook.refusal.is_some(), "{bytes}");
    }
}

#[test]
fn impossible_headers_are_refused() {
    let impossible = [
        Header { first: Lsn(u64::MAX), ..header(1, 0) },
        Header { next_id: JobId(u64::MAX), ..header(1, 0) },
        Header { number: SegmentNumber(u64::MAX), ..header(1, 0) },
    ];
    for header in impossible {
        let scratch = Scratch::in_memory("damage-impossible-header");
        write_segment(&scratch, 1, &header, &[], SEGMENT_BYTES);
        assert!(matches!(jobs_of(&scratch.0), Err(RecoveryError::Damaged { offset: 0, .. })), "{header:?}");
        write_segment(&scratch, u64::MAX, &header, &[], SEGMENT_BYTES);
        assert!(offline::check(&scratch.0, NOW).is_err() && offline::dump(&scratch.0, |_| Ok(())).is_err());
        assert!(offline::salvage(&scratch.0, &scratch.0.join("to"), NOW).is_err(), "{header:?}");
    }
}

/// A segment has only records that its format knows.
#[test]
fn a_log_of_another_format_continues_in_a_new_file() {
    let scratch = Scratch::in_memory("damage-format");
    let (_, after) = written(&scratch);
    let format = FORMAT_WITH_RESERVATIONS.to_le_bytes();
    change_header(&scratch.join(FILE), |bytes| bytes[16..20].copy_from_slice(&format));
    let older = fs::read(scratch.join(FILE)).expect("a segment");
    let id = put_new(&scratch);
    let file = fs::read(scratch.join(FILE)).expect("a segment");
    assert_eq!(file, older, "the older file does not change");
    let newer = fs::read(scratch.join(NEXT_FILE)).expect("the next segment");
    assert_eq!(newer[16..20], FORMAT.to_le_bytes());
    let mut expected = after.last().expect("the jobs at the end").clone();
    expected.insert(id.0, b"new\r\n".to_vec());
    assert_eq!(jobs_of(&scratch.0).expect("it is sound"), expected);
}

#[test]
fn an_older_format_is_refused_and_left_as_it_is() {
    let scratch = Scratch::in_memory("damage-older");
    written(&scratch);
    let format = (FORMAT_MIN - 1).to_le_bytes();
    change_header(&scratch.join(FILE), |bytes| bytes[16..20].copy_from_slice(&format));
    let before = fs::read(scratch.join(FILE)).expect("a segment");
    let refusal = jobs_of(&scratch.0).expect_err("its records have no checks of heads").to_string();
    assert!(refusal.contains("of an older version of beanring"), "{refusal}");
    assert_eq!(fs::read(scratch.join(FILE)).expect("a segment"), before);
}

#[test]
fn a_link_in_the_place_of_a_segment_is_refused() {
    let scratch = Scratch::in_memory("damage-link");
    written(&scratch);
    let elsewhere = scratch.0.join("elsewhere");
    fs::rename(scratch.join(FILE), &elsewhere).expect("it is moved");
    std::os::unix::fs::symlink(&elsewhere, scratch.join(FILE)).expect("a link");
    let refusals = || {
        let start = jobs_of(&scratch.0).err().map(|error| error.to_string());
        let check = offline::check(&scratch.0, NOW).err().map(|error| error.to_string());
        [start, check].map(|error| error.unwrap_or_else(|| "no refusal".to_owned()))
    };
    for message in refusals() {
        let is_clear = message.contains(&format!("{FILE} is a symbolic link")) && !message.contains('\n');
        assert!(is_clear, "{message}");
    }
    fs::remove_file(scratch.join(FILE)).expect("it is there");
    fs::create_dir(scratch.join(FILE)).expect("a directory");
    let [message, _] = refusals();
    assert!(message.contains(&format!("{FILE} is a directory and not a regular file")), "{message}");
    fs::remove_dir(scratch.join(FILE)).expect("it is there");
    fs::rename(&elsewhere, scratch.join(FILE)).expect("the file can be moved back");
    assert!(jobs_of(&scratch.0).is_ok());
}
