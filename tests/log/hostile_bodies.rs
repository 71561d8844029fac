//! Bytes behind the last record that look like heads of records, as bodies of jobs may. Every reader takes a CPU time in proportion to
//! the file, whatever they are, and those that a client can put hide no record.

use std::array;
use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use beanring::io::wal_files::offline;
use beanring::io::wal_files::{Directory, RecoveryError, recover};
use beanring::queue::Engine;
use beanring::time::Time;
use beanring::values::ids::JobId;
use beanring::wal::batch::Batch;
use beanring::wal::record::{Lsn, Record, Stamp};
use beanring::wal::segment::{FORMAT, HEADER_BYTES, Header};
use beanring::wal::{Destination, Durability, SegmentNumber, WalConfig};
use beanring_testkit::forged_head;
use beanring_testkit::measured::thread_cpu_time;
use beanring_testkit::scratch::Scratch;

/// The length that each head announces.
const ANNOUNCED_BYTES: u32 = 5 << 20;

/// The size of a file, and four times as much.
const SIZES: [u64; 2] = [4 << 20, 16 << 20];

/// Far more than the larger file takes without optimization.
const CPU_TIME_MAX: Duration = Duration::from_secs(4);

const NOW: Time = Time::from_nanos(1_000_000_000);

/// Who has chosen the bytes.
#[derive(Clone, Copy, Debug)]
enum Writer {
    /// A client, which knows the format and the positions, but not the seed.
    Client,
    /// A person who has read the header of the segment.
    Forger,
}

/// What else is wrong with the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Nothing,
    /// Neither the header nor the first record can be read.
    Headless,
}

const HEADER: Header = Header {
    format: FORMAT,
    log_id: 7,
    number: SegmentNumber(5),
    first: Lsn(0),
    next_id: JobId(5),
    oldest: SegmentNumber(5),
    previous: SegmentNumber(4),
};

/// A head at this position.
fn head(at: u64, writer: Writer) -> [u8; 32] {
    let mut head = [0; 32];
    head[..4].copy_from_slice(&0x1234_5678_u32.to_le_bytes());
    head[4..8].copy_from_slice(&ANNOUNCED_BYTES.to_le_bytes());
    head[8..16].copy_from_slice(&at.to_le_bytes());
    head[24] = 1;
    let seed = match writer {
        Writer::Client => 0xdead_beef,
        Writer::Forger => HEADER.seed(),
    };
    forged_head::check(&mut head, seed);
    head
}

fn log(bytes: u64, writer: Writer, fault: Fault) -> Batch {
    let mut batch = Batch::default();
    HEADER.encode(&mut batch);
    let records = [Record::Deleted(JobId(1)), Record::Deleted(JobId(2))];
    let mut at = HEADER.first;
    for record in records {
        record.encode(&Stamp { seed: HEADER.seed(), at, durable: Lsn(0) }, &mut batch);
        at.0 += record.bytes() as u64;
    }
    if fault == Fault::Headless {
        batch.bytes_mut()[..HEADER_BYTES as usize + 8].fill(0xee);
    }
    while (batch.len() as u64) < bytes {
        batch.push(&head(batch.len() as u64 - HEADER_BYTES, writer));
    }
    batch
}

fn write(dir: &Path, batch: &Batch) {
    fs::write(dir.join(HEADER.number.to_string()), batch.bytes()).expect("there is space");
}

fn start(dir: &Path, bytes: u64) -> Result<(), RecoveryError> {
    let config = WalConfig {
        durability: Durability::Always,
        segment_bytes: bytes,
        destination: Destination::Directory,
        keep_reservations: false,
    };
    let directory = Directory::open(dir, false).expect("the lock is free");
    recover(&directory, config, &mut Engine::new(0), NOW).map(drop)
}

/// Returns the CPU time of each way to read the file.
fn cpu_times(bytes: u64, writer: Writer, fault: Fault) -> [Duration; 6] {
    let scratch = Scratch::in_memory(&format!("hostile-bodies-{writer:?}-{fault:?}-{bytes}"));
    let [dir, salvaged, exported, copied] =
        ["log", "salvaged", "exported", "copied"].map(|name| scratch.0.join(name));
    fs::create_dir(&dir).expect("it is new");
    write(&dir, &log(bytes, writer, fault));
    let time = |way: &dyn Fn()| {
        let before = thread_cpu_time();
        way();
        thread_cpu_time() - before
    };
    [
        time(&|| drop(offline::check(&dir, NOW))),
        time(&|| drop(offline::dump(&dir, |_| Ok(())))),
        time(&|| drop(offline::salvage(&dir, &salvaged, NOW))),
        time(&|| drop(offline::export(&dir, &exported, NOW))),
        time(&|| drop(offline::backup(&dir, &copied, NOW))),
        time(&|| drop(start(&dir, bytes))),
    ]
}

/// Whatever shares the core makes a thread take longer, and never shorter. So the least of a few rounds is compared.
fn least_cpu_times(writer: Writer, fault: Fault) -> [[Duration; 6]; 2] {
    let rounds = [(); 3].map(|()| SIZES.map(|bytes| cpu_times(bytes, writer, fault)));
    [0, 1].map(|size| {
        array::from_fn(|way| rounds.iter().map(|times| times[size][way]).min().unwrap_or(Duration::MAX))
    })
}

fn every_reader_takes_a_time_in_proportion_to_the_file(writer: Writer) {
    for fault in [Fault::Nothing, Fault::Headless] {
        let [small, large] = least_cpu_times(writer, fault);
        println!("{fault:?}: check, dump, salvage, export, backup, start: {small:?}, {large:?}");
        for (small, large) in small.into_iter().zip(large) {
            let is_linear = large < small * 6 + Duration::from_millis(50);
            assert!(is_linear && large < CPU_TIME_MAX, "{fault:?}: {small:?}, {large:?}");
        }
    }
}

#[test]
fn bodies_of_a_client_cost_every_reader_a_time_in_proportion_to_the_file() {
    every_reader_takes_a_time_in_proportion_to_the_file(Writer::Client);
}

#[test]
fn bodies_of_a_forger_cost_every_reader_a_time_in_proportion_to_the_file() {
    every_reader_takes_a_time_in_proportion_to_the_file(Writer::Forger);
}

/// Each believed head has a checksum computed in vain. After too many of them, the head of the record would not be believed either.
#[test]
fn a_record_behind_bodies_of_a_client_is_found() {
    let scratch = Scratch::in_memory("hostile-bodies-hidden");
    let mut batch = log(1 << 20, Writer::Client, Fault::Nothing);
    let at = Lsn(batch.len() as u64 - HEADER_BYTES);
    Record::Deleted(JobId(3)).encode(&Stamp { seed: HEADER.seed(), at, durable: at }, &mut batch);
    // What the heads announce is in the file.
    batch.pad_to(2 * ANNOUNCED_BYTES as usize);
    write(&scratch.0, &batch);
    // The record says that everything before it was durable.
    let refusal = start(&scratch.0, batch.len() as u64);
    assert!(matches!(refusal, Err(RecoveryError::Damaged { .. })), "{refusal:?}");
}

/// A file of a tebibyte that takes the space of a mebibyte.
#[test]
fn a_hole_is_not_read() {
    const BYTES: u64 = 1 << 40;
    for writer in [Writer::Client, Writer::Forger] {
        let scratch = Scratch::in_memory(&format!("hostile-bodies-hole-{writer:?}"));
        let [dir, salvaged, exported] = ["log", "salvaged", "exported"].map(|name| scratch.0.join(name));
        fs::create_dir(&dir).expect("it is new");
        write(&dir, &log(1 << 20, writer, Fault::Nothing));
        File::options()
            .write(true)
            .open(dir.join(HEADER.number.to_string()))
            .and_then(|file| file.set_len(BYTES))
            .expect("a hole takes no space");
        let before = thread_cpu_time();
        let verdict = offline::check(&dir, NOW).expect("it is read");
        assert!(verdict.outlook.refusal.is_none(), "{verdict:?}");
        offline::dump(&dir, |_| Ok(())).expect("it is read");
        drop(offline::salvage(&dir, &salvaged, NOW));
        drop(offline::export(&dir, &exported, NOW));
        start(&dir, 1 << 20).expect("it is sound");
        let took = thread_cpu_time() - before;
        println!("{writer:?}: {took:?}");
        assert!(took < CPU_TIME_MAX, "{writer:?}: {took:?}");
    }
}
