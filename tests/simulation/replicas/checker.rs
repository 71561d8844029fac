//! What clients may see: each reply that leaves is a promise about every later leader.

use std::collections::{BTreeMap, BTreeSet};

use beanring::queue::{Counts, Engine, LoggedState};
use beanring::time::{Span, Time};
use beanring::wal::record::JobRecord;

use super::database::Process;
use super::holds::{Holds, MustFind, Peer};

/// Jobs among which a reservation of a lost client is searched.
const LOOKED_AT_MAX: usize = 30;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Put { number: u64 },
    Reserve { ttr: Span },
    Delete { id: u64 },
    Release { id: u64, is_delayed: bool },
    Bury { id: u64 },
    Touch { id: u64 },
    KickJob { id: u64 },
    Kick,
    Peek { id: u64 },
    Pause,
}

/// A command that a client has sent.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    pub kind: Kind,
    pub sent_at: u64,
    /// When it was sent, by the clock of its server.
    pub clock: Time,
    must_find: Option<MustFind>,
}

/// A reply that has left a server.
pub struct Replied<'a> {
    pub to: Peer,
    pub command: &'a Command,
    pub line: &'a str,
    pub body: &'a [u8],
    /// The epoch of the server has not ended.
    pub is_current: bool,
    /// The client has sent a command after this one that may end its reservation of the job.
    pub may_end: bool,
    pub now: u64,
    /// The clock of the server.
    pub clock: Time,
}

/// The replies about the job with an id.
#[derive(Default)]
struct Known {
    number: Option<u64>,
    is_inserted: bool,
    inserted_at: u64,
    deleted_at: Option<u64>,
    /// A delete was sent.
    may_be_deleted: bool,
    /// Commands that may change the state and have no reply.
    unanswered: usize,
    /// When the last other reply to such a command left.
    changed_at: u64,
    /// The state that a reply has promised, unless a later command may have changed it.
    promised: Option<Promised>,
    holds: Holds,
    /// What replies have told of.
    counts: Counts,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Promised {
    Buried,
    Delayed,
}

#[derive(Default)]
pub struct Checker {
    jobs: BTreeMap<u64, Known>,
    kicks_unanswered: usize,
    kicked_at: u64,
    /// Commands whose connections are gone. The leader that may carry them out has no say once another one leads.
    lost: Vec<Kind>,
    numbers: BTreeMap<u64, u64>,
    /// The job that was inserted or deleted last.
    pub recent: u64,
    pub inserted: u64,
    pub deleted: u64,
}

impl Command {
    pub const fn new(kind: Kind, sent_at: u64, clock: Time) -> Self {
        Self { kind, sent_at, clock, must_find: None }
    }
}

impl Kind {
    /// The job whose reservation it may end.
    pub const fn ended_job(self) -> Option<u64> {
        match self {
            Self::Delete { id } | Self::Release { id, .. } | Self::Bury { id } => Some(id),
            _ => None,
        }
    }

    pub const fn touched_job(self) -> Option<u64> {
        if let Self::Touch { id } = self { Some(id) } else { None }
    }

    const fn replies(self) -> &'static [&'static str] {
        match self {
            Self::Put { .. } => &["INSERTED", "OUT_OF_MEMORY"],
            Self::Reserve { .. } => &["RESERVED", "TIMED_OUT", "DEADLINE_SOON"],
            Self::Delete { .. } => &["DELETED", "NOT_FOUND"],
            Self::Release { .. } => &["RELEASED", "NOT_FOUND"],
            Self::Bury { .. } => &["BURIED", "NOT_FOUND"],
            Self::Touch { .. } => &["TOUCHED", "NOT_FOUND"],
            Self::KickJob { .. } => &["KICKED", "NOT_FOUND"],
            Self::Kick => &["KICKED"],
            Self::Peek { .. } => &["FOUND", "NOT_FOUND"],
            Self::Pause => &["PAUSED", "NOT_FOUND"],
        }
    }

    fn changed_job(self) -> Option<u64> {
        match self {
            Self::KickJob { id } => Some(id),
            _ => self.ended_job(),
        }
    }
}

impl Known {
    fn reserved(&mut self, id: u64, ttr: Span, replied: &Replied<'_>) {
        self.counts.reserves += 1;
        if replied.is_current {
            let times = (replied.command.clock, replied.clock);
            self.holds.reserved(id, replied.to, ttr, times, replied.may_end);
        }
    }

    /// A leader knows of everything that replies have told of.
    fn check_counts(&self, id: u64, found: Counts) {
        let told = self.counts;
        let has_all = found.reserves >= told.reserves
            && found.releases >= told.releases
            && found.buries >= told.buries
            && found.kicks >= told.kicks;
        assert!(has_all, "job {id} has {found:?}, and replies have told of {told:?}");
    }
}

impl Checker {
    /// A client sends a command. `is_current` says whether the epoch of its server has not ended.
    pub fn sent(&mut self, from: Peer, command: &mut Command, is_current: bool) {
        match command.kind {
            Kind::Kick => {
                self.kicks_unanswered += 1;
                self.jobs.values_mut().for_each(|job| job.promised = None);
            }
            kind => {
                let is_touch = matches!(kind, Kind::Touch { .. });
                if let Some(id) = kind.ended_job().or(kind.touched_job()) {
                    let job = self.jobs.entry(id).or_default();
                    command.must_find = job.holds.sent(from, is_touch, is_current);
                }
                if let Some(id) = kind.changed_job() {
                    let job = self.jobs.entry(id).or_default();
                    job.unanswered += 1;
                    job.promised = None;
                    job.may_be_deleted |= matches!(kind, Kind::Delete { .. });
                }
            }
        }
    }

    /// A job that was reserved by a client of an earlier leader, if it is one of the next ids from this one on.
    pub fn lost_reservation(&self, leader: Process, from: u64) -> Option<u64> {
        let mut some = self.jobs.range(from..).take(LOOKED_AT_MAX);
        some.find(|(_, job)| job.holds.is_lost(leader)).map(|(&id, _)| id)
    }

    /// The largest id that is known.
    pub fn last_id(&self) -> u64 {
        self.jobs.last_key_value().map_or(1, |(&id, _)| id)
    }

    fn note_body(&mut self, id: u64, body: &[u8]) {
        let text = std::str::from_utf8(&body[..9]).expect("a body begins with its number");
        let number: u64 = text[1..].parse().expect("a body has a number");
        self.note_number(id, number);
    }

    fn note_number(&mut self, id: u64, number: u64) {
        let job = self.jobs.entry(id).or_default();
        assert!(job.number.is_none_or(|known| known == number), "job {id} is {:?} and {number}", job.number);
        job.number = Some(number);
        let first = *self.numbers.entry(number).or_insert(id);
        assert_eq!(first, id, "put {number} was stored twice");
    }

    /// A reply has left a server.
    pub fn replied(&mut self, replied: &Replied<'_>) {
        let &Replied { command, line, body, is_current, now, .. } = replied;
        let word = line.split(' ').next().expect("a line has a word");
        assert!(command.kind.replies().contains(&word), "{line} is no reply to {:?}", command.kind);
        let mut is_last = true;
        if let Some(id) = command.kind.changed_job() {
            let job = self.jobs.entry(id).or_default();
            job.unanswered -= 1;
            // Replies may leave in another order than that of the changes, and commands that were lost with a leader are forgotten
            // when another one leads.
            is_last = job.unanswered == 0 && job.changed_at.max(self.kicked_at) < command.sent_at;
            is_last &= self.kicks_unanswered == 0 && is_current;
            job.changed_at = now;
        }
        self.note_reservation(word, replied);
        match (command.kind, word) {
            (Kind::Put { number }, "INSERTED") => {
                let id: u64 = line[9..].parse().expect("INSERTED has an id");
                self.note_number(id, number);
                let job = self.jobs.entry(id).or_default();
                assert!(!job.is_inserted, "id {id} is used twice");
                (job.is_inserted, job.inserted_at) = (true, now);
                self.recent = id;
                self.inserted += 1;
            }
            (Kind::Reserve { .. }, "RESERVED") | (Kind::Peek { .. }, "FOUND") => {
                let id: u64 = line.split(' ').nth(1).expect("an id").parse().expect("an id");
                self.note_body(id, body);
                let job = self.jobs.entry(id).or_default();
                let is_back = job.deleted_at.is_some_and(|at| at <= command.sent_at);
                assert!(!is_back, "job {id} is back after its deletion: {line}");
                if let Kind::Reserve { ttr } = command.kind {
                    job.reserved(id, ttr, replied);
                }
            }
            (Kind::Peek { id }, "NOT_FOUND") => {
                let is_lost = self.jobs.get(&id).is_some_and(|job| {
                    job.is_inserted && job.inserted_at <= command.sent_at && !job.may_be_deleted
                });
                assert!(!is_lost, "job {id} is not found");
            }
            (Kind::Delete { id }, "DELETED") => {
                let job = self.jobs.entry(id).or_default();
                assert!(job.deleted_at.is_none(), "job {id} is deleted twice");
                job.deleted_at = Some(now);
                self.recent = id;
                self.deleted += 1;
            }
            (Kind::Bury { id }, "BURIED") if is_last => self.promise(id, Some(Promised::Buried)),
            (Kind::Release { id, is_delayed }, "RELEASED") if is_last => {
                self.promise(id, is_delayed.then_some(Promised::Delayed));
            }
            (Kind::Kick, "KICKED") => {
                self.kicks_unanswered -= 1;
                self.kicked_at = now;
            }
            _ => {}
        }
    }

    /// Notes what a reply says of the reservation of a job, and of its counts.
    fn note_reservation(&mut self, word: &str, replied: &Replied<'_>) {
        let &Replied { to, command: &Command { kind, clock: since, must_find, .. }, clock, .. } = replied;
        let Some(id) = kind.changed_job().or(kind.touched_job()) else { return };
        let job = self.jobs.entry(id).or_default();
        match (kind, word) {
            (Kind::Release { .. }, "RELEASED") => job.counts.releases += 1,
            (Kind::Bury { .. }, "BURIED") => job.counts.buries += 1,
            (Kind::KickJob { .. }, "KICKED") => job.counts.kicks += 1,
            (Kind::Touch { .. }, "TOUCHED") if replied.is_current && !replied.may_end => {
                job.holds.touched(to, since, clock);
            }
            (_, "NOT_FOUND") => {
                if let Some(must_find) = must_find {
                    job.holds.not_found(id, must_find, clock);
                }
            }
            _ => {}
        }
    }

    fn promise(&mut self, id: u64, promised: Option<Promised>) {
        self.jobs.entry(id).or_default().promised = promised;
    }

    /// The connection of a command is gone.
    pub fn lost(&mut self, command: &Command) {
        self.lost.push(command.kind);
    }

    fn forget_lost(&mut self) {
        for kind in std::mem::take(&mut self.lost) {
            match (kind, kind.changed_job()) {
                (Kind::Kick, _) => self.kicks_unanswered -= 1,
                (_, Some(id)) => self.jobs.entry(id).or_default().unanswered -= 1,
                _ => {}
            }
        }
    }

    /// The client closes its connection.
    pub fn left(&mut self, client: usize) {
        self.jobs.values_mut().for_each(|job| job.holds.left(client));
    }

    /// A server leads with these jobs. Its clock shows `clock`, and that of the leader before it shows `before`.
    pub fn leads(&mut self, engine: &Engine, clock: Time, before: Time) {
        self.forget_lost();
        let mut present = BTreeSet::new();
        let mut found = Vec::new();
        for (key, record) in engine.jobs().iter() {
            let id = record.id.0;
            present.insert(id);
            found.push((id, engine.body(key).to_vec()));
            let job = self.jobs.entry(id).or_default();
            assert!(job.deleted_at.is_none(), "job {id} is back after its deletion");
            let state = JobRecord::of(key, engine).state;
            job.check_counts(id, state.counts);
            let state = state.state;
            job.holds.leads(id, state, clock, before);
            let is_kept = match job.promised {
                None => true,
                Some(Promised::Buried) => matches!(state, LoggedState::Buried(_)),
                Some(Promised::Delayed) => matches!(state, LoggedState::Delayed(_)),
            };
            assert!(is_kept, "job {id} was {:?}, and is {state:?}", job.promised);
        }
        let gone = self.jobs.iter_mut().filter(|(id, _)| !present.contains(id));
        gone.for_each(|(_, job)| job.holds.forget());
        for (id, body) in found {
            let job = &self.jobs[&id];
            if job.is_inserted {
                self.note_body(id, &body);
            }
        }
        for (id, job) in self.jobs.iter().filter(|(_, job)| job.is_inserted && !job.may_be_deleted) {
            assert!(present.contains(id), "job {id} is lost, put {:?}", job.number);
        }
    }
}
