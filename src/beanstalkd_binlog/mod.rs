//! The format of beanstalkd's binlog: parsing what beanstalkd has written, and encoding what it reads (docs/internals/LOG.md).
//!
//! A file begins with its version in 4 bytes. Records follow, and zeros up to the end:
//! ```text
//! | bytes of the name | name of the tube | job | body with CR LF |    a whole job
//! | 0                 |                  | job |                 |    a change of a job
//! ```
//! A job is beanstalkd's struct as a 64-bit little-endian machine has it in memory. Its offsets are the same in both
//! versions. Version 5 counts microseconds and has 8 bytes for the length of the name.

mod history;

pub use self::history::{BodyPlace, History, Imported, Mismatch};
use crate::queue::{Counts, LoggedState, PersistedState};
use crate::time::{Seconds, Span, Time};
use crate::values::ids::JobId;
use crate::values::limits::JOB_BYTES_MAX;
use crate::values::tube_name::TubeName;

/// The size of the version at the beginning of a file.
pub const VERSION_BYTES: usize = 4;

/// The largest size of what precedes a body: the length and name of the tube, and the job.
pub const HEAD_BYTES_MAX: usize = 8 + 200 + JOB_BYTES;

const JOB_BYTES: usize = 80;

/// The latest time that beanstalkd can represent, since its times are signed: in the year 2262.
const LATEST: Time = Time::from_nanos(i64::MAX as u64);

const NANOS_PER_US: u64 = 1_000;

/// The version of a file's format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Version {
    /// The size of the field with the length of a tube's name.
    pub length_bytes: usize,
    /// The number of zeros between the job and the body.
    pub padding_bytes: usize,
    /// The unit of times.
    tick_nanos: u64,
}

/// A record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// The tube if the record is a whole job: the body follows. None for a change.
    pub tube: Option<TubeName<'a>>,
    /// The job when the record was written.
    pub job: Job,
    /// The size of what precedes the body, in bytes.
    pub head_bytes: usize,
}

/// A job as the binlog represents it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct Job {
    pub id: JobId,
    pub created: Time,
    pub ttr: Seconds,
    pub pri: u32,
    pub delay: Seconds,
    /// The size of the body with CR LF.
    pub body_bytes: u32,
    /// When a delayed job becomes ready.
    pub deadline: Time,
    pub counts: Counts,
    pub state: State,
}

/// The state of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum State {
    Deleted = 0,
    /// Ready, or reserved: a reservation does not survive a restart.
    Ready = 1,
    Buried = 3,
    Delayed = 4,
}

/// The bytes are not a whole record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoEntry {
    /// The size of the record that they may begin, as far as it is known; 0 if they begin none.
    pub extent: usize,
}

impl Version {
    /// Written by versions of beanstalkd before 1.12.
    pub const V5: Self = Self { length_bytes: 8, padding_bytes: 0, tick_nanos: NANOS_PER_US };

    /// Written by beanstalkd 1.12.
    pub const V7: Self = Self { length_bytes: 4, padding_bytes: 3, tick_nanos: 1 };

    /// Returns the version with this number.
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            5 => Some(Self::V5),
            7 => Some(Self::V7),
            _ => None,
        }
    }

    const fn job_bytes(self) -> usize {
        JOB_BYTES - Self::V7.padding_bytes + self.padding_bytes
    }

    /// Parses the record at the beginning of `bytes`, which are [`HEAD_BYTES_MAX`] or all that the file has. Does not
    /// check the body.
    ///
    /// # Errors
    /// If the bytes are not a whole record.
    pub fn parse(self, bytes: &[u8]) -> Result<Entry<'_>, NoEntry> {
        let length_bytes = self.length_bytes;
        let mut length = [0; 8];
        let known = bytes.len().min(length_bytes);
        length[..known].copy_from_slice(&bytes[..known]);
        let length = u64::from_le_bytes(length);
        if length > 200 {
            return Err(NoEntry { extent: 0 });
        }
        let name_end = length_bytes + length as usize;
        let head_bytes = name_end + self.job_bytes();
        let absent = NoEntry { extent: head_bytes };
        let head = bytes.get(..head_bytes).ok_or(absent)?;
        let tube = match &head[length_bytes..name_end] {
            [] => None,
            name => Some(TubeName::new(name).ok_or(absent)?),
        };
        let job = self.job(&head[name_end..]).ok_or(absent)?;
        // beanstalkd never writes a deleted job with its body.
        let is_possible = tube.is_none() || job.state != State::Deleted;
        is_possible.then_some(Entry { tube, job, head_bytes }).ok_or(absent)
    }

    fn job(self, bytes: &[u8]) -> Option<Job> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let nanos = |at| word(at).checked_mul(self.tick_nanos).filter(|&nanos| nanos <= LATEST.as_nanos());
        let seconds = |at| {
            let span = Span::from_nanos(nanos(at)?);
            Some(Seconds::of(span)).filter(|_| span.as_secs() <= u32::MAX.into())
        };
        let job = Job {
            id: JobId(word(0)),
            pri: half(8),
            delay: seconds(16)?,
            ttr: seconds(24)?,
            body_bytes: half(32),
            created: Time::from_nanos(nanos(40)?),
            deadline: Time::from_nanos(nanos(48)?),
            counts: Counts {
                reserves: half(56),
                timeouts: half(60),
                releases: half(64),
                buries: half(68),
                kicks: half(72),
                losses: 0,
            },
            state: State::from_number(bytes[76])?,
        };
        let is_sound = (2..=JOB_BYTES_MAX + 2).contains(&job.body_bytes) && job.created > Time::ZERO;
        is_sound.then_some(job)
    }
}

impl State {
    const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Deleted),
            // A reserved job is ready after a restart.
            1 | 2 => Some(Self::Ready),
            3 => Some(Self::Buried),
            4 => Some(Self::Delayed),
            _ => None,
        }
    }
}

impl Job {
    /// Converts a job of the queue.
    pub fn new(id: JobId, created: Time, ttr: Seconds, from: &PersistedState, body_bytes: u32) -> Self {
        let (state, deadline) = match from.state {
            LoggedState::Ready | LoggedState::Reserved(_) => (State::Ready, Time::ZERO),
            LoggedState::Delayed(until) => (State::Delayed, until),
            // beanstalkd has no groups: an operator decides when such a job may run.
            LoggedState::Buried(_) | LoggedState::Held(_) => (State::Buried, Time::ZERO),
        };
        let PersistedState { pri, delay, counts, .. } = *from;
        let [created, deadline] = [created, deadline].map(|time| time.min(LATEST));
        Self { id, created, ttr, pri, delay, body_bytes, deadline, counts, state }
    }

    fn encode(&self) -> [u8; JOB_BYTES] {
        let mut bytes = [0; JOB_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        let span = |seconds: Seconds| seconds.span().as_nanos().to_le_bytes();
        put(0, &self.id.0.to_le_bytes());
        put(8, &self.pri.to_le_bytes());
        put(16, &span(self.delay));
        put(24, &span(self.ttr));
        put(32, &self.body_bytes.to_le_bytes());
        put(40, &self.created.as_nanos().to_le_bytes());
        put(48, &self.deadline.as_nanos().to_le_bytes());
        let Counts { reserves, timeouts, releases, buries, kicks, losses: _ } = self.counts;
        for (at, count) in (56..).step_by(4).zip([reserves, timeouts, releases, buries, kicks]) {
            put(at, &count.to_le_bytes());
        }
        put(76, &[self.state as u8]);
        bytes
    }
}

/// Appends the beginning of a file of version 7.
pub fn encode_version(out: &mut Vec<u8>) {
    out.extend_from_slice(&7_u32.to_le_bytes());
}

/// Appends a whole job, in version 7.
pub fn encode_job(tube: TubeName<'_>, job: &Job, body: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(tube.as_bytes().len() as u32).to_le_bytes());
    out.extend_from_slice(tube.as_bytes());
    out.extend_from_slice(&job.encode());
    out.extend_from_slice(body);
}

/// Appends a change of a job, in version 7.
pub fn encode_change(job: &Job, out: &mut Vec<u8>) {
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&job.encode());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        Job {
            id: JobId(3),
            created: Time::from_nanos(1_795_264_890_000_000_000),
            ttr: Seconds::new(30, 1).unwrap(),
            pri: 9,
            delay: Seconds::new(50, 999).unwrap(),
            body_bytes: 6,
            deadline: Time::from_nanos(1_795_264_940_000_000_000),
            counts: Counts { reserves: 5, timeouts: 4, releases: 3, buries: 2, kicks: 1, losses: 0 },
            state: State::Delayed,
        }
    }

    #[test]
    fn a_written_record_is_read_back() {
        let tube = TubeName::new(b"foo").unwrap();
        let mut bytes = Vec::new();
        encode_job(tube, &job(), b"wxyz\r\n", &mut bytes);
        let entry = Version::V7.parse(&bytes).unwrap();
        assert_eq!(entry, Entry { tube: Some(tube), job: job(), head_bytes: 87 });
        assert_eq!(&bytes[87..], b"wxyz\r\n");

        let deleted = Job { state: State::Deleted, ..job() };
        bytes.clear();
        encode_change(&deleted, &mut bytes);
        assert_eq!(Version::V7.parse(&bytes).unwrap(), Entry { tube: None, job: deleted, head_bytes: 84 });
    }

    #[test]
    fn a_record_of_beanstalkd() {
        let hex = "03000000 666f6f 0200000000000000 07000000 00000000 00e8764817000000 00c817a804000000 \
                   02000000 00000000 6037b8fbe70fea18 601f2f44ff0fea18 00000000 00000000 00000000 00000000 \
                   00000000 04000000 0d0a";
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        let bytes: Vec<u8> = digits.chunks(2).map(byte).collect();
        let entry = Version::V7.parse(&bytes).unwrap();
        let Job { id, created, ttr, pri, delay, body_bytes, deadline, counts, state } = entry.job;
        assert_eq!(entry.tube.unwrap().as_str(), "foo");
        assert_eq!((id, pri, body_bytes), (JobId(2), 7, 2));
        assert_eq!((ttr, delay), (Seconds::whole(20), Seconds::whole(100)));
        assert_eq!((counts, state), (Counts::default(), State::Delayed));
        assert_eq!(deadline.since(created).as_secs(), 100);
    }
}
