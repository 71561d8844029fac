//! From a command to its outcome.

use std::num::NonZeroU32;

use super::access::Permit;
use super::client_state::{ProtocolState, SessionState};
use super::memory::{LISTED_JOB_BYTES, LISTED_SCHEDULE_BYTES};
use super::metrics::Count;
use super::outcome::{Outcome, Refusal, Shortage};
use super::trace::Observation;
use super::{ClientAct, Core, Effect};
use crate::protocol::command::Command;
use crate::protocol::reply::Reply;
use crate::queue::{Ignored, JobAwaited, JobMoved, JobState, PageQuery, Released, Reserved};
use crate::time::{Seconds, Span, Time};
use crate::values::budget::Cost;
use crate::values::ids::{ClientKey, JobId, JobKey};
use crate::values::tube_name::TubeName;
use crate::values::tube_rules::Rule;

/// What one byte of a note becomes in `stats-job`, at most.
const ESCAPED_BYTES_MAX: usize = 4;

impl Core {
    /// Executes a command. A `put` has [a page of its own](super::puts), and so has a `put-batch`.
    #[inline(never)]
    pub(super) fn execute<'a>(
        &mut self,
        protocol: &mut ProtocolState,
        command: Command<'a>,
        permit: Permit,
        now: Time,
    ) -> Outcome<'a> {
        let client = protocol.client;
        // It may take memory that a later job counts on.
        self.memory.invalidate();
        let engine = &mut self.engine;
        match command {
            Command::ReserveBatch { count, seconds } => {
                self.reserve_batch(protocol, count, seconds.map(Seconds::span), now)
            }
            Command::WaitJob { id, seconds } => match engine.wait_job(client, id, seconds.span(), now) {
                JobAwaited::NotFound => Outcome::Refused(Refusal::NoJob),
                JobAwaited::Buried => Outcome::Done(Reply::Buried),
                JobAwaited::TimedOut => Outcome::Done(Reply::TimedOut),
                JobAwaited::Waiting => {
                    protocol.batch = 0;
                    protocol.wait_in(SessionState::Waiting)
                }
            },
            Command::CancelReserve => Outcome::Done(Reply::NotWaiting),
            Command::ReserveJob(id) => match engine.reserve_job(client, id, now) {
                Some(job) => Outcome::Reserved(job),
                None => Outcome::Refused(Refusal::NoJob),
            },
            Command::Kick { bound } => {
                let kicked = |count: u32| Outcome::Done(Reply::Kicked(count.into()));
                protocol.begun(engine.kick(client, bound, now), kicked)
            }
            Command::FlushTube(tube) => {
                let flushed = engine.flush(client, tube, now);
                self.reporter.observe_changes(&self.engine);
                protocol.begun(flushed, Outcome::flushed)
            }
            Command::FlushKeys(tube) => protocol.begun(engine.flush_keys(client, tube), Outcome::flushed),
            Command::MoveJob { id, tube } => self.move_job(id, tube, now),
            Command::MoveJobs { from, state, to, bound } => {
                self.move_jobs(protocol, [from, to], state, bound, now)
            }
            Command::ListJobs { tube, state, after, limit } => {
                let query = PageQuery { state, after, limit: self.page_room(limit, LISTED_JOB_BYTES) };
                let engine = &mut self.engine;
                protocol.begun(engine.list_jobs(client, tube, query), Outcome::Jobs)
            }
            Command::DeleteBatch(ids) => {
                // Bounded by LINE_BYTES_LONG_MAX: the ids of one line, some 500.
                let (deleted, not_found) = engine.delete_batch(client, ids.iter(), now);
                Outcome::Done(Reply::DeletedBatch { deleted, not_found })
            }
            Command::Release { id, pri, delay } => match engine.release(client, id, pri, delay, now) {
                Released::Done => Outcome::Done(Reply::Released),
                Released::Buried => Outcome::Done(Reply::Buried),
                Released::NotFound => Outcome::Refused(Refusal::NoJob),
            },
            Command::Bury { id, pri } => Outcome::done(engine.bury(client, id, pri, now), Reply::Buried),
            Command::KickJob(id) => Outcome::done(engine.kick_job(id, now), Reply::KickedJob),
            Command::Touch(id) => Outcome::done(engine.touch(client, id, now), Reply::Touched),
            Command::PauseTube { tube: None, .. } => Outcome::Refused(Refusal::BadFormat),
            Command::PauseTube { tube: Some(tube), seconds } => {
                match engine.pause(tube, seconds.span(), now) {
                    true => Outcome::Done(Reply::Paused),
                    false => Outcome::Refused(Refusal::NoTube),
                }
            }
            Command::TubeConfig { tube, rule: Some(rule) } => self.set_rule(tube, rule, now),
            Command::ScheduleDelete(name) => self.delete_schedule(name),
            Command::ScheduleRun(name) => self.run_schedule(name, now),
            Command::Use(tube) => self.use_tube(protocol, tube),
            Command::Watch(tube) => self.watch(client, tube, None),
            Command::WatchWeighted { tube, weight } => self.watch(client, tube, Some(weight)),
            Command::ReserveMode(mode) => {
                engine.set_reserve_mode(client, mode);
                Outcome::Done(Reply::UsingMode(mode))
            }
            Command::Ignore(tube) => match engine.ignore(client, tube) {
                Ignored::Watching(count) => Outcome::Done(Reply::Watching(count)),
                Ignored::Last => Outcome::Refused(Refusal::LastTube),
            },
            Command::Drain => {
                self.set_draining(client, true);
                Outcome::Done(Reply::DrainBegun)
            }
            Command::Undrain => {
                self.set_draining(client, false);
                Outcome::Done(Reply::NotDraining)
            }
            Command::Quit => {
                engine.quit(client);
                protocol.wait_in(SessionState::Closing)
            }
            Command::Reserve => self.reserve(protocol, None, permit, now),
            Command::ReserveWithTimeout { seconds } => {
                self.reserve(protocol, Some(seconds.span()), permit, now)
            }
            Command::Delete(id) => self.delete(client, id, permit, now),
            Command::Put { .. }
            | Command::PutBatch { .. }
            | Command::JobNote { .. }
            | Command::SchedulePut(_) => {
                unreachable!("begin_put, begin_put_batch, begin_note and begin_schedule execute it")
            }
            Command::Peek(_)
            | Command::PeekReady
            | Command::PeekDelayed
            | Command::PeekBuried
            | Command::PeekReserved
            | Command::Stats
            | Command::StatsJob(_)
            | Command::StatsTube(_)
            | Command::StatsGroup(_)
            | Command::ScheduleStats(_)
            | Command::ListSchedules { .. }
            | Command::TubeConfig { rule: None, .. }
            | Command::ListTubeUsed
            | Command::ListTubes
            | Command::ListTubesWatched => self.look(client, command),
        }
    }

    /// Executes a command that changes nothing.
    fn look<'a>(&mut self, client: ClientKey, query: Command<'a>) -> Outcome<'a> {
        let engine = &mut self.engine;
        match query {
            Command::Peek(id) => Outcome::found(engine.jobs().find(id), Refusal::NoJob),
            Command::PeekReady => Outcome::found(engine.peek_ready(client), Refusal::NoJobInState),
            Command::PeekDelayed => Outcome::found(engine.peek_delayed(client), Refusal::NoJobInState),
            Command::PeekBuried => Outcome::found(engine.peek_buried(client), Refusal::NoJobInState),
            Command::PeekReserved => Outcome::found(engine.peek_reserved(client), Refusal::NoJobInState),
            Command::Stats => Outcome::Stats,
            Command::StatsJob(id) => {
                let Some(job) = engine.jobs().find(id) else { return Outcome::Refused(Refusal::NoJob) };
                // Bounded by NOTES_MAX: the notes of one job.
                let notes: usize = engine.notes(job).iter().map(|note| note.text.len()).sum();
                engine.budget().charge(Cost::rendered(ESCAPED_BYTES_MAX * notes));
                Outcome::JobStats(job)
            }
            Command::StatsTube(name) => match engine.tubes().find(name) {
                Some(tube) => {
                    let waiting = Cost::visits(engine.tube_waiting_cost(tube));
                    engine.budget().charge(Cost::PERCENTILES.plus(waiting));
                    Outcome::TubeStats(tube)
                }
                None => Outcome::Refused(Refusal::NoTube),
            },
            Command::StatsGroup(name) if engine.group_stats(name).is_some() => Outcome::GroupStats(name),
            Command::StatsGroup(_) => Outcome::Refused(Refusal::NoGroup),
            Command::ScheduleStats(name) if engine.schedule(name).is_some() => Outcome::ScheduleStats(name),
            Command::ScheduleStats(_) => Outcome::Refused(Refusal::NoSchedule),
            Command::ListSchedules { after, limit } => {
                let limit = self.page_room(limit, LISTED_SCHEDULE_BYTES);
                Outcome::Schedules { after, limit }
            }
            Command::TubeConfig { tube, .. }
                if engine.tubes().find(tube).is_some() || engine.rules_of(tube).is_some() =>
            {
                Outcome::Rules(tube)
            }
            Command::TubeConfig { .. } => Outcome::Refused(Refusal::NoTube),
            Command::ListTubeUsed => Outcome::TubeUsed,
            Command::ListTubes => Outcome::Tubes,
            Command::ListTubesWatched => Outcome::TubesWatched,
            other => unreachable!("{other:?} changes something"),
        }
    }

    #[cold]
    fn set_draining(&mut self, client: ClientKey, is_draining: bool) {
        if self.puts.set_draining(is_draining) {
            let conn = self.engine.clients().get(client).conn;
            let act = if is_draining { ClientAct::Drain } else { ClientAct::Undrain };
            self.effects.push_back(Effect::LogClient(conn, act));
        }
    }

    /// Returns the refusal, which is counted, if there is neither a tube of this name nor room for one.
    fn admits_tube(&mut self, tube: TubeName<'_>) -> Result<(), Refusal> {
        if self.engine.can_use(tube) { Ok(()) } else { Err(self.refuse_tube()) }
    }

    fn refuse_tube(&mut self) -> Refusal {
        self.counts.add(Count::TubeRefusals, 1);
        let count = self.engine.tubes().names();
        let is_at_max = self.config.max_tubes.is_some_and(|max| count >= max as usize);
        if is_at_max { Shortage::Tubes.into() } else { Shortage::Memory.into() }
    }

    fn set_rule(&mut self, tube: TubeName<'_>, rule: Rule<'_>, now: Time) -> Outcome<'static> {
        if !self.engine.can_set_rule(tube, rule) {
            return Outcome::Refused(Shortage::RuledTubes.into());
        }
        self.engine.set_rule(tube, rule, now);
        Outcome::Done(Reply::Configured)
    }

    fn move_job(&mut self, id: JobId, tube: TubeName<'_>, now: Time) -> Outcome<'static> {
        if !self.engine.is_unreserved(id) {
            return Outcome::Refused(Refusal::NoJob);
        }
        if let Err(refusal) = self.admits_tube(tube) {
            return Outcome::Refused(refusal);
        }
        match self.engine.move_job(id, tube, now) {
            JobMoved::Done => Outcome::Done(Reply::Moved),
            JobMoved::NotFound => Outcome::Refused(Refusal::NoJob),
            JobMoved::Refused(refusal) => Outcome::Refused(Refusal::of_move(refusal, &self.log)),
        }
    }

    fn move_jobs(
        &mut self,
        protocol: &mut ProtocolState,
        [from, to]: [TubeName<'_>; 2],
        state: JobState,
        bound: u32,
        now: Time,
    ) -> Outcome<'static> {
        if self.engine.tubes().find(from).is_none() {
            return Outcome::Refused(Refusal::NoTube);
        }
        if let Err(refusal) = self.admits_tube(to) {
            return Outcome::Refused(refusal);
        }
        let moved = self.engine.move_jobs(protocol.client, [from, to], state, bound, now);
        self.reporter.observe_changes(&self.engine);
        protocol.begun(moved, Outcome::Moved)
    }

    fn use_tube<'a>(&mut self, protocol: &mut ProtocolState, tube: TubeName<'a>) -> Outcome<'a> {
        if let Err(refusal) = self.admits_tube(tube) {
            return Outcome::Refused(refusal);
        }
        self.engine.use_tube(protocol.client, tube);
        if let Some(access) = &mut protocol.access {
            access.used = access.user.grants.on(tube);
        }
        Outcome::Done(Reply::Using(tube))
    }

    fn watch(
        &mut self,
        client: ClientKey,
        tube: TubeName<'_>,
        weight: Option<NonZeroU32>,
    ) -> Outcome<'static> {
        if !self.engine.can_watch(client, tube) {
            return Outcome::Refused(self.refuse_tube());
        }
        let count = self.engine.watch(client, tube);
        if let Some(weight) = weight {
            self.engine.set_weight(client, tube, weight);
        }
        Outcome::Done(Reply::Watching(count))
    }

    #[inline]
    pub(super) fn delete(
        &mut self,
        client: ClientKey,
        id: JobId,
        _permit: Permit,
        now: Time,
    ) -> Outcome<'static> {
        Outcome::done(self.engine.delete(client, id, now), Reply::Deleted)
    }

    #[inline]
    pub(super) fn reserve(
        &mut self,
        protocol: &mut ProtocolState,
        timeout: Option<Span>,
        _permit: Permit,
        now: Time,
    ) -> Outcome<'static> {
        match self.engine.reserve(protocol.client, timeout, now) {
            Reserved::Job(job) => Outcome::Reserved(job),
            Reserved::Drawn(job) => {
                self.report_drawn(protocol.client, &[job]);
                Outcome::Reserved(job)
            }
            Reserved::DeadlineSoon => Outcome::Done(Reply::DeadlineSoon),
            Reserved::TimedOut => Outcome::Done(Reply::TimedOut),
            Reserved::Waiting => {
                protocol.batch = 0;
                protocol.wait_in(SessionState::Waiting)
            }
        }
    }

    fn reserve_batch(
        &mut self,
        protocol: &mut ProtocolState,
        count: u32,
        timeout: Option<Span>,
        now: Time,
    ) -> Outcome<'static> {
        let client = protocol.client;
        let patience = timeout.unwrap_or(Span::ZERO);
        match self.engine.reserve(client, Some(patience), now) {
            Reserved::Job(job) | Reserved::Drawn(job) => {
                let may_overtake = patience == Span::ZERO;
                let mut jobs = vec![job];
                self.fill_batch(client, &mut jobs, count, may_overtake, now);
                Outcome::ReservedBatch(jobs)
            }
            Reserved::DeadlineSoon => Outcome::Done(Reply::DeadlineSoon),
            Reserved::TimedOut if timeout.is_none() => Outcome::Done(Reply::ReservedBatch(0)),
            Reserved::TimedOut => Outcome::Done(Reply::TimedOut),
            Reserved::Waiting => {
                (protocol.batch, protocol.is_batch_at_once) = (count, timeout.is_none());
                protocol.wait_in(SessionState::Waiting)
            }
        }
    }

    /// Reserves further jobs for a `reserve-batch` of `count` jobs.
    pub(super) fn fill_batch(
        &mut self,
        client: ClientKey,
        jobs: &mut Vec<JobKey>,
        count: u32,
        may_overtake: bool,
        now: Time,
    ) {
        let room = self.batch_room(client, count);
        self.reporter.observe(&self.engine, client, Observation::Batch(room));
        self.engine.reserve_more(client, room, may_overtake, now, jobs);
        if self.engine.clients().get(client).mode.is_weighted() {
            self.report_drawn(client, jobs);
        }
    }

    /// Reports a choice to the observer, which cannot tell it otherwise.
    fn report_drawn(&mut self, client: ClientKey, jobs: &[JobKey]) {
        if self.reporter.is_on() {
            // Bounded by its caller: the observer of a test.
            let ids: Vec<JobId> = jobs.iter().map(|&job| self.engine.jobs().get(job).id).collect();
            self.reporter.observe(&self.engine, client, Observation::Drawn(&ids));
        }
    }
}
