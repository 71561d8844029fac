//! The server without its I/O: events in, effects out, the next deadline.

mod commit_gate;
mod config;
mod connections;
mod dispatch;
mod event;
mod figures;
mod foreign;
mod http;
mod lists;
mod memory;
mod metrics;
mod output;
mod report;
mod sampling;
mod service;
mod session;
mod stalled;

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, BytesMut};

pub use config::{Config, CpuUsage, DriverStats, HostFacts};
pub use event::{Effect, Event};
pub use http::Hosts;
pub use service::{BodyMemory, Protocol, Service};

use self::connections::Connections;
use self::foreign::Foreigners;
use self::memory::Footprint;
use self::metrics::Metrics;
use self::output::Buffers;
use self::sampling::SampleWaiters;
use self::session::{Incoming, Input, Phase, ProtocolState, Session};
use crate::ids::ConnId;
use crate::limits::{
    DIRECT_RECEIVE_BYTES_MIN, INBOX_BYTES_PAUSE, MEMORY_KEPT_SHARE, OUTPUT_BYTES_PAUSE, OUTPUT_BYTES_RESUME,
    RUN_STEPS, RUN_STEPS_MAX, TURN_STEPS,
};
use crate::protocol::command::CommandKind;
use crate::protocol::foreign::Opening;
use crate::protocol::framing::Line;
use crate::protocol::reply::Reply;
use crate::queue::{Engine, Notice};
use crate::time::Time;
use crate::wal::{Log, Operation, Room};

/// The server. A driver feeds it and carries out its effects: see [`Service`].
pub struct Server {
    core: Core,
    sessions: Connections,
    /// Sessions with input that could not be served in their last turn.
    queue: VecDeque<ConnId>,
    effects: VecDeque<Effect>,
    /// Who waits for which batch of the log, in the order of the batches.
    held: VecDeque<(u64, ConnId)>,
    /// Who waits for a page over HTTP, of which more is to be rendered.
    pages: VecDeque<ConnId>,
    sample_waiters: SampleWaiters,
    /// Freed memory is on its way back to the kernel.
    is_reclaiming: bool,
    /// Steps that events, and after them the queue, have taken in this event-loop iteration: see [`RUN_STEPS`].
    spent: u32,
}

/// All that a command may touch, except its own session.
struct Core {
    config: Config,
    engine: Engine,
    log: Option<Log>,
    buffers: Buffers,
    scratch: Vec<u8>,
    /// What sessions with their inboxes, and the tables of the server, take of the memory.
    footprint: Footprint,
    /// Jobs refused for want of memory.
    refusals: u64,
    foreign: Foreigners,
    /// `use` and `watch` commands refused for want of memory, or since there were as many tubes or watches as there may
    /// be.
    tube_refusals: u64,
    /// Lists that are being rendered.
    lists: usize,
    /// Commands served, by kind.
    commands: [u64; CommandKind::COUNT],
    /// Steps of the command under way that the engine does not see.
    extra_steps: u32,
    /// A reply to what was served last may reveal a change that waits for space on the disk.
    tells_pending: bool,
    connections: u64,
    total_connections: u64,
    draining: bool,
    metrics: Metrics,
    /// The driver's statistics as they were at `sampled_at`.
    driver: DriverStats,
    sampled_at: Option<Time>,
    /// Memory that the driver has allocated for itself, in bytes.
    driver_bytes: u64,
}

impl Server {
    /// A server without connections or jobs, which keeps jobs in memory only.
    pub fn new(config: Config) -> Self {
        let engine = Engine::new(config.seed);
        Self::with_log(config, engine, None)
    }

    /// A server without connections, with the jobs that are in the queue, and a log of what will become of
    /// them.
    pub fn with_log(config: Config, mut engine: Engine, log: Option<Log>) -> Self {
        engine.record_changes(log.is_some());
        if let Some(max) = config.max_memory_bytes {
            engine.bodies_mut().keep_at_most(max as usize / MEMORY_KEPT_SHARE);
        }
        engine.bound(config.bounds());
        Self {
            core: Core {
                config,
                engine,
                log,
                buffers: Buffers::default(),
                scratch: Vec::new(),
                footprint: Footprint::default(),
                refusals: 0,
                foreign: Foreigners::default(),
                tube_refusals: 0,
                lists: 0,
                commands: [0; CommandKind::COUNT],
                extra_steps: 0,
                tells_pending: false,
                connections: 0,
                total_connections: 0,
                draining: false,
                metrics: Metrics::new(),
                driver: DriverStats::default(),
                sampled_at: None,
                driver_bytes: 0,
            },
            sessions: Connections::default(),
            queue: VecDeque::new(),
            effects: VecDeque::new(),
            held: VecDeque::new(),
            pages: VecDeque::new(),
            sample_waiters: SampleWaiters::new(),
            is_reclaiming: false,
            spent: 0,
        }
    }

    /// The queue, to be looked at.
    pub fn engine(&self) -> &Engine {
        &self.core.engine
    }

    /// The log, to be looked at.
    pub fn log(&self) -> Option<&Log> {
        self.core.log.as_ref()
    }

    /// The memory that jobs and buffers take, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.core.memory_bytes()
    }
}

impl Service for Server {
    fn accept(&mut self, protocol: Protocol) -> ConnId {
        match protocol {
            Protocol::Beanstalk => self.open_client(),
            Protocol::Http => self.open_http(),
        }
    }

    fn handle(&mut self, now: Time, event: Event<'_>) {
        if let Some(conn) = event.conn().filter(|&conn| self.sessions.is_http(conn)) {
            return self.http_event(conn, &event, now);
        }
        match event {
            Event::Received { conn, bytes } if self.is_open(conn) => self.received(conn, bytes, now),
            Event::ReceivedDirect { conn, bytes } if self.is_open(conn) => {
                self.received_direct(conn, bytes, now)
            }
            Event::InputEnding { conn } if self.is_open(conn) => {
                self.session(conn).input_ending = true;
                self.after_serving(conn, now);
            }
            Event::InputEnded { conn } if self.is_open(conn) => {
                let session = self.session(conn);
                (session.input_ending, session.input_ended) = (true, true);
                self.after_serving(conn, now);
            }
            // Whatever comes while the last replies go out.
            Event::Received { .. }
            | Event::ReceivedDirect { .. }
            | Event::InputEnding { .. }
            | Event::InputEnded { .. } => {}
            Event::Sent { conn, bytes } => self.sent(conn, bytes, now),
            Event::HungUp { conn } => self.hung_up(conn, now),
            Event::Closed { conn } => self.closed(conn),
            Event::Drain => self.core.draining = true,
            Event::Stop => self.core.log.iter_mut().for_each(Log::stop),
            Event::Disk(outcome) => self.disk_done(outcome, now),
            Event::StatsSampled(stats) => {
                (self.core.driver, self.core.sampled_at) = (stats, Some(now));
                self.stats_sampled(now);
            }
            Event::DriverMemory(bytes) => {
                self.core.driver_bytes = bytes;
                self.core.footprint.distrust();
            }
        }
        self.tell_notices(now);
    }

    fn turn(&mut self, now: Time) {
        if !self.core.is_behind() {
            self.core.engine.step(now);
            self.core.take_steps();
            self.tell_notices(now);
        }
        self.spent = 0;
        // A reply to `stats` shows the state between two commands, so none is served while it waits for its sample.
        while self.spent < RUN_STEPS && !self.core.is_behind() && self.sample_waiters.is_empty() {
            let Some(conn) = self.queue.pop_front() else { break };
            self.serve_inbox(conn, now);
            self.tell_notices(now);
        }
        self.spent = 0;
        self.step_http(now);
        self.is_reclaiming = self.core.engine.bodies_mut().reclaim();
        self.weigh_tables();
        self.core.metrics.turned(self.core.commands.iter().sum());
        if let Some(log) = &mut self.core.log {
            log.compact(&self.core.engine, now);
            self.effects.push_back(Effect::Disk);
        }
    }

    fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    fn next_deadline(&self) -> Option<Time> {
        let log = self.core.log.as_ref().and_then(Log::next_deadline);
        let is_behind = self.core.is_behind();
        let has_work = !self.queue.is_empty() && !is_behind || self.is_reclaiming || !self.pages.is_empty();
        let work = has_work.then_some(Time::ZERO);
        let engine = self.core.engine.next_deadline().filter(|_| !is_behind);
        [work, engine, log].into_iter().flatten().min()
    }

    fn direct(&mut self, conn: ConnId) -> Option<&mut [u8]> {
        let session = self.sessions.get_mut(conn)?;
        let is_next = session.talk.is_served() && session.inbox.is_empty();
        match &mut session.talk.input {
            Input::Body(incoming)
                if is_next && incoming.slot.len() - incoming.filled >= DIRECT_RECEIVE_BYTES_MIN =>
            {
                let filled = incoming.filled;
                Some(&mut self.core.engine.bodies_mut().bytes_mut(&mut incoming.slot)[filled..])
            }
            _ => None,
        }
    }

    fn outgoing<'a>(&'a mut self, conn: ConnId, slices: &mut Vec<IoSlice<'a>>) {
        if self.sessions.is_http(conn) {
            let exchange = self.sessions.http_mut(conn).expect("a driver asks for a connection that is open");
            slices.extend(Some(exchange.outgoing()).filter(|bytes| !bytes.is_empty()).map(IoSlice::new));
            return;
        }
        let session = &mut self.sessions[conn];
        session.talk.output.slices(self.core.safe_ticket(), self.core.engine.bodies(), slices);
    }

    fn disk(&mut self, now: Time) -> Option<Operation> {
        let log = self.core.log.as_mut()?;
        log.close_when_idle(&self.core.engine, now);
        log.next_operation(now)
    }

    fn is_settled(&self) -> bool {
        self.core.log.as_ref().is_none_or(Log::is_settled)
    }

    fn failure(&self) -> Option<String> {
        let error = self.core.log.as_ref()?.failure()?;
        Some(format!("the log cannot be written: {error}; what was not acknowledged is lost"))
    }

    fn body_memory(&mut self) -> Option<&mut dyn BodyMemory> {
        Some(self.core.engine.bodies_mut())
    }
}

impl Server {
    fn open_client(&mut self) -> ConnId {
        let engine = &mut self.core.engine;
        let opening = (!self.core.config.allow_foreign_requests).then(Opening::new);
        let conn = self.sessions.open_client(|conn| Session::new(conn, engine.connect(conn), opening));
        self.core.connections += 1;
        self.core.total_connections += 1;
        self.weigh_tables();
        conn
    }

    fn session(&mut self, conn: ConnId) -> &mut Session {
        &mut self.sessions[conn]
    }

    /// Whether its input still counts.
    fn is_open(&mut self, conn: ConnId) -> bool {
        self.session(conn).talk.phase < Phase::Closing
    }

    fn received(&mut self, conn: ConnId, bytes: &[u8], now: Time) {
        let session = self.session(conn);
        session.asked_by(now);
        let is_next = session.talk.is_served() && session.inbox.is_empty();
        let used = if is_next { self.serve(conn, bytes, now) } else { 0 };
        let Self { core, sessions, .. } = self;
        let session = &mut sessions[conn];
        if used < bytes.len() && session.talk.phase < Phase::Closing {
            session.inbox.extend_from_slice(&bytes[used..]);
            core.footprint.weigh_inbox(session);
        }
        self.after_serving(conn, now);
    }

    fn received_direct(&mut self, conn: ConnId, bytes: usize, now: Time) {
        let Self { core, sessions, .. } = self;
        let session = &mut sessions[conn];
        session.asked_by(now);
        let talk = &mut session.talk;
        let Input::Body(incoming) = &mut talk.input else {
            panic!("only the bytes of a body are received directly");
        };
        incoming.filled += bytes;
        core.keep_or_skip(talk);
        self.serve(conn, &[], now);
        self.after_serving(conn, now);
    }

    fn sent(&mut self, conn: ConnId, bytes: usize, now: Time) {
        let Self { core, sessions, .. } = self;
        let session = &mut sessions[conn];
        session.talk.output.advance(bytes, core.engine.bodies_mut(), &mut core.buffers);
        session.is_sending = session.talk.output.can_send(core.safe_ticket());
        let pending = session.talk.output.pending();
        if pending == 0 && session.asked > Time::ZERO && session.talk.phase != Phase::Listing {
            core.metrics.replied(std::mem::take(&mut session.asked), now);
        }
        if pending == 0 && session.talk.phase == Phase::Closing {
            session.talk.phase = Phase::Closed;
            self.effects.push_back(Effect::Close(conn));
        }
        // What is left may wait for a later batch of the log than what has been sent.
        self.await_log(conn);
        let session = &mut self.sessions[conn];
        if session.talk.is_choked && pending < OUTPUT_BYTES_RESUME {
            session.talk.is_choked = false;
            self.queue_if_servable(conn);
        } else if session.talk.wants_list() {
            self.queue_if_servable(conn);
        }
    }

    fn hung_up(&mut self, conn: ConnId, now: Time) {
        if self.is_open(conn) {
            self.leave(conn, now);
        }
        let session = self.session(conn);
        if session.talk.phase != Phase::Closed {
            session.talk.phase = Phase::Closed;
            self.effects.push_back(Effect::Close(conn));
        }
    }

    fn closed(&mut self, conn: ConnId) {
        assert_eq!(self.session(conn).talk.phase, Phase::Closed, "a driver closes what it was told to");
        let mut session = self.sessions.close_client(conn);
        self.weigh_tables();
        let bodies = self.core.engine.bodies_mut();
        session.talk.output.clear(bodies, &mut self.core.buffers);
        if let Input::Body(incoming) = session.talk.input {
            bodies.free(incoming.slot);
        }
    }

    /// The client leaves the queue; what is unsent may still be sent.
    fn leave(&mut self, conn: ConnId, now: Time) {
        tracing::trace!(conn = conn.slot, "leaves");
        let Self { core, sessions, .. } = self;
        let talk = &mut sessions[conn].talk;
        core.end_list(talk);
        core.engine.disconnect(talk.client, now);
        self.spent += self.core.take_steps();
        self.core.connections -= 1;
        let session = &mut self.sessions[conn];
        session.inbox = BytesMut::new();
        self.core.footprint.weigh_inbox(session);
    }

    /// Serves commands from `input` until it is used up, the session cannot go on, or its steps are used up. Returns how
    /// many bytes were used.
    fn serve(&mut self, conn: ConnId, input: &[u8], now: Time) -> usize {
        let Self { core, sessions, spent, sample_waiters, effects, .. } = self;
        let most = match *spent {
            0..RUN_STEPS => TURN_STEPS.min(RUN_STEPS - *spent),
            // One command: a client that sends one at a time does not wait behind clients that pipeline.
            RUN_STEPS..RUN_STEPS_MAX => 1,
            RUN_STEPS_MAX.. => 0,
        };
        let Session { reader, opening, talk, .. } = &mut sessions[conn];
        core.begin_replies(talk);
        core.tells_pending = false;
        let mut rest = input;
        let mut steps = 0;
        while steps < most && talk.is_served() {
            if let Input::Line = talk.input {
                if core.is_behind() {
                    break;
                }
                if opening.is_some() && core.is_foreign(conn, opening, rest, now) {
                    (talk.phase, rest) = (Phase::Closing, &[]);
                    break;
                }
                match reader.next(&mut rest) {
                    Some(Line::Command(line)) => {
                        tracing::trace!(conn = conn.slot, "{}", line.escape_ascii());
                        core.line(talk, line, &mut rest, now);
                    }
                    Some(Line::TooLong) => {
                        tracing::trace!(conn = conn.slot, "(a line that is too long)");
                        core.reply(talk, Reply::BadFormat);
                    }
                    None => break,
                }
            }
            if !core.fill(talk, &mut rest, now) {
                break;
            }
            core.log_changes(now);
            talk.is_choked = talk.output.pending() >= OUTPUT_BYTES_PAUSE;
            steps += core.take_steps();
        }
        *spent += steps;
        if talk.phase == Phase::Sampling {
            Self::await_sample(sample_waiters, effects, conn);
        }
        if core.is_stalled() && !core.tells_pending {
            talk.output.stamp(core.safe_ticket());
        }
        input.len() - rest.len()
    }

    /// Serves what is kept for a session that was queued.
    fn serve_inbox(&mut self, conn: ConnId, now: Time) {
        let Some(session) = self.sessions.get_mut(conn) else { return };
        session.is_queued = false;
        if session.talk.wants_list() {
            return self.go_on_with_list(conn, now);
        }
        if !session.talk.is_served() {
            return;
        }
        let mut inbox = std::mem::take(&mut session.inbox);
        let used = self.serve(conn, &inbox, now);
        inbox.advance(used);
        let session = &mut self.sessions[conn];
        if !inbox.is_empty() {
            session.inbox = inbox;
        }
        self.core.footprint.weigh_inbox(session);
        self.after_serving(conn, now);
    }

    /// Brings what the driver and the queue of sessions know in line with what has become of a session.
    fn after_serving(&mut self, conn: ConnId, now: Time) {
        let Self { core, sessions, .. } = self;
        let session = &mut sessions[conn];
        if session.input_ending && session.talk.phase == Phase::Waiting {
            // It may be gone: a job should not wait to find that out.
            core.engine.end_wait(session.talk.client);
            // Replies before it may have to wait for the log: they get their ticket before another is begun.
            if let Some(log) = &core.log {
                session.talk.output.stamp(log.ticket());
            }
            core.begin_replies(&mut session.talk);
            core.reply(&mut session.talk, Reply::TimedOut);
            session.talk.phase = Phase::Serving;
        }
        let has_body = matches!(&session.talk.input, Input::Body(incoming) if incoming.is_whole());
        let is_over =
            session.input_ended && session.inbox.is_empty() && !has_body && session.talk.is_served();
        if is_over {
            session.talk.phase = Phase::Closing;
        }
        if session.talk.phase == Phase::Closing {
            // Reached once, since a session that is closing is not served again.
            self.leave(conn, now);
            let session = self.session(conn);
            if session.talk.output.pending() == 0 {
                session.talk.phase = Phase::Closed;
                self.effects.push_back(Effect::Close(conn));
                return;
            }
        }
        let session = &mut self.sessions[conn];
        if session.talk.output.pending() == 0 && session.inbox.is_empty() {
            // Not all of a command has come, or its client waits for a job.
            session.asked = Time::ZERO;
        }
        self.ask_to_send(conn);
        self.queue_if_servable(conn);
        self.pause_or_resume(conn);
    }

    fn ask_to_send(&mut self, conn: ConnId) {
        let Self { core, sessions, effects, .. } = self;
        let session = &mut sessions[conn];
        let output = &mut session.talk.output;
        if let Some(log) = &core.log {
            output.stamp(log.ticket());
        }
        if !session.is_sending && output.can_send(core.safe_ticket()) {
            session.is_sending = true;
            effects.push_back(Effect::Send(conn));
        }
        self.await_log(conn);
    }

    fn queue_if_servable(&mut self, conn: ConnId) {
        let session = self.session(conn);
        let has_body = matches!(&session.talk.input, Input::Body(incoming) if incoming.is_whole());
        let has_input = !session.inbox.is_empty() || session.input_ended || has_body;
        let is_wanted = has_input && session.talk.is_served() || session.talk.wants_list();
        if is_wanted && !session.is_queued {
            session.is_queued = true;
            self.queue.push_back(conn);
        }
    }

    fn pause_or_resume(&mut self, conn: ConnId) {
        let session = self.session(conn);
        let is_full = session.inbox.len() >= INBOX_BYTES_PAUSE;
        if is_full != session.is_paused && session.talk.phase < Phase::Closing {
            session.is_paused = is_full;
            self.effects.push_back(if is_full { Effect::Pause(conn) } else { Effect::Resume(conn) });
        }
    }

    /// Answers those to whom something happened.
    fn tell_notices(&mut self, now: Time) {
        self.core.log_changes(now);
        while let Some(notice) = self.core.engine.next_notice() {
            let Self { core, sessions, .. } = self;
            let conn = notice.conn();
            // A kick goes on when the one who sent it has gone.
            let Some(session) = sessions.get_mut(conn) else { continue };
            if session.talk.phase >= Phase::Closing {
                continue;
            }
            session.asked_by(now);
            let talk = &mut session.talk;
            core.begin_replies(talk);
            match notice {
                Notice::Reserved(_, job) => core.reply_job(talk, job, dispatch::reserved),
                Notice::TimedOut(_) => core.reply(talk, Reply::TimedOut),
                Notice::DeadlineSoon(_) => core.reply(talk, Reply::DeadlineSoon),
                Notice::Kicked(_, count) => core.reply(talk, Reply::Kicked(u64::from(count))),
            }
            talk.phase = Phase::Serving;
            self.ask_to_send(conn);
            self.queue_if_servable(conn);
        }
    }
}

impl Core {
    /// Hands what has happened to the queue to the log, if there is one.
    #[inline]
    fn log_changes(&mut self, now: Time) {
        if let Some(log) = &mut self.log {
            log.record(&mut self.engine, now);
        }
    }

    /// Replies follow that may have to wait for the log.
    #[inline]
    fn begin_replies(&self, talk: &mut ProtocolState) {
        if let Some(log) = &self.log {
            talk.output.begin(log.next_ticket());
        }
    }

    /// The batch of the log up to which replies may leave.
    fn safe_ticket(&self) -> u64 {
        self.log.as_ref().map_or(u64::MAX, Log::safe)
    }

    fn is_behind(&self) -> bool {
        self.log.as_ref().is_some_and(Log::is_behind)
    }

    /// Takes what `rest` has of a body that is on its way. False if more of it has to come.
    #[inline]
    fn fill(&mut self, talk: &mut ProtocolState, rest: &mut &[u8], now: Time) -> bool {
        match talk.input {
            Input::Line => true,
            Input::Body(_) => self.fill_body(talk, rest, now),
            Input::Skip { .. } => self.skip(talk, rest),
        }
    }

    fn fill_body(&mut self, talk: &mut ProtocolState, rest: &mut &[u8], now: Time) -> bool {
        let Input::Body(incoming) = &mut talk.input else { unreachable!("a body is on its way") };
        let Incoming { slot, filled, .. } = incoming;
        let count = rest.len().min(slot.len() - *filled);
        let place = &mut self.engine.bodies_mut().bytes_mut(slot)[*filled..*filled + count];
        let (body, following) = rest.split_at(count);
        place.copy_from_slice(body);
        *rest = following;
        *filled += count;
        let (bytes, is_whole) = (incoming.args.bytes, incoming.is_whole());
        if !self.keep_or_skip(talk) {
            return self.skip(talk, rest);
        }
        if !is_whole || self.room_for(talk, bytes) == Room::Later {
            return false;
        }
        if let Input::Body(incoming) = std::mem::replace(&mut talk.input, Input::Line) {
            let Incoming { id, args, slot, .. } = incoming;
            self.put(talk, id, args, slot, now);
        }
        true
    }

    fn skip(&mut self, talk: &mut ProtocolState, rest: &mut &[u8]) -> bool {
        let Input::Skip { left, answer } = &mut talk.input else { unreachable!("a body is skipped") };
        let skipped = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
        *rest = &rest[skipped..];
        *left -= skipped as u64;
        if *left > 0 {
            return false;
        }
        let answer = *answer;
        talk.input = Input::Line;
        self.reply(talk, answer);
        true
    }
}
