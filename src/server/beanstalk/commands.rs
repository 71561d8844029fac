//! The beanstalk protocol: from a line to its command, its permit and the outcome.

use crate::bodies::Slot;
use crate::protocol::announced::Follows;
use crate::protocol::command::{Command, CommandKind};
use crate::protocol::parse::{ParseError, parse, parse_decimals};
use crate::protocol::reply::Reply;
use crate::queue::NoteRefusal;
use crate::server::Core;
use crate::server::access::Permit;
use crate::server::client_state::{BodyOf, Incoming, Input, ProtocolState};
use crate::server::commit_gate::{Replies, may_reveal_uncommitted};
use crate::server::memory::Kept;
use crate::server::outcome::{Outcome, Refusal, Shortage};
use crate::server::rights::Need;
use crate::server::trace::Observation;
use crate::time::Time;
use crate::values::ids::{ClientKey, JobId};
use crate::values::notes::NOTE_BYTES_MAX;
use crate::values::tags::Tags;
use crate::wal::PutSpace;

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
            Ok(Command::SchedulePut(line)) => {
                self.counts.add_command(CommandKind::SchedulePut);
                let outcome = self.begin_schedule(protocol, &line.args(), now);
                self.reply(protocol, replies, outcome, now);
            }
            Ok(command) => {
                self.counts.add_command(command.kind());
                let permit = match self.authorize(protocol, &command) {
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

    /// Serves any command but those with a body: `put`, `put-batch`, `job-note` and `schedule-put`. Only those that most
    /// clients send are inlined in the loop of a connection: the compiler does not inline a loop that is
    /// too long.
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
            Command::Reserve => self.reserve(protocol, None, permit, now),
            Command::ReserveWithTimeout { seconds } => {
                self.reserve(protocol, Some(seconds.span()), permit, now)
            }
            Command::Delete(id) => self.delete(protocol.client, id, permit, now),
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

    /// Begins a `job-note`, whose text follows its line.
    fn begin_note(&mut self, protocol: &mut ProtocolState, id: JobId, bytes: u32) -> Outcome<'static> {
        if bytes > NOTE_BYTES_MAX {
            return protocol.skip_text(u64::from(bytes) + 2, Refusal::JobTooBig);
        }
        self.begin_text(protocol, bytes, BodyOf::Note(id))
    }

    /// Waits for a text of this many bytes and its CR LF.
    pub(in crate::server) fn begin_text(
        &mut self,
        protocol: &mut ProtocolState,
        bytes: u32,
        of: BodyOf,
    ) -> Outcome<'static> {
        let no_memory = Shortage::Memory.into();
        if !self.claim_memory(protocol.client, bytes + 2, Tags::NONE) {
            return protocol.skip_text(u64::from(bytes) + 2, no_memory);
        }
        match self.engine.bodies_mut().allocate_unwritten(bytes + 2) {
            Ok(slot) => {
                self.memory.count(Kept::ScheduleLine, false, of.is_schedule());
                protocol.input = Input::Body(Incoming { of, slot, filled: 0 });
                Outcome::Pending
            }
            Err(_) => protocol.skip_text(u64::from(bytes) + 2, no_memory),
        }
    }

    /// Adds the text that has arrived.
    pub(in crate::server) fn end_text(
        &mut self,
        protocol: &ProtocolState,
        of: &BodyOf,
        text: Slot,
        space: PutSpace,
        now: Time,
    ) -> Outcome<'static> {
        self.memory.count(Kept::ScheduleLine, of.is_schedule(), false);
        let has_end = self.engine.bodies().bytes(&text).ends_with(b"\r\n");
        let refused = if has_end { Refusal::for_space(space) } else { Some(Refusal::NoCrlf) };
        let mut authorize = |need: Need<'_>| refused.map_or_else(|| self.authorize(protocol, need), Err);
        let (outcome, done) = match of {
            BodyOf::Job(..) => unreachable!("a job is no text"),
            BodyOf::Note(id) => {
                let command = Command::JobNote { id: *id, bytes: text.len() as u32 - 2 };
                let outcome = match authorize((&command).into()) {
                    Ok(permit) => self.add_note(protocol.client, *id, text, permit, now),
                    Err(refusal) => Err((refusal, text)),
                };
                (outcome, Reply::Noted)
            }
            BodyOf::Schedule(planned) => {
                let outcome = match authorize(planned.need()) {
                    Ok(permit) => self.add_schedule(planned, text, permit, now),
                    Err(refusal) => Err((refusal, text)),
                };
                (outcome, Reply::Scheduled)
            }
        };
        let outcome = outcome.map_err(|(refusal, text)| {
            self.engine.bodies_mut().free(text);
            refusal
        });
        let reply = outcome.as_ref().map_or_else(|refusal| refusal.reply(), |()| done);
        let observed = if of.is_schedule() { Observation::Schedule(reply) } else { Observation::Note(reply) };
        self.reporter.observe(&self.engine, protocol.client, observed);
        outcome.map_or_else(Outcome::Refused, |()| Outcome::Done(done))
    }

    fn add_note(
        &mut self,
        client: ClientKey,
        id: JobId,
        text: Slot,
        _permit: Permit,
        now: Time,
    ) -> Result<(), (Refusal, Slot)> {
        self.memory.invalidate();
        self.engine.note(client, id, text, now).map_err(|(refusal, text)| match refusal {
            NoteRefusal::NotFound => (Refusal::NoJob, text),
            NoteRefusal::TooLong => (Refusal::JobTooBig, text),
        })
    }
}
