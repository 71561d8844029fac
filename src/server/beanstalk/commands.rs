//! The beanstalk protocol: from a line to its command, its permit and the outcome.

use crate::protocol::announced::Follows;
use crate::protocol::command::{Command, CommandKind};
use crate::protocol::parse::{ParseError, parse, parse_decimals};
use crate::protocol::reply::Reply;
use crate::server::Core;
use crate::server::access::Permit;
use crate::server::client_state::ProtocolState;
use crate::server::commit_gate::{Replies, may_reveal_uncommitted};
use crate::server::outcome::Outcome;
use crate::server::rights::Need;
use crate::time::Time;
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
}
