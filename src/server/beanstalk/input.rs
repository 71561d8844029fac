//! Input of clients: from the events of a driver to commands.

use std::mem;

use bytes::Buf;

use super::session::{InputEnd, Session};
use crate::protocol::command::Command;
use crate::protocol::foreign::{Foreign, Opening, Verdict};
use crate::protocol::framing::{Line, LineReader};
use crate::protocol::parse::parse;
use crate::server::Effect;
use crate::server::client_state::{Incoming, Input, SessionState};
use crate::server::memory::Kept;
use crate::server::metrics::Count;
use crate::server::ready::Turn;
use crate::server::trace::{self, Observation};
use crate::server::{ClientAct, Core};
use crate::time::Time;
use crate::values::budget::Cost;
use crate::values::ids::ConnId;
use crate::values::limits::DIRECT_RECEIVE_BYTES_MIN;

/// The line that ends a wait.
const CANCEL_LINE: &[u8] = b"cancel-reserve\r\n";

impl Core {
    pub(in crate::server) fn received(&mut self, session: &mut Session, bytes: &[u8], now: Time) {
        self.counts.add(Count::ReceivedBytes, bytes.len() as u64);
        session.note_request(now);
        let used = if session.can_serve_directly() { self.serve(session, bytes, now) } else { 0 };
        if used < bytes.len() && session.is_open() {
            session.inbox.extend_from_slice(&bytes[used..]);
            self.memory.count_inbox(session);
        }
        self.after_serving(session, now);
    }

    pub(in crate::server) fn received_direct(&mut self, session: &mut Session, bytes: usize, now: Time) {
        self.counts.add(Count::ReceivedBytes, bytes as u64);
        session.note_request(now);
        let Input::Body(incoming) = &mut session.protocol.input else {
            panic!("a driver receives only bodies directly");
        };
        incoming.filled += bytes;
        let grown = self.expect_body(incoming, incoming.filled);
        self.keep_or_skip(&mut session.protocol, grown);
        self.serve(session, &[], now);
        self.after_serving(session, now);
    }

    pub(in crate::server) fn input_ended(&mut self, session: &mut Session, end: InputEnd, now: Time) {
        session.input_end = session.input_end.max(end);
        self.after_serving(session, now);
    }

    /// Returns the rest of the slot of a large body that is arriving, if the next input belongs there.
    pub(in crate::server) fn direct_place<'a>(
        &'a mut self,
        session: &'a mut Session,
    ) -> Option<&'a mut [u8]> {
        let is_next = session.can_serve_directly();
        match &mut session.protocol.input {
            Input::Body(Incoming { slot, filled, .. })
                if is_next && slot.len() - *filled >= DIRECT_RECEIVE_BYTES_MIN =>
            {
                Some(&mut self.engine.bodies_mut().bytes_mut(slot)[*filled..])
            }
            _ => None,
        }
    }

    /// Serves commands from `input` until it is used up, the session must wait, or its steps are used up. Returns how many
    /// bytes were used.
    pub(in crate::server) fn serve(&mut self, session: &mut Session, input: &[u8], now: Time) -> usize {
        if self.config.max_memory_bytes.is_some() {
            self.memory.update_output_pause();
        }
        let limit = self.engine.budget().turn();
        let mut rest = input;
        let is_traced = trace::is_on();
        let Session { conn, reader, opening, protocol, output, .. } = session;
        self.with_replies(output, |core, replies| {
            // Bounded by TURN_STEPS: the steps of one turn.
            while !core.engine.is_turn_over(limit) && protocol.can_serve() {
                if let Input::Line = protocol.input {
                    if core.log.must_wait() {
                        break;
                    }
                    if opening.is_some() && core.is_foreign_request(*conn, opening, reader, rest) {
                        (protocol.state, rest) = (SessionState::Closing, &[]);
                        break;
                    }
                    match reader.next(&mut rest) {
                        Some(Line::Command(line)) => {
                            core.reporter.observe(&core.engine, protocol.client, Observation::Line(line));
                            if is_traced {
                                core.charge(Cost::LOG_LINE);
                                trace::command(replies.number(), line);
                            }
                            core.serve_line(protocol, replies, line, &mut rest, now);
                        }
                        Some(Line::TooLong { follows }) => {
                            core.reporter.observe(
                                &core.engine,
                                protocol.client,
                                Observation::LineTooLong(follows),
                            );
                            if is_traced {
                                trace::command_too_long(replies.number());
                            }
                            let outcome = core.refuse_line(protocol, follows);
                            core.reply(protocol, replies, outcome, now);
                        }
                        None => break,
                    }
                }
                if !matches!(protocol.input, Input::Line) {
                    let Some(outcome) = core.receive_body(protocol, &mut rest, now) else { break };
                    core.reply(protocol, replies, outcome, now);
                }
                core.record_changes(now);
                protocol.is_choked = replies.unsent_bytes() >= core.memory.output_bytes_pause();
                core.charge(Cost::COMMAND);
            }
            core.charge(Cost::consumed(input.len() - rest.len()));
        });
        if session.has_long_line || session.reader.has_memory() {
            self.count_long_line(session);
        }
        input.len() - rest.len()
    }

    /// Counts the memory of a line that is longer than usual.
    #[cold]
    fn count_long_line(&mut self, session: &mut Session) {
        let was_long = mem::replace(&mut session.has_long_line, session.reader.is_long());
        self.memory.count(Kept::LongLine, was_long, session.has_long_line);
    }

    /// Serves the inbox, or the list, of a session from the queue.
    pub(in crate::server) fn serve_queued(&mut self, session: &mut Session, now: Time) {
        session.is_queued = false;
        self.charge(Cost::SEND);
        self.follow_users(session, now);
        match session.protocol.state {
            SessionState::Gathering => return self.complete_batch(session, now),
            SessionState::Storing => return self.end_put_batch(session, now),
            SessionState::Unwatching => return self.continue_unwatching(session, now),
            _ => {}
        }
        if session.can_list(self.memory.output_bytes_pause()) {
            return self.continue_list(session, now);
        }
        if !session.protocol.can_serve() {
            return;
        }
        let mut inbox = std::mem::take(&mut session.inbox);
        let used = self.serve(session, &inbox, now);
        inbox.advance(used);
        if !inbox.is_empty() {
            session.inbox = inbox;
        }
        self.memory.count_inbox(session);
        self.after_serving(session, now);
    }

    /// Updates the driver, the queue of sessions and the engine after a session has changed.
    pub(in crate::server) fn after_serving(&mut self, session: &mut Session, now: Time) {
        if session.protocol.state == SessionState::Waiting {
            self.end_wait_if_over(session);
        }
        let is_finished = session.input_end == InputEnd::Ended
            && session.can_serve_directly()
            && !session.has_complete_body();
        if is_finished {
            session.protocol.state = SessionState::Closing;
        }
        if session.protocol.state == SessionState::Closing {
            // Reached once, since a session that is closing is not served again.
            self.leave(session, now);
            self.closing.add(now);
            if self.close_if_sent(session) {
                return;
            }
        }
        if session.inbox.is_empty() && session.output.unsent_bytes() == 0 {
            // A command is incomplete, or its client waits for a job: no reply is due yet.
            session.unanswered_since = Time::ZERO;
        }
        self.request_send(session.conn, &mut session.output);
        self.queue_if_servable(session);
        if session.is_open() {
            let is_full = session.inbox.len() >= self.memory.account().inbox_bytes_pause();
            self.set_paused(session.conn, is_full, &mut session.is_paused);
        }
    }

    /// Ends the wait of a session whose input has ended, or whose next line cancels the wait. That line is served next, like
    /// any other.
    fn end_wait_if_over(&mut self, session: &mut Session) {
        // mutant half-close-ignored: session.input_end == InputEnd::Open => session.input_end != InputEnd::Ending
        if session.input_end == InputEnd::Open {
            if !session.inbox.starts_with(CANCEL_LINE) {
                return;
            }
            self.reporter.observe(&self.engine, session.protocol.client, Observation::Canceled);
        }
        // With its input ended, the client may be gone: no job should have to find that out.
        self.end_wait(session);
    }

    /// Ends the wait of a session without a job.
    pub(in crate::server) fn end_wait(&mut self, session: &mut Session) {
        // mutant cancel-reserve-loses-the-next-job: removed
        self.engine.end_wait(session.protocol.client);
        let reply = session.protocol.timed_out();
        self.with_replies(&mut session.output, |core, replies| {
            replies.reply(reply, &mut core.buffers);
        });
        session.protocol.state = SessionState::Serving;
    }

    /// Queues a session that has something to serve, or a list to continue.
    pub(in crate::server) fn queue_if_servable(&mut self, session: &mut Session) {
        let has_input =
            !session.inbox.is_empty() || session.input_end == InputEnd::Ended || session.has_complete_body();
        let is_servable = has_input && session.protocol.can_serve()
            || session.can_list(self.memory.output_bytes_pause())
            || session.protocol.state.is_in_turn();
        if is_servable && !session.is_queued {
            session.is_queued = true;
            self.ready.add(Turn::Command, session.conn);
        }
    }

    /// Stops reading from a connection while its input is full.
    pub(in crate::server) fn set_paused(&mut self, conn: ConnId, is_full: bool, is_paused: &mut bool) {
        if is_full != *is_paused {
            *is_paused = is_full;
            self.effects.push_back(if is_full { Effect::Pause(conn) } else { Effect::Resume(conn) });
        }
    }

    /// Whether the connection begins with a request of another protocol. Empties `opening` once the first line decides it.
    #[cold]
    pub(in crate::server) fn is_foreign_request(
        &mut self,
        conn: ConnId,
        opening: &mut Option<Opening>,
        reader: &LineReader,
        input: &[u8],
    ) -> bool {
        let Some(verdict) = opening.as_mut().and_then(|line| line.feed(input)) else { return false };
        *opening = None;
        let protocol = match verdict {
            Verdict::Foreign(protocol) => protocol,
            Verdict::RequestLine if !is_command(reader.peek(input).as_deref()) => Foreign::Http,
            Verdict::RequestLine | Verdict::Native => return false,
        };
        self.counts.add(Count::ForeignRequests, 1);
        self.effects.push_back(Effect::LogClient(conn, ClientAct::ForeignRequest(protocol)));
        true
    }
}

/// Whether a line is a command. A `put` with invalid tags and a `put-batch` without a count are none: what follows them is
/// discarded.
fn is_command(line: Option<&[u8]>) -> bool {
    match line.map(parse) {
        Some(Ok(Command::Put { tags: None, .. } | Command::PutBatch { count: None })) => false,
        Some(Ok(_)) => true,
        Some(Err(_)) | None => false,
    }
}
