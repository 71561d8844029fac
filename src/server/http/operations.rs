//! What the operations of the API do: they execute commands of the protocol, so limits, memory, drain mode and the order of
//! checks are those of the protocol. Their outcomes are rendered as responses.

use super::api::Operation;
use super::json::{group, job, job_page};
use super::object::json;
use super::request::Request;
use super::response::{ErrorKind, ErrorResponse, Head, JSON_TYPE, bad, write_whole};
use super::schedules::{SCHEDULE_JSON_BYTES, schedule, schedule_page};
use super::target::{Name, PutTarget};
use super::tube_json::tube;
use crate::protocol::command::{Command, CommandKind};
use crate::protocol::reply::Reply;
use crate::queue::{JobState, Moved, PageQuery};
use crate::server::access::Permit;
use crate::server::client_state::ProtocolState;
use crate::server::commit_gate::{Replies, may_reveal_uncommitted};
use crate::server::outcome::{Outcome, Refusal};
use crate::server::{Core, User};
use crate::time::{Seconds, Time};
use crate::values::budget::Cost;
use crate::values::ids::{JobId, JobKey};
use crate::values::tube_rules::Rule;
use crate::values::when::{When, WhenError};

const BODY_TYPE: &str = "application/octet-stream";

impl Operation {
    /// The command that it executes, for a client that uses its tube. There is none for drain mode, or for what has a body.
    pub(super) fn command(&self) -> Option<Command<'_>> {
        Some(match self {
            Self::Put(_) | Self::PutSchedule(_) | Self::Drain | Self::Undrain => return None,
            Self::Tube(tube) => Command::StatsTube(tube.get()),
            Self::Next(_, JobState::Reserved) => Command::PeekReserved,
            Self::Next(_, JobState::Delayed) => Command::PeekDelayed,
            Self::Next(_, JobState::Buried) => Command::PeekBuried,
            Self::Next(..) => Command::PeekReady,
            Self::Jobs(tube, query) => {
                let PageQuery { state, after, limit } = *query;
                Command::ListJobs { tube: tube.get(), state, after, limit }
            }
            Self::Group(group) => Command::StatsGroup(group.get()),
            Self::Job(id) => Command::StatsJob(*id),
            Self::Body { id, .. } => Command::Peek(*id),
            Self::Pause { tube, seconds } => {
                Command::PauseTube { tube: Some(tube.get()), seconds: Seconds::whole(*seconds) }
            }
            Self::Kick { count, .. } => Command::Kick { bound: *count },
            Self::Flush(tube) => Command::FlushTube(tube.get()),
            Self::Move { from, state, to, count } => {
                Command::MoveJobs { from: from.get(), state: *state, to: to.get(), bound: *count }
            }
            Self::Config { tube, key, value } => {
                let rule = Rule::parse(tube.get(), *key, value.as_bytes()).expect("the rule was checked");
                Command::TubeConfig { tube: tube.get(), rule: Some(rule) }
            }
            Self::KickJob(id) => Command::KickJob(*id),
            Self::MoveJob { id, to } => Command::MoveJob { id: *id, tube: to.get() },
            Self::Bury { id, priority } => Command::Bury { id: *id, pri: *priority },
            Self::Release { id, priority, delay } => {
                Command::Release { id: *id, pri: *priority, delay: Seconds::whole(*delay) }
            }
            Self::Delete(id) => Command::Delete(*id),
            Self::Schedules(query) => {
                let after = query.after.as_ref().map(Name::get);
                Command::ListSchedules { after, limit: query.limit }
            }
            Self::Schedule(name) => Command::ScheduleStats(name.get()),
            Self::RunSchedule(name) => Command::ScheduleRun(name.get()),
            Self::DeleteSchedule(name) => Command::ScheduleDelete(name.get()),
        })
    }
}

impl Core {
    /// Executes an operation, as far as it can be executed now. Returns also whether the outcome reveals no change that is not
    /// committed.
    pub(super) fn begin<'a>(
        &mut self,
        protocol: &mut ProtocolState,
        operation: &'a Operation,
        now: Time,
    ) -> (Outcome<'a>, bool) {
        let permit = match self.authorize(protocol, operation.need()) {
            Ok(permit) => permit,
            Err(refusal) => return (Outcome::Refused(refusal), false),
        };
        let Some(command) = operation.command() else {
            return (self.begin_without_command(protocol, operation, permit, now), false);
        };
        if let Err(refusal) = self.prepare(protocol, operation, now) {
            return (Outcome::Refused(refusal), false);
        }
        let is_harmless = self.log.is_stalled()
            && !may_reveal_uncommitted(&mut self.engine, &self.log, protocol.client, &command);
        // The console reads again and again: that would hide what clients do.
        if operation.action().is_some() || matches!(operation, Operation::Body { .. }) {
            self.counts.add_command(command.kind());
        }
        (self.execute(protocol, command, permit, now), is_harmless)
    }

    fn begin_without_command(
        &mut self,
        protocol: &mut ProtocolState,
        operation: &Operation,
        permit: Permit,
        now: Time,
    ) -> Outcome<'static> {
        let PutTarget { tube, args, tags } = match operation {
            Operation::Put(job) => job,
            Operation::PutSchedule(schedule) => {
                self.counts.add_command(CommandKind::SchedulePut);
                return self.begin_schedule(protocol, &schedule.args(), now);
            }
            _ => {
                let drains = *operation == Operation::Drain;
                self.puts.set_draining(drains);
                return Outcome::Done(if drains { Reply::DrainBegun } else { Reply::NotDraining });
            }
        };
        if let Outcome::Refused(refusal) = self.execute(protocol, Command::Use(tube.get()), permit, now) {
            return Outcome::Refused(refusal);
        }
        self.counts.add_command(CommandKind::Put);
        self.begin_put(protocol, *args, Some(tags.get()), &mut &[][..], now)
    }

    /// Brings about what the command of an operation needs: the client uses the tube, or has the job for a moment.
    fn prepare(&mut self, protocol: &ProtocolState, operation: &Operation, now: Time) -> Result<(), Refusal> {
        let client = protocol.client;
        match operation {
            Operation::Pause { tube, .. }
            | Operation::Kick { tube, .. }
            | Operation::Flush(tube)
            | Operation::Move { from: tube, .. }
            | Operation::Next(tube, _) => {
                self.engine.tubes().find(tube.get()).ok_or(Refusal::NoTube)?;
                self.engine.use_tube(client, tube.get());
            }
            Operation::KickJob(id)
            | Operation::MoveJob { id, .. }
            | Operation::Bury { id, .. }
            | Operation::Release { id, .. }
            | Operation::Delete(id) => {
                let job = self.engine.jobs().find(*id).ok_or(Refusal::NoJob)?;
                self.check_job(job, operation, now)?;
                let needs_reservation =
                    matches!(operation, Operation::Bury { .. } | Operation::Release { .. });
                if needs_reservation && !self.engine.is_recovered(job) {
                    // The command of the operation follows at once, and ends the reservation.
                    let job = self.engine.take_job(client, *id, now);
                    assert!(job.is_some(), "no client has reserved the job");
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether an operation is possible with this job.
    fn check_job(&self, job: JobKey, operation: &Operation, now: Time) -> Result<(), Refusal> {
        let state = self.engine.jobs().get(job).state;
        let is_permitted = match state {
            JobState::Delayed | JobState::Buried => true,
            JobState::Ready => !matches!(operation, Operation::KickJob(_)),
            JobState::Held => {
                matches!(operation, Operation::KickJob(_) | Operation::MoveJob { .. } | Operation::Delete(_))
            }
            JobState::Reserved
                if self.engine.is_recovered(job)
                    && matches!(
                        operation,
                        Operation::Bury { .. } | Operation::Release { .. } | Operation::Delete(_)
                    ) =>
            {
                true
            }
            JobState::Reserved => {
                let left = self.engine.job_stats(job, now).time_left;
                return Err(Refusal::JobReserved { seconds_left: left.as_secs() });
            }
        };
        match operation {
            _ if !is_permitted => Err(Refusal::JobState(state)),
            Operation::MoveJob { to, .. } if self.engine.tube_of(job) == to.get() => Err(Refusal::SameTube),
            _ => Ok(()),
        }
    }

    /// Appends the response to an operation, for this user with `--auth`.
    pub(super) fn respond(
        &mut self,
        (request, user): (&Request, Option<&User>),
        operation: &Operation,
        outcome: &Outcome<'_>,
        replies: &mut Replies,
        now: Time,
    ) {
        if let Outcome::Found(job) = *outcome
            && let Operation::Body { limit, .. } = *operation
        {
            return self.respond_with_body(request, job, limit, replies);
        }
        let mut out = Vec::new();
        let mut ok = |body: &[u8]| write_whole(request, &mut out, "200 OK", JSON_TYPE, "", body);
        match *outcome {
            Outcome::Refused(refusal) => {
                self.buffers.count_error(&refusal.reply());
                self.refusal_response(operation, refusal, now).write(request, &mut out);
                if !refusal.may_reveal() {
                    replies.set_harmless(true);
                }
            }
            Outcome::Done(Reply::Inserted(JobId(id))) => {
                let body = json(|object| object.member("id", id));
                write_whole(request, &mut out, "201 Created", JSON_TYPE, "", &body);
            }
            Outcome::Done(Reply::Repeated { id: JobId(id), state, pri: priority }) => {
                ok(&json(|object| {
                    object.member("id", id);
                    object.member("state", state);
                    object.if_some("priority", priority);
                }));
            }
            Outcome::Done(Reply::Kicked(kicked)) => ok(&json(|object| object.member("kicked", kicked))),
            Outcome::Done(Reply::Flushed(flushed)) => ok(&json(|object| object.member("flushed", flushed))),
            Outcome::Done(Reply::Scheduled) => {
                let Operation::PutSchedule(target) = operation else {
                    unreachable!("{operation} puts no schedule")
                };
                let put = self.engine.schedule(target.name.get()).expect("it was put");
                ok(&json(|object| schedule(self, put, now, object)));
            }
            Outcome::Done(_) => ok(b"{}"),
            Outcome::Moved(moved) => self.respond_to_move(request, moved, &mut out),
            Outcome::Found(key) | Outcome::JobStats(key) => ok(&json(|object| job(self, key, now, object))),
            Outcome::TubeStats(key) => ok(&json(|object| tube(self, key, now, object))),
            Outcome::GroupStats(name) => ok(&json(|object| group(self, name, object))),
            Outcome::ScheduleStats(name) => {
                let found = self.engine.schedule(name).expect("the command has found it");
                ok(&json(|object| schedule(self, found, now, object)));
            }
            Outcome::Schedules { after, limit } => {
                let limit = self.page_room(limit, SCHEDULE_JSON_BYTES);
                let limit = self.charge_schedules(limit, user);
                ok(&json(|object| schedule_page(self, after, limit, user, now, object)));
            }
            Outcome::Jobs(ref page) => ok(&json(|object| job_page(self, page, now, object))),
            ref other => unreachable!("{operation} does not lead to {other:?}"),
        }
        self.charge(Cost::rendered(out.len()));
        replies.data(&out, &mut self.buffers);
    }

    /// The response to a refused operation.
    fn refusal_response(&mut self, operation: &Operation, refusal: Refusal, now: Time) -> ErrorResponse {
        match (refusal, operation) {
            (Refusal::BadFormat, Operation::PutSchedule(schedule)) => {
                // The times are parsed again, for the reason.
                self.charge(Cost::SCHEDULE_TIMES);
                let reason = When::parse(&schedule.when, self.engine.system_time(now)).err();
                let reason = reason.unwrap_or(WhenError::Never);
                bad(format!("when is {reason}"))
            }
            (Refusal::JobTooBig, Operation::PutSchedule(_) | Operation::RunSchedule(_)) => {
                let message = "a segment of the job log has no room for this body: use a shorter one, or raise -s/--wal-segment-size";
                ErrorResponse::new(ErrorKind::TooLarge, message)
            }
            _ => refusal.response_to(operation.need().tubes(), &self.config),
        }
    }

    /// Appends the response to a move of several jobs. One that has moved none is an error with its reason.
    fn respond_to_move(&self, request: &Request, moved: Moved, out: &mut Vec<u8>) {
        let stop = moved
            .stop
            .map(|(JobId(id), refusal)| (id, Refusal::of_move(refusal, &self.log).response(&self.config)));
        if let (0, Some((id, ErrorResponse { kind, message, .. }))) = (moved.count, &stop) {
            return ErrorResponse::new(*kind, format!("stopped at job {id}: {message}")).write(request, out);
        }
        let body = json(|object| {
            object.member("moved", moved.count);
            // The job that the other tube cannot take.
            object.if_some("stopped_at", stop.as_ref().map(|(id, _)| id));
            object.if_some("reason", stop.as_ref().map(|(_, why)| &why.message));
        });
        write_whole(request, out, "200 OK", JSON_TYPE, "", &body);
    }

    /// Appends the response with a job's body, without its CR LF.
    fn respond_with_body(
        &mut self,
        request: &Request,
        job: JobKey,
        limit: Option<u32>,
        replies: &mut Replies,
    ) {
        let (job, bodies) = self.engine.job_and_bodies(job);
        let bytes = job.body.len() - 2;
        let shown = limit.map_or(bytes, |limit| bytes.min(limit as usize));
        let JobId(id) = job.id;
        let fields =
            format!("Content-Disposition: attachment; filename=\"job-{id}\"\r\nX-Body-Bytes: {bytes}\r\n");
        let head = Head {
            status: "200 OK",
            content_type: Some(BODY_TYPE),
            body_bytes: Some(shown as u64),
            fields: &fields,
        };
        let mut out = Vec::new();
        head.write(request, &mut out);
        replies.data(&out, &mut self.buffers);
        if request.method != "HEAD" {
            replies.body(&job.body, shown, bodies, &mut self.buffers);
        }
    }
}
