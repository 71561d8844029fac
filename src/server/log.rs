//! The job log as the server has it: in files, in a database, or nowhere.

use std::collections::VecDeque;

use super::full_disk::FullDiskWarnings;
use super::replica::{AfterReply, Replica, ReplicaState};
use super::{Effect, ServerRole};
use crate::queue::Engine;
use crate::time::Time;
use crate::values::ids::{ClientKey, JobId};
use crate::values::tags::Tags;
use crate::wal::replica::{DatabaseReply, LeaderEnd};
use crate::wal::{DiskOutcome, LogRequest, PutSpace, Wal};

pub(super) struct Log {
    wal: Option<Wal>,
    /// If the job log is in a database.
    replica: Option<Box<Replica>>,
    full_disk: FullDiskWarnings,
    /// Jobs in the queue at the start.
    recovered_jobs: usize,
    is_stopping: bool,
}

impl Log {
    /// No job log yet, for a queue with these jobs.
    pub fn new(recovered_jobs: usize) -> Self {
        Self {
            wal: None,
            replica: None,
            full_disk: FullDiskWarnings::default(),
            recovered_jobs,
            is_stopping: false,
        }
    }

    /// Records changes of the queue in this job log from now on.
    pub fn begin(&mut self, wal: Wal, engine: &mut Engine) {
        engine.record_changes(true);
        // mutant replica-reservation-lost: removed
        engine.keep_reservations(wal.keeps_reservations());
        engine.settle_reservations();
        engine.set_log_room(wal.room());
        self.wal = Some(wal);
        if self.is_stopping {
            self.stop();
        }
    }

    /// Makes everything go to disk as soon as it can. A standby whose claim is acknowledged after that leaves at once.
    pub fn stop(&mut self) {
        self.is_stopping = true;
        // Bounded by the one job log.
        self.wal.iter_mut().for_each(Wal::stop);
    }

    /// Follows a job log in a database from now on.
    pub fn follow(&mut self, replica: Replica) {
        self.replica = Some(Box::new(replica));
    }

    pub const fn wal(&self) -> Option<&Wal> {
        self.wal.as_ref()
    }

    pub const fn wal_mut(&mut self) -> Option<&mut Wal> {
        self.wal.as_mut()
    }

    pub fn replica(&self) -> Option<&Replica> {
        self.replica.as_deref()
    }

    pub fn replica_mut(&mut self) -> Option<&mut Replica> {
        self.replica.as_deref_mut()
    }

    pub const fn recovered_jobs(&self) -> usize {
        self.recovered_jobs
    }

    /// Records what has happened to the queue.
    #[inline(always)]
    pub fn record_changes(&mut self, engine: &mut Engine, now: Time) {
        if let Some(wal) = &mut self.wal {
            wal.record(engine, now);
        }
    }

    /// The next request to the place of the job log.
    pub fn next_request(&mut self, engine: &mut Engine, now: Time) -> Option<LogRequest> {
        if let Some(replica) = &mut self.replica {
            let request = replica.next_request(self.wal.as_mut(), engine, now);
            return request.map(Box::new).map(LogRequest::Database);
        }
        let wal = self.wal.as_mut()?;
        wal.close_when_idle(engine, now);
        let operation = wal.next_operation(now);
        engine.set_log_room(wal.room());
        operation.map(LogRequest::Files)
    }

    /// Takes the outcome of a disk operation. Returns whether the log has another operation already.
    pub fn complete(&mut self, outcome: DiskOutcome, engine: &mut Engine, now: Time) -> bool {
        let wal = self.wal.as_mut().expect("only a job log has disk operations");
        wal.complete(outcome, now);
        engine.set_log_room(wal.room());
        if wal.failure().is_none() {
            self.full_disk.note(wal, now);
        }
        wal.is_gathering()
    }

    /// Takes a reply of the database.
    pub fn complete_request(&mut self, reply: DatabaseReply, engine: &mut Engine, now: Time) -> AfterReply {
        let replica = self.replica.as_mut().expect("only a replicated job log asks the database");
        let after = replica.complete(reply, self.wal.as_mut(), engine, now);
        if let (AfterReply::Led(_), Some(wal)) = (&after, &self.wal) {
            self.full_disk.note(wal, now);
        }
        after
    }

    /// Becomes the leader with the jobs that were followed.
    pub fn lead(&mut self, engine: &mut Engine, now: Time) -> Wal {
        let wal = self.replica.as_mut().expect("it is a standby").lead(engine, now);
        self.recovered_jobs = engine.jobs().len();
        wal
    }

    /// Another server leads, or the log was changed. Nothing is answered any more.
    pub fn end_term(&mut self, end: LeaderEnd) {
        self.replica.as_mut().expect("it leads").end_term(end);
        if let Some(wal) = &mut self.wal {
            wal.hold(true);
        }
    }

    /// Begins to rewrite records, if need be, and asks for the next request. Only with a job log.
    pub fn end_iteration(&mut self, engine: &Engine, effects: &mut VecDeque<Effect>, now: Time) {
        if let Some(wal) = &mut self.wal {
            wal.compact(engine, now);
        }
        if self.is_there() {
            effects.push_back(Effect::Log);
        }
    }

    /// Compares the time with the lease, with each event.
    #[inline(always)]
    pub fn check_lease(&mut self, effects: &mut VecDeque<Effect>, now: Time) {
        if let (Some(replica), Some(wal)) = (&mut self.replica, &mut self.wal) {
            replica.check_lease(wal, effects, now);
        }
    }

    /// Whether there is a job log, or one is followed.
    #[inline]
    pub const fn is_there(&self) -> bool {
        self.wal.is_some() || self.replica.is_some()
    }

    /// Whether this server follows the job log of a leader. What it reads is not its own to change.
    pub const fn is_followed(&self) -> bool {
        self.replica.is_some() && self.wal.is_none()
    }

    /// Whether commands and timers must wait: the backlog of the job log is too large, the server is stopping, space must be
    /// allocated first, or the lease of a leader is over.
    #[inline(always)]
    pub fn must_wait(&self) -> bool {
        self.wal.as_ref().is_some_and(Wal::must_wait)
    }

    /// Whether a write waits for space on the disk.
    #[inline(always)]
    pub fn is_stalled(&self) -> bool {
        self.wal.as_ref().is_some_and(Wal::is_stalled)
    }

    /// Whether a change of this job is not committed yet.
    pub fn is_pending(&self, id: JobId) -> bool {
        self.wal.as_ref().is_some_and(|wal| wal.is_pending(id))
    }

    /// Whether there is space for a job in the tube that the client uses.
    pub fn space_for_put(
        &mut self,
        engine: &Engine,
        client: ClientKey,
        body_bytes: u32,
        tags: Tags<'_>,
    ) -> PutSpace {
        let Some(wal) = &mut self.wal else { return PutSpace::Available };
        let tube = engine.used(client).name();
        wal.space_for_put(tube.as_bytes().len(), tags, body_bytes as usize + 2)
    }

    /// Whether there is space for records of this size.
    pub fn space_for_records(&mut self, bytes: u64) -> PutSpace {
        self.wal.as_mut().map_or(PutSpace::Available, |wal| wal.space_for_records(bytes))
    }

    pub fn is_lease_over(&self) -> bool {
        self.wal.as_ref().is_some_and(Wal::is_held)
    }

    /// When something must be done for it.
    pub fn next_deadline(&self) -> Option<Time> {
        let polls = self.replica().is_none_or(Replica::polls);
        let wal = self.wal.as_ref().filter(|_| polls).and_then(Wal::next_deadline);
        let replica = self.replica().and_then(|replica| replica.next_deadline(self.is_lease_over()));
        wal.into_iter().chain(replica).min()
    }

    /// Whether everything is written that must be at the end.
    pub fn is_settled(&self) -> bool {
        let is_written = || self.wal.as_ref().is_none_or(Wal::is_settled);
        self.replica().map_or_else(is_written, Replica::has_left)
    }

    pub fn role(&self) -> ServerRole {
        self.replica().map_or(ServerRole::Serving, Replica::role)
    }

    /// Why clients should not be sent to this server, if they should not.
    pub fn unready(&self, now: Time) -> Option<&'static str> {
        self.replica()?.unready(self.is_lease_over(), now)
    }

    pub fn replica_state(&self, now: Time) -> Option<ReplicaState<'_>> {
        self.replica().map(|replica| replica.state(now))
    }

    /// Memory of the job log and of replication, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.wal.as_ref().map_or(0, Wal::memory_bytes) + self.replica().map_or(0, Replica::memory_bytes)
    }
}
