//! Opening, events and closing of HTTP connections.

use tracing::warn;

use super::call::action_limit;
use super::slots::{self, Candidate};
use super::{HttpConnection, HttpState, OUTPUT_BYTES_SHORT, Peer, WRONG_TOKEN_INTERVAL};
use crate::server::connections::Connections;
use crate::server::ready::Turn;
use crate::server::{Core, Effect, Event, Server};
use crate::time::Time;
use crate::values::budget::{Cost, Quota, TURN_STEPS};
use crate::values::ids::ConnId;
use crate::values::limits::OUTPUT_BYTES_PAUSE;
use crate::values::log_limit::LogLimit;

/// What the answers of all HTTP connections share: the turn of one connection. The events of an iteration have this, and the
/// connections in the queue have it again.
const QUOTA: Quota = Quota::of(TURN_STEPS);

/// State that all HTTP connections share.
pub(in crate::server) struct HttpShare {
    /// The steps that answers have left in this phase of the event-loop iteration.
    quota: Quota,
    /// Limits the lines about wrong tokens.
    wrong_tokens: LogLimit,
    /// Limits the lines about actions.
    pub(super) actions: LogLimit,
}

impl HttpShare {
    pub const fn new() -> Self {
        let wrong_tokens = LogLimit::every(WRONG_TOKEN_INTERVAL);
        Self { quota: QUOTA, wrong_tokens, actions: action_limit() }
    }

    /// Begins a phase of the event-loop iteration.
    pub const fn begin_phase(&mut self) {
        self.quota = QUOTA;
    }
}

impl Server {
    /// Takes in an accepted connection. A peer that is not known yet comes with [`Event::Peer`].
    pub(in crate::server) fn open_http(&mut self, peer: Option<Peer>, now: Time) -> ConnId {
        let Self { core, connections } = self;
        let conn = connections.open_http(|conn, number| HttpConnection::new(conn, number, now));
        core.memory.count_http(connections.http(conn));
        self.count_tables();
        if let Some(peer) = peer {
            self.admit_http(conn, peer, now);
        }
        conn
    }

    /// Notes the peer of a new connection. If there are too many connections, another one is closed.
    pub(in crate::server) fn admit_http(&mut self, conn: ConnId, peer: Peer, now: Time) {
        let Self { core, connections } = self;
        let connection = connections.http(conn);
        (connection.peer, connection.active) = (peer, now);
        core.memory.count_http(connection);
        // Bounded by HTTP_CONNECTIONS_MAX: the HTTP connections.
        let open = connections.all_http().filter(|one| one.state < HttpState::Closed);
        let all: Vec<Candidate> = open
            .map(|one| Candidate {
                conn: one.conn,
                origin: one.peer.origin,
                activity: one.activity(now),
                active: one.active,
            })
            .collect();
        if let Some(surplus) = slots::surplus(&all, conn, core.config.http_connections_max) {
            core.close_http(connections.http(surplus), now);
        }
    }

    pub(in crate::server) fn handle_http(&mut self, conn: ConnId, event: &Event<'_>, now: Time) {
        let Self { core, connections } = self;
        let connection = connections.http(conn);
        match *event {
            Event::Received { bytes, .. } => {
                connection.active = now;
                connection.received(bytes);
                core.charge(Cost::consumed(bytes.len()));
                core.answer_at_once(connection, now);
            }
            Event::InputEnded { .. } => connection.input_ended(),
            Event::Sent { bytes, .. } => {
                connection.active = now;
                core.take_sent(conn, &mut connection.output, bytes);
            }
            Event::HungUp { .. } => core.close_http(connection, now),
            Event::Closed { .. } => {
                assert_eq!(
                    connection.state,
                    HttpState::Closed,
                    "a driver closes a connection only on Effect::Close"
                );
                core.memory.forget_http(connection);
                connection.output.clear(core.engine.bodies_mut(), &mut core.buffers);
                connections.remove(conn);
                return self.count_tables();
            }
            Event::InputEnding { .. } => {}
            Event::ReceivedDirect { .. } => panic!("a driver receives only bodies directly"),
            Event::Peer { .. } | Event::Certified { .. } => unreachable!("the server has handled it"),
            Event::Drain | Event::Stop | Event::Log(_) | Event::OuterMemory(_) | Event::SystemClock(_) => {
                unreachable!("they name no connection")
            }
        }
        core.after_http(connection, now);
    }

    /// Answers one request of each connection in the queue, in turns, until they have used their steps. It needs no command and
    /// no statistics, so it goes on while these wait for the disk or the driver.
    pub(in crate::server) fn answer_queued_http(&mut self, now: Time) {
        let Self { core, connections } = self;
        // Bounded by QUOTA: the answers of one phase.
        while !core.http.quota.is_used_up() {
            let Some(conn) = core.ready.take(Turn::Request) else { break };
            core.with_http(connections, conn, now, |core, connection| {
                connection.is_queued = false;
                core.answer_next(connection, now);
            });
        }
    }

    /// Runs the call of a connection from the queue of sessions.
    pub(in crate::server) fn run_http(&mut self, conn: ConnId, now: Time) {
        self.core.with_http(&mut self.connections, conn, now, |core, connection| {
            connection.is_queued = false;
            core.run_call(connection, now);
        });
    }

    /// Sends the response to a request with a wrong token, if its connection is still open.
    pub(in crate::server) fn end_refused_http(&mut self, conn: ConnId, now: Time) {
        self.core.with_http(&mut self.connections, conn, now, |_, connection| connection.end_refusal());
    }

    /// Renders a piece of one page, if there is a page to render.
    pub(in crate::server) fn step_http(&mut self, now: Time) {
        let Some(conn) = self.core.ready.take(Turn::Page) else { return };
        self.core.with_http(&mut self.connections, conn, now, |core, connection| {
            connection.is_queued = false;
            connection.step(core, now);
        });
    }
}

impl Core {
    /// Has something done with a connection, if it is still open, and then what follows from it.
    pub(in crate::server) fn with_http(
        &mut self,
        connections: &mut Connections,
        conn: ConnId,
        now: Time,
        act: impl FnOnce(&mut Self, &mut HttpConnection),
    ) {
        if let Some(connection) = connections.find_http(conn) {
            act(self, connection);
            self.after_http(connection, now);
        }
    }

    /// Answers the request that has just come, unless others wait for their turn or the steps of this iteration are used up.
    fn answer_at_once(&mut self, connection: &mut HttpConnection, now: Time) {
        let has_turn = self.ready.next(Turn::Request).is_none() && !connection.is_queued;
        if has_turn && !self.http.quota.is_used_up() && !self.engine.budget().is_phase_over() {
            connection.settle();
            self.answer_next(connection, now);
        }
    }

    /// Answers one request of a connection, if one has come.
    fn answer_next(&mut self, connection: &mut HttpConnection, now: Time) {
        if !connection.can_answer(self.http_output_bytes_max()) {
            return;
        }
        let limit = self.http.quota.limit(self.engine.budget());
        connection.answer(self, now);
        self.http.quota.settle(limit, self.engine.budget());
        if connection.take_wrong_token()
            && let Some(left_out) = self.http.wrong_tokens.admit(now)
        {
            let (conn, peer) = (connection.output.number(), &connection.peer.name);
            warn!(conn, "an HTTP request from {peer} had a wrong token and was refused{left_out}");
        }
    }

    /// Updates the driver and the queues after a connection has changed.
    pub(in crate::server) fn after_http(&mut self, connection: &mut HttpConnection, now: Time) {
        if connection.state < HttpState::Closed {
            self.continue_http(connection, now);
        }
        self.memory.count_http(connection);
    }

    fn continue_http(&mut self, connection: &mut HttpConnection, now: Time) {
        self.release_call(connection);
        if !connection.next.is_empty() {
            self.write_ungated(&mut connection.output, &std::mem::take(&mut connection.next));
        }
        connection.settle();
        if connection.is_cut_off() {
            return self.close_http(connection, now);
        }
        let conn = connection.conn;
        if !connection.is_queued {
            connection.is_queued = true;
            let output_bytes_max = self.http_output_bytes_max();
            if connection.can_step(output_bytes_max) {
                self.ready.add(Turn::Page, conn);
            } else if connection.can_run() {
                self.ready.add(Turn::Command, conn);
            } else if connection.can_answer(output_bytes_max) {
                self.ready.add(Turn::Request, conn);
            } else {
                connection.is_queued = false;
            }
        }
        self.request_send(conn, &mut connection.output);
        if connection.state == HttpState::Open {
            self.set_paused(conn, connection.has_much_input(), &mut connection.is_paused);
        }
        if connection.state == HttpState::Closing && connection.is_idle() {
            self.close_http(connection, now);
        }
    }

    /// The output that is made for a connection before some of it is sent.
    pub(super) fn http_output_bytes_max(&self) -> usize {
        if self.has_memory_for_http(OUTPUT_BYTES_PAUSE) { OUTPUT_BYTES_PAUSE } else { OUTPUT_BYTES_SHORT }
    }

    pub(in crate::server) fn close_http(&mut self, connection: &mut HttpConnection, now: Time) {
        if connection.state != HttpState::Closed {
            connection.state = HttpState::Closed;
            connection.end_page(self);
            self.abandon_call(connection, now);
            self.effects.push_back(Effect::Close(connection.conn));
            self.memory.count_http(connection);
        }
    }
}
