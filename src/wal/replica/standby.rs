//! A server that follows the log, and leads when the leader is gone (docs/internals/REPLICATION.md, "Take-over").

use super::chunk::{ChunkHeader, Kind};
use super::follower::{Damage, Fault, Follower, Witness};
use super::leader::Leader;
use super::request::{Claim, DatabaseReply, Epoch, Failure, Member, Page, Position, Renewal, Request, Term};
use crate::queue::Engine;
use crate::time::{Span, Time};
use crate::wal::batch::BLOCK_BYTES;
use crate::wal::segment::{HEADER_BYTES, SegmentNumber};
use crate::wal::{Recovered, Wal, WalConfig};

/// How long a standby that has read everything waits before it reads again.
const READ_EVERY: Span = Span::from_millis(20);

/// The pause after a read that has failed.
const READ_AGAIN_AFTER: Span = Span::from_millis(100);

/// The pause before a log that cannot be followed is read again.
const REPAIRED_AFTER: Span = Span::from_millis(5000);

/// The number of claims in a row, without news in between, that are refused because of other chunks, before the log is read again.
const REFUSALS_MAX: u32 = 3;

/// A server that follows.
pub struct Standby {
    config: ReplicaConfig,
    /// None until a page was read, and after a fault.
    follower: Option<Follower>,
    /// See [`Follower::witness`].
    witness: Option<Witness>,
    /// The last page without its chunks.
    seen: Option<Seen>,
    /// The leader in the last page, if that page cannot be followed: clients are forwarded nevertheless.
    unfollowed: Option<(Epoch, Member)>,
    /// When the first read was sent after the last page that showed a change.
    news_at: Time,
    /// When the last page came that showed a change, if no read was sent after it. That time may be too early: a process can be paused
    /// between its look at the clock and its look at the page.
    fresh_news_at: Option<Time>,
    /// When the last read was sent that has reached the end of the log.
    end_seen_at: Time,
    read: Read,
    /// The leader whose lock is watched.
    watched: Option<Term>,
    /// When a watch may begin.
    watch_after: Time,
    /// A leader whose process has ended: no session holds its lock.
    unlocked: Option<Term>,
    claim: Option<ClaimState>,
    /// The number of claims so far. Each has its own token, because after a fail-over of the database a process may claim the same epoch
    /// twice, and other servers must not take the second claim for the first.
    claims: u64,
    /// The epoch of the renewal in flight.
    renewing: Option<Epoch>,
    /// When a claim may begin.
    claim_after: Time,
    /// See [`REFUSALS_MAX`].
    refusals: u32,
    damage: Option<Damage>,
    /// The last leader with the address of this server, and when a page showed it first.
    term_seen: Option<(Term, Time)>,
    /// See [`Standby::is_own_address_taken`].
    own_address_taken_by: Option<Term>,
}

/// What a server needs to take part in a replicated queue.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct ReplicaConfig {
    pub me: Member,
    pub wal: WalConfig,
    /// Standbys forward connections to the leader.
    pub forwards: bool,
}

/// The row of the epoch.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Seen {
    epoch: Epoch,
    leader: Member,
    beat: u64,
    /// The first position that is not trimmed.
    begin: Position,
    /// The number of chunks behind a gap. The acknowledgement of such a chunk prolongs the lease too.
    behind: usize,
    /// The last position in the log.
    end: Position,
    log_id: u64,
    /// The page went to the end of the log, and all of it was applied.
    is_end: bool,
    /// When the read was sent.
    sent_at: Time,
}

impl Seen {
    const fn term(&self) -> Term {
        Term { epoch: self.epoch, token: self.leader.token }
    }

    /// When the leader counts as gone, if nothing changes after `news_at`: 1.25 leases later. The lease is that of the leader.
    fn silent_at(&self, news_at: Time) -> Time {
        news_at + Span::from_nanos(self.leader.lease.as_nanos() / 4 * 5)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Read {
    Wanted(Time),
    InFlight { sent_at: Time },
}

/// A take-over that has begun.
struct ClaimState {
    term: Term,
    position: Position,
    sent_at: Time,
    step: ClaimStep,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ClaimStep {
    InFlight,
    /// The outcome is unknown. A read will show whether the claim was carried out.
    Unknown,
    /// The claim was carried out. An acknowledged renewal will prove that it is replicated.
    Unproven {
        is_sent: bool,
        again_at: Time,
    },
    Won,
}

/// The effect of a reply on a standby.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Progress {
    /// The server goes on to follow.
    Following,
    /// The server leads: call [`Standby::lead`].
    Leads,
    /// The log is read again from its beginning: the caller empties the queue.
    Restarted(Fault),
}

impl Standby {
    /// Follows a log from its beginning, with an empty queue.
    pub const fn new(config: ReplicaConfig, now: Time) -> Self {
        Self {
            config,
            follower: None,
            witness: None,
            seen: None,
            unfollowed: None,
            news_at: now,
            fresh_news_at: None,
            renewing: None,
            claim_after: Time::ZERO,
            refusals: 0,
            end_seen_at: now,
            read: Read::Wanted(Time::ZERO),
            watched: None,
            watch_after: Time::ZERO,
            unlocked: None,
            claim: None,
            claims: 0,
            damage: None,
            term_seen: None,
            own_address_taken_by: None,
        }
    }

    /// The leader of the current epoch, if another server leads.
    pub fn leader(&self) -> Option<&Member> {
        let (epoch, leader) = self.known()?;
        (epoch > Epoch::default() && !self.is_own(leader.token)).then_some(leader)
    }

    /// Whether a claim of this process had this token.
    const fn is_own(&self, token: u64) -> bool {
        token.wrapping_sub(self.config.me.token) < self.claims
    }

    /// Whether the leader has the address of this server, so that clients cannot be forwarded there: the leader is an earlier run of this
    /// server, or another server by mistake.
    pub fn leader_has_own_address(&self) -> bool {
        let own = &self.config.me.address;
        !own.is_empty() && self.leader().is_some_and(|leader| leader.address == *own)
    }

    /// Whether the leader has the address of this server and is alive, so it is another server.
    pub fn is_own_address_taken(&self) -> bool {
        self.leader_has_own_address() && self.own_address_taken_by == self.term()
    }

    /// The epoch and the leader of the last page, even if it cannot be followed.
    fn known(&self) -> Option<(Epoch, &Member)> {
        let seen = self.seen.as_ref().map(|seen| (seen.epoch, &seen.leader));
        seen.or_else(|| self.unfollowed.as_ref().map(|(epoch, leader)| (*epoch, leader)))
    }

    /// The current epoch and its leader, as far as they are known.
    fn term(&self) -> Option<Term> {
        self.known().map(|(epoch, leader)| Term { epoch, token: leader.token })
    }

    /// The current epoch, as far as it is known.
    pub fn epoch(&self) -> Epoch {
        self.known().map_or(Epoch::default(), |(epoch, _)| epoch)
    }

    /// The time since the end of the log was last seen.
    pub const fn lag(&self, now: Time) -> Span {
        now.since(self.end_seen_at)
    }

    /// Chunks of the log that were not applied when it was last read.
    pub fn lag_positions(&self) -> u64 {
        let applied = self.follower.as_ref().map_or(Position(0), |follower| follower.next().previous());
        self.seen.as_ref().map_or(0, |seen| seen.end.0.saturating_sub(applied.0))
    }

    /// Memory of chunks that are not applied to the queue yet, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.follower.as_ref().map_or(0, Follower::memory_bytes)
    }

    /// The damage for which the log cannot be followed.
    pub const fn damage(&self) -> Option<&Damage> {
        self.damage.as_ref()
    }

    /// Returns the next request that can start now, if there is one.
    pub fn next_request(&mut self, now: Time) -> Option<Request> {
        if let Some(request) = self.next_claim(now) {
            return Some(request);
        }
        if self.read_due().is_some_and(|due| due <= now) {
            if self.fresh_news_at.take_if(|at| *at < now).is_some() {
                self.news_at = now;
            }
            self.read = Read::InFlight { sent_at: now };
            let from = self.follower.as_ref().map_or(Position::FIRST, Follower::read_from);
            return Some(Request::Read { from });
        }
        let term = self.term_to_watch().filter(|_| self.watch_after <= now)?;
        self.watched = Some(term);
        Some(Request::Watch(term))
    }

    /// When to read next. While a claim is in flight nothing is read, because the claim fixes where the log continues.
    fn read_due(&self) -> Option<Time> {
        match self.read {
            Read::Wanted(at) if !self.is_claiming() => Some(at),
            _ => None,
        }
    }

    fn is_claiming(&self) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.step == ClaimStep::InFlight)
    }

    /// The leader whose lock should be watched, unless it is watched or free.
    fn term_to_watch(&self) -> Option<Term> {
        let term = self.seen.as_ref().map(Seen::term).filter(|term| term.epoch > Epoch::default())?;
        let is_watched = self.watched == Some(term) || self.unlocked == Some(term);
        (!is_watched && self.claim.is_none()).then_some(term)
    }

    fn next_claim(&mut self, now: Time) -> Option<Request> {
        if let Some(claim) = &mut self.claim {
            let ClaimStep::Unproven { is_sent: false, again_at } = claim.step else { return None };
            return (again_at <= now && self.renewing.is_none()).then(|| {
                self.renewing = Some(claim.term.epoch);
                claim.step = ClaimStep::Unproven { is_sent: true, again_at };
                claim.sent_at = now;
                Request::Renew(claim.term)
            });
        }
        if !self.may_claim(now) {
            return None;
        }
        let (seen, follower) = (self.seen.as_ref()?, self.follower.as_ref()?);
        let (epoch, position) = (seen.epoch.next(), follower.next());
        let chunk = ChunkHeader {
            lsn: follower.end(),
            ..ChunkHeader::alone(Kind::Epoch, epoch, seen.log_id, position)
        };
        // Trimmed chunks cannot be compared.
        let untrimmed = position.0.saturating_sub(seen.begin.0) as usize;
        let trimmed = follower.tail.len().saturating_sub(untrimmed);
        // mutant replica-claim-on-what-was-undone: trimmed => usize::MAX
        let tail = follower.tail.iter().copied().skip(trimmed).collect();
        let mut leader = self.config.me.clone();
        // mutant replica-token-of-an-earlier-claim: removed
        leader.token = leader.token.wrapping_add(self.claims);
        self.claims += 1;
        // With the token, the chunk differs from any other that is written for the same epoch after a fail-over.
        let chunk = chunk.encode(&leader.token.to_le_bytes());
        let claim =
            Claim { seen: seen.epoch, beat: seen.beat, behind: seen.behind, position, tail, chunk, leader };
        let term = Term { epoch, token: claim.leader.token };
        self.claim = Some(ClaimState { term, position, sent_at: now, step: ClaimStep::InFlight });
        Some(Request::Claim(claim))
    }

    /// Whether the leader is gone, and a later read has reached the end of the log.
    fn may_claim(&self, now: Time) -> bool {
        let Some((seen, follower)) = self.seen.as_ref().zip(self.follower.as_ref()) else { return false };
        // mutant replica-claim-before-the-end: !seen.is_end => false
        if !seen.is_end || self.damage.is_some() || now < self.claim_after {
            return false;
        }
        let is_unlocked = self.unlocked == Some(seen.term());
        let is_new = seen.epoch == Epoch::default();
        // mutant replica-lease-of-its-own: seen.silent_at(self.news_at) =>
        //     self.news_at + Span::from_nanos(self.config.me.lease.as_nanos() / 4 * 5)
        let is_silent = self.fresh_news_at.is_none() && seen.sent_at >= seen.silent_at(self.news_at);
        is_new || is_unlocked || follower.has_left() || is_silent
    }

    /// Whether the leader counts as gone: its process has ended, it has left, or it was silent for 1.25 leases.
    pub fn is_leader_gone(&self, now: Time) -> bool {
        let Some((seen, follower)) = self.seen.as_ref().zip(self.follower.as_ref()) else { return false };
        self.unlocked == Some(seen.term()) || follower.has_left() || now >= seen.silent_at(self.news_at)
    }

    /// When a request can start, if nothing else happens.
    pub fn next_deadline(&self) -> Option<Time> {
        let read = self.read_due();
        let claim = match self.claim.as_ref().map(|claim| claim.step) {
            Some(ClaimStep::Unproven { is_sent: false, again_at }) if self.renewing.is_none() => {
                Some(again_at)
            }
            _ => None,
        };
        let watch = self.term_to_watch().map(|_| self.watch_after);
        [read, claim, watch].into_iter().flatten().min()
    }

    /// Takes a reply, and applies what was read to the queue.
    pub fn complete(&mut self, reply: DatabaseReply, engine: &mut Engine, now: Time) -> Progress {
        match reply {
            DatabaseReply::Read(result) => return self.was_read(result, engine, now),
            DatabaseReply::Watched { term, result } => self.was_watched(term, result, now),
            DatabaseReply::Claimed(result) => return self.was_claimed(result, now),
            DatabaseReply::Renewed(result) => return self.was_renewed(result, now),
            // Replies to requests of a leader.
            DatabaseReply::Appended { .. } | DatabaseReply::Trimmed(_) | DatabaseReply::Reserved { .. } => {}
        }
        Progress::Following
    }

    fn was_read(&mut self, result: Result<Page, Failure>, engine: &mut Engine, now: Time) -> Progress {
        let Read::InFlight { sent_at } = self.read else { return Progress::Following };
        let Ok(page) = result else {
            self.read = Read::Wanted(now + READ_AGAIN_AFTER);
            return Progress::Following;
        };
        self.read = Read::Wanted(if page.is_end() { now + READ_EVERY } else { now });
        if self.is_claiming() {
            return Progress::Following;
        }
        let is_end = page.is_end();
        let follower = self.follower.get_or_insert_with(|| Follower::new(&page, self.witness));
        let applied = follower.apply(&page, engine);
        self.witness = follower.witness();
        let applied = match applied {
            Ok(_) if is_end && !follower.is_complete() => Err(Damage::Missing(page.begin.previous()).into()),
            applied => applied,
        };
        let has_chunks = match applied {
            Ok(has_chunks) => has_chunks,
            Err(fault) => return self.failed(fault, Some((page.epoch, page.leader)), now),
        };
        if is_end {
            self.end_seen_at = sent_at;
            self.damage = None;
        }
        let next = follower.next();
        let Page { epoch, leader, beat, begin, log_id, chunks, end } = page;
        let behind = chunks.iter().filter(|&&(position, _)| position > next).count();
        self.note_own_address(epoch, &leader, (beat, end), now);
        let before =
            self.seen.replace(Seen { epoch, leader, beat, begin, behind, end, log_id, is_end, sent_at });
        // mutant replica-gap-filled-unnoticed: before.behind => behind
        let is_new =
            before.is_none_or(|before| (before.epoch, before.beat, before.behind) != (epoch, beat, behind));
        if has_chunks || is_new {
            self.fresh_news_at = Some(now);
            self.refusals = 0;
        }
        self.resolve_claim(now);
        Progress::Following
    }

    /// Notes whether a leader with the address of this server is alive. Requests of an earlier run may reach the database after its end, so
    /// a change counts only between two reads that began a lease or more after the leader was first seen.
    fn note_own_address(&mut self, epoch: Epoch, leader: &Member, state: (u64, Position), now: Time) {
        let me = &self.config.me;
        if leader.address != me.address || self.is_own(leader.token) {
            return;
        }
        let term = Term { epoch, token: leader.token };
        let since = self.term_seen.filter(|(seen, _)| *seen == term).map_or(now, |(_, since)| since);
        self.term_seen = Some((term, since));
        let Some(before) = self.seen.as_ref().filter(|before| before.term() == term) else { return };
        if before.sent_at >= since + leader.lease && (before.beat, before.end) != state {
            self.own_address_taken_by = Some(term);
        }
    }

    /// Decides, after a read, whether a claim of unknown outcome was carried out.
    fn resolve_claim(&mut self, now: Time) {
        let (Some(seen), Some(follower)) = (&self.seen, &self.follower) else { return };
        if let Some(claim) = self.claim.as_ref().filter(|claim| claim.step == ClaimStep::Unknown) {
            // The claim may still be carried out later. Then a claim that is begun after it is refused.
            // mutant replica-claim-never-begun-again: seen.sent_at >= claim.sent_at + self.config.me.lease => false
            let is_over =
                seen.epoch >= claim.term.epoch || seen.sent_at >= claim.sent_at + self.config.me.lease;
            if !is_over {
                return;
            }
            self.claim = None;
        }
        let is_mine = self.is_own(seen.leader.token) && follower.ends_with(seen.epoch);
        if self.claim.is_none() && is_mine && seen.is_end {
            let step = ClaimStep::Unproven { is_sent: false, again_at: now };
            let position = follower.next().previous();
            self.claim = Some(ClaimState { term: seen.term(), position, sent_at: now, step });
        }
    }

    fn failed(&mut self, fault: Fault, leader: Option<(Epoch, Member)>, now: Time) -> Progress {
        let again_at = match &fault {
            Fault::Diverged => now,
            Fault::Damaged(damage) => {
                self.damage = Some(damage.clone());
                now + REPAIRED_AFTER
            }
            Fault::OutOfMemory => now + REPAIRED_AFTER,
        };
        // The claim may still succeed. Then other servers see a silent leader, and take over.
        (self.follower, self.seen, self.claim) = (None, None, None);
        self.unfollowed = leader;
        self.read = Read::Wanted(again_at);
        Progress::Restarted(fault)
    }

    fn was_watched(&mut self, term: Term, result: Result<(), Failure>, now: Time) {
        // mutant replica-lock-of-another-leader: self.watched != Some(term) =>
        //     self.watched.map(|watched| watched.epoch) != Some(term.epoch)
        if self.watched != Some(term) {
            return;
        }
        self.watched = None;
        match result {
            Ok(()) => {
                // mutant replica-lock-of-another-leader: Some(term) => self.seen.as_ref().map(Seen::term)
                self.unlocked = Some(term);
                // The last appends of the leader are read before the claim.
                if let Some(seen) = &mut self.seen {
                    seen.is_end = false;
                }
                self.read_at(now);
            }
            // The database may have ended all sessions. The leader takes its lock again in this time.
            Err(_) => self.watch_after = now + Span::from_nanos(self.config.me.lease.as_nanos() / 2),
        }
    }

    fn was_claimed(&mut self, result: Result<(), Failure>, now: Time) -> Progress {
        let is_overtaken = self.is_overtaken();
        let Some(claim) = &mut self.claim else { return Progress::Following };
        // mutant replica-unknown-claim-acknowledged: result =>
        //     match result { Err(Failure::Unknown) if !is_overtaken => Ok(()), other => other }
        match result {
            Ok(()) if !is_overtaken => {
                claim.step = ClaimStep::Won;
                return Progress::Leads;
            }
            Err(Failure::Unknown) => {
                claim.step = ClaimStep::Unknown;
                claim.sent_at = now;
            }
            Ok(()) | Err(Failure::Fenced) => self.claim = None,
            Err(Failure::Taken) => {
                self.claim = None;
                self.refusals += 1;
                if self.refusals == REFUSALS_MAX {
                    // A fail-over of the database has replaced chunks before the last one, which is compared with each read.
                    self.refusals = 0;
                    let leader = self.seen.take().map(|seen| (seen.epoch, seen.leader));
                    return self.failed(Fault::Diverged, leader, now);
                }
            }
            Err(Failure::Full) => {
                self.claim = None;
                self.claim_after = now + READ_AGAIN_AFTER;
            }
        }
        if let Some(seen) = &mut self.seen {
            seen.is_end = false;
        }
        self.read_at(now);
        Progress::Following
    }

    /// Reads at this time, unless a read is in flight.
    const fn read_at(&mut self, at: Time) {
        if let Read::Wanted(_) = self.read {
            self.read = Read::Wanted(at);
        }
    }

    fn was_renewed(&mut self, result: Result<Renewal, Failure>, now: Time) -> Progress {
        let renewed = self.renewing.take();
        let is_overtaken = self.is_overtaken();
        let (Some(claim), Some(follower)) = (&mut self.claim, &self.follower) else {
            return Progress::Following;
        };
        let is_sent = matches!(claim.step, ClaimStep::Unproven { is_sent: true, .. });
        if !is_sent || renewed != Some(claim.term.epoch) {
            return Progress::Following;
        }
        match result {
            Ok(_) if !is_overtaken && follower.next() == claim.position.next() => {
                claim.step = ClaimStep::Won;
                return Progress::Leads;
            }
            Ok(_) | Err(Failure::Fenced) => self.claim = None,
            Err(_) => {
                claim.step = ClaimStep::Unproven { is_sent: false, again_at: now + READ_AGAIN_AFTER };
            }
        }
        Progress::Following
    }

    /// Whether another epoch has begun after the claimed one. Replies may come in any order.
    fn is_overtaken(&self) -> bool {
        let Some(claim) = &self.claim else { return false };
        let seen = self.seen.as_ref().map_or(Epoch::default(), |seen| seen.epoch);
        let followed = self.follower.as_ref().map_or(Epoch::default(), Follower::epoch);
        seen.max(followed) > claim.term.epoch
    }

    /// Shows the jobs and leads.
    ///
    /// # Panics
    /// If the server does not lead: see [`Progress::Leads`].
    pub fn lead(self, engine: &mut Engine, now: Time) -> (Leader, Wal) {
        let Self { config, follower, claim, seen, .. } = self;
        let claim = claim.filter(|claim| claim.step == ClaimStep::Won).expect("it has claimed the epoch");
        let log_id = seen.expect("it has read the log").log_id;
        let (recovered, starts) = follower.expect("it follows").finish(engine, now);
        let next = claim.position.next();
        let leader = Leader::new(claim.term, log_id, next, starts, config.me.lease, claim.sent_at);
        (leader, continue_wal(config.wal, recovered, engine))
    }
}

fn continue_wal(mut config: WalConfig, recovered: Recovered, engine: &Engine) -> Wal {
    // An earlier leader may have had larger segments, with larger jobs.
    let needed = (HEADER_BYTES + recovered.largest).next_multiple_of(BLOCK_BYTES as u64);
    config.segment_bytes = config.segment_bytes.max(needed);
    let next = recovered.newest_segment().map_or(SegmentNumber(1), SegmentNumber::next);
    let mut wal = Wal::new(config, recovered, vec![next], engine);
    wal.rounds_mut().enable();
    wal
}
