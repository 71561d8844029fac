//! The log as its format describes it: chunks to jobs, without the code that a standby uses for that.

use std::collections::BTreeMap;

use beanring::queue::{Engine, LoggedState};
use beanring::wal::record::{JobRecord, Lsn, Record};
use beanring::wal::replica::{ChunkHeader, Kind};
use beanring::wal::segment::{HEADER_BYTES, Header};
use bytes::Bytes;

#[derive(Clone, PartialEq, Eq, Debug)]
struct Job {
    tube: String,
    body: Vec<u8>,
    pri: u32,
    is_buried: bool,
    is_reserved: bool,
}

/// Asserts that the chunks of a log describe the jobs of a queue.
pub fn compare(chunks: &BTreeMap<u64, Bytes>, engine: &Engine) {
    let decoded = decode(chunks);
    let jobs: BTreeMap<u64, Job> =
        engine.jobs().iter().map(|(key, job)| (job.id.0, of(&JobRecord::of(key, engine)))).collect();
    let lacks: Vec<u64> = jobs.keys().filter(|id| !decoded.contains_key(id)).copied().collect();
    let adds: Vec<u64> = decoded.keys().filter(|id| !jobs.contains_key(id)).copied().collect();
    assert!(lacks.is_empty() && adds.is_empty(), "the log lacks jobs {lacks:?}, and only it has {adds:?}");
    for (id, job) in &jobs {
        let other = &decoded[id];
        assert!(job == other, "job {id} of the leader is not that of the log");
    }
}

fn of(record: &JobRecord<'_>) -> Job {
    Job {
        tube: record.tube.as_str().to_owned(),
        body: record.body.to_vec(),
        pri: record.state.pri,
        is_buried: matches!(record.state.state, LoggedState::Buried(_)),
        is_reserved: matches!(record.state.state, LoggedState::Reserved(_)),
    }
}

fn decode(chunks: &BTreeMap<u64, Bytes>) -> BTreeMap<u64, Job> {
    let mut jobs = BTreeMap::new();
    let mut parts: Vec<u8> = Vec::new();
    let (mut seed, mut segment) = (0, 0);
    let first = *chunks.first_key_value().expect("the log has chunks").0;
    for (next, (&position, chunk)) in (first..).zip(chunks) {
        assert_eq!(position, next, "positions are dense");
        let (header, payload) = ChunkHeader::decode(chunk).expect("every chunk is whole");
        assert_eq!(header.position.0, position);
        if header.kind != Kind::Data {
            parts.clear();
            continue;
        }
        if header.part == 0 {
            parts.clear();
        }
        parts.extend_from_slice(payload);
        if header.part + 1 < header.parts {
            continue;
        }
        let batch = std::mem::take(&mut parts);
        let mut records = &batch[..];
        if header.segment.0 != segment {
            let begun = Header::decode(&batch).expect("a segment begins with its header");
            (seed, segment) = (begun.seed(), begun.number.0);
            records = &batch[HEADER_BYTES as usize..];
        }
        let mut at = header.lsn;
        while !records.is_empty() {
            let size = Record::find(records, seed, at).expect("every record is whole");
            match Record::decode(records).record {
                Record::Job(job) => _ = jobs.insert(job.id.0, of(&job)),
                Record::Change { id, state } => {
                    if let Some(job) = jobs.get_mut(&id.0) {
                        job.pri = state.pri;
                        job.is_buried = matches!(state.state, LoggedState::Buried(_));
                        job.is_reserved = matches!(state.state, LoggedState::Reserved(_));
                    }
                }
                Record::Deleted(id) => _ = jobs.remove(&id.0),
                _ => {}
            }
            at = Lsn(at.0 + size as u64);
            records = &records[size..];
        }
    }
    jobs
}
