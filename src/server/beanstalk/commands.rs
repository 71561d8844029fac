//! The beanstalk protocol: from a line to its command, its permit and the outcome.

use crate::bodies::Slot;
use crate::protocol::announced::Follows;
use crate::protocol::command::{Command, CommandKind};
use crate::protocol::parse::{ParseError, parse, parse_decimals};
use crate::protocol::reply::Reply;
use crate::queue::NoteRefusal;
use crate::server::Core;
use crate::server::access::Permit;
use crate::server::client_state::{IncomingText, Input, ProtocolState, TextOf};
use crate::server::commit_gate::{Replies, may_reveal_uncommitted};
use crate::server::memory::Kept;
use crate::server::outcome::{Outcome, Refusal, Shortage};
use crate::server::rights::Need;
use crate::server::trace::Observation;
use crate::time::Time;
use crate::values::ids::JobId;
use crate::values::notes::NOTE_BYTES_MAX;
use crate::values::tags::Tags;
use crate::wal::{PutSpace, note_record_bytes};

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

    /// Begins a `job-note`, whose text follows its line.
    fn begin_note(&mut self, protocol: &mut ProtocolState, id: JobId, bytes: u32) -> Outcome<'static> {
        if bytes > NOTE_BYTES_MAX {
            return protocol.skip_text(u64::from(bytes) + 2, Refusal::JobTooBig);
        }
        self.begin_text(protocol, bytes, TextOf::Note(id))
    }

    /// Waits for a text of this many bytes and its CR LF.
    pub(in crate::server) fn begin_text(
        &mut self,
        protocol: &mut ProtocolState,
        bytes: u32,
        of: TextOf,
    ) -> Outcome<'static> {
        let no_memory = Shortage::Memory.into();
        if !self.claim_memory(protocol.client, bytes + 2, Tags::NONE) {
            return protocol.skip_text(u64::from(bytes) + 2, no_memory);
        }
        match self.engine.bodies_mut().allocate_unwritten(bytes + 2) {
            Ok(text) => {
                let incoming = IncomingText { of, text, filled: 0 };
                self.memory.count(Kept::ScheduleLine, false, incoming.is_of_schedule());
                protocol.input = Input::Text(incoming);
                Outcome::Pending
            }
            Err(_) => protocol.skip_text(u64::from(bytes) + 2, no_memory),
        }
    }

    /// Takes what `rest` has of a text that is arriving. Returns `None` if more of it must arrive, or if it waits for space in the job
    /// log.
    pub(in crate::server) fn receive_text(
        &mut self,
        protocol: &mut ProtocolState,
        rest: &mut &[u8],
        now: Time,
    ) -> Option<Outcome<'static>> {
        let Input::Text(incoming) = &mut protocol.input else { unreachable!("the caller has seen a text") };
        let (from, count) = (incoming.filled, rest.len().min(incoming.text.len() - incoming.filled));
        let (text, following) = rest.split_at(count);
        incoming.filled += count;
        let bodies = self.engine.bodies_mut();
        let grown = bodies.expect(&incoming.text, from, incoming.filled);
        bodies.bytes_mut(&mut incoming.text)[from..incoming.filled].copy_from_slice(text);
        *rest = following;
        let is_complete = incoming.is_complete();
        if !self.keep_or_skip(protocol, grown) {
            return self.skip(protocol, rest, now);
        }
        if !is_complete {
            return None;
        }
        let Input::Text(incoming) = &protocol.input else { unreachable!("it is kept") };
        let space = match &incoming.of {
            TextOf::Note(_) => self.log.space_for_records(note_record_bytes(incoming.text.len()) as u64),
            TextOf::Schedule(planned) => self.space_for_schedule(planned, &incoming.text),
        };
        if space == PutSpace::Pending {
            return None;
        }
        let Input::Text(incoming) = std::mem::replace(&mut protocol.input, Input::Line) else {
            unreachable!("the text is complete")
        };
        self.memory.count(Kept::ScheduleLine, incoming.is_of_schedule(), false);
        let has_end = self.engine.bodies().bytes(&incoming.text).ends_with(b"\r\n");
        let refused = if has_end { Refusal::for_space(space) } else { Some(Refusal::NoCrlf) };
        let IncomingText { of, text, .. } = incoming;
        let client = protocol.client;
        let (outcome, done) = match (refused, &of) {
            (Some(refusal), _) => (Err((refusal, text)), Reply::Noted),
            (None, &TextOf::Note(id)) => (self.add_note(protocol, id, text, now), Reply::Noted),
            (None, TextOf::Schedule(planned)) => {
                (self.add_schedule(protocol, planned, text, now), Reply::Scheduled)
            }
        };
        let outcome = outcome.map_err(|(refusal, text)| {
            self.engine.bodies_mut().free(text);
            refusal
        });
        let reply = outcome.as_ref().map_or_else(|refusal| refusal.reply(), |()| done);
        let observed =
            if let TextOf::Note(_) = of { Observation::Note(reply) } else { Observation::Schedule(reply) };
        self.reporter.observe(&self.engine, client, observed);
        Some(outcome.map_or_else(Outcome::Refused, |()| Outcome::Done(done)))
    }

    fn add_note(
        &mut self,
        protocol: &ProtocolState,
        id: JobId,
        text: Slot,
        now: Time,
    ) -> Result<(), (Refusal, Slot)> {
        let command = Command::JobNote { id, bytes: text.len() as u32 - 2 };
        if let Err(refusal) = self.authorize_arrived(protocol, Need::of(&command)) {
            return Err((refusal, text));
        }
        self.memory.invalidate();
        self.engine.note(protocol.client, id, text, now).map_err(|(refusal, text)| match refusal {
            NoteRefusal::NotFound => (Refusal::NoJob, text),
            NoteRefusal::TooLong => (Refusal::JobTooBig, text),
        })
    }
}
