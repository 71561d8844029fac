//! The beanstalk protocol: from a line to a command, and from the outcome to the reply.

use std::sync::Arc;

use super::{Listing, stats};
use crate::protocol::announced::Follows;
use crate::protocol::command::{Command, CommandKind};
use crate::protocol::parse::{ParseError, parse, parse_decimals};
use crate::protocol::reply::Reply;
use crate::server::Core;
use crate::server::Rights;
use crate::server::access::{Permit, SessionAccess};
use crate::server::client_state::ProtocolState;
use crate::server::commit_gate::{Replies, may_reveal_uncommitted};
use crate::server::outcome::Outcome;
use crate::server::rights::Need;
use crate::time::Time;
use crate::values::budget::Cost;
use crate::values::ids::{JobId, JobKey};
use crate::values::tags::Tags;

impl Core {
    /// Serves one command line. `rest` is the input behind it. A complete body is taken from there; an incomplete one is left
    /// to [`ProtocolState::input`].
    // Inlining saves 50 of the 1400 instructions of a put: what the parser finds stays in registers.
    #[inline(always)]
    pub(in crate::server) fn serve_line(
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
            let outcome = self.begin_batch_job(protocol, line, command);
            return self.reply(protocol, replies, outcome, now);
        }
        match command {
            Ok(Command::Put { args, tags }) => {
                self.counts.add_command(CommandKind::Put);
                match self.begin_put(protocol, args, tags, rest, now) {
                    Outcome::Done(Reply::Inserted(id)) => replies.inserted(id, &mut self.buffers),
                    Outcome::Pending => {}
                    other => self.reply(protocol, replies, other, now),
                }
            }
            Ok(Command::PutBatch { count }) => {
                self.counts.add_command(CommandKind::PutBatch);
                let outcome = self.begin_put_batch(protocol, count);
                self.reply(protocol, replies, outcome, now);
            }
            Ok(Command::JobNote { id, bytes }) => {
                self.counts.add_command(CommandKind::JobNote);
                let outcome = self.begin_note(protocol, id, bytes);
                self.reply(protocol, replies, outcome, now);
            }
            Ok(command) => {
                self.counts.add_command(command.kind());
                let permit = match self.authorize(protocol, Need::of(&command)) {
                    Ok(permit) => permit,
                    Err(refusal) => return self.reply(protocol, replies, Outcome::Refused(refusal), now),
                };
                let is_harmless = self.log.is_stalled()
                    && !may_reveal_uncommitted(&mut self.engine, &self.log, protocol.client, &command);
                replies.set_harmless(is_harmless);
                self.serve_usual(protocol, replies, command, permit, now);
                replies.set_harmless(false);
            }
            Err(error) => self.serve_unknown(protocol, replies, line, error, now),
        }
    }

    /// Refuses a line that is no command, unless it is `auth`. The body that a wrong `put` announces is skipped before the reply.
    #[cold]
    #[inline(never)]
    fn serve_unknown(
        &mut self,
        protocol: &mut ProtocolState,
        replies: &mut Replies,
        line: &[u8],
        error: ParseError,
        now: Time,
    ) {
        if self.access.users().is_some() && self.serve_auth(protocol, replies, line, now) {
            return;
        }
        // mutant refused-put-runs-its-body: Follows::line(line) => Follows::Commands
        match Follows::line(line) {
            Follows::Commands => replies.refuse(error.into(), &mut self.buffers),
            follows => {
                let outcome = self.refuse_line(protocol, follows);
                self.reply(protocol, replies, outcome, now);
            }
        }
    }

    /// Serves any command but `put` and `put-batch`. Those that most clients send are inlined in the loop of a connection, and no others, since
    /// the compiler does not inline a loop that is too long.
    #[inline(always)]
    fn serve_usual(
        &mut self,
        protocol: &mut ProtocolState,
        replies: &mut Replies,
        command: Command<'_>,
        permit: Permit,
        now: Time,
    ) {
        let outcome = match command {
            Command::Reserve => self.reserve(protocol, None, now),
            Command::ReserveWithTimeout { seconds } => self.reserve(protocol, Some(seconds.span()), now),
            Command::Delete(id) => self.delete(protocol.client, id, now),
            other => self.execute(protocol, other, permit, now),
        };
        self.reply_inline(protocol, replies, outcome, now);
    }

    #[inline(always)]
    fn parse_line<'a>(&mut self, line: &'a [u8]) -> Result<Command<'a>, ParseError> {
        if let Some(args) = self.puts.recent.args_of(line) {
            return Ok(Command::Put { args, tags: Some(Tags::NONE) });
        }
        let command = parse(line);
        if let Ok(Command::Put { args, tags: Some(Tags::NONE) }) = command {
            self.puts.recent.note(line, args);
        }
        command
    }

    /// Replies with an outcome.
    #[inline(never)]
    pub(in crate::server) fn reply(
        &mut self,
        protocol: &mut ProtocolState,
        replies: &mut Replies,
        outcome: Outcome<'_>,
        now: Time,
    ) {
        self.reply_inline(protocol, replies, outcome, now);
    }

    // For the ways that most commands take: the compiler then sees which outcomes there are.
    #[inline(always)]
    fn reply_inline(
        &mut self,
        protocol: &mut ProtocolState,
        replies: &mut Replies,
        outcome: Outcome<'_>,
        now: Time,
    ) {
        match outcome {
            Outcome::Done(reply) => replies.reply(reply, &mut self.buffers),
            Outcome::Reserved(job) => self.reply_job(replies, job, reserved),
            Outcome::Pending => {}
            Outcome::Refused(refusal) if refusal.may_reveal() => {
                replies.reply(refusal.reply(), &mut self.buffers);
            }
            Outcome::Refused(refusal) => replies.refuse(refusal.reply(), &mut self.buffers),
            other => self.reply_at_length(protocol, replies, other, now),
        }
    }

    #[inline(never)]
    fn reply_at_length(
        &mut self,
        protocol: &mut ProtocolState,
        replies: &mut Replies,
        outcome: Outcome<'_>,
        now: Time,
    ) {
        match outcome {
            Outcome::ReservedBatch(jobs) => self.reply_batch(replies, &jobs),
            Outcome::InsertedBatch(each) => {
                replies.reply(Reply::InsertedBatch(each.len()), &mut self.buffers);
                // Bounded by BATCH_JOBS_MAX: the jobs of one batch, which were counted as they were stored.
                each.into_iter().for_each(|reply| replies.reply(reply, &mut self.buffers));
            }
            Outcome::Found(job) => self.reply_job(replies, job, found),
            Outcome::Moved(moved) => {
                replies.reply(Reply::MovedJobs(moved.count.into()), &mut self.buffers);
            }
            Outcome::Stats => {
                self.outer_counts.read_driver(now);
                self.reply_data(replies, |core, out| stats::stats(core, out, now));
            }
            Outcome::JobStats(job) => {
                self.reply_data(replies, |core, out| stats::job(core, job, out, now));
            }
            Outcome::TubeStats(tube) => {
                self.reply_data(replies, |core, out| stats::tube(core, tube, out, now));
            }
            Outcome::GroupStats(name) => self.reply_data(replies, |core, out| stats::group(core, name, out)),
            Outcome::Rules(name) => self.reply_data(replies, |core, out| stats::rules(core, name, out)),
            Outcome::Jobs(page) => {
                self.reply_data(replies, |core, out| stats::page(core, &page, out, now));
            }
            Outcome::TubeUsed => {
                let reply = Reply::Using(self.engine.used(protocol.client).name());
                replies.reply(reply, &mut self.buffers);
            }
            Outcome::Tubes => {
                let list = self.engine.list_tubes();
                let is_whole =
                    |access: &SessionAccess| access.user.grants.everywhere().has_any(Rights::INSPECT);
                let user = protocol.access.as_ref().filter(|access| !is_whole(access));
                let user = user.map(|access| Arc::clone(&access.user));
                self.begin_list(protocol, replies, Listing::new(list, user));
            }
            Outcome::TubesWatched => {
                let list = self.engine.list_watched(protocol.client);
                self.begin_list(protocol, replies, Listing::new(list, None));
            }
            Outcome::Done(_) | Outcome::Refused(_) | Outcome::Reserved(_) | Outcome::Pending => {
                unreachable!("its reply is made inline")
            }
        }
    }

    /// Replies with the jobs of a `reserve-batch`.
    fn reply_batch(&mut self, replies: &mut Replies, jobs: &[JobKey]) {
        replies.reply(Reply::ReservedBatch(jobs.len()), &mut self.buffers);
        // Bounded by BATCH_JOBS_MAX: the jobs of one batch, which are counted.
        for &job in jobs {
            let copied = Cost::copied(self.engine.jobs().get(job).body.len());
            self.charge(Cost::BATCH_JOB.plus(copied));
            self.reply_job(replies, job, reserved);
        }
    }

    /// Replies with a job's body.
    pub(in crate::server) fn reply_job(
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

    /// Replies with data that `write` renders.
    fn reply_data(&mut self, replies: &mut Replies, write: impl FnOnce(&Self, &mut Vec<u8>)) {
        let mut data = self.buffers.take_scratch();
        write(self, &mut data);
        replies.reply(Reply::Ok { bytes: data.len() }, &mut self.buffers);
        data.extend_from_slice(b"\r\n");
        replies.data(&data, &mut self.buffers);
        self.charge(Cost::rendered(data.len()));
        self.buffers.keep_scratch(data);
    }
}

const fn reserved(id: JobId, bytes: u32) -> Reply<'static> {
    Reply::Reserved { id, bytes }
}

const fn found(id: JobId, bytes: u32) -> Reply<'static> {
    Reply::Found { id, bytes }
}
