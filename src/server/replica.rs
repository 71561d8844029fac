//! A server whose job log is in a database: it follows, then leads, and its replies leave only during its lease.

use std::collections::VecDeque;
use std::sync::Arc;

use tracing::{error, info, warn};

use super::commit_gate::CommitGate;
use super::{Effect, ForwardCounts, Server};
use crate::queue::Engine;
use crate::time::{Span, Time};
use crate::values::histogram::Histogram;
use crate::wal::Wal;
use crate::wal::replica::{
    Damage, DatabaseReply, Epoch, Fault, Hazards, Leader, LeaderEnd, Member, Progress, ReplicaConfig,
    Request, Standby, patience_of_stop,
};

/// The part that a server has in a replicated queue.
pub(super) struct Replica {
    config: ReplicaConfig,
    role: Role,
    /// See [`Leader::gives_up_at`].
    has_given_up: bool,
    counts: ReplicaCounts,
    /// What this server forwards as a standby, if it does.
    forwarded: Option<Arc<ForwardCounts>>,
}

#[allow(clippy::large_enum_variant)]
enum Role {
    Standby(Standby),
    Leader(Leader),
    /// It led, and another server does, or the log was changed.
    Ended(LeaderEnd),
}

/// The consequence of a reply of the database.
pub(super) enum AfterReply {
    Nothing,
    /// The jobs that were followed are to be forgotten.
    Restarted,
    /// This server takes over.
    Leads,
    /// The job log of the leader has it. The term of the leader may have ended.
    Led(Option<LeaderEnd>),
}

/// Whether a server serves clients, or why it does not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServerRole {
    /// It serves clients.
    Serving,
    /// Another server leads, or none does.
    Standby(Option<Member>),
    /// The last leader had the address of this server, so clients cannot be forwarded to it.
    StandbyOfOwnAddress(Member),
    /// It has led, and starts again as a standby.
    Ended(LeaderEnd),
}

/// What happened to a server with a replicated job log since it started.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct ReplicaCounts {
    /// It began to lead.
    pub takeovers: u64,
    /// Its term was ended by another server. The process restarts in place then, and passes this number on.
    pub fences: u64,
    /// It read the log again from the beginning.
    pub restarts: u64,
}

/// What `stats` and the metrics show of replication.
#[derive(Clone, Default, Debug)]
pub(super) struct ReplicaState<'a> {
    pub is_leader: bool,
    pub epoch: Epoch,
    /// Time left of the lease.
    pub lease: Span,
    pub appends_in_flight: usize,
    pub hazards: Hazards,
    pub damage: Option<&'a Damage>,
    /// Who leads, if this is a standby and that server is there.
    pub leader: Option<&'a Member>,
    /// How long ago this standby has last seen the end of the log.
    pub lag: Span,
    /// Chunks that it had not applied then.
    pub lag_positions: u64,
    pub counts: ReplicaCounts,
    pub forwarded: Option<&'a ForwardCounts>,
}

impl ReplicaState<'_> {
    /// The word for what this server is.
    pub const fn role(&self) -> &'static str {
        if self.is_leader { "leader" } else { "standby" }
    }
}

/// The leader that a standby follows, if it is there and another server.
fn live_leader(standby: &Standby, now: Time) -> Option<&Member> {
    standby.leader().filter(|_| !standby.leader_has_own_address() && !standby.is_leader_gone(now))
}

fn log_lease(was_over: bool, is_over: bool, lease: Span) {
    match (was_over, is_over) {
        (false, true) => warn!(
            "the database has acknowledged nothing for {} s: clients wait until it does; look at the primary and its synchronous \
             standbys",
            lease.as_secs()
        ),
        (true, false) => info!("the database acknowledges again"),
        _ => {}
    }
}

/// Logs why a standby begins again, unless it has logged this damage.
// docs/RUNBOOK.md lists these messages.
fn log_fault(fault: &Fault, known: Option<&Damage>) {
    match fault {
        Fault::Damaged(damage) if Some(damage) == known => {}
        Fault::Damaged(damage) => {
            error!(
                "cannot follow the job log in the database: {damage}; this server does not lead until it can"
            );
        }
        Fault::OutOfMemory => error!(
            "cannot follow the job log in the database: there is no memory for a job; give this machine as much as the leader has"
        ),
        Fault::Diverged => {}
    }
}

fn log_hazards(before: Hazards, now: Hazards) {
    match (before.is_read_only, now.is_read_only) {
        (false, true) => warn!(
            "default_transaction_read_only is set for the role of this server: no server leads once its sessions have ended; reset it"
        ),
        (true, false) => {
            info!("default_transaction_read_only is not set for the role of this server any more")
        }
        _ => {}
    }
    match (before.is_local, now.is_local) {
        (false, true) => warn!(
            "synchronous_standby_names is empty: the database acknowledges changes that no standby has, and they are lost with the \
             primary; set it again"
        ),
        (true, false) => info!("a standby of the database has each change again before it is acknowledged"),
        _ => {}
    }
}

impl Server {
    /// Returns a server without connections that follows a job log in a database.
    pub fn with_replica(config: super::Config, replica: ReplicaConfig, now: Time) -> Self {
        let engine = Engine::new(config.seed);
        let mut server = Self::with_engine(config, engine);
        server.core.log.follow(Replica {
            role: Role::Standby(Standby::new(replica.clone(), now)),
            has_given_up: false,
            config: replica,
            counts: ReplicaCounts::default(),
            forwarded: None,
        });
        server
    }

    /// Goes on from the fences of the program that ran in this process before.
    ///
    /// # Panics
    /// If the job log is not in a database.
    pub fn set_fences(&mut self, fences: u64) {
        self.core.log.replica_mut().expect("its job log is in a database").counts.fences = fences;
    }

    /// Shows these counts of forwarded connections from now on.
    ///
    /// # Panics
    /// If the job log is not in a database.
    pub fn show_forwarded(&mut self, counts: Arc<ForwardCounts>) {
        self.core.log.replica_mut().expect("its job log is in a database").forwarded = Some(counts);
    }

    /// Takes a reply of the database.
    pub(super) fn database_replied(&mut self, reply: DatabaseReply, now: Time) {
        let core = &mut self.core;
        match core.log.complete_request(reply, &mut core.engine, now) {
            AfterReply::Nothing => {}
            AfterReply::Restarted => core.forget_jobs(),
            AfterReply::Leads => core.lead(now),
            AfterReply::Led(ended) => {
                if let Some(end) = ended {
                    core.log.end_term(end);
                    core.effects.push_back(Effect::Fail);
                }
                core.log.check_lease(&mut core.effects, now);
                self.release_committed(now);
            }
        }
        self.core.effects.push_back(Effect::Log);
    }
}

impl Replica {
    #[inline(never)]
    pub fn memory_bytes(&self) -> usize {
        let forwarded = self.forwarded.as_ref().map_or(0, |counts| counts.memory.get());
        let own = match &self.role {
            Role::Leader(leader) => leader.memory_bytes(),
            Role::Standby(standby) => standby.memory_bytes(),
            Role::Ended(_) => 0,
        };
        own + forwarded as usize
    }

    /// Takes a reply of the database.
    pub fn complete(
        &mut self,
        reply: DatabaseReply,
        wal: Option<&mut Wal>,
        engine: &mut Engine,
        now: Time,
    ) -> AfterReply {
        match &mut self.role {
            Role::Standby(standby) => {
                let known = standby.damage().cloned();
                let was_alive = standby.is_own_address_taken();
                let progress = standby.complete(reply, engine, now);
                if known.is_some() && standby.damage().is_none() {
                    info!("this server follows the job log again");
                }
                if standby.is_own_address_taken() && !was_alive {
                    warn!(
                        "another server leads with the address of this one, {}: this standby forwards no clients; give each server \
                         an --advertise of its own",
                        self.config.me.address
                    );
                }
                match progress {
                    Progress::Following => AfterReply::Nothing,
                    Progress::Restarted(fault) => {
                        log_fault(&fault, known.as_ref());
                        self.counts.restarts += 1;
                        AfterReply::Restarted
                    }
                    Progress::Leads => AfterReply::Leads,
                }
            }
            Role::Leader(leader) => {
                let wal = wal.expect("a leader has a job log");
                let hazards = leader.hazards();
                let ended = leader.complete(reply, wal, now).err();
                log_hazards(hazards, leader.hazards());
                engine.set_log_room(wal.room());
                AfterReply::Led(ended)
            }
            Role::Ended(_) => AfterReply::Nothing,
        }
    }

    /// The next request to the database.
    #[inline(never)]
    pub fn next_request(&mut self, wal: Option<&mut Wal>, engine: &mut Engine, now: Time) -> Option<Request> {
        match &mut self.role {
            Role::Standby(standby) => standby.next_request(now),
            Role::Leader(leader) => {
                let wal = wal.expect("a leader has a job log");
                wal.close_when_idle(engine, now);
                let request = leader.next_request(wal, now);
                engine.set_log_room(wal.room());
                request
            }
            Role::Ended(_) => None,
        }
    }

    /// Becomes the leader with the jobs that were followed.
    pub fn lead(&mut self, engine: &mut Engine, now: Time) -> Wal {
        let fresh = Role::Standby(Standby::new(self.config.clone(), now));
        let Role::Standby(standby) = std::mem::replace(&mut self.role, fresh) else {
            unreachable!("only a standby takes over")
        };
        let (leader, wal) = standby.lead(engine, now);
        self.role = Role::Leader(leader);
        self.counts.takeovers += 1;
        wal
    }

    /// Another server leads, or the log was changed.
    pub fn end_term(&mut self, end: LeaderEnd) {
        if let Role::Leader(leader) = &mut self.role {
            leader.end();
        }
        self.role = Role::Ended(end);
        self.counts.fences += 1;
    }

    /// Compares the time with the lease.
    #[inline(never)]
    pub fn check_lease(&mut self, wal: &mut Wal, effects: &mut VecDeque<Effect>, now: Time) {
        wal.hold(match &self.role {
            Role::Leader(leader) if leader.gives_up_at().is_some_and(|at| at <= now) => {
                if !std::mem::replace(&mut self.has_given_up, true) {
                    effects.push_back(Effect::Fail);
                }
                true
            }
            Role::Leader(leader) => {
                let is_over = now >= leader.lease_end();
                log_lease(wal.is_held(), is_over, self.config.me.lease);
                is_over
            }
            Role::Standby(_) => false,
            Role::Ended(_) => true,
        });
    }

    #[inline(never)]
    pub fn next_deadline(&self, is_lease_over: bool) -> Option<Time> {
        match &self.role {
            Role::Standby(standby) => standby.next_deadline(),
            Role::Leader(leader) => {
                let lease_end = Some(leader.lease_end()).filter(|_| !is_lease_over);
                let gives_up = leader.gives_up_at().filter(|_| !self.has_given_up);
                leader.next_deadline().into_iter().chain(lease_end).chain(gives_up).min()
            }
            Role::Ended(_) => None,
        }
    }

    /// Whether the job log may be asked for its next operation.
    pub fn polls(&self) -> bool {
        match &self.role {
            Role::Leader(leader) => leader.polls(),
            Role::Standby(_) | Role::Ended(_) => false,
        }
    }

    /// Whether nothing remains to be written at the end. A leader has said that it leaves.
    pub fn has_left(&self) -> bool {
        match &self.role {
            Role::Leader(leader) => leader.has_left(),
            Role::Standby(_) | Role::Ended(_) => true,
        }
    }

    /// Why this server ends though the database does not have everything, if it does.
    pub fn end_without_database(&self, gate: &CommitGate) -> Option<String> {
        if !self.has_given_up {
            return None;
        }
        let seconds = patience_of_stop(self.config.me.lease).as_secs();
        let waiting = match gate.clients() {
            0 => String::new(),
            1 => ": 1 client waits for replies to changes that may be lost".to_owned(),
            clients => format!(": {clients} clients wait for replies to changes that may be lost"),
        };
        Some(format!(
            "stopped without the database, which has acknowledged nothing for {seconds} s{waiting}; the job log has every change \
             with a reply"
        ))
    }

    /// The token of its claim, if this server leads.
    pub const fn leader_token(&self) -> Option<u64> {
        match &self.role {
            Role::Leader(leader) => Some(leader.term().token),
            _ => None,
        }
    }

    pub fn role(&self) -> ServerRole {
        match &self.role {
            Role::Leader(_) => ServerRole::Serving,
            Role::Standby(standby) => match standby.leader().cloned() {
                Some(leader) if standby.leader_has_own_address() => ServerRole::StandbyOfOwnAddress(leader),
                leader => ServerRole::Standby(leader),
            },
            Role::Ended(end) => ServerRole::Ended(*end),
        }
    }

    /// Why clients should not be sent to this server, if they should not.
    pub fn unready(&self, is_lease_over: bool, now: Time) -> Option<&'static str> {
        match &self.role {
            Role::Leader(_) if is_lease_over => Some("the lease is over\n"),
            Role::Leader(_) => None,
            Role::Standby(_) if !self.config.forwards => Some("standby\n"),
            Role::Standby(standby) if standby.is_own_address_taken() => {
                Some("the leader has the address of this server\n")
            }
            Role::Standby(standby) => match live_leader(standby, now) {
                None => Some("no leader\n"),
                Some(leader) if leader.address.is_empty() => Some("the leader has --no-forward\n"),
                Some(_) => None,
            },
            Role::Ended(LeaderEnd::Fenced) => Some("another server leads\n"),
            Role::Ended(LeaderEnd::Overwritten(_)) => Some("the job log was changed\n"),
        }
    }

    pub fn state(&self, now: Time) -> ReplicaState<'_> {
        let forwarded = self.forwarded.as_deref();
        let shared = ReplicaState { counts: self.counts, forwarded, ..ReplicaState::default() };
        match &self.role {
            Role::Leader(leader) => ReplicaState {
                is_leader: true,
                epoch: leader.epoch(),
                lease: leader.lease_end().since(now),
                appends_in_flight: leader.in_flight(),
                hazards: leader.hazards(),
                ..shared
            },
            Role::Standby(standby) => ReplicaState {
                epoch: standby.epoch(),
                damage: standby.damage(),
                leader: live_leader(standby, now),
                lag: standby.lag(now),
                lag_positions: standby.lag_positions(),
                ..shared
            },
            Role::Ended(_) => shared,
        }
    }

    /// How long the appends of this leader took.
    pub const fn append_times(&self) -> Option<&Histogram> {
        match &self.role {
            Role::Leader(leader) => Some(leader.append_times()),
            Role::Standby(_) | Role::Ended(_) => None,
        }
    }
}
