//! The job log with several writes in flight, as across a network: when a batch is written, and how the order survives failures
//! and a lack of space.

use std::collections::VecDeque;
use std::io::{Error, ErrorKind};

use beanring::queue::Engine;
use beanring::time::{Span, Time};
use beanring::values::ids::{ClientKey, ConnId, JobId};
use beanring::wal::segment::HEADER_BYTES;
use beanring::wal::{
    Batch, Destination, DiskOperation, DiskOutcome, Durability, NETWORK_BATCH_BYTES, SegmentNumber, Wal,
    WalConfig,
};

use beanring_testkit::fuzz::made_log::{BEGIN, Files, begin, carry_out};

use super::common::put_job;

const CONFIG: WalConfig = WalConfig {
    durability: Durability::Always,
    segment_bytes: 4 * 1024 * 1024,
    destination: Destination::Network { writes_in_flight_max: 4 },
    keep_reservations: false,
};

/// A write that the log has begun.
struct Write {
    segment: SegmentNumber,
    offset: u64,
    first: u64,
    batch: Batch,
}

/// A job log whose writes end when a test says so. All other operations end at once.
struct Stage {
    engine: Engine,
    log: Wal,
    files: Files,
    client: ClientKey,
    now: Time,
    in_flight: VecDeque<Write>,
}

impl Stage {
    /// A log with nothing in flight: its first header is written.
    fn new() -> Self {
        let mut engine = Engine::new(0);
        let (log, files) = begin(CONFIG, &mut engine);
        engine.record_changes(true);
        let client = engine.connect(ConnId { slot: 0, generation: 1 });
        let mut stage = Self { engine, log, files, client, now: BEGIN, in_flight: VecDeque::new() };
        stage.begin_writes();
        stage.succeed();
        assert!(stage.in_flight.is_empty());
        stage
    }

    /// Puts a job with a body of this size. Returns its id.
    fn put(&mut self, body_bytes: usize) -> JobId {
        let body = [vec![b'x'; body_bytes - 2], b"\r\n".to_vec()].concat();
        let id = put_job(&mut self.engine, self.client, &body, "", self.now);
        self.log.record(&mut self.engine, self.now);
        id
    }

    /// Lets the log begin what it can. Returns the number of writes in flight.
    fn begin_writes(&mut self) -> usize {
        while let Some(operation) = self.log.next_operation(self.now) {
            match operation {
                DiskOperation::Write { segment, offset, first, batch, sync } => {
                    assert!(sync, "the outcome of every write waits for the store");
                    self.in_flight.push_back(Write { segment, offset, first: first.0, batch });
                }
                operation => {
                    let outcome = carry_out(operation, &mut self.files);
                    self.log.complete(outcome, self.now);
                }
            }
            self.log.check();
        }
        self.in_flight.len()
    }

    fn put_and_begin(&mut self, body_bytes: usize) -> usize {
        self.put(body_bytes);
        self.begin_writes()
    }

    fn end(&mut self, at: usize, result: Result<(), ErrorKind>) {
        let write = self.in_flight.remove(at).expect("it is in flight");
        self.log.complete(DiskOutcome::Written(write.batch, result.map_err(Error::from)), self.now);
        self.log.check();
    }

    fn succeed(&mut self) {
        self.end(0, Ok(()));
    }

    fn find_no_space(&mut self) {
        self.end(0, Err(ErrorKind::StorageFull));
    }

    /// The place and the bytes of the writes in flight.
    fn shown(&self) -> Vec<(SegmentNumber, u64, u64, Vec<u8>)> {
        let shown = |write: &Write| (write.segment, write.offset, write.first, write.batch.bytes().to_vec());
        self.in_flight.iter().map(shown).collect()
    }

    /// Three writes in flight, and the jobs in them.
    fn with_three_writes() -> (Self, [JobId; 3]) {
        let mut stage = Self::new();
        let jobs = [100, 300, 900].map(|bytes| {
            let job = stage.put(bytes);
            stage.begin_writes();
            job
        });
        assert_eq!(stage.in_flight.len(), 3);
        (stage, jobs)
    }
}

#[test]
fn each_write_begins_where_the_one_before_it_ends() {
    let mut stage = Stage::new();
    let (mut offset, mut first) = (HEADER_BYTES, 0);
    let committed = stage.log.committed();
    for (number, bytes) in [(1, 100), (2, 300), (3, 900), (4, 2_000)] {
        assert_eq!(stage.put_and_begin(bytes), number);
        let write = &stage.in_flight[number - 1];
        assert_eq!((write.segment, write.offset, write.first), (SegmentNumber(1), offset, first));
        // Only the record is there, and no padding.
        assert!((bytes..bytes + 120).contains(&write.batch.len()), "{} bytes", write.batch.len());
        offset += write.batch.len() as u64;
        first += write.batch.len() as u64;
    }
    assert_eq!(stage.put_and_begin(100_000), 4, "the fifth waits");
    for number in 1..=5 {
        assert_eq!(stage.log.committed(), committed + number - 1);
        stage.succeed();
        stage.begin_writes();
    }
    assert_eq!(stage.log.committed(), stage.log.ticket());
    assert!(stage.in_flight.is_empty() && !stage.log.is_gathering());
}

/// Small batches would cost more than they gain.
#[test]
fn a_batch_gathers_until_it_is_worth_a_write() {
    let mut stage = Stage::new();
    assert_eq!(stage.put_and_begin(100), 1, "nothing is in flight");
    assert_eq!(stage.put_and_begin(100), 2, "as large as what is in flight");
    assert_eq!(stage.put_and_begin(100), 2, "half as large");
    assert_eq!(stage.put_and_begin(100), 3, "as large again");
    assert_eq!(stage.put_and_begin(64), 3, "less than half");
    stage.succeed();
    stage.succeed();
    stage.succeed();
    assert_eq!(stage.begin_writes(), 1, "nothing else is in flight");
    for number in 2..=4 {
        assert_eq!(stage.put_and_begin(65_000), number, "about 64 KiB are always enough");
        stage.put(500);
    }
}

#[test]
fn a_large_backlog_is_cut_into_batches() {
    let mut stage = Stage::new();
    for _ in 0..100 {
        stage.put(60_000);
    }
    let large = stage.put(2_000_000);
    let mut bytes = Vec::new();
    while stage.begin_writes() > 0 {
        bytes.push(stage.in_flight[0].batch.len() as u64);
        stage.succeed();
    }
    assert!(stage.log.file_of(stage.engine.jobs().find(large).expect("it is there")) > 1);
    // Eight jobs each, and those that end a segment.
    let (last, others) = bytes.split_last().expect("there are batches");
    assert!(others.iter().all(|&bytes| bytes <= NETWORK_BATCH_BYTES), "{bytes:?}");
    assert!(others.iter().filter(|&&bytes| bytes > 480_000).count() >= 11, "{bytes:?}");
    assert!((2_000_000..2_001_000).contains(last), "the largest is alone: {bytes:?}");
}

#[test]
fn writes_without_space_begin_again_in_their_order() {
    let (mut stage, jobs) = Stage::with_three_writes();
    let committed = stage.log.committed();
    let before = stage.shown();
    stage.find_no_space();
    assert_eq!(stage.begin_writes(), 2, "nothing begins before the others are back");
    assert!(!stage.log.is_stalled(), "it is not known yet which jobs wait");
    stage.put(3_000);
    stage.find_no_space();
    stage.find_no_space();
    assert!(stage.log.is_stalled());
    assert!(jobs.iter().all(|&job| stage.log.is_pending(job)));
    stage.now = stage.now + Span::from_secs(1);
    assert_eq!(stage.begin_writes(), 4);
    assert!(stage.shown()[..3] == before, "the same writes");
    assert_eq!(stage.log.committed(), committed);
    while stage.begin_writes() > 0 {
        stage.succeed();
    }
    assert!(!stage.log.is_stalled());
    assert_eq!(stage.log.committed(), stage.log.ticket());
}

#[test]
fn the_first_writes_find_space_and_the_others_do_not() {
    let (mut stage, jobs) = Stage::with_three_writes();
    let rest = stage.shown().split_off(1);
    stage.succeed();
    let committed = stage.log.committed();
    stage.find_no_space();
    stage.find_no_space();
    assert_eq!(jobs.map(|job| stage.log.is_pending(job)), [false, true, true]);
    stage.now = stage.now + Span::from_secs(1);
    assert_eq!(stage.begin_writes(), 2);
    assert!(stage.shown() == rest, "the other writes");
    assert_eq!(stage.log.committed(), committed);
}

/// A store may report a success after a failure: what it has then is not the log.
#[test]
fn nothing_is_committed_behind_a_failed_write() {
    let (mut stage, _) = Stage::with_three_writes();
    stage.succeed();
    let committed = stage.log.committed();
    stage.end(0, Err(ErrorKind::ConnectionAborted));
    assert!(stage.log.failure().is_some());
    stage.succeed();
    assert_eq!(stage.log.committed(), committed);
    assert_eq!(stage.begin_writes(), 0);
}

#[test]
#[should_panic = "writes end in their order"]
fn an_outcome_out_of_order_is_a_bug() {
    let (mut stage, _) = Stage::with_three_writes();
    stage.end(1, Ok(()));
}

#[test]
#[should_panic = "a write fails if one before it has found no space"]
fn a_success_behind_a_write_without_space_is_a_bug() {
    let (mut stage, _) = Stage::with_three_writes();
    stage.find_no_space();
    stage.succeed();
}
