//! A database with synchronous replication, as [`Request`] describes it. What a transaction did is acknowledged when it is
//! replicated. Reads find it at once or, like PostgreSQL, when its wait is over: because it is replicated, the wait was canceled,
//! or the primary has restarted. At a fail-over the changes that are not replicated are lost, or a part of them.

use std::collections::{BTreeMap, VecDeque};

use beanring::wal::replica::{
    APPENDS_MAX, DatabaseReply, Epoch, Failure, Member, Page, Position, Renewal, Request, Reserve, Term,
    identity,
};
use bytes::Bytes;

/// The fewest chunks that a page has if there are more.
const PAGE_CHUNKS_MIN: usize = APPENDS_MAX + 1;

pub const LOG_ID: u64 = 0x1234_5678_9abc_def0;

/// A process that has a session: the number of the host, and how many processes it had before.
pub type Process = (usize, u64);

#[derive(Clone)]
pub struct State {
    pub epoch: Epoch,
    pub leader: Member,
    pub beat: u64,
    pub begin: u64,
    pub chunks: BTreeMap<u64, Bytes>,
}

#[derive(Clone)]
enum Change {
    Insert(u64, Bytes),
    Renew,
    Claim(Epoch, Member, u64, Bytes),
    Trim(u64),
}

/// A server of the database that is or was the primary.
#[derive(Clone)]
pub struct Node {
    pub visible: State,
    pub replicated: State,
    /// What reads find.
    shown: State,
    /// Reads find a change only after its wait.
    hides: bool,
    /// Changes that are not replicated, and whether reads find them.
    suffix: VecDeque<(Change, bool)>,
    /// Changes that are replicated.
    pub replicated_changes: u64,
    /// The sessions that hold the locks of epochs.
    pub locks: BTreeMap<u64, Process>,
    pub is_full: bool,
    pub reads: usize,
}

/// What a request has led to.
pub struct Answer {
    pub reply: DatabaseReply,
    /// The reply leaves when this number of changes is replicated.
    pub waits_for: Option<u64>,
}

impl State {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Insert(position, chunk) => _ = self.chunks.insert(*position, chunk.clone()),
            Change::Renew => self.beat += 1,
            Change::Claim(epoch, leader, position, chunk) => {
                (self.epoch, self.leader) = (*epoch, leader.clone());
                self.beat += 1;
                self.chunks.split_off(position);
                self.chunks.insert(*position, chunk.clone());
            }
            Change::Trim(before) => {
                self.begin = self.begin.max(*before);
                self.chunks = self.chunks.split_off(&self.begin);
            }
        }
    }

    pub fn page(&self, from: Position, chunks_max: usize) -> Page {
        let from = from.0.max(self.begin);
        let chunks: Vec<(Position, Bytes)> = self
            .chunks
            .range(from..)
            .take(chunks_max)
            .map(|(&position, chunk)| (Position(position), chunk.clone()))
            .collect();
        Page {
            epoch: self.epoch,
            leader: self.leader.clone(),
            beat: self.beat,
            begin: Position(self.begin),
            log_id: LOG_ID,
            chunks,
            end: Position(self.chunks.keys().next_back().copied().unwrap_or(0)),
        }
    }
}

impl Node {
    pub fn new(hides: bool) -> Self {
        let state =
            State { epoch: Epoch(0), leader: Member::default(), beat: 0, begin: 1, chunks: BTreeMap::new() };
        Self {
            visible: state.clone(),
            replicated: state.clone(),
            shown: state,
            hides,
            suffix: VecDeque::new(),
            replicated_changes: 0,
            locks: BTreeMap::new(),
            is_full: false,
            reads: 0,
        }
    }

    /// Promotes a standby that has received this many changes more than were acknowledged.
    pub fn promote(&self, received: usize) -> Self {
        let mut node = self.clone();
        node.suffix.truncate(received);
        node.visible = node.replicated.clone();
        for (change, is_shown) in &mut node.suffix {
            node.visible.apply(change);
            *is_shown = true;
        }
        node.shown = node.visible.clone();
        node.locks.clear();
        node
    }

    /// Has reads find a change, although it is not replicated.
    pub fn show(&mut self, changes: u64) {
        let behind = changes.checked_sub(self.replicated_changes + 1);
        if let Some((change, is_shown @ false)) = behind.and_then(|index| self.suffix.get_mut(index as usize))
        {
            *is_shown = true;
            self.shown.apply(change);
        }
    }

    /// Has reads find all changes, as after a restart.
    pub fn show_all(&mut self) {
        let end = self.replicated_changes + self.suffix.len() as u64;
        (self.replicated_changes + 1..=end).for_each(|changes| self.show(changes));
    }

    /// Whether a request waits for the end of a transaction that waits for its replication.
    pub fn is_blocked(&self, request: &Request) -> bool {
        let mut hidden = self.suffix.iter().filter(|(_, is_shown)| !is_shown).map(|(change, _)| change);
        let is_claim = |change: &Change| matches!(change, Change::Claim(..));
        match request {
            // It locks the row of the epoch, which the others lock too.
            Request::Claim(_) => hidden.next().is_some(),
            Request::Append { position, .. } => hidden.any(|change| {
                is_claim(change) || matches!(change, Change::Insert(hidden, _) if *hidden == position.0)
            }),
            Request::Renew(_) | Request::Trim { .. } => hidden.any(is_claim),
            Request::Read { .. } | Request::Watch(_) | Request::Reserve(_) => false,
        }
    }

    pub fn unreplicated(&self) -> usize {
        self.suffix.len()
    }

    /// Replicates the oldest change.
    pub fn replicate_one(&mut self) {
        if let Some((change, is_shown)) = self.suffix.pop_front() {
            self.replicated.apply(&change);
            if !is_shown {
                self.shown.apply(&change);
            }
            self.replicated_changes += 1;
        }
    }

    fn change(&mut self, change: Change) -> Result<(), Failure> {
        self.visible.apply(&change);
        if !self.hides {
            self.shown.apply(&change);
        }
        self.suffix.push_back((change, !self.hides));
        Ok(())
    }

    fn is_current(&self, term: Term) -> bool {
        term == Term { epoch: self.visible.epoch, token: self.visible.leader.token }
    }

    /// Carries out a request of a process. A watch is not one: see [`is_unlocked`](Self::is_unlocked).
    pub fn execute(&mut self, process: Process, request: &Request) -> Answer {
        let result = match request {
            Request::Append { term, position, chunk, .. } => match self.visible.chunks.get(&position.0) {
                _ if !self.is_current(*term) => Err(Failure::Fenced),
                Some(there) if there == chunk => self.change(Change::Renew),
                Some(_) => Err(Failure::Taken),
                None if self.is_full => Err(Failure::Full),
                None => self.change(Change::Insert(position.0, chunk.clone())),
            },
            Request::Renew(term) if self.is_current(*term) => self.change(Change::Renew),
            Request::Trim { term, before } if self.is_current(*term) => self.change(Change::Trim(before.0)),
            Request::Renew(_) | Request::Trim { .. } => Err(Failure::Fenced),
            Request::Claim(claim) => {
                if claim.seen != self.visible.epoch {
                    Err(Failure::Fenced)
                } else if self.visible.chunks.contains_key(&claim.position.0)
                    || claim.beat != self.visible.beat
                    || self.visible.chunks.range(claim.position.0 + 1..).count() != claim.behind
                    || !self.has_tail(claim)
                {
                    Err(Failure::Taken)
                } else if self.is_full {
                    Err(Failure::Full)
                } else {
                    let epoch = claim.seen.next();
                    let (leader, chunk) = (claim.leader.clone(), claim.chunk.clone());
                    self.locks.insert(epoch.0, process);
                    self.change(Change::Claim(epoch, leader, claim.position.0, chunk))
                }
            }
            Request::Read { from } => {
                self.reads += 1;
                let chunks_max = PAGE_CHUNKS_MIN + self.reads * 7 % 60;
                return Answer {
                    reply: DatabaseReply::Read(Ok(self.shown.page(*from, chunks_max))),
                    waits_for: None,
                };
            }
            Request::Reserve(Reserve::Keep) if self.is_full => Err(Failure::Full),
            Request::Reserve(_) => Ok(()),
            Request::Watch(_) => unreachable!("a watch waits"),
        };
        let waits_for = result.is_ok().then(|| self.replicated_changes + self.suffix.len() as u64);
        Answer { reply: reply_to(request, result), waits_for }
    }

    fn has_tail(&self, claim: &beanring::wal::replica::Claim) -> bool {
        let from = claim.position.0 - claim.tail.len() as u64;
        let there: Vec<u32> = self
            .visible
            .chunks
            .range(from..claim.position.0)
            .filter_map(|(_, chunk)| identity(chunk))
            .collect();
        there == claim.tail
    }

    /// Whether a watch of this leader ends.
    pub fn is_unlocked(&self, term: Term) -> bool {
        let shown = Term { epoch: self.shown.epoch, token: self.shown.leader.token };
        shown == term && !self.locks.contains_key(&term.epoch.0)
    }

    /// Changes the stored bytes of a chunk, or removes it.
    pub fn damage(&mut self, position: u64, damaged: Option<&Bytes>) {
        for state in [&mut self.visible, &mut self.replicated, &mut self.shown] {
            if let Some(there) = state.chunks.get_mut(&position) {
                match damaged {
                    Some(chunk) => there.clone_from(chunk),
                    None => _ = state.chunks.remove(&position),
                }
            }
        }
    }
}

/// The reply to a request that does not return data.
pub fn reply_to(request: &Request, result: Result<(), Failure>) -> DatabaseReply {
    match request {
        Request::Append { position, .. } => DatabaseReply::Appended { position: *position, result },
        Request::Renew(_) => DatabaseReply::Renewed(result.map(|()| Renewal::default())),
        Request::Claim(_) => DatabaseReply::Claimed(result),
        Request::Trim { .. } => DatabaseReply::Trimmed(result),
        Request::Reserve(wanted) => DatabaseReply::Reserved { wanted: *wanted, result },
        Request::Watch(term) => DatabaseReply::Watched { term: *term, result },
        Request::Read { .. } => DatabaseReply::Read(Err(result.expect_err("a page is no such result"))),
    }
}
