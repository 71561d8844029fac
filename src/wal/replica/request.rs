//! What replication asks of the database, and what the database answers. At most one request of each kind is in flight, and
//! of [`Request::Append`] up to [`APPENDS_MAX`]. Replies may come in any order.

use std::fmt;

use bytes::Bytes;

use crate::time::Span;

/// The maximum number of appends in flight. All chunks that are not acknowledged lie within this many positions.
pub const APPENDS_MAX: usize = 4;

/// The number of a leader's term. Each take-over adds one; 0 means that there has been no leader.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Epoch(pub u64);

/// The number of a chunk in the log. The first is 1, and there are no gaps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Position(pub u64);

impl Epoch {
    /// Returns the next epoch.
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl Position {
    /// The position of the first chunk of a log.
    pub const FIRST: Self = Self(1);

    /// Returns the next position.
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Returns the position this number of chunks later.
    pub const fn plus(self, chunks: u64) -> Self {
        Self(self.0 + chunks)
    }

    /// Returns the position before this one; 0 before the first.
    pub const fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A server as other servers see it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Member {
    /// The `HOST:PORT` at which the server accepts connections from standbys; empty if it accepts none.
    pub address: Box<str>,
    /// The URL of the console and the API; empty if none is configured.
    pub http: Box<str>,
    /// A random number of the process plus the number of the claim, so no two claims have the same token. A restart in place draws a new
    /// number too: requests of the earlier program may still arrive.
    pub token: u64,
    /// The secret that a standby shows to this leader when it forwards a connection.
    pub secret: u64,
    /// The time in which the leader may answer after its last change of the log, in whole milliseconds.
    pub lease: Span,
}

impl Member {
    /// The URL of the console and the API, if the database has one. Any other text there is no link.
    pub fn http_url(&self) -> Option<&str> {
        let is_http = self.http.starts_with("http://") || self.http.starts_with("https://");
        is_http.then_some(&*self.http)
    }
}

/// An epoch and the process that leads it. A fail-over of the database may undo a claim, and another process may then lead an epoch
/// with the same number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Term {
    /// The epoch.
    pub epoch: Epoch,
    /// The [token](Member::token) of the leader.
    pub token: u64,
}

/// A request to the database.
#[derive(Clone, PartialEq, Debug)]
pub enum Request {
    /// Insert a chunk at a position, if the term has not ended.
    Append {
        /// The term of the leader.
        term: Term,
        /// Where the chunk belongs.
        position: Position,
        /// The chunk.
        chunk: Bytes,
        /// An earlier request may have inserted the same chunk. Then the reply must wait until that row is replicated.
        is_repeated: bool,
    },
    /// Write to the row of the epoch, if the term has not ended. This shows standbys that the leader is alive.
    Renew(Term),
    /// Read the chunks from a position on, and the row of the epoch, at one point in time. A page has at least
    /// [`APPENDS_MAX`] + 1 chunks, if there are as many. Chunks before the first position that is not trimmed do not count.
    Read {
        /// The first position.
        from: Position,
    },
    /// Wait until no session holds the lock of the epoch, on a database whose log has this leader. A new watch replaces one in flight,
    /// which then gets no reply.
    Watch(Term),
    /// End an epoch and begin the next one.
    Claim(Claim),
    /// Delete the chunks before a position, if the term has not ended.
    Trim {
        /// The term of the leader.
        term: Term,
        /// The first position that stays.
        before: Position,
    },
    /// Change the space that the database has in reserve.
    Reserve(Reserve),
}

/// The use of the reserved space, which lets a leader append deletions when the disk of the database is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reserve {
    /// Keep the space, or reserve it again. Fails with [`Failure::Full`] if the disk has too little.
    Keep,
    /// Free the space for appends.
    Free,
}

/// A take-over, in one transaction. The database refuses it if the epoch has ended or was renewed, if a chunk is at the position, or if
/// the chunks before the position are not those of `tail`: a fail-over may have undone what was read.
#[derive(Clone, PartialEq, Debug)]
pub struct Claim {
    /// The epoch to end.
    pub seen: Epoch,
    /// The [beat](Page::beat) of the last read. A leader that was alive after the read has changed it, and the claim is refused.
    pub beat: u64,
    /// The number of chunks after the position, behind a gap, in the last read. If it has changed, the leader was alive after the read, and
    /// the claim is refused too.
    pub behind: usize,
    /// Where the chunk of the new epoch belongs. Chunks behind this position are deleted.
    pub position: Position,
    /// The identities of the chunks directly before the position, in their order.
    pub tail: Vec<u32>,
    /// The chunk of the new epoch.
    pub chunk: Bytes,
    /// The new leader.
    pub leader: Member,
}

/// What an acknowledged renewal tells.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Renewal {
    /// The number of requests of operators in this epoch to write the whole log again.
    pub rewrites: u64,
    /// Settings of the database that endanger the queue.
    pub hazards: Hazards,
}

/// Settings of the database that endanger the queue.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Hazards {
    /// Commits wait for no standby of the database, though they should.
    pub is_local: bool,
    /// The next session of the role is read-only (`default_transaction_read_only`).
    pub is_read_only: bool,
}

/// An answer of the database.
#[derive(Clone, PartialEq, Debug)]
pub enum DatabaseReply {
    /// The chunk is in the log and replicated, or not.
    Appended {
        /// The position of the request.
        position: Position,
        /// How it ended.
        result: Result<(), Failure>,
    },
    /// The row is written and replicated, or not.
    Renewed(Result<Renewal, Failure>),
    /// What was read.
    Read(Result<Page, Failure>),
    /// No session holds the lock of the epoch, or it is not known whether one does.
    Watched {
        /// The leader of the request.
        term: Term,
        /// How it ended.
        result: Result<(), Failure>,
    },
    /// The new epoch has begun and its chunk is replicated, or not. This process holds the lock of the new epoch.
    Claimed(Result<(), Failure>),
    /// The chunks are deleted, or not.
    Trimmed(Result<(), Failure>),
    /// The space is kept, or free.
    Reserved {
        /// The request.
        wanted: Reserve,
        /// How it ended.
        result: Result<(), Failure>,
    },
}

/// Why a request was not carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The epoch has ended. For a claim: the epoch or its beat is not the one that was read.
    Fenced,
    /// For an append: another chunk is at the position. For a claim: the log has other chunks than those that were read.
    Taken,
    /// The database has no space left.
    Full,
    /// The outcome is unknown: the database may have carried out the request or not, and may have replicated it or not.
    Unknown,
}

/// What a read returns.
#[derive(Clone, PartialEq, Debug)]
pub struct Page {
    /// The current epoch.
    pub epoch: Epoch,
    /// The leader of the epoch.
    pub leader: Member,
    /// Changes with each [`Request::Renew`], each claim, and each append that finds its own chunk: standbys must see everything that
    /// prolongs a lease.
    pub beat: u64,
    /// The first position that is not trimmed.
    pub begin: Position,
    /// The id of the log.
    pub log_id: u64,
    /// Chunks by position, in order. There may be gaps where an append is in flight.
    pub chunks: Vec<(Position, Bytes)>,
    /// The last position with a chunk, perhaps behind a gap; 0 without one.
    pub end: Position,
}

impl Page {
    /// Whether the log has no chunks after these.
    pub fn is_end(&self) -> bool {
        self.chunks.last().is_none_or(|&(last, _)| last >= self.end)
    }
}

/// The database as the server uses it: requests in, replies out.
pub trait LogStore {
    /// Begins a request.
    fn begin(&mut self, request: Request);

    /// Returns the next reply, if there is one.
    fn reply(&mut self) -> Option<DatabaseReply>;
}
