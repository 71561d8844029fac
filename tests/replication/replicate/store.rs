//! A store as the core uses it, and what a test asks of it.

use std::time::{Duration, Instant};

use beanring::io::Database;
use beanring::io::replica::{PostgresStore, Settings};
use beanring::time::Span;
use beanring::wal::replica::{
    APPENDS_MAX, Claim, DatabaseReply, Epoch, Failure, LogStore, Member, Page, Position, Request, Term,
    identity,
};
use beanring_testkit::postgres::{Cluster, Postgres};
use beanring_testkit::process::REPLY_PATIENCE;
use beanring_testkit::wait;
use bytes::Bytes;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::site::{own_site, sessions, settings, site};

/// For how long no reply may come to a request that is known to wait.
const QUIET: Duration = Duration::from_millis(100);

/// Times that a watch asks whether the leader has ended, until a free lock would certainly have been noticed.
const ATTEMPTS: usize = 4;

pub struct Store(PostgresStore);

/// A database with a store that leads since epoch 1.
pub fn led(what: &str) -> Option<(Cluster, Store)> {
    site(what).map(lead)
}

/// The same on servers of its own.
pub fn own_led(what: &str) -> Option<(Cluster, Store)> {
    own_site(what).map(lead)
}

fn lead(site: Cluster) -> (Cluster, Store) {
    let mut store = Store::new(&site.primary);
    assert_eq!(store.claim(0, 1, 7), Ok(()));
    (site, store)
}

impl Store {
    pub fn new(server: &Postgres) -> Self {
        Self::open(settings(server))
    }

    pub fn open(settings: Settings) -> Self {
        Self(PostgresStore::new(settings).expect("there are threads"))
    }

    pub fn begin(&mut self, request: Request) {
        self.0.begin(request);
    }

    /// Waits for the next reply, for at most this time.
    pub fn reply_within(&mut self, time: Duration) -> Option<DatabaseReply> {
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

    pub fn reply(&mut self) -> DatabaseReply {
        self.reply_within(REPLY_PATIENCE).expect("a reply comes")
    }

    /// The outcome of the next reply.
    pub fn result(&mut self) -> Result<(), Failure> {
        result_of(self.reply())
    }

    pub fn ask(&mut self, request: Request) -> DatabaseReply {
        self.begin(request);
        self.reply()
    }

    /// Begins a request which waits in the database, as `condition` says of a session. There must be no reply.
    pub fn begin_waiting(&mut self, request: Request, server: &Postgres, condition: &str) {
        let waits = format!("{request:?}");
        self.begin(request);
        server.wait_for(&sessions(condition), "1");
        assert_eq!(self.reply_within(QUIET), None, "{waits}");
    }

    /// Waits until the watch, which must get no reply, has asked several times.
    pub fn watches_on(&mut self, server: &Postgres, why: &str) {
        let asked = "select query_start from pg_stat_activity
            where datname = current_database() and application_name = 'beanring watch' and query like '%advisory%'";
        for _ in 0..ATTEMPTS {
            let last = server.sql(asked);
            wait::until("the watch asks again", || ![&last, ""].contains(&server.sql(asked).as_str()));
        }
        assert_eq!(self.reply_within(Duration::ZERO), None, "{why}");
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
        Request::Claim(Claim {
            seen: Epoch(seen),
            beat: page.beat,
            behind: page.chunks.iter().filter(|(at, _)| at.0 > position).count(),
            position: Position(position),
            tail: before.map(|(_, chunk)| identity(chunk).expect("it is long enough")).collect(),
            chunk: bytes_of(&format!("epoch of {token}")),
            leader: member(token),
        })
    }

    pub fn renew(&mut self, epoch: u64, token: u64) -> Result<(), Failure> {
        result_of(self.ask(Request::Renew(Term { epoch: Epoch(epoch), token })))
    }

    pub fn trim(&mut self, epoch: u64, before: u64) -> Result<(), Failure> {
        result_of(self.ask(Request::Trim { term: term(epoch), before: Position(before) }))
    }

    pub fn read(&mut self, from: u64) -> Page {
        match self.ask(read(from)) {
            DatabaseReply::Read(Ok(page)) => page,
            reply => panic!("{reply:?}"),
        }
    }

    /// Repeats a request until its outcome is known.
    pub fn settle(&mut self, request: &Request) -> Result<(), Failure> {
        let mut result = Err(Failure::Unknown);
        wait::until("the outcome is known", || {
            result = result_of(self.ask(request.clone()));
            result != Err(Failure::Unknown)
        });
        result
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

pub const fn read(from: u64) -> Request {
    Request::Read { from: Position(from) }
}

/// The term of the process that has led since this epoch, as most tests claim it.
pub const fn term(epoch: u64) -> Term {
    Term { epoch: Epoch(epoch), token: 7 }
}

/// The server that has this token.
pub fn member(token: u64) -> Member {
    let (address, lease) = (format!("host-{token}:1").into(), Span::from_millis(token as u32));
    let http = format!("http://host-{token}:2/").into();
    Member { address, http, token, secret: u64::MAX - token, lease }
}

/// The text of a chunk with spaces behind it: a chunk has at least 64 bytes.
fn bytes_of(text: &str) -> Bytes {
    Bytes::from(format!("{text:<80}"))
}

pub fn result_of(reply: DatabaseReply) -> Result<(), Failure> {
    match reply {
        DatabaseReply::Appended { result, .. }
        | DatabaseReply::Watched { result, .. }
        | DatabaseReply::Reserved { result, .. }
        | DatabaseReply::Claimed(result)
        | DatabaseReply::Trimmed(result) => result,
        DatabaseReply::Renewed(result) => result.map(drop),
        DatabaseReply::Read(result) => result.map(drop),
    }
}

/// What a page has, as text.
pub fn chunks(page: &Page) -> Vec<(u64, String)> {
    let text = |chunk: &Bytes| String::from_utf8_lossy(chunk).trim_end().to_owned();
    page.chunks.iter().map(|(position, chunk)| (position.0, text(chunk))).collect()
}
