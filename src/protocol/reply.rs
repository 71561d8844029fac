//! Renders replies.

use std::fmt;
use std::io::Write;

use crate::protocol::parse::ParseError;
use crate::time::Seconds;
use crate::values::ids::JobId;
use crate::values::reserve_mode::ReserveMode;
use crate::values::tube_name::TubeName;

/// A reply, or the first line of one that carries data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply<'a> {
    /// `put` has queued this job.
    Inserted(JobId),
    /// `put` has repeated the idempotency key of another job.
    Repeated {
        /// The other job.
        id: JobId,
        /// Its state in lower case.
        state: &'a str,
        /// Its new priority, if the repeat has raised that.
        pri: Option<u32>,
    },
    /// `bury` has buried the job, `release` has because the job has had all attempts, or the awaited job is buried.
    Buried,
    /// The tube in use.
    Using(TubeName<'a>),
    /// How reserves of the client choose among tubes from now on.
    UsingMode(ReserveMode),
    /// A job that is now reserved. Its body and a CR LF follow.
    Reserved {
        /// The job.
        id: JobId,
        /// The length of its body in bytes.
        bytes: u32,
    },
    /// A job that was peeked at. Its body and a CR LF follow.
    Found {
        /// The job.
        id: JobId,
        /// The length of its body in bytes.
        bytes: u32,
    },
    /// Data follows with a CR LF.
    Ok {
        /// The length of the data.
        bytes: usize,
    },
    /// `delete` has deleted the job, or the awaited job is deleted.
    Deleted,
    /// `release` has released the job.
    Released,
    /// `touch` has restarted the time to run of the job.
    Touched,
    /// Number of jobs that `kick` has moved.
    Kicked(u64),
    /// `kick-job` has moved the job.
    KickedJob,
    /// Number of jobs that `flush-tube` has deleted, or of keys that `flush-keys` has forgotten.
    Flushed(u64),
    /// `move-job` has moved the job.
    Moved,
    /// The tube has the idempotency key of the job already.
    NotMoved,
    /// Number of jobs that `move-jobs` has moved.
    MovedJobs(u64),
    /// What `delete-batch` has done.
    DeletedBatch {
        /// Number of jobs that it has deleted.
        deleted: u32,
        /// Number of ids without a job that the client may delete.
        not_found: u32,
    },
    /// Number of jobs that `put-batch` has queued. As many `Inserted` follow.
    InsertedBatch(usize),
    /// Number of jobs that `reserve-batch` has reserved. As many `Reserved` follow.
    ReservedBatch(usize),
    /// Number of tubes that the client now watches.
    Watching(usize),
    /// `ignore` named the last tube that the client watches.
    NotIgnored,
    /// `pause-tube` has paused the tube.
    Paused,
    /// `tube-config` has set or removed the rule.
    Configured,
    /// The job or tube does not exist, or the job is not reserved by this client.
    NotFound,
    /// No job became available in time, or the awaited job has not ended in time.
    TimedOut,
    /// The connection does not wait for a job: the reply to `cancel-reserve` in any case.
    NotWaiting,
    /// A reservation of the client is about to time out.
    DeadlineSoon,
    /// There is no memory for the job.
    OutOfMemory,
    /// The server has failed.
    InternalError,
    /// A `job-note` was kept.
    Noted,
    /// `schedule-put` has added or replaced a schedule.
    Scheduled,
    /// See [`ParseError::BadFormat`].
    BadFormat,
    /// See [`ParseError::UnknownCommand`].
    UnknownCommand,
    /// A job body was not followed by CR LF.
    ExpectedCrlf,
    /// A job body is larger than allowed.
    JobTooBig,
    /// The server is draining and accepts no new jobs.
    Draining,
    /// `drain` has begun drain mode, or the server was in it. On the wire it is the same as [`Draining`](Self::Draining), but
    /// no error.
    DrainBegun,
    /// `undrain` has ended drain mode: the server accepts new jobs.
    NotDraining,
    /// `auth` was sent with the token of a user.
    Authenticated,
    /// `auth` was sent with a token of no user. The connection is closed.
    Unauthorized,
    /// The user has no right to do this.
    Forbidden,
}

/// The kind under which an error reply is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
#[allow(missing_docs)]
pub enum ErrorKind {
    BadFormat,
    UnknownCommand,
    JobTooBig,
    ExpectedCrlf,
    OutOfMemory,
    Draining,
    NotFound,
    NotIgnored,
    DeadlineSoon,
    InternalError,
    Forbidden,
    Unauthorized,
}

impl ErrorKind {
    /// Every kind, in order, with its name in metrics.
    pub const ALL: [(Self, &'static str); 12] = [
        (Self::BadFormat, "bad_format"),
        (Self::UnknownCommand, "unknown_command"),
        (Self::JobTooBig, "job_too_big"),
        (Self::ExpectedCrlf, "expected_crlf"),
        (Self::OutOfMemory, "out_of_memory"),
        (Self::Draining, "draining"),
        (Self::NotFound, "not_found"),
        (Self::NotIgnored, "not_ignored"),
        (Self::DeadlineSoon, "deadline_soon"),
        (Self::InternalError, "internal_error"),
        (Self::Forbidden, "forbidden"),
        (Self::Unauthorized, "unauthorized"),
    ];
    /// Number of kinds.
    pub const COUNT: usize = Self::Unauthorized as usize + 1;
}

const _: () = assert!(ErrorKind::ALL.len() == ErrorKind::COUNT);

impl Reply<'_> {
    /// Returns the kind of the error that the reply reports, if it reports one. `TIMED_OUT` is no error: a worker that
    /// polls expects it.
    #[inline]
    pub const fn error(&self) -> Option<ErrorKind> {
        match self {
            Self::BadFormat => Some(ErrorKind::BadFormat),
            Self::UnknownCommand => Some(ErrorKind::UnknownCommand),
            Self::JobTooBig => Some(ErrorKind::JobTooBig),
            Self::ExpectedCrlf => Some(ErrorKind::ExpectedCrlf),
            Self::OutOfMemory => Some(ErrorKind::OutOfMemory),
            Self::Draining => Some(ErrorKind::Draining),
            Self::NotFound => Some(ErrorKind::NotFound),
            Self::NotIgnored => Some(ErrorKind::NotIgnored),
            Self::DeadlineSoon => Some(ErrorKind::DeadlineSoon),
            Self::InternalError => Some(ErrorKind::InternalError),
            Self::Forbidden => Some(ErrorKind::Forbidden),
            Self::Unauthorized => Some(ErrorKind::Unauthorized),
            Self::Inserted(_)
            | Self::Repeated { .. }
            | Self::Buried
            | Self::Using(_)
            | Self::UsingMode(_)
            | Self::Reserved { .. }
            | Self::Found { .. }
            | Self::Ok { .. }
            | Self::Deleted
            | Self::Released
            | Self::Touched
            | Self::Kicked(_)
            | Self::KickedJob
            | Self::Flushed(_)
            | Self::Moved
            | Self::NotMoved
            | Self::MovedJobs(_)
            | Self::DeletedBatch { .. }
            | Self::InsertedBatch(_)
            | Self::ReservedBatch(_)
            | Self::Watching(_)
            | Self::Paused
            | Self::Configured
            | Self::TimedOut
            | Self::Noted
            | Self::Scheduled
            | Self::NotWaiting
            | Self::DrainBegun
            | Self::NotDraining
            | Self::Authenticated => None,
        }
    }

    /// Whether it tells something of jobs, or of tubes. A reply does that unless it is listed here.
    #[inline]
    pub const fn reveals_state(&self) -> bool {
        !matches!(
            self,
            Self::Using(_)
                | Self::UsingMode(_)
                | Self::Watching(_)
                | Self::NotIgnored
                | Self::NotWaiting
                | Self::OutOfMemory
                | Self::InternalError
                | Self::BadFormat
                | Self::UnknownCommand
                | Self::ExpectedCrlf
                | Self::JobTooBig
                | Self::Draining
                | Self::DrainBegun
                | Self::NotDraining
                | Self::Authenticated
                | Self::Unauthorized
        )
    }

    /// Returns the id of the job that the reply names, if it names one.
    pub const fn job(&self) -> Option<JobId> {
        match *self {
            Self::Inserted(id)
            | Self::Repeated { id, .. }
            | Self::Reserved { id, .. }
            | Self::Found { id, .. } => Some(id),
            _ => None,
        }
    }

    /// Appends the line, with its CR LF.
    pub fn render(&self, out: &mut Vec<u8>) {
        let fixed: &[u8] = match *self {
            Self::Inserted(id) => return numbered(out, InsertedLine::WORD, id.0),
            Self::Repeated { id, state, pri } => return repeated(out, id, state, pri),
            Self::Using(name) => return words(out, b"USING ", name.as_bytes()),
            Self::UsingMode(mode) => return words(out, b"USING ", mode.word().as_bytes()),
            Self::Reserved { id, bytes } => return two_numbers(out, b"RESERVED ", id.0, bytes),
            Self::Found { id, bytes } => return two_numbers(out, b"FOUND ", id.0, bytes),
            Self::DeletedBatch { deleted, not_found } => {
                return two_numbers(out, b"DELETED_BATCH ", deleted.into(), not_found);
            }
            Self::Ok { bytes } => return numbered(out, b"OK ", bytes as u64),
            Self::Kicked(count) => return numbered(out, b"KICKED ", count),
            Self::Flushed(count) => return numbered(out, b"FLUSHED ", count),
            Self::InsertedBatch(count) => return numbered(out, b"INSERTED_BATCH ", count as u64),
            Self::MovedJobs(count) => return numbered(out, b"MOVED ", count),
            Self::ReservedBatch(count) => return numbered(out, b"RESERVED_BATCH ", count as u64),
            Self::Watching(count) => return numbered(out, b"WATCHING ", count as u64),
            Self::Buried => b"BURIED\r\n",
            Self::Deleted => b"DELETED\r\n",
            Self::Released => b"RELEASED\r\n",
            Self::Touched => b"TOUCHED\r\n",
            Self::KickedJob => b"KICKED\r\n",
            Self::Moved => b"MOVED\r\n",
            Self::NotMoved => b"NOT_MOVED\r\n",
            Self::NotIgnored => b"NOT_IGNORED\r\n",
            Self::Paused => b"PAUSED\r\n",
            Self::Configured => b"CONFIGURED\r\n",
            Self::NotFound => b"NOT_FOUND\r\n",
            Self::TimedOut => b"TIMED_OUT\r\n",
            Self::NotWaiting => b"NOT_WAITING\r\n",
            Self::DeadlineSoon => b"DEADLINE_SOON\r\n",
            Self::OutOfMemory => b"OUT_OF_MEMORY\r\n",
            Self::InternalError => b"INTERNAL_ERROR\r\n",
            Self::Noted => b"NOTED\r\n",
            Self::Scheduled => b"SCHEDULED\r\n",
            Self::BadFormat => b"BAD_FORMAT\r\n",
            Self::UnknownCommand => b"UNKNOWN_COMMAND\r\n",
            Self::ExpectedCrlf => b"EXPECTED_CRLF\r\n",
            Self::JobTooBig => b"JOB_TOO_BIG\r\n",
            Self::Draining | Self::DrainBegun => b"DRAINING\r\n",
            Self::NotDraining => b"NOT_DRAINING\r\n",
            Self::Authenticated => b"AUTHENTICATED\r\n",
            Self::Unauthorized => b"UNAUTHORIZED\r\n",
            Self::Forbidden => b"FORBIDDEN\r\n",
        };
        out.extend_from_slice(fixed);
    }
}

/// The line `INSERTED <id>`. Ids are consecutive, so most lines differ from the one before in the last digit only.
#[derive(Clone, Copy)]
pub struct InsertedLine {
    id: JobId,
    line: [u8; Self::BYTES_MAX],
    length: usize,
}

impl InsertedLine {
    const WORD: &[u8] = b"INSERTED ";
    /// The longest line, and a byte that makes it a size that is copied in one piece.
    const BYTES_MAX: usize = 32;

    /// Makes it the line of this job.
    #[inline]
    pub fn set(&mut self, id: JobId) {
        let last_digit = self.length - b"0\r\n".len();
        if id.0.checked_sub(1) == Some(self.id.0) && self.line[last_digit] < b'9' {
            self.line[last_digit] += 1;
            self.id = id;
        } else {
            *self = Self::of(id);
        }
    }

    /// Appends the line, with its CR LF.
    #[inline]
    pub fn render(&self, out: &mut Vec<u8>) {
        let end = out.len() + self.length;
        out.extend_from_slice(&self.line);
        out.truncate(end);
    }

    #[inline(never)]
    fn of(id: JobId) -> Self {
        let mut line = [0; Self::BYTES_MAX];
        let mut rest = line.as_mut_slice();
        for part in [Self::WORD, itoa::Buffer::new().format(id.0).as_bytes(), b"\r\n"] {
            rest.write_all(part).expect("the longest line fits");
        }
        let length = Self::BYTES_MAX - rest.len();
        Self { id, line, length }
    }
}

impl Default for InsertedLine {
    fn default() -> Self {
        Self::of(JobId(0))
    }
}

impl From<ParseError> for Reply<'_> {
    fn from(error: ParseError) -> Self {
        match error {
            ParseError::BadFormat => Self::BadFormat,
            ParseError::UnknownCommand => Self::UnknownCommand,
        }
    }
}

#[cold]
fn repeated(out: &mut Vec<u8>, id: JobId, state: &str, pri: Option<u32>) {
    write!(out, "INSERTED {id} {}", state.to_ascii_uppercase()).expect("writing to a Vec cannot fail");
    if let Some(pri) = pri {
        write!(out, " {pri}").expect("writing to a Vec cannot fail");
    }
    out.extend_from_slice(b"\r\n");
}

fn numbered(out: &mut Vec<u8>, word: &[u8], number: u64) {
    words(out, word, itoa::Buffer::new().format(number).as_bytes());
}

fn words(out: &mut Vec<u8>, word: &[u8], argument: &[u8]) {
    out.reserve(word.len() + argument.len() + 2);
    out.extend_from_slice(word);
    out.extend_from_slice(argument);
    out.extend_from_slice(b"\r\n");
}

fn two_numbers(out: &mut Vec<u8>, word: &[u8], one: u64, other: u32) {
    let (mut one_digits, mut other_digits) = (itoa::Buffer::new(), itoa::Buffer::new());
    let one = one_digits.format(one).as_bytes();
    let other = other_digits.format(other).as_bytes();
    out.reserve(word.len() + one.len() + 1 + other.len() + 2);
    out.extend_from_slice(word);
    out.extend_from_slice(one);
    out.push(b' ');
    out.extend_from_slice(other);
    out.extend_from_slice(b"\r\n");
}

/// Writes the data of a statistics or list reply, in the subset of YAML that the protocol uses.
pub struct Yaml<'a> {
    out: &'a mut Vec<u8>,
}

/// The first line of a document.
const HEAD: &[u8] = b"---\n";
/// The prefix of a list entry.
const ITEM: &[u8] = b"- ";

impl<'a> Yaml<'a> {
    /// Begins a document at the end of `out`.
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        out.extend_from_slice(HEAD);
        Self { out }
    }

    /// Continues a document at the end of `out`.
    pub fn resume(out: &'a mut Vec<u8>) -> Self {
        Self { out }
    }

    /// Returns the length of a document that lists `names` names with `name_lengths` bytes in total.
    pub const fn list_length(names: usize, name_lengths: usize) -> usize {
        HEAD.len() + names * (ITEM.len() + 1) + name_lengths
    }

    /// Writes `key: number`.
    pub fn number(&mut self, key: &str, number: impl itoa::Integer) {
        self.entry(key, |out| out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes()));
    }

    /// Writes `key: value`, for values that need no quotes.
    pub fn plain(&mut self, key: &str, value: impl fmt::Display) {
        self.entry(key, |out| write!(out, "{value}").expect("writing to a Vec cannot fail"));
    }

    /// Writes `key: "text"`, for any bytes. Those that are no printable ASCII are escaped.
    pub fn text(&mut self, key: &str, text: &[u8]) {
        self.entry(key, |out| {
            out.push(b'"');
            // Bounded by NOTE_BYTES_MAX: the longest text.
            for &byte in text {
                match byte {
                    b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
                    b' '..=b'~' => out.push(byte),
                    b'\n' => out.extend_from_slice(b"\\n"),
                    b'\t' => out.extend_from_slice(b"\\t"),
                    _ => {
                        let digit = |number: u8| b"0123456789abcdef"[usize::from(number)];
                        out.extend_from_slice(&[b'\\', b'x', digit(byte >> 4), digit(byte & 0xf)]);
                    }
                }
            }
            out.push(b'"');
        });
    }

    /// Writes `key: "value"`, for strings from outside the server.
    pub fn quoted(&mut self, key: &str, value: &str) {
        self.entry(key, |out| {
            out.push(b'"');
            for &byte in value.as_bytes() {
                if matches!(byte, b'"' | b'\\') {
                    out.push(b'\\');
                }
                out.push(byte);
            }
            out.push(b'"');
        });
    }

    /// Writes `key: ["name", "name"]`.
    pub fn names<'n>(&mut self, key: &str, names: impl Iterator<Item = TubeName<'n>>) {
        self.entry(key, |out| {
            out.push(b'[');
            for (at, name) in names.enumerate() {
                let comma = if at == 0 { "" } else { ", " };
                write!(out, "{comma}\"{}\"", name.as_str()).expect("writing to a Vec cannot fail");
            }
            out.push(b']');
        });
    }

    /// Writes `- name`, an entry of a list.
    pub fn item(&mut self, name: TubeName<'_>) {
        self.out.extend_from_slice(ITEM);
        self.out.extend_from_slice(name.as_bytes());
        self.out.push(b'\n');
    }

    /// Writes `- {key: number, ...}`, an entry of a list. A time comes last.
    pub fn item_of_numbers(
        &mut self,
        entries: impl IntoIterator<Item = (&'static str, u64)>,
        time: Option<(&'static str, Seconds)>,
    ) {
        self.out.extend_from_slice(ITEM);
        let mut separator: &[u8] = b"{";
        for (key, number) in entries {
            self.out.extend_from_slice(separator);
            self.out.extend_from_slice(key.as_bytes());
            self.out.extend_from_slice(b": ");
            self.out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
            separator = b", ";
        }
        if let Some((key, seconds)) = time {
            write!(self.out, ", {key}: {seconds}").expect("writing to a Vec cannot fail");
        }
        self.out.extend_from_slice(b"}\n");
    }

    fn entry(&mut self, key: &str, write_value: impl FnOnce(&mut Vec<u8>)) {
        self.out.extend_from_slice(key.as_bytes());
        self.out.extend_from_slice(b": ");
        write_value(self.out);
        self.out.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(reply: Reply<'_>, expect: &str) {
        let mut out = b"kept ".to_vec();
        reply.render(&mut out);
        assert_eq!(String::from_utf8(out).unwrap(), format!("kept {expect}\r\n"));
    }

    #[test]
    fn replies_with_arguments_are_rendered() {
        let tube = TubeName::new(b"mail/$2").unwrap();
        let id = JobId(u64::MAX);
        check(Reply::Inserted(id), "INSERTED 18446744073709551615");
        check(Reply::Repeated { id, state: "ready", pri: None }, "INSERTED 18446744073709551615 READY");
        check(Reply::Repeated { id: JobId(1), state: "deleted", pri: Some(0) }, "INSERTED 1 DELETED 0");
        check(Reply::Using(tube), "USING mail/$2");
        check(Reply::UsingMode(ReserveMode::WeightedFair), "USING weighted-fair");
        check(Reply::Reserved { id, bytes: u32::MAX }, "RESERVED 18446744073709551615 4294967295");
        check(Reply::Found { id: JobId(1), bytes: 0 }, "FOUND 1 0");
        check(Reply::Ok { bytes: 123 }, "OK 123");
        check(Reply::Kicked(0), "KICKED 0");
        check(Reply::Flushed(0), "FLUSHED 0");
        check(Reply::MovedJobs(7), "MOVED 7");
        check(Reply::DeletedBatch { deleted: 3, not_found: 1 }, "DELETED_BATCH 3 1");
        check(Reply::ReservedBatch(1000), "RESERVED_BATCH 1000");
        check(Reply::Watching(2), "WATCHING 2");
        check(Reply::Configured, "CONFIGURED");
        check(ParseError::BadFormat.into(), "BAD_FORMAT");
        check(ParseError::UnknownCommand.into(), "UNKNOWN_COMMAND");
        check(Reply::DrainBegun, "DRAINING");
        assert_eq!(Reply::DrainBegun.error(), None);
    }

    #[test]
    fn an_inserted_line_is_that_of_its_id_whatever_came_before() {
        let mut line = InsertedLine::default();
        let jumps = [5, 3, 99_999, 1_000_000_007, u64::MAX - 12];
        for id in (0..1300).chain(jumps.iter().flat_map(|&from| from..=from + 12)).chain([0, 0, 1, 7]) {
            let mut out = b"kept ".to_vec();
            line.set(JobId(id));
            line.render(&mut out);
            assert_eq!(String::from_utf8(out).unwrap(), format!("kept INSERTED {id}\r\n"));
        }
    }

    #[test]
    fn the_name_of_an_error_is_its_reply() {
        let errors = [
            Reply::BadFormat,
            Reply::UnknownCommand,
            Reply::JobTooBig,
            Reply::ExpectedCrlf,
            Reply::OutOfMemory,
            Reply::Draining,
            Reply::NotFound,
            Reply::NotIgnored,
            Reply::DeadlineSoon,
            Reply::InternalError,
            Reply::Forbidden,
            Reply::Unauthorized,
        ];
        for ((kind, name), reply) in ErrorKind::ALL.into_iter().zip(errors) {
            assert_eq!(reply.error(), Some(kind));
            check(reply, &name.to_uppercase());
        }
    }

    fn check_yaml(write: impl FnOnce(&mut Yaml<'_>), expect: &str) {
        let mut out = Vec::new();
        write(&mut Yaml::new(&mut out));
        assert_eq!(String::from_utf8(out).unwrap(), format!("---\n{expect}"));
    }

    #[test]
    fn documents_are_rendered() {
        check_yaml(|_| {}, "");
        check_yaml(|yaml| yaml.number("pid", 0u32), "pid: 0\n");
        check_yaml(|yaml| yaml.number("id", u64::MAX), "id: 18446744073709551615\n");
        check_yaml(|yaml| yaml.plain("state", "ready"), "state: ready\n");
        let utime = format_args!("{}.{:06}", 1, 42);
        check_yaml(|yaml| yaml.plain("rusage-utime", utime), "rusage-utime: 1.000042\n");
        check_yaml(|yaml| yaml.quoted("name", "default"), "name: \"default\"\n");
        check_yaml(|yaml| yaml.quoted("os", r#"a "b" \c"#), "os: \"a \\\"b\\\" \\\\c\"\n");
        check_yaml(|yaml| yaml.item(TubeName::DEFAULT), "- default\n");
        check_yaml(|yaml| yaml.item_of_numbers([("id", 7), ("pri", 0)], None), "- {id: 7, pri: 0}\n");
        let half = Seconds::new(2, 500).unwrap();
        let item = |yaml: &mut Yaml<'_>| yaml.item_of_numbers([("id", 7)], Some(("time-left", half)));
        check_yaml(item, "- {id: 7, time-left: 2.5}\n");
        let two = |yaml: &mut Yaml<'_>| {
            yaml.number("a", 1);
            yaml.number("b", 2);
        };
        check_yaml(two, "a: 1\nb: 2\n");
    }
}
