//! From a command to its reply.

use std::mem;
use std::num::NonZeroU32;

use super::commit_gate::Replies;
use super::observer::Observation;
use super::session::{ProtocolState, SessionState};
use super::{ClientAct, Core, Effect};
use crate::protocol::command::{Command, CommandKind, JobStateWord};
use crate::protocol::parse::{ParseError, parse, parse_decimals};
use crate::protocol::reply::Reply;
use crate::queue::{
    Flushed, Ignored, JobAwaited, JobMoved, JobState, JobsListed, JobsMoved, KeysFlushed, Kicked, PageQuery,
    Released, Reserved,
};
use crate::time::{Seconds, Span, Time};
use crate::values::ids::{ClientKey, JobId, JobKey};
use crate::values::limits::{BATCH_JOB_STEPS, COMMAND_STEPS};
use crate::values::tags::Tags;
use crate::values::tube_name::TubeName;
use crate::values::tube_rules::Rule;

impl Core {
    /// Serves one command line. `rest` is the input behind it. A complete body is taken from there; an incomplete one is left
    /// to [`ProtocolState::input`].
    // Inlining saves 50 of the 1400 instructions of a put: what the parser finds stays in registers.
    #[inline(always)]
    pub(super) fn serve_line(
        &mut self,
        protocol: &mut ProtocolState,
        replies: &mut Replies,
        line: &[u8],
        rest: &mut &[u8],
        now: Time,
    ) {
        let mut command = self.parse_line(line);
        if matches!(command, Err(ParseError::BadFormat)) && self.config.sub_second {
            command = parse_decimals(line);
        }
        if protocol.put_batch.is_some() {
            return self.serve_batch_line(protocol, replies, command);
        }
        match command {
            Ok(Command::Put { args, tags }) => {
                self.count_command(CommandKind::Put);
                self.serve_put_line(protocol, replies, args, tags, rest, now);
            }
            Ok(command) => {
                self.count_command(command.kind());
                replies.set_harmless(
                    self.is_stalled() && !self.may_reveal_uncommitted(protocol.client, &command),
                );
                self.serve_usual_command(protocol, replies, command, now);
                replies.set_harmless(false);
            }
            Err(error) => replies.refuse(error.into(), &mut self.buffers),
        }
    }

    #[inline(always)]
    fn parse_line<'a>(&mut self, line: &'a [u8]) -> Result<Command<'a>, ParseError> {
        if let Some(args) = self.recent_put.args_of(line) {
            return Ok(Command::Put { args, tags: Some(Tags::NONE) });
        }
        let command = parse(line);
        if let Ok(Command::Put { args, tags: Some(Tags::NONE) }) = command {
            self.recent_put.note(line, args);
        }
        command
    }

    #[inline(always)]
    fn count_command(&mut self, kind: CommandKind) {
        self.commands[kind as usize] += 1;
        self.metrics.add_command();
    }

    /// Serves any command but `put`. Those that most clients send are inlined in the loop of a connection, and no others, since
    /// the compiler does not inline a loop that is too long.
    #[inline(always)]
    fn serve_usual_command(
        &mut self,
        protocol: &mut ProtocolState,
        replies: &mut Replies,
        command: Command<'_>,
        now: Time,
    ) {
        match command {
            Command::Reserve => self.reserve(protocol, replies, None, now),
            Command::ReserveWithTimeout { seconds } => {
                self.reserve(protocol, replies, Some(seconds.span()), now);
            }
            Command::Delete(id) => {
                let reply = done(self.engine.delete(protocol.client, id, now), Reply::Deleted);
                replies.reply(reply, &mut self.buffers);
            }
            command => self.serve_command(protocol, replies, command, now),
        }
    }

    /// Serves the other commands.
    #[inline(never)]
    fn serve_command(
        &mut self,
        protocol: &mut ProtocolState,
        replies: &mut Replies,
        command: Command<'_>,
        now: Time,
    ) {
        let client = protocol.client;
        // It may take memory that a later job counts on.
        self.memory.invalidate_headroom();
        let engine = &mut self.engine;
        let reply = match command {
            Command::ReserveBatch { count, seconds } => {
                return self.reserve_batch(protocol, replies, count, seconds.map(Seconds::span), now);
            }
            Command::WaitJob { id, seconds } => match engine.wait_job(client, id, seconds.span(), now) {
                JobAwaited::NotFound => Reply::NotFound,
                JobAwaited::Buried => Reply::Buried,
                JobAwaited::TimedOut => Reply::TimedOut,
                JobAwaited::Waiting => {
                    (protocol.state, protocol.batch) = (SessionState::Waiting, 0);
                    return;
                }
            },
            Command::CancelReserve => Reply::NotWaiting,
            Command::ReserveJob(id) => {
                let job = engine.reserve_job(client, id, now);
                return self.job_or_not_found(replies, job, reserved);
            }
            Command::Kick { bound } => match engine.kick(client, bound, now) {
                Kicked::Jobs(count) => Reply::Kicked(u64::from(count)),
                Kicked::Working => {
                    protocol.state = SessionState::Working;
                    return;
                }
            },
            Command::FlushTube(tube) => match engine.flush(client, tube, now) {
                Flushed::Jobs(count) => Reply::Flushed(u64::from(count)),
                Flushed::NotFound => Reply::NotFound,
                Flushed::Working => {
                    protocol.state = SessionState::Working;
                    return;
                }
            },
            Command::FlushKeys(tube) => match engine.flush_keys(client, tube) {
                KeysFlushed::Keys(count) => Reply::Flushed(u64::from(count)),
                KeysFlushed::Working => {
                    protocol.state = SessionState::Working;
                    return;
                }
            },
            Command::PutBatch { count } => return self.begin_put_batch(protocol, replies, count),
            Command::MoveJob { id, tube } => self.move_job(id, tube, now),
            Command::MoveJobs { from, state, to, bound } => {
                match self.move_jobs(client, [from, to], state_of(state), bound, now) {
                    Some(reply) => reply,
                    None => {
                        protocol.state = SessionState::Working;
                        return;
                    }
                }
            }
            Command::ListJobs { tube, state, after, limit } => {
                let query = PageQuery { state: state_of(state), after, limit };
                match engine.list_jobs(client, tube, query) {
                    JobsListed::Page(page) => return self.reply_page(replies, &page, now),
                    JobsListed::NotFound => Reply::NotFound,
                    JobsListed::Working => {
                        protocol.state = SessionState::Working;
                        return;
                    }
                }
            }
            Command::DeleteBatch(ids) => {
                let (deleted, not_found) = engine.delete_batch(client, ids.iter(), now);
                Reply::DeletedBatch { deleted, not_found }
            }
            Command::Release { id, pri, delay } => self.release(client, id, pri, delay, now),
            Command::Bury { id, pri } => done(engine.bury(client, id, pri, now), Reply::Buried),
            Command::KickJob(id) => done(engine.kick_job(id, now), Reply::KickedJob),
            Command::Touch(id) => done(engine.touch(client, id, now), Reply::Touched),
            Command::PauseTube { tube: None, .. } => Reply::BadFormat,
            Command::PauseTube { tube: Some(tube), seconds } => {
                done(engine.pause(tube, seconds.span(), now), Reply::Paused)
            }
            Command::TubeConfig { tube, rule: Some(rule) } => self.set_rule(tube, rule, now),
            Command::Use(tube) => self.use_tube(client, tube),
            Command::Watch(tube) => self.watch(client, tube, None),
            Command::WatchWeighted { tube, weight } => self.watch(client, tube, Some(weight)),
            Command::ReserveMode(mode) => {
                engine.set_reserve_mode(client, mode);
                Reply::UsingMode(mode)
            }
            Command::Ignore(tube) => match engine.ignore(client, tube) {
                Ignored::Watching(count) => Reply::Watching(count),
                Ignored::Last => Reply::NotIgnored,
            },
            Command::Drain => {
                self.set_draining(client, true);
                Reply::DrainBegun
            }
            Command::Undrain => {
                self.set_draining(client, false);
                Reply::NotDraining
            }
            Command::Quit => {
                protocol.state = SessionState::Closing;
                return;
            }
            Command::Put { .. }
            | Command::Reserve
            | Command::ReserveWithTimeout { .. }
            | Command::Delete(_) => unreachable!("it is served inline"),
            Command::Peek(_)
            | Command::PeekReady
            | Command::PeekDelayed
            | Command::PeekBuried
            | Command::PeekReserved
            | Command::Stats
            | Command::StatsJob(_)
            | Command::StatsTube(_)
            | Command::StatsGroup(_)
            | Command::TubeConfig { rule: None, .. }
            | Command::ListTubeUsed
            | Command::ListTubes
            | Command::ListTubesWatched => return self.serve_query(protocol, replies, command, now),
        };
        replies.reply(reply, &mut self.buffers);
    }

    #[cold]
    fn set_draining(&mut self, client: ClientKey, is_draining: bool) {
        if mem::replace(&mut self.draining, is_draining) != is_draining {
            let conn = self.engine.clients().get(client).conn;
            let act = if is_draining { ClientAct::Drain } else { ClientAct::Undrain };
            self.effects.push_back(Effect::LogClient(conn, act));
        }
    }

    /// Whether there is room for a tube of this name, or it exists. A refusal is counted.
    fn admits_tube(&mut self, tube: TubeName<'_>) -> bool {
        let can_use = self.engine.can_use(tube);
        self.tube_refusals += u64::from(!can_use);
        can_use
    }

    fn release(
        &mut self,
        client: ClientKey,
        id: JobId,
        pri: u32,
        delay: Seconds,
        now: Time,
    ) -> Reply<'static> {
        match self.engine.release(client, id, pri, delay, now) {
            Released::Done => Reply::Released,
            Released::Buried => Reply::Buried,
            Released::NotFound => Reply::NotFound,
        }
    }

    fn set_rule(&mut self, tube: TubeName<'_>, rule: Rule<'_>, now: Time) -> Reply<'static> {
        if !self.engine.can_set_rule(tube, rule) {
            return Reply::OutOfMemory;
        }
        self.engine.set_rule(tube, rule, now);
        Reply::Configured
    }

    fn move_job(&mut self, id: JobId, tube: TubeName<'_>, now: Time) -> Reply<'static> {
        if !self.engine.can_move(id) {
            return Reply::NotFound;
        }
        if !self.admits_tube(tube) {
            return Reply::OutOfMemory;
        }
        match self.engine.move_job(id, tube, now) {
            JobMoved::Done => Reply::Moved,
            JobMoved::NotFound => Reply::NotFound,
            JobMoved::NoRoom | JobMoved::Full => Reply::OutOfMemory,
            JobMoved::KeyExists => Reply::NotMoved,
        }
    }

    /// Returns the reply, unless the jobs are being moved.
    fn move_jobs(
        &mut self,
        client: ClientKey,
        [from, to]: [TubeName<'_>; 2],
        state: JobState,
        bound: u32,
        now: Time,
    ) -> Option<Reply<'static>> {
        if self.engine.tubes().find(from).is_none() {
            return Some(Reply::NotFound);
        }
        if !self.admits_tube(to) {
            return Some(Reply::OutOfMemory);
        }
        let moved = self.engine.move_jobs(client, [from, to], state, bound, now);
        self.observe_moves();
        match moved {
            JobsMoved::Jobs(count) => Some(Reply::MovedJobs(count.into())),
            JobsMoved::NotFound => Some(Reply::NotFound),
            JobsMoved::Working => None,
        }
    }

    pub(super) fn use_tube<'a>(&mut self, client: ClientKey, tube: TubeName<'a>) -> Reply<'a> {
        if !self.admits_tube(tube) {
            return Reply::OutOfMemory;
        }
        self.engine.use_tube(client, tube);
        Reply::Using(tube)
    }

    fn watch(&mut self, client: ClientKey, tube: TubeName<'_>, weight: Option<NonZeroU32>) -> Reply<'static> {
        if !self.engine.can_watch(client, tube) {
            self.tube_refusals += 1;
            return Reply::OutOfMemory;
        }
        let count = self.engine.watch(client, tube);
        if let Some(weight) = weight {
            self.engine.set_weight(client, tube, weight);
        }
        Reply::Watching(count)
    }

    fn reserve(
        &mut self,
        protocol: &mut ProtocolState,
        replies: &mut Replies,
        timeout: Option<Span>,
        now: Time,
    ) {
        let reply = match self.engine.reserve(protocol.client, timeout, now) {
            Reserved::Job(job) => return self.reply_job(replies, job, reserved),
            Reserved::Drawn(job) => {
                self.report_drawn(protocol.client, &[job]);
                return self.reply_job(replies, job, reserved);
            }
            Reserved::DeadlineSoon => Reply::DeadlineSoon,
            Reserved::TimedOut => Reply::TimedOut,
            Reserved::Waiting => {
                (protocol.state, protocol.batch) = (SessionState::Waiting, 0);
                return;
            }
        };
        replies.reply(reply, &mut self.buffers);
    }

    fn reserve_batch(
        &mut self,
        protocol: &mut ProtocolState,
        replies: &mut Replies,
        count: u32,
        timeout: Option<Span>,
        now: Time,
    ) {
        let client = protocol.client;
        let patience = timeout.unwrap_or(Span::ZERO);
        let reply = match self.engine.reserve(client, Some(patience), now) {
            Reserved::Job(job) | Reserved::Drawn(job) => {
                let may_overtake = patience == Span::ZERO;
                let mut jobs = vec![job];
                self.fill_batch(client, &mut jobs, count, may_overtake, now);
                return self.reply_batch(replies, &jobs);
            }
            Reserved::DeadlineSoon => Reply::DeadlineSoon,
            Reserved::TimedOut if timeout.is_none() => Reply::ReservedBatch(0),
            Reserved::TimedOut => Reply::TimedOut,
            Reserved::Waiting => {
                (protocol.state, protocol.batch) = (SessionState::Waiting, count);
                protocol.is_batch_at_once = timeout.is_none();
                return;
            }
        };
        replies.reply(reply, &mut self.buffers);
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
        self.observe(client, Observation::Batch(room));
        self.engine.reserve_more(client, room, may_overtake, now, jobs);
        if self.engine.clients().get(client).mode.is_weighted() {
            self.report_drawn(client, jobs);
        }
    }

    /// Replies with the jobs of a `reserve-batch`.
    pub(super) fn reply_batch(&mut self, replies: &mut Replies, jobs: &[JobKey]) {
        replies.reply(Reply::ReservedBatch(jobs.len()), &mut self.buffers);
        for &job in jobs {
            self.extra_steps +=
                BATCH_JOB_STEPS + (self.engine.jobs().get(job).body.len() / COPIED_BYTES_PER_STEP) as u32;
            self.reply_job(replies, job, reserved);
        }
    }

    /// Reports a choice to the observer, which cannot tell it otherwise.
    fn report_drawn(&mut self, client: ClientKey, jobs: &[JobKey]) {
        if self.observer.is_some() {
            let ids: Vec<JobId> = jobs.iter().map(|&job| self.engine.jobs().get(job).id).collect();
            self.observe(client, Observation::Drawn(&ids));
        }
    }

    pub(super) fn job_or_not_found(
        &mut self,
        replies: &mut Replies,
        job: Option<JobKey>,
        reply: fn(JobId, u32) -> Reply<'static>,
    ) {
        match job {
            Some(job) => self.reply_job(replies, job, reply),
            None => replies.reply(Reply::NotFound, &mut self.buffers),
        }
    }

    /// Replies with a job's body.
    pub(super) fn reply_job(
        &mut self,
        replies: &mut Replies,
        job: JobKey,
        reply: fn(JobId, u32) -> Reply<'static>,
    ) {
        let (job, bodies) = self.engine.job_and_bodies(job);
        let bytes = job.body.len() as u32 - 2;
        replies.reply(reply(job.id, bytes), &mut self.buffers);
        replies.body(&job.body, bodies, &mut self.buffers);
    }

    /// Returns the steps of the current command, and sets the counts back to zero.
    pub(super) fn take_steps(&mut self) -> u32 {
        COMMAND_STEPS + self.engine.take_steps() + self.take_extra_steps()
    }

    /// Returns the steps of the current command that the engine does not count, and resets them.
    pub(super) fn take_extra_steps(&mut self) -> u32 {
        std::mem::take(&mut self.extra_steps)
    }
}

/// Bytes of bodies that are copied in the time of one elementary step.
pub(super) const COPIED_BYTES_PER_STEP: usize = 1024;

const fn state_of(word: JobStateWord) -> JobState {
    match word {
        JobStateWord::Ready => JobState::Ready,
        JobStateWord::Reserved => JobState::Reserved,
        JobStateWord::Delayed => JobState::Delayed,
        JobStateWord::Buried => JobState::Buried,
        JobStateWord::Held => JobState::Held,
    }
}

/// Makes the reply to a `reserve` that got a job.
pub(super) const fn reserved(id: JobId, bytes: u32) -> Reply<'static> {
    Reply::Reserved { id, bytes }
}

fn done(is_done: bool, reply: Reply<'static>) -> Reply<'static> {
    if is_done { reply } else { Reply::NotFound }
}
