//! A cluster for a test, and stores that use it.

use std::process::Command;
use std::time::{Duration, Instant};

use beanring::io::Database;
use beanring::io::replica::{LogNumber, PostgresStore, Settings, init};
use beanring::time::Span;
use beanring::wal::replica::{
    APPENDS_MAX, Claim, Epoch, Failure, LogStore, Member, Page, Position, Reply, Request, Term, identity,
};
use beanring_testkit::postgres::{Cluster, Postgres, Programs};
use beanring_testkit::process::{REPLY_PATIENCE, program};
use bytes::Bytes;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Returns a cluster with this many standbys; nothing where there is no PostgreSQL.
pub fn cluster(what: &str, standbys: usize) -> Option<Cluster> {
    match Programs::find() {
        Ok(programs) => Some(Cluster::start(&programs, standbys, "")),
        Err(reason) => {
            println!("skipped: {what}, because {reason}");
            None
        }
    }
}

/// Returns a cluster with two standbys and the tables; nothing where there is no PostgreSQL.
pub fn site(what: &str) -> Option<Cluster> {
    let cluster = cluster(what, 2)?;
    init(&settings(&cluster.primary)).expect("the user owns the database");
    Some(cluster)
}

pub fn settings(server: &Postgres) -> Settings {
    Settings::parse(&server.url("beanring"), LogNumber::default()).expect("the URL is valid")
}

/// A store, and what a test asks of it.
pub struct Store(pub PostgresStore);

impl Store {
    pub fn new(server: &Postgres) -> Self {
        Self(PostgresStore::new(settings(server)).expect("there are threads"))
    }

    pub fn begin(&mut self, request: Request) {
        self.0.begin(request);
    }

    /// Waits for the next reply, for at most this time.
    pub fn reply_within(&mut self, time: Duration) -> Option<Reply> {
        let until = Instant::now() + time;
        loop {
            self.0.clear_reply_fd();
            if let Some(reply) = self.0.reply() {
                return Some(reply);
            }
            let left = until.checked_duration_since(Instant::now())?;
            let left = PollTimeout::try_from(left + Duration::from_millis(1)).expect("it is short");
            poll(&mut [PollFd::new(self.0.reply_fd(), PollFlags::POLLIN)], left).expect("it can be polled");
        }
    }

    pub fn reply(&mut self) -> Reply {
        self.reply_within(REPLY_PATIENCE).expect("a reply comes")
    }

    pub fn ask(&mut self, request: Request) -> Reply {
        self.begin(request);
        self.reply()
    }

    pub fn append(&mut self, epoch: u64, position: u64, chunk: &str) -> Result<(), Failure> {
        result_of(self.ask(append(epoch, position, chunk)))
    }

    pub fn append_again(&mut self, epoch: u64, position: u64, chunk: &str) -> Result<(), Failure> {
        result_of(self.ask(repeated(epoch, position, chunk)))
    }

    pub fn claim(&mut self, seen: u64, position: u64, token: u64) -> Result<(), Failure> {
        let claim = self.claim_of(seen, position, token);
        result_of(self.ask(claim))
    }

    /// A claim of a server that has read everything before the position.
    pub fn claim_of(&mut self, seen: u64, position: u64, token: u64) -> Request {
        let page = self.read(position.saturating_sub(APPENDS_MAX as u64).max(1));
        let before = page.chunks.iter().filter(|(at, _)| at.0 < position);
        let tail = before.map(|(_, chunk)| identity(chunk).expect("it is long enough")).collect();
        let behind = page.chunks.iter().filter(|(at, _)| at.0 > position).count();
        let leader = member(token);
        let chunk = bytes_of(&format!("epoch of {token}"));
        Request::Claim(Claim {
            seen: Epoch(seen),
            beat: page.beat,
            behind,
            position: Position(position),
            tail,
            chunk,
            leader,
        })
    }

    pub fn renew(&mut self, epoch: u64, token: u64) -> Result<(), Failure> {
        result_of(self.ask(Request::Renew(Term { epoch: Epoch(epoch), token })))
    }

    pub fn trim(&mut self, epoch: u64, before: u64) -> Result<(), Failure> {
        result_of(self.ask(Request::Trim { term: term(epoch), before: Position(before) }))
    }

    pub fn read(&mut self, from: u64) -> Page {
        match self.ask(Request::Read { from: Position(from) }) {
            Reply::Read(Ok(page)) => page,
            reply => panic!("{reply:?}"),
        }
    }

    /// Repeats a request until its outcome is known.
    pub fn settle(&mut self, request: &Request) -> Result<(), Failure> {
        let started = Instant::now();
        loop {
            match result_of(self.ask(request.clone())) {
                Err(Failure::Unknown) if started.elapsed() < REPLY_PATIENCE => {}
                result => return result,
            }
        }
    }
}

pub fn append(epoch: u64, position: u64, chunk: &str) -> Request {
    let chunk = bytes_of(chunk);
    Request::Append { term: term(epoch), position: Position(position), chunk, is_repeated: false }
}

pub fn repeated(epoch: u64, position: u64, chunk: &str) -> Request {
    let chunk = bytes_of(chunk);
    Request::Append { term: term(epoch), position: Position(position), chunk, is_repeated: true }
}

/// The term of the process that has led since this epoch, as most tests claim it.
pub fn term(epoch: u64) -> Term {
    Term { epoch: Epoch(epoch), token: 7 }
}

/// The server that has this token.
pub fn member(token: u64) -> Member {
    let (address, lease) = (format!("host-{token}:1").into(), Span::from_millis(token as u32));
    Member { address, token, secret: u64::MAX - token, lease }
}

/// The text of a chunk with spaces behind it: a chunk has at least 64 bytes.
fn bytes_of(text: &str) -> Bytes {
    Bytes::from(format!("{text:<80}"))
}

pub fn result_of(reply: Reply) -> Result<(), Failure> {
    match reply {
        Reply::Appended { result, .. }
        | Reply::Watched { result, .. }
        | Reply::Reserved { result, .. }
        | Reply::Claimed(result)
        | Reply::Trimmed(result) => result,
        Reply::Renewed(result) => result.map(drop),
        Reply::Read(result) => result.map(drop),
    }
}

/// What a page has, as text.
pub fn chunks(page: &Page) -> Vec<(u64, String)> {
    let text = |chunk: &Bytes| String::from_utf8_lossy(chunk).trim_end().to_owned();
    page.chunks.iter().map(|(position, chunk)| (position.0, text(chunk))).collect()
}

/// Runs the program with the URL in the variable, and returns its exit code, output and errors.
pub fn run(words: &[&str], url: &str) -> (i32, String, String) {
    let mut command = Command::new(program());
    let output = command.args(words).env("BEANRING_REPLICATE", url).output().expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("it is text");
    (output.status.code().expect("no signal ends it"), text(output.stdout), text(output.stderr))
}

/// Does the same for `beanring replicate`.
pub fn replicate(words: &[&str], url: &str) -> (i32, String, String) {
    run(&[&["replicate"], words].concat(), url)
}
