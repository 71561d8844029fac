//! The client's side of one connection: the commands that it has sent by protocol.txt, and whether the replies answer
//! them.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use beanring::protocol::announced::Follows;
use beanring::protocol::command::Command;
use beanring::protocol::parse::{self, ParseError};
use beanring::values::ids::JobId;
use beanring::values::limits::{BATCH_BODY_BYTES_MAX, LINE_BYTES_MAX, SCHEDULE_BYTES_MAX};
use beanring::values::notes::NOTE_BYTES_MAX;
use beanring::values::tube_rules::RuleKey;
use beanring::values::when::When;

use super::super::reply;
use super::framing::{bytes_max, follows};
use super::made_log::Jobs;

/// The header of a segment, and the name of the tube, the tags and the other fields of a job record.
const JOB_REST_BYTES_MAX: usize = 4096 + 2048;

/// What all clients together know.
#[derive(Default)]
pub struct Book {
    max_job_bytes: u32,
    /// The largest job that the job log can store, if there is one.
    job_bytes_logged: Option<usize>,
    /// The server drains: it refuses new jobs.
    pub is_draining: bool,
    /// Bodies of all complete puts, without their CR LF.
    put: HashSet<Vec<u8>>,
    /// Number of complete puts without a reply. The client of some of them may have left.
    unanswered: usize,
    /// Bodies by id, as replies have reported them.
    bodies: HashMap<u64, Vec<u8>>,
    inserted: HashSet<u64>,
    /// Jobs that some client has sent a delete for.
    condemned: HashSet<u64>,
    /// Some client has sent a flush-tube, or a rule of retention: any job may be gone.
    has_flushed: bool,
    /// Some client has sent a rule that limits a tube: any job may be refused.
    has_limits: bool,
}

/// A complete command without a reply.
#[derive(Debug)]
enum Pending {
    /// Its line determines the reply.
    Line(Vec<u8>),
    Put(PutBody),
    PutBatch(Batch),
    /// A note, and whether its text ends as it must.
    Note(bool),
    /// A schedule, and whether its body ends as it must.
    Schedule(bool),
    /// One specific reply.
    Fixed(&'static str),
}

/// A job that has arrived.
#[derive(Debug)]
struct PutBody {
    /// With the two bytes at the place of its CR LF.
    body: Vec<u8>,
    has_key: bool,
}

impl Pending {
    fn complete_puts(&self) -> usize {
        match self {
            Self::Put(put) => usize::from(put.body.ends_with(b"\r\n")),
            Self::PutBatch(batch) => batch.jobs.len(),
            Self::Line(_) | Self::Note(_) | Self::Schedule(_) | Self::Fixed(_) => 0,
        }
    }
}

/// The part of a `put-batch` that has arrived.
#[derive(Default, Debug)]
struct Batch {
    count: u32,
    arrived: u32,
    jobs: Vec<PutBody>,
    body_bytes: usize,
    refusal: Option<&'static str>,
}

/// What the next byte of a client belongs to.
#[derive(Default)]
enum Expects {
    #[default]
    Line,
    Body {
        bytes: usize,
        has_key: bool,
    },
    /// The text of a note, or of a schedule, with the bytes at the place of its CR LF.
    Note(usize),
    Schedule(usize),
    // This many bytes are ignored, because the job is refused with this reply.
    Skip(u64, &'static str),
}

#[derive(Default)]
pub struct Dialogue {
    input: Vec<u8>,
    expects: Expects,
    batch: Option<Batch>,
    /// The first line is complete.
    has_begun: bool,
    has_quit: bool,
    pending: VecDeque<Pending>,
    replies: Vec<u8>,
    used: Vec<u8>,
    watched: BTreeSet<Vec<u8>>,
}

/// A parsed reply.
struct Reply<'a> {
    words: Vec<&'a str>,
    data: Option<&'a [u8]>,
    /// The replies for the jobs of a batch.
    jobs: Vec<Reply<'a>>,
}

/// Returns whether the server closes a connection that begins with these bytes.
fn begins_as_another_protocol(input: &[u8]) -> bool {
    let mut methods = "GET HEAD POST PUT DELETE CONNECT OPTIONS TRACE PATCH PRI".split(' ');
    let begins = |method: &str| input.starts_with(format!("{method} ").as_bytes());
    if input.starts_with(b"\x16\x03") || methods.any(begins) {
        return true;
    }
    let Some(end) = input.windows(2).position(|pair| pair == b"\r\n") else { return false };
    let line = &input[..end];
    let method_ends = line.iter().position(|&byte| byte == b' ').unwrap_or(end);
    let (method, target) = line.split_at(method_ends);
    let is_method =
        method.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte));
    let is_request = target.len() > 9
        && matches!(target[target.len() - 9..], [b' ', b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if major.is_ascii_digit() && minor.is_ascii_digit());
    !method.is_empty() && is_method && is_request
}

/// Parses a line as the server of the fuzzer does, which accepts decimals.
fn parse(line: &[u8]) -> Result<Command<'_>, ParseError> {
    match parse::parse(line) {
        Err(ParseError::BadFormat) => parse::parse_decimals(line),
        parsed => parsed,
    }
}

impl Dialogue {
    pub fn new() -> Self {
        let default = b"default".to_vec();
        Self { used: default.clone(), watched: BTreeSet::from([default]), ..Self::default() }
    }

    /// Records bytes that the server has received.
    pub fn server_received(&mut self, bytes: &[u8], book: &mut Book) {
        self.input.extend_from_slice(bytes);
        if !self.has_begun && begins_as_another_protocol(&self.input) {
            self.has_quit = true;
        }
        while !self.has_quit && self.take_command(book) {}
    }

    /// Checks bytes that the client has received. `may_time_out` means that the server may know that the client sends
    /// no more.
    pub fn client_received(&mut self, bytes: &[u8], may_time_out: bool, book: &mut Book) {
        self.replies.extend_from_slice(bytes);
        let replies = std::mem::take(&mut self.replies);
        let mut rest = &replies[..];
        while let Some((reply, bytes)) = Reply::take(rest) {
            let pending =
                self.pending.pop_front().unwrap_or_else(|| panic!("{:?} answers nothing", reply.words));
            self.compare(&pending, &reply, may_time_out, book);
            rest = &rest[bytes..];
        }
        self.replies = rest.to_vec();
    }

    /// Asserts that each command has a reply, or may wait for a job.
    pub fn check_answered(&self, may_wait: bool) {
        let waits = |line: &[u8]| {
            matches!(
                parse(line),
                Ok(Command::Reserve
                    | Command::ReserveWithTimeout { .. }
                    | Command::ReserveBatch { seconds: Some(_), .. }
                    | Command::WaitJob { .. })
            )
        };
        match self.pending.front() {
            None => {}
            Some(Pending::Line(line)) if may_wait && waits(line) => {}
            Some(pending) => panic!("there is no reply to {pending:?}"),
        }
        assert!(self.replies.is_empty(), "half a reply: {:?}", self.replies.escape_ascii().to_string());
    }

    fn take_command(&mut self, book: &mut Book) -> bool {
        match self.expects {
            Expects::Skip(left, reply) => {
                let skipped = left.min(self.input.len() as u64);
                self.input.drain(..skipped as usize);
                if skipped < left {
                    self.expects = Expects::Skip(left - skipped, reply);
                    return false;
                }
                self.expects = Expects::Line;
                if self.batch.is_some() {
                    self.take_job_of_batch(Err(reply));
                } else {
                    self.pending.push_back(Pending::Fixed(reply));
                }
                true
            }
            Expects::Body { bytes, .. } | Expects::Note(bytes) | Expects::Schedule(bytes)
                if self.input.len() < bytes =>
            {
                false
            }
            Expects::Schedule(bytes) => {
                let has_end = self.input.drain(..bytes).as_slice().ends_with(b"\r\n");
                self.expects = Expects::Line;
                self.pending.push_back(Pending::Schedule(has_end));
                true
            }
            Expects::Note(bytes) => {
                let has_end = self.input.drain(..bytes).as_slice().ends_with(b"\r\n");
                self.expects = Expects::Line;
                self.pending.push_back(Pending::Note(has_end));
                true
            }
            Expects::Body { bytes, has_key } => {
                let body: Vec<u8> = self.input.drain(..bytes).collect();
                if let Some(body) = body.strip_suffix(b"\r\n") {
                    book.put.insert(body.to_vec());
                    book.unanswered += 1;
                }
                self.expects = Expects::Line;
                if self.batch.is_some() {
                    self.take_job_of_batch(Ok(PutBody { body, has_key }));
                } else {
                    self.pending.push_back(Pending::Put(PutBody { body, has_key }));
                }
                true
            }
            Expects::Line => {
                let Some(end) = self.input.windows(2).position(|pair| pair == b"\r\n") else { return false };
                let line: Vec<u8> = self.input.drain(..end + 2).take(end).collect();
                self.has_begun = true;
                self.take_line(line, book);
                true
            }
        }
    }

    fn take_line_of_batch(&mut self, line: &[u8], max_job_bytes: u32) {
        let (args, tags) = match parse(line) {
            Ok(Command::Put { args, tags }) if line.len() + 2 <= bytes_max(line) => (args, tags),
            _ => return self.refuse_line(line),
        };
        let batch = self.batch.as_mut().expect("a batch is arriving");
        batch.body_bytes += args.bytes as usize;
        let is_too_big = batch.count > 1 && batch.body_bytes > BATCH_BODY_BYTES_MAX;
        self.expects = if args.bytes > max_job_bytes || is_too_big {
            Expects::Skip(u64::from(args.bytes) + 2, "JOB_TOO_BIG")
        } else if let Some(tags) = tags {
            Expects::Body { bytes: args.bytes as usize + 2, has_key: tags.idp().is_some() }
        } else {
            Expects::Skip(u64::from(args.bytes) + 2, "BAD_FORMAT")
        };
    }

    /// Takes a job that has arrived, or the reason why it is discarded.
    fn take_job_of_batch(&mut self, job: Result<PutBody, &'static str>) {
        let batch = self.batch.as_mut().expect("a batch is arriving");
        match job {
            Ok(job) if job.body.ends_with(b"\r\n") => batch.jobs.push(job),
            Ok(_) => _ = batch.refusal.get_or_insert("EXPECTED_CRLF"),
            Err(reply) => _ = batch.refusal.get_or_insert(reply),
        }
        batch.arrived += 1;
        if batch.arrived == batch.count {
            self.pending.extend(self.batch.take().map(Pending::PutBatch));
        }
    }

    /// Takes a line that is no command where it stands.
    fn refuse_line(&mut self, line: &[u8]) {
        match follows(line) {
            Follows::Body(bytes) => {
                self.expects = Expects::Skip(u64::from(bytes) + 2, "BAD_FORMAT");
                return;
            }
            Follows::Commands if self.batch.is_none() => {}
            Follows::Commands | Follows::Unknown => (self.batch, self.has_quit) = (None, true),
        }
        self.pending.push_back(Pending::Fixed("BAD_FORMAT"));
    }

    fn take_line(&mut self, line: Vec<u8>, book: &mut Book) {
        if self.batch.is_some() {
            return self.take_line_of_batch(&line, book.max_job_bytes);
        }
        let pending = match parse(&line) {
            _ if line.len() + 2 > bytes_max(&line) => return self.refuse_line(&line),
            Err(ParseError::BadFormat) => return self.refuse_line(&line),
            Err(ParseError::UnknownCommand) => Pending::Fixed("UNKNOWN_COMMAND"),
            Ok(Command::Put { args, tags }) => {
                if args.bytes > book.max_job_bytes {
                    self.expects = Expects::Skip(u64::from(args.bytes) + 2, "JOB_TOO_BIG");
                } else {
                    let bytes = args.bytes as usize + 2;
                    match tags {
                        Some(tags) => self.expects = Expects::Body { bytes, has_key: tags.idp().is_some() },
                        None => self.expects = Expects::Skip(bytes as u64, "BAD_FORMAT"),
                    }
                }
                return;
            }
            Ok(Command::JobNote { bytes, .. }) => {
                self.expects = match bytes {
                    0..=NOTE_BYTES_MAX => Expects::Note(bytes as usize + 2),
                    _ => Expects::Skip(u64::from(bytes) + 2, "JOB_TOO_BIG"),
                };
                return;
            }
            Ok(Command::SchedulePut(line)) => {
                let args = line.args();
                let bytes = args.put.bytes;
                self.expects = if bytes > SCHEDULE_BYTES_MAX.min(book.max_job_bytes) {
                    Expects::Skip(u64::from(bytes) + 2, "JOB_TOO_BIG")
                } else if When::restore(args.when).is_err() {
                    Expects::Skip(u64::from(bytes) + 2, "BAD_FORMAT")
                } else {
                    Expects::Schedule(bytes as usize + 2)
                };
                return;
            }
            Ok(Command::PutBatch { count: Some(count) }) => {
                self.batch = Some(Batch { count, ..Batch::default() });
                return;
            }
            Ok(Command::PutBatch { count: None }) => {
                self.has_quit = true;
                Pending::Fixed("BAD_FORMAT")
            }
            Ok(Command::Quit) => {
                self.has_quit = true;
                return;
            }
            Ok(Command::PauseTube { tube: None, .. }) => Pending::Fixed("BAD_FORMAT"),
            Ok(Command::Delete(id)) => {
                book.condemned.insert(id.0);
                Pending::Line(line)
            }
            Ok(Command::DeleteBatch(ids)) => {
                book.condemned.extend(ids.iter().map(|id| id.0));
                Pending::Line(line)
            }
            Ok(Command::FlushTube(_)) => {
                book.has_flushed = true;
                Pending::Line(line)
            }
            Ok(Command::TubeConfig { rule: Some(rule), .. }) => {
                book.has_flushed |= rule.key() == RuleKey::Retention;
                book.has_limits |= rule.key().limits_jobs();
                Pending::Line(line)
            }
            Ok(_) => Pending::Line(line),
        };
        self.pending.push_back(pending);
    }

    fn compare(&mut self, pending: &Pending, reply: &Reply<'_>, may_time_out: bool, book: &mut Book) {
        book.unanswered -= pending.complete_puts();
        let is_right = match pending {
            Pending::Fixed(expected) => reply.words == [*expected],
            Pending::Put(put) => match (put.body.ends_with(b"\r\n"), &reply.words[..]) {
                (false, ["EXPECTED_CRLF"]) => true,
                (true, ["DRAINING"]) => book.is_draining,
                (_, ["OUT_OF_MEMORY"]) => {
                    book.has_limits || book.job_bytes_logged.is_some_and(|most| put.body.len() > most / 2)
                }
                (true, ["JOB_TOO_BIG"]) => book.fits_no_segment(put.body.len()),
                (true, words) => book.is_right_for_put(put, words),
                _ => false,
            },
            Pending::Note(has_end) => match reply.words[..] {
                ["EXPECTED_CRLF"] => !has_end,
                ["NOTED" | "NOT_FOUND"] => *has_end,
                ["JOB_TOO_BIG" | "OUT_OF_MEMORY"] => *has_end && book.job_bytes_logged.is_some(),
                _ => false,
            },
            Pending::Schedule(has_end) => match reply.words[..] {
                ["EXPECTED_CRLF"] => !has_end,
                ["SCHEDULED"] => *has_end,
                ["JOB_TOO_BIG" | "OUT_OF_MEMORY"] => *has_end && book.job_bytes_logged.is_some(),
                _ => false,
            },
            Pending::PutBatch(batch) => book.is_right_for_batch(batch, reply),
            Pending::Line(line) => {
                let command = parse(line).expect("it was a command");
                let may_time_out = may_time_out || self.is_next_canceling();
                let is_early =
                    matches!(command, Command::Reserve) && !may_time_out && reply.words == ["TIMED_OUT"];
                !is_early && (self.is_right(&command, reply) || book.is_right(&command, reply))
            }
        };
        let data = reply.data.map(|data| data.escape_ascii().to_string());
        assert!(is_right, "{:?} {data:?} is no reply to {pending:?}", reply.words);
    }

    /// Returns whether the next command without a reply is `cancel-reserve`.
    fn is_next_canceling(&self) -> bool {
        matches!(self.pending.front(), Some(Pending::Line(line)) if line == b"cancel-reserve")
    }

    /// Returns the reply to commands that depend only on the connection.
    fn is_right(&mut self, command: &Command<'_>, reply: &Reply<'_>) -> bool {
        match *command {
            Command::Use(tube) => {
                self.used = tube.as_bytes().to_vec();
                reply.words == ["USING", tube.as_str()]
            }
            Command::ListTubeUsed => reply.words == ["USING", str::from_utf8(&self.used).expect("ASCII")],
            Command::Watch(tube) | Command::WatchWeighted { tube, .. } => {
                self.watched.insert(tube.as_bytes().to_vec());
                reply.words == ["WATCHING", &self.watched.len().to_string()]
            }
            Command::Ignore(tube) => {
                let is_last = self.watched.len() == 1 && self.watched.contains(tube.as_bytes());
                if !is_last {
                    self.watched.remove(tube.as_bytes());
                }
                let count = self.watched.len().to_string();
                if is_last { reply.words == ["NOT_IGNORED"] } else { reply.words == ["WATCHING", &count] }
            }
            Command::ScheduleDelete(_) => matches!(reply.words[..], ["DELETED" | "NOT_FOUND"]),
            Command::ScheduleRun(_) => reply.words == ["NOT_FOUND"],
            Command::ScheduleStats(_) | Command::ListSchedules { .. } => {
                matches!(reply.words[..], ["OK", _] | ["NOT_FOUND"])
            }
            Command::ListTubesWatched => reply.list() == Some(self.watched.clone()),
            Command::ListTubes => reply.list().is_some_and(|all| {
                all.contains(&self.used) && all.contains(&b"default"[..]) && all.is_superset(&self.watched)
            }),
            _ => false,
        }
    }
}

impl Book {
    pub fn new(max_job_bytes: u32, job_bytes_logged: Option<usize>) -> Self {
        Self { max_job_bytes, job_bytes_logged, ..Self::default() }
    }

    /// Asserts that the recovered jobs are those that replies have reported, and no others.
    pub fn check_kept(&self, jobs: &Jobs, next_id: JobId) {
        for (id, job) in jobs {
            let body = job.body.strip_suffix(b"\r\n").expect("a body has its end");
            assert!(self.put.contains(body), "no client has put the body of job {id}");
            assert!(self.bodies.get(id).is_none_or(|known| known == body), "job {id} has its body");
        }
        for id in self.inserted.difference(&self.condemned).filter(|_| !self.has_flushed) {
            assert!(jobs.contains_key(id), "job {id} is lost");
        }
        assert!(self.inserted.iter().all(|&id| id < next_id.0), "no id is used twice");
    }

    /// Records the body of a job in a reply.
    fn know(&mut self, id: u64, body: &[u8]) {
        assert!(self.put.contains(body), "no client has put the body of job {id}");
        let known = self.bodies.entry(id).or_insert_with(|| body.to_vec());
        assert!(known == body, "the body of job {id} has changed");
    }

    /// Checks the reply to a put with a complete body.
    fn is_right_for_put(&mut self, put: &PutBody, words: &[&str]) -> bool {
        match words {
            ["INSERTED", id] => {
                let id = number(id);
                self.know(id, put.body.strip_suffix(b"\r\n").expect("the body is complete"));
                id > 0 && self.inserted.insert(id)
            }
            ["INSERTED", id, state, rest @ ..] => {
                let is_known = self.inserted.contains(&number(id)) || self.unanswered > 0;
                let is_state = ["READY", "RESERVED", "DELAYED", "BURIED", "HELD", "DELETED"].contains(state);
                let has_end = rest.is_empty() || rest.len() == 1 && *state != "DELETED";
                put.has_key && is_known && is_state && has_end
            }
            _ => false,
        }
    }

    /// Whether jobs of this size, with the longest names and tags, may be larger than a segment of the job log.
    fn fits_no_segment(&self, bytes: usize) -> bool {
        self.job_bytes_logged.is_some_and(|segment| bytes + JOB_REST_BYTES_MAX > segment)
    }

    /// Checks the reply to a `put-batch`.
    fn is_right_for_batch(&mut self, batch: &Batch, reply: &Reply<'_>) -> bool {
        // More than the records of the jobs take.
        let logged_bytes: usize = batch.jobs.iter().map(|job| job.body.len() + 512).sum();
        match (&reply.words[..], batch.refusal) {
            (["OUT_OF_MEMORY"], _) => {
                self.has_limits || self.job_bytes_logged.is_some_and(|most| logged_bytes > most / 2)
            }
            (&[word], Some(refusal)) => word == refusal,
            (["JOB_TOO_BIG"], None) => self.fits_no_segment(logged_bytes),
            (["DRAINING"], None) => self.is_draining,
            (["INSERTED_BATCH", count], None) => {
                let replies = reply.jobs.iter().map(|job| &job.words[..]);
                number(count) == u64::from(batch.count)
                    && batch.jobs.iter().zip(replies).all(|(job, words)| self.is_right_for_put(job, words))
            }
            _ => false,
        }
    }

    /// Checks replies that depend on the queue. Only a model could tell which of the valid ones is right.
    fn is_right(&mut self, command: &Command<'_>, reply: &Reply<'_>) -> bool {
        let words = &reply.words[..];
        if let ([_, id, _], Some(body)) = (words, reply.data) {
            self.know(number(id), body);
        }
        for job in &reply.jobs {
            self.know(number(job.words[1]), job.data.expect("a reserved job has a body"));
        }
        let has_id = |id: JobId| words.get(1) == Some(&&*id.to_string());
        match *command {
            Command::Reserve | Command::ReserveWithTimeout { .. } => {
                words[0] == "RESERVED" || words == ["DEADLINE_SOON"] || words == ["TIMED_OUT"]
            }
            Command::ReserveBatch { count, seconds } => match words {
                ["RESERVED_BATCH", taken] => {
                    number(taken) <= count.into() && (number(taken) > 0 || seconds.is_none())
                }
                _ => words == ["DEADLINE_SOON"] || words == ["TIMED_OUT"] && seconds.is_some(),
            },
            Command::ReserveJob(id) => words[0] == "RESERVED" && has_id(id) || words == ["NOT_FOUND"],
            Command::Peek(id) => words[0] == "FOUND" && has_id(id) || words == ["NOT_FOUND"],
            Command::PeekReady | Command::PeekDelayed | Command::PeekBuried | Command::PeekReserved => {
                words[0] == "FOUND" || words == ["NOT_FOUND"]
            }
            Command::Delete(_) => matches!(words, ["DELETED" | "NOT_FOUND"]),
            Command::Release { .. } => matches!(words, ["RELEASED" | "BURIED" | "NOT_FOUND"]),
            Command::Bury { .. } => matches!(words, ["BURIED" | "NOT_FOUND"]),
            Command::Touch(_) => matches!(words, ["TOUCHED" | "NOT_FOUND"]),
            Command::KickJob(_) => matches!(words, ["KICKED" | "NOT_FOUND"]),
            Command::Kick { bound } => {
                matches!(words, ["KICKED", count] if number(count) <= u64::from(bound))
            }
            Command::Stats => reply.is_report(),
            Command::MoveJob { .. } => {
                matches!(words, ["MOVED" | "NOT_MOVED" | "NOT_FOUND"])
                    || words == ["OUT_OF_MEMORY"] && self.has_limits
            }
            Command::TubeConfig { rule: Some(_), .. } => words == ["CONFIGURED"],
            Command::TubeConfig { rule: None, .. } => reply.is_report() || words == ["NOT_FOUND"],
            Command::MoveJobs { bound, .. } => {
                matches!(words, ["MOVED", count] if number(count) <= u64::from(bound))
                    || words == ["NOT_FOUND"]
            }
            Command::ListJobs { after, limit, .. } => reply.is_page(after, limit) || words == ["NOT_FOUND"],
            Command::StatsJob(id) => reply.has("id", &id.to_string()) || words == ["NOT_FOUND"],
            Command::StatsTube(tube) => {
                reply.has("name", &format!("{:?}", tube.as_str())) || words == ["NOT_FOUND"]
            }
            Command::DeleteBatch(ids) => matches!(
                words,
                ["DELETED_BATCH", deleted, not_found] if number(deleted) + number(not_found) == ids.iter().count() as u64
            ),
            Command::FlushTube(_) | Command::FlushKeys(_) => {
                let jobs_max = (self.inserted.len() + self.unanswered) as u64;
                let may_be_missing = matches!(command, Command::FlushTube(_));
                matches!(words, ["FLUSHED", count] if number(count) <= jobs_max)
                    || may_be_missing && words == ["NOT_FOUND"]
            }
            Command::StatsGroup(name) => {
                reply.has("name", &format!("{:?}", name.as_str())) || words == ["NOT_FOUND"]
            }
            Command::WaitJob { .. } => {
                matches!(words, ["DELETED" | "BURIED" | "TIMED_OUT" | "NOT_FOUND"])
            }
            Command::CancelReserve => words == ["NOT_WAITING"],
            Command::ReserveMode(mode) => words == ["USING", mode.word()],
            Command::Drain => words == ["DRAINING"],
            Command::Undrain => words == ["NOT_DRAINING"],
            Command::PauseTube { .. } => matches!(words, ["PAUSED" | "NOT_FOUND"]),
            _ => false,
        }
    }
}

impl<'a> Reply<'a> {
    /// Returns the reply at the start of `bytes` and its length, if it is complete.
    fn take(bytes: &'a [u8]) -> Option<(Self, usize)> {
        let end = bytes.windows(2).position(|pair| pair == b"\r\n");
        assert!(end.unwrap_or(bytes.len()) <= LINE_BYTES_MAX, "the line of a reply is short");
        let reply = reply::first(bytes)?;
        let words: Vec<&str> = reply.line.split(' ').collect();
        if let ["RESERVED_BATCH" | "INSERTED_BATCH", count] = words[..] {
            return Self::take_batch(words.clone(), number(count), bytes, reply.bytes);
        }
        assert!(reply.data.is_none() || bytes[..reply.bytes].ends_with(b"\r\n"), "data ends with CR LF");
        Some((Self { words, data: reply.data, jobs: Vec::new() }, reply.bytes))
    }

    fn take_batch(words: Vec<&'a str>, count: u64, bytes: &'a [u8], line: usize) -> Option<(Self, usize)> {
        let (mut jobs, mut length) = (Vec::new(), line);
        for _ in 0..count {
            let (job, bytes) = Self::take(&bytes[length..])?;
            assert_eq!(format!("{}_BATCH", job.words[0]), words[0], "a batch has as many jobs as it says");
            jobs.push(job);
            length += bytes;
        }
        Some((Self { words, data: None, jobs }, length))
    }

    /// Returns the lines of a report.
    fn lines(&self) -> Option<std::str::Lines<'a>> {
        let text = str::from_utf8(self.data?).expect("a report is UTF-8");
        Some(text.strip_prefix("---\n")?.lines())
    }

    fn list(&self) -> Option<BTreeSet<Vec<u8>>> {
        self.lines()?.map(|line| Some(line.strip_prefix("- ")?.as_bytes().to_vec())).collect()
    }

    /// Returns whether a reply is a page of jobs, sorted by id.
    fn is_page(&self, after: JobId, limit: u32) -> bool {
        let Some(lines) = self.lines() else { return false };
        let id = |line: &str| {
            number(line.strip_prefix("- {id: ").and_then(|rest| rest.split(',').next()).expect("an id"))
        };
        let ids: Vec<u64> = lines.map(id).collect();
        ids.len() <= limit as usize
            && ids.first().is_none_or(|&first| first > after.0)
            && ids.is_sorted_by(|a, b| a < b)
    }

    fn is_report(&self) -> bool {
        self.lines().is_some_and(|mut lines| lines.all(|line| line.contains(": ")))
    }

    /// Returns whether a reply is a report with this line.
    fn has(&self, key: &str, value: &str) -> bool {
        let is_it = |line: &str| line.split_once(": ") == Some((key, value));
        self.is_report() && self.lines().is_some_and(|mut lines| lines.any(is_it))
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
}
