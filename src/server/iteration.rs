//! An event-loop iteration: what every event ends with, and the bounded work between events.

use super::beanstalk::{InputEnd, Session};
use super::client_state::SessionState;
use super::metrics::Count;
use super::outcome::Outcome;
use super::ready::Turn;
use super::{Core, Event, Server};
use crate::queue::Notice;
use crate::time::Time;
use crate::values::budget::{Cost, TURN_STEPS};

impl Server {
    /// Does a bounded piece of everything that is due or left over. The phases, each counted by itself:
    ///
    /// 1. *Background work*: unfinished commands, and timers.
    /// 2. *Answers* that it has set off. They count as events.
    /// 3. *Turns*: requests over HTTP, then connections, each for its turn.
    /// 4. *Output*: replies whose commit has come, a piece of a page, connections that do not read. The events that the driver hands
    ///    on after this call are in this phase too.
    pub(super) fn iterate(&mut self, now: Time) {
        self.core.log.check_lease(&mut self.core.effects, now);
        let mut event_steps = self.core.begin_phase();
        if !self.core.log.must_wait() {
            // Background work has limits of its own.
            self.core.engine.step(now);
            self.core.run_due_schedules(now);
            self.core.reporter.observe_changes(&self.core.engine);
            // Answers are sends, as those to events are.
            self.core.begin_phase();
            self.deliver_notices(now);
            event_steps += self.core.begin_phase();
        }
        // Turns.
        self.core.engine.budget().begin_turns();
        if self.core.ready.next(Turn::Request).is_some() {
            self.answer_queued_http(now);
        }
        let mut is_first = true;
        // Bounded by RUN_STEPS: the steps of one event-loop iteration.
        while let Some(conn) = self.core.ready.next(Turn::Command) {
            if self.core.engine.budget().is_phase_over() || self.core.log.must_wait() {
                break;
            }
            let had_many_events = event_steps >= u64::from(TURN_STEPS);
            if self.connections.is_storing(conn) && self.core.ready.defers_batch(is_first, had_many_events) {
                break;
            }
            is_first = false;
            self.core.ready.take(Turn::Command);
            // A user that is gone ends its connections in between.
            // mutant closed-connection-has-its-turn: session.is_open() => true
            if conn.is_http() {
                self.run_http(conn, now);
            } else if let Some(session) = self.connections.find(conn).filter(|session| session.is_open()) {
                self.core.serve_queued(session, now);
            }
            self.deliver_notices(now);
        }
        if !self.core.access.is_idle() {
            self.step_access(now);
        }
        // Output, and then events.
        self.core.begin_phase();
        if self.core.can_release() {
            self.release_committed(now);
        }
        self.step_http(now);
        self.watch_output(now);
        self.core.ready.set_reclaiming(self.core.engine.bodies_mut().reclaim());
        self.count_tables();
        if self.core.config.max_memory_bytes.is_some() {
            self.core.memory.update_output_pause();
        }
        let core = &mut self.core;
        core.engine.budget().begin_iteration();
        core.counts.end_iteration();
        core.log.end_iteration(&core.engine, &mut core.effects, now);
    }

    /// Answers the clients for which a `reserve`, a `wait-job`, or a command that is carried out in pieces, has come to an end.
    #[inline(always)]
    pub(super) fn deliver_notices(&mut self, now: Time) {
        self.core.record_changes(now);
        // Bounded by TURN_STEPS: the steps of the turn or the piece of work that caused the notices.
        while let Some(notice) = self.core.engine.next_notice() {
            self.deliver(notice, now);
        }
    }

    #[inline(never)]
    fn deliver(&mut self, notice: Notice, now: Time) {
        let Self { core, connections } = self;
        core.charge(Cost::SEND);
        // A kick, a flush of jobs or a move goes on to its end even if its client has left.
        if notice.conn().is_http() {
            core.with_http(connections, notice.conn(), now, |core, connection| {
                core.notify_call(connection, notice, now);
            });
        } else if let Some(session) = connections.find(notice.conn()).filter(|session| session.is_open()) {
            core.end_if_removed(session, now);
            if session.is_open() {
                core.answer(session, notice, now);
            }
        }
    }
}

impl Core {
    /// Begins a phase of the event-loop iteration. Returns the steps of the one before.
    fn begin_phase(&mut self) -> u64 {
        self.http.begin_phase();
        self.engine.budget().begin_phase()
    }

    #[inline]
    pub(super) fn handle_client(&mut self, session: &mut Session, event: &Event<'_>, now: Time) {
        if session.protocol.access.is_some() && session.is_open() {
            self.follow_users(session, now);
        }
        match *event {
            Event::Sent { bytes, .. } => self.sent(session, bytes, now),
            Event::HungUp { .. } => self.hung_up(session, now),
            // The session is removed after this.
            Event::Closed { .. } => {}
            // Input after the last command is ignored.
            _ if !session.is_open() => {}
            Event::Received { bytes, .. } => self.received(session, bytes, now),
            Event::ReceivedDirect { bytes, .. } => self.received_direct(session, bytes, now),
            Event::InputEnding { .. } => self.input_ended(session, InputEnd::Ending, now),
            Event::InputEnded { .. } => self.input_ended(session, InputEnd::Ended, now),
            Event::Peer { .. } | Event::Certified { .. } => unreachable!("the server has handled it"),
            Event::Drain | Event::Stop | Event::Log(_) | Event::OuterMemory(_) | Event::SystemClock(_) => {
                unreachable!("they name no connection")
            }
        }
    }

    fn sent(&mut self, session: &mut Session, bytes: usize, now: Time) {
        self.counts.add(Count::SentBytes, bytes as u64);
        self.take_sent(session.conn, &mut session.output, bytes);
        let unsent = session.output.unsent_bytes();
        let is_answered = unsent == 0 && session.protocol.state != SessionState::Listing;
        if is_answered && session.unanswered_since > Time::ZERO {
            self.counts.add_reply(std::mem::take(&mut session.unanswered_since), now);
        }
        self.close_if_sent(session);
        // At half of the mark, so that a client that reads slowly is not served reply by reply.
        let resumes = session.protocol.is_choked && unsent < self.memory.output_bytes_pause().div_ceil(2);
        if resumes {
            session.protocol.is_choked = false;
        }
        if resumes || session.can_list(self.memory.output_bytes_pause()) {
            self.queue_if_servable(session);
        }
    }

    fn answer(&mut self, session: &mut Session, notice: Notice, now: Time) {
        session.note_request(now);
        if let Notice::Reserved(_, job) = notice
            && session.protocol.batch > 0
        {
            // Very many clients may have waited for one job, and each may watch very many tubes. So each takes its turn.
            session.protocol.state = SessionState::Gathering;
            session.protocol.first_of_batch = self.engine.jobs().get(job).id;
            return self.queue_if_servable(session);
        }
        let outcome = match notice {
            Notice::TimedOut(_) => Outcome::Done(session.protocol.timed_out()),
            other => Outcome::of(other),
        };
        session.protocol.serve_again();
        let Session { protocol, output, .. } = session;
        self.with_replies(output, |core, replies| core.reply(protocol, replies, outcome, now));
        self.request_send(session.conn, &mut session.output);
        self.queue_if_servable(session);
    }

    /// Takes the jobs that are there for a `reserve-batch` that has waited for the first one.
    pub(super) fn complete_batch(&mut self, session: &mut Session, now: Time) {
        let Session { protocol, output, .. } = session;
        // Its reservation may have ended, if the job log has kept the client waiting.
        let mut jobs = Vec::from_iter(self.engine.reserved_job(protocol.client, protocol.first_of_batch));
        protocol.serve_again();
        self.with_replies(output, |core, replies| {
            // Not from tubes on which the user may not consume any more.
            if protocol.state == SessionState::Serving {
                core.fill_batch(protocol.client, &mut jobs, protocol.batch, false, now);
            }
            let outcome = match jobs.is_empty() {
                true => Outcome::Done(protocol.timed_out()),
                false => Outcome::ReservedBatch(jobs),
            };
            core.reply(protocol, replies, outcome, now);
            core.record_changes(now);
        });
        self.charge(Cost::COMMAND);
        self.after_serving(session, now);
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        let must_wait = self.log.must_wait();
        let can_serve = self.ready.next(Turn::Command).is_some() && !must_wait;
        if can_serve || self.ready.has_more() || self.can_release() {
            return Some(Time::ZERO);
        }
        let mut engine = if must_wait { None } else { self.engine.next_deadline() };
        if let Some(left) = self.puts.configuring.as_ref().filter(|_| !must_wait) {
            engine = engine.into_iter().chain([left.earliest]).min();
        }
        let closing = self.closing.deadline();
        if !self.log.is_there() && self.access.is_idle() && closing.is_none() {
            return engine;
        }
        let deadlines = [engine, self.log.next_deadline(), self.access.deadline(), closing];
        deadlines.into_iter().flatten().min()
    }
}
