//! Segments of the job log in memory. Reading any bytes ends, and recovered jobs were once written.

use std::convert::Infallible;

use beanring::queue::Engine;
use beanring::time::Time;
use beanring::values::ids::JobId;
use beanring::wal::record::{Lsn, PauseRecord};
use beanring::wal::scan::{ScanSource, Scanner};
use beanring::wal::segment::{FORMAT, HEADER_BYTES, Header};
use beanring::wal::{Replay, SegmentNumber};

use super::input::Input;
use super::made_log::{
    BEGIN, Files, Jobs, KeptKeys, MadeLog, check_bodies, damage, forge, jobs_of, kept_keys_of,
};

/// A file in memory.
struct Bytes<'a>(&'a [u8]);

impl ScanSource for Bytes<'_> {
    type Error = Infallible;

    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> Result<usize, Infallible> {
        let rest = self.0.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

/// Runs an input. The first byte selects what the rest is: a segment behind its header, records that get valid
/// checksums, or steps of a writer whose files are then damaged.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.below(4) {
        0 => arbitrary(input.bytes(usize::MAX)),
        1 => {
            let mut files = forge(&mut input);
            damage(&mut input, &mut files);
            read(&files, BEGIN);
        }
        _ => {
            let made = MadeLog::write(&mut input);
            let (jobs, kept_keys, next_id) = read(&made.files, made.now);
            assert_eq!(jobs, made.jobs, "what was written comes back");
            assert_eq!(kept_keys, made.kept_keys, "the kept keys come back");
            assert!(made.bodies.keys().all(|&id| id < next_id.0), "no id is used twice");
            let mut files = made.files.clone();
            damage(&mut input, &mut files);
            check_bodies(&read(&files, made.now).0, &made);
        }
    }
}

fn arbitrary(bytes: &[u8]) {
    let _ = Header::decode(bytes);
    let number = SegmentNumber(1);
    let (first, next_id, previous) = (Lsn(0), JobId(1), SegmentNumber(0));
    let header = Header { format: FORMAT, log_id: 0, number, first, next_id, oldest: number, previous };
    let file = [&[0; HEADER_BYTES as usize], bytes].concat();
    let mut scan = Scan::default();
    scan.segment(header, &file);
    scan.finish(BEGIN);
}

#[derive(Default)]
struct Scan {
    replay: Replay,
    engine: Option<Engine>,
}

impl Scan {
    /// Reads all valid records, including those behind invalid ones.
    fn segment(&mut self, header: Header, file: &[u8]) {
        let engine = self.engine.get_or_insert_with(|| Engine::new(0));
        self.replay.open(&header);
        let mut scanner = Scanner::new(Bytes(file), file.len() as u64, header, Vec::new());
        while let Ok(Some((offset, framed))) = scanner.next_record() {
            // Zeros may be missing at its end.
            assert!(offset < file.len() as u64, "a record begins in its file");
            self.replay.apply(&framed.record, framed.bytes, engine).expect("there is memory");
        }
        let end = scanner.end();
        assert!(header.offset(end) <= scanner.offset());
        while let Ok(Some((offset, framed))) = scanner.next_beyond() {
            assert!(header.lsn(offset) > end, "it is behind the end");
            self.replay.apply(&framed.record, framed.bytes, engine).expect("there is memory");
        }
        assert!(scanner.into_window().capacity() <= 4 << 20, "a reader needs a bounded window");
    }

    fn finish(self, now: Time) -> (Jobs, KeptKeys, JobId) {
        let mut engine = self.engine.unwrap_or_else(|| Engine::new(0));
        engine.keep_reservations(true);
        let recovered = self.replay.finish(&mut engine, now);
        let paused: Vec<PauseRecord<'_>> = recovered.pauses().collect();
        assert!(paused.iter().all(|pause| !pause.tube.as_bytes().is_empty()));
        engine.check();
        let jobs = jobs_of(&engine);
        for (id, job) in &jobs {
            assert!(job.body.ends_with(b"\r\n"), "the body of job {id} has its end");
        }
        (jobs, kept_keys_of(&engine), engine.upcoming_id())
    }
}

/// Reads the segments in order, as salvage does.
pub fn read(files: &Files, now: Time) -> (Jobs, KeptKeys, JobId) {
    let mut scan = Scan::default();
    for (&number, file) in files {
        if number > SegmentNumber::LAST {
            continue;
        }
        match Header::decode(file) {
            Ok(header) if header.number == number => scan.segment(header, file),
            _ => {}
        }
    }
    scan.finish(now)
}
