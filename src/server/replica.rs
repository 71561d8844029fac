//! A server whose job log is in a database: it follows, then leads, and its replies leave only during its lease.

use std::sync::Arc;

use tracing::{error, info, warn};

use super::{Core, Effect, ForwardedCounts, ForwardedStats, Server};
use crate::queue::Engine;
use crate::time::{Span, Time};
use crate::values::histogram::Histogram;
use crate::wal::Wal;
use crate::wal::replica::{
    Damage, Epoch, Leader, LeaderEnd, Member, Progress, ReplicaConfig, Reply, Request, Standby,
    patience_of_stop,
};

/// The part that a server has in a replicated queue.
pub(super) struct Replica {
    config: ReplicaConfig,
    role: Role,
    /// See [`Leader::gives_up_at`].
    has_given_up: bool,
    counts: ReplicaCounts,
    /// What this server forwards as a standby, if it does.
    forwarded: Option<Arc<dyn ForwardedCounts>>,
}

#[allow(clippy::large_enum_variant)]
enum Role {
    Standby(Standby),
    Leader(Leader),
    /// It led, and another server does, or the log was changed.
    Ended(LeaderEnd),
}

/// What [`Service::role`](super::Service::role) tells a driver.
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
    /// Commits wait for no standby of the database.
    pub is_local: bool,
    pub damage: Option<&'a Damage>,
    /// Who leads, if this is a standby and that server is there.
    pub leader: Option<&'a Member>,
    /// How long ago this standby has last seen the end of the log.
    pub lag: Span,
    /// Chunks that it had not applied then.
    pub lag_positions: u64,
    pub counts: ReplicaCounts,
    pub forwarded: Option<ForwardedStats>,
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

fn log_local(was_local: bool, is_local: bool) {
    match (was_local, is_local) {
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
        let mut server = Self::with_wal(config, engine, None);
        server.core.replica = Some(Box::new(Replica {
            role: Role::Standby(Standby::new(replica.clone(), now)),
            has_given_up: false,
            config: replica,
            counts: ReplicaCounts::default(),
            forwarded: None,
        }));
        server
    }

    /// Goes on from the fences of the program that ran in this process before.
    ///
    /// # Panics
    /// If the job log is not in a database.
    pub fn set_fences(&mut self, fences: u64) {
        self.core.replica.as_mut().expect("its job log is in a database").counts.fences = fences;
    }

    /// Shows these counts of forwarded connections from now on.
    ///
    /// # Panics
    /// If the job log is not in a database.
    pub fn show_forwarded(&mut self, counts: Arc<dyn ForwardedCounts>) {
        self.core.replica.as_mut().expect("its job log is in a database").forwarded = Some(counts);
    }

    /// Takes a reply of the database.
    pub(super) fn database_replied(&mut self, reply: Reply, now: Time) {
        let core = &mut self.core;
        let replica = core.replica.as_mut().expect("only a replicated job log asks the database");
        match &mut replica.role {
            Role::Standby(standby) => {
                let known = standby.damage().cloned();
                let was_alive = standby.is_own_address_taken();
                let progress = standby.complete(reply, &mut core.engine, now);
                if known.is_some() && standby.damage().is_none() {
                    info!("this server follows the job log again");
                }
                if standby.is_own_address_taken() && !was_alive {
                    warn!(
                        "another server leads with the address of this one, {}: this standby forwards no clients; give each server \
                         an --advertise of its own",
                        replica.config.me.address
                    );
                }
                match progress {
                    Progress::Following => {}
                    Progress::Restarted => {
                        if let Some(damage) =
                            standby.damage().filter(|&damage| Some(damage) != known.as_ref())
                        {
                            error!(
                                "cannot follow the job log in the database: {damage}; this server does not lead until it can"
                            );
                        }
                        core.forget_jobs();
                    }
                    Progress::Leads => core.lead(now),
                }
            }
            Role::Leader(leader) => {
                let wal = core.wal.as_mut().expect("a leader has a job log");
                let was_local = leader.is_local();
                let ended = leader.complete(reply, wal, now).err();
                log_local(was_local, leader.is_local());
                core.engine.set_log_room(wal.room());
                core.full_disk.note(wal, now);
                if let Some(end) = ended {
                    core.end_term(end);
                }
                core.check_lease(now);
                self.release_committed(now);
            }
            Role::Ended(_) => {}
        }
        self.core.effects.push_back(Effect::Log);
    }
}

impl Replica {
    #[inline(never)]
    fn memory_bytes(&self) -> usize {
        let forwarded = self.forwarded.as_ref().map_or(0, |counts| counts.read().memory_bytes);
        let own = match &self.role {
            Role::Leader(leader) => leader.memory_bytes(),
            Role::Standby(standby) => standby.memory_bytes(),
            Role::Ended(_) => 0,
        };
        own + forwarded as usize
    }
}

impl Core {
    /// The next request to the database.
    #[inline(never)]
    pub(super) fn next_request(&mut self, now: Time) -> Option<Request> {
        let replica = self.replica.as_mut()?;
        match &mut replica.role {
            Role::Standby(standby) => standby.next_request(now),
            Role::Leader(leader) => {
                let wal = self.wal.as_mut().expect("a leader has a job log");
                wal.close_when_idle(&self.engine, now);
                let request = leader.next_request(wal, now);
                self.engine.set_log_room(wal.room());
                request
            }
            Role::Ended(_) => None,
        }
    }

    /// Becomes the leader with the jobs that were followed.
    fn lead(&mut self, now: Time) {
        let replica = self.replica.as_mut().expect("it is a standby");
        let fresh = Role::Standby(Standby::new(replica.config.clone(), now));
        let Role::Standby(standby) = std::mem::replace(&mut replica.role, fresh) else {
            unreachable!("only a standby takes over")
        };
        let (leader, wal) = standby.lead(&mut self.engine, now);
        replica.role = Role::Leader(leader);
        replica.counts.takeovers += 1;
        self.recovered_jobs = self.engine.jobs().len();
        self.set_rules(now);
        self.begin_log(wal);
        self.check_lease(now);
    }

    /// Records changes of the queue in this job log from now on.
    pub(super) fn begin_log(&mut self, wal: Wal) {
        self.engine.record_changes(true);
        // mutant replica-reservation-lost: removed
        self.engine.keep_reservations(wal.keeps_reservations());
        self.engine.settle_reservations();
        self.engine.set_log_room(wal.room());
        self.wal = Some(wal);
    }

    /// Forgets the jobs that were followed. Nothing refers to them: a standby has no clients.
    fn forget_jobs(&mut self) {
        self.engine = Engine::new(self.config.seed);
        self.prepare_engine();
        if let Some(replica) = &mut self.replica {
            replica.counts.restarts += 1;
        }
    }

    /// Another server leads, or the log was changed. Nothing is answered any more.
    fn end_term(&mut self, end: LeaderEnd) {
        let replica = self.replica.as_mut().expect("it leads");
        if let Role::Leader(leader) = &mut replica.role {
            leader.end();
        }
        replica.role = Role::Ended(end);
        replica.counts.fences += 1;
        if let Some(wal) = &mut self.wal {
            wal.hold(true);
        }
        self.effects.push_back(Effect::Fail);
    }

    /// Compares the time with the lease, with each event.
    #[inline(always)]
    pub(super) fn check_lease(&mut self, now: Time) {
        if self.replica.is_some() {
            self.check_lease_at(now);
        }
    }

    #[inline(never)]
    fn check_lease_at(&mut self, now: Time) {
        if let (Some(replica), Some(wal)) = (&mut self.replica, &mut self.wal) {
            wal.hold(match &replica.role {
                Role::Leader(leader) if leader.gives_up_at().is_some_and(|at| at <= now) => {
                    if !std::mem::replace(&mut replica.has_given_up, true) {
                        self.effects.push_back(Effect::Fail);
                    }
                    true
                }
                Role::Leader(leader) => {
                    let is_over = now >= leader.lease_end();
                    log_lease(wal.is_held(), is_over, replica.config.me.lease);
                    is_over
                }
                Role::Standby(_) => false,
                Role::Ended(_) => true,
            });
        }
    }

    pub(super) fn is_lease_over(&self) -> bool {
        self.wal.as_ref().is_some_and(Wal::is_held)
    }

    #[inline(never)]
    pub(super) fn replica_deadline(&self) -> Option<Time> {
        let replica = self.replica.as_ref()?;
        match &replica.role {
            Role::Standby(standby) => standby.next_deadline(),
            Role::Leader(leader) => {
                let lease_end = Some(leader.lease_end()).filter(|_| !self.is_lease_over());
                let gives_up = leader.gives_up_at().filter(|_| !replica.has_given_up);
                leader.next_deadline().into_iter().chain(lease_end).chain(gives_up).min()
            }
            Role::Ended(_) => None,
        }
    }

    /// Whether the job log may be asked for its next operation.
    pub(super) fn polls_log(&self) -> bool {
        self.replica.as_ref().is_none_or(|replica| match &replica.role {
            Role::Leader(leader) => leader.polls(),
            Role::Standby(_) | Role::Ended(_) => false,
        })
    }

    /// Whether nothing remains to be written at the end, if the job log is in a database. A leader has said that it leaves.
    pub(super) fn has_left(&self) -> Option<bool> {
        self.replica.as_ref().map(|replica| match &replica.role {
            Role::Leader(leader) => leader.has_left(),
            Role::Standby(_) | Role::Ended(_) => true,
        })
    }

    /// Why this server ends though the database does not have everything, if it does.
    pub(super) fn end_without_database(&self) -> Option<String> {
        let replica = self.replica.as_ref().filter(|replica| replica.has_given_up)?;
        let seconds = patience_of_stop(replica.config.me.lease).as_secs();
        let waiting = match self.gate.clients() {
            0 => String::new(),
            1 => ": 1 client waits for replies to changes that may be lost".to_owned(),
            clients => format!(": {clients} clients wait for replies to changes that may be lost"),
        };
        Some(format!(
            "stopped without the database, which has acknowledged nothing for {seconds} s{waiting}; the job log has every change \
             with a reply"
        ))
    }

    /// Memory of replication besides the queue and the job log, in bytes.
    pub(super) fn replica_memory_bytes(&self) -> usize {
        self.replica.as_ref().map_or(0, |replica| replica.memory_bytes())
    }

    /// The token of its claim, if this server leads.
    pub(super) fn leader_token(&self) -> Option<u64> {
        match self.replica.as_ref().map(|replica| &replica.role) {
            Some(Role::Leader(leader)) => Some(leader.term().token),
            _ => None,
        }
    }

    pub(super) fn role(&self) -> ServerRole {
        match self.replica.as_ref().map(|replica| &replica.role) {
            None | Some(Role::Leader(_)) => ServerRole::Serving,
            Some(Role::Standby(standby)) => match standby.leader().cloned() {
                Some(leader) if standby.leader_has_own_address() => ServerRole::StandbyOfOwnAddress(leader),
                leader => ServerRole::Standby(leader),
            },
            Some(Role::Ended(end)) => ServerRole::Ended(*end),
        }
    }

    /// Why clients should not be sent to this server, if they should not.
    pub(super) fn unready(&self, now: Time) -> Option<&'static str> {
        let replica = self.replica.as_ref()?;
        match &replica.role {
            Role::Leader(_) if self.is_lease_over() => Some("the lease is over\n"),
            Role::Leader(_) => None,
            Role::Standby(_) if !replica.config.forwards => Some("standby\n"),
            Role::Standby(standby) if standby.is_own_address_taken() => {
                Some("the leader has the address of this server\n")
            }
            Role::Standby(standby) => match live_leader(standby, now) {
                None => Some("no leader\n"),
                Some(leader) if leader.address.is_empty() => Some("the leader has --no-forward\n"),
                Some(_) => None,
            },
            Role::Ended(_) => Some("another server leads\n"),
        }
    }

    pub(super) fn replica_state(&self, now: Time) -> Option<ReplicaState<'_>> {
        let replica = self.replica.as_ref()?;
        let forwarded = replica.forwarded.as_ref().map(|counts| counts.read());
        let shared = ReplicaState { counts: replica.counts, forwarded, ..ReplicaState::default() };
        Some(match &replica.role {
            Role::Leader(leader) => ReplicaState {
                is_leader: true,
                epoch: leader.epoch(),
                lease: leader.lease_end().since(now),
                appends_in_flight: leader.in_flight(),
                is_local: leader.is_local(),
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
        })
    }

    /// How long the appends of this leader took.
    pub(super) fn append_times(&self) -> Option<&Histogram> {
        match &self.replica.as_ref()?.role {
            Role::Leader(leader) => Some(leader.append_times()),
            Role::Standby(_) | Role::Ended(_) => None,
        }
    }
}
