//! What clients may see: each reply that leaves is a promise about every later leader.

use std::collections::{BTreeMap, BTreeSet};

use beanring::queue::{Engine, LoggedState};
use beanring::wal::record::JobRecord;

/// Whether a reservation is in the job log, so that it outlives its leader.
const RESERVATIONS_ARE_LOGGED: bool = false;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Put { number: u64 },
    Reserve { ttr_ns: u64 },
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
    /// Who holds it, and until when at least.
    held: Option<(usize, u64)>,
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
    pub inserted: u64,
    pub deleted: u64,
}

impl Kind {
    fn changed_job(self) -> Option<u64> {
        match self {
            Self::Delete { id } | Self::Release { id, .. } | Self::Bury { id } | Self::KickJob { id } => {
                Some(id)
            }
            _ => None,
        }
    }
}

impl Checker {
    pub fn sent(&mut self, command: &Command) {
        match command.kind {
            Kind::Kick => {
                self.kicks_unanswered += 1;
                self.jobs.values_mut().for_each(|job| job.promised = None);
            }
            kind => {
                if let Some(id) = kind.changed_job() {
                    let job = self.jobs.entry(id).or_default();
                    job.unanswered += 1;
                    job.promised = None;
                    job.held = None;
                    job.may_be_deleted |= matches!(kind, Kind::Delete { .. });
                }
            }
        }
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

    /// A reply has left a server. `is_current` says whether the epoch of that server has not ended.
    pub fn replied(
        &mut self,
        client: usize,
        command: &Command,
        line: &str,
        body: &[u8],
        is_current: bool,
        now: u64,
    ) {
        let word = line.split(' ').next().expect("a line has a word");
        let mut is_last = true;
        if let Some(id) = command.kind.changed_job() {
            let job = self.jobs.entry(id).or_default();
            job.unanswered -= 1;
            // Replies may leave in another order than that of the changes.
            is_last = job.unanswered == 0 && job.changed_at.max(self.kicked_at) < command.sent_at;
            is_last &= self.kicks_unanswered == 0;
            job.changed_at = now;
        }
        match (command.kind, word) {
            (Kind::Put { number }, "INSERTED") => {
                let id: u64 = line[9..].parse().expect("INSERTED has an id");
                self.note_number(id, number);
                let job = self.jobs.entry(id).or_default();
                assert!(!job.is_inserted, "id {id} is used twice");
                (job.is_inserted, job.inserted_at) = (true, now);
                self.inserted += 1;
            }
            (Kind::Put { .. }, "OUT_OF_MEMORY") => {}
            (Kind::Reserve { ttr_ns }, "RESERVED") | (Kind::Peek { id: ttr_ns }, "FOUND") => {
                let id: u64 = line.split(' ').nth(1).expect("an id").parse().expect("an id");
                self.note_body(id, body);
                let job = self.jobs.entry(id).or_default();
                let is_back = job.deleted_at.is_some_and(|at| at <= command.sent_at) && is_current;
                assert!(!is_back, "job {id} is back after its deletion: {line}");
                if let Kind::Reserve { .. } = command.kind {
                    if RESERVATIONS_ARE_LOGGED && let Some((holder, until)) = job.held {
                        assert!(
                            holder == client || until < now,
                            "clients {holder} and {client} hold job {id}"
                        );
                    }
                    job.held = Some((client, command.sent_at + ttr_ns / 100 * 93));
                }
            }
            (Kind::Reserve { .. }, "TIMED_OUT" | "DEADLINE_SOON") => {}
            (Kind::Peek { id }, "NOT_FOUND") => {
                let is_lost = self.jobs.get(&id).is_some_and(|job| {
                    job.is_inserted && job.inserted_at <= command.sent_at && !job.may_be_deleted
                });
                assert!(!is_lost || !is_current, "job {id} is not found");
            }
            (Kind::Delete { id }, "DELETED") => {
                let job = self.jobs.entry(id).or_default();
                assert!(job.deleted_at.is_none(), "job {id} is deleted twice");
                job.deleted_at = Some(now);
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
            (Kind::Bury { .. }, "BURIED") | (Kind::Release { .. }, "RELEASED") => {}
            (Kind::KickJob { .. }, "KICKED")
            | (Kind::Touch { .. }, "TOUCHED")
            | (Kind::Pause, "PAUSED" | "NOT_FOUND")
            | (
                Kind::Delete { .. }
                | Kind::Release { .. }
                | Kind::Bury { .. }
                | Kind::Touch { .. }
                | Kind::KickJob { .. },
                "NOT_FOUND",
            ) => {}
            (kind, _) => panic!("{line} is no reply to {kind:?}"),
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

    /// The client has closed its connection: it holds nothing.
    pub fn left(&mut self, client: usize) {
        for job in self.jobs.values_mut().filter(|job| job.held.is_some_and(|(holder, _)| holder == client)) {
            job.held = None;
        }
    }

    /// A server leads with these jobs.
    pub fn leads(&mut self, engine: &Engine) {
        self.forget_lost();
        let mut present = BTreeSet::new();
        let mut found = Vec::new();
        for (key, record) in engine.jobs().iter() {
            let id = record.id.0;
            present.insert(id);
            found.push((id, engine.body(key).to_vec()));
            let job = self.jobs.entry(id).or_default();
            assert!(job.deleted_at.is_none(), "job {id} is back after its deletion");
            let state = JobRecord::of(key, engine).state.state;
            let is_kept = match job.promised {
                None => true,
                Some(Promised::Buried) => matches!(state, LoggedState::Buried(_)),
                Some(Promised::Delayed) => matches!(state, LoggedState::Delayed(_)),
            };
            assert!(is_kept, "job {id} was {:?}, and is {state:?}", job.promised);
        }
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
