//! Opening, events and closing of HTTP connections.

use tracing::warn;

use super::{HttpConnection, HttpState};
use crate::ids::ConnId;
use crate::server::{Core, Effect, Event, Server};
use crate::time::Time;

/// HTTP connections at a time: more than scrapers and probes need, and little memory.
const CONNECTIONS_MAX: usize = 64;

impl Server {
    /// Takes in an accepted connection. At the maximum another one is closed: the one that has been quiet for longest
    /// among the idle connections, or else among all.
    pub(in crate::server) fn open_http(&mut self) -> ConnId {
        let Self { core, connections } = self;
        // A connection without a request yet is about to send one.
        let is_idle = |one: &HttpConnection| one.is_idle() && one.has_requested;
        let open = || connections.all_http().filter(|one| one.state < HttpState::Closed);
        // `connect` gets no time. The latest activity of another connection is a lower bound for now.
        let active = open().map(|one| one.active).max().unwrap_or(Time::ZERO);
        if open().count() >= CONNECTIONS_MAX {
            let quiet = open().min_by_key(|one| (!is_idle(one), one.active)).expect("there are many");
            let conn = quiet.conn;
            core.close_http(connections.http(conn), active);
        }
        let conn = connections.open_http(|conn, number| HttpConnection::new(conn, number, active));
        self.count_tables();
        conn
    }

    pub(in crate::server) fn handle_http(&mut self, conn: ConnId, event: &Event<'_>, now: Time) {
        let Self { core, connections } = self;
        let connection = connections.http(conn);
        match *event {
            Event::Received { bytes, .. } => {
                connection.active = now;
                connection.received(bytes);
            }
            Event::InputEnded { .. } => connection.input_ended(),
            Event::Sent { bytes, .. } => {
                connection.active = now;
                connection.is_sending = false;
                connection.sent(bytes);
            }
            Event::HungUp { .. } => return core.close_http(connection, now),
            Event::Closed { .. } => {
                assert_eq!(
                    connection.state,
                    HttpState::Closed,
                    "a driver closes a connection only on Effect::Close"
                );
                connections.remove_http(conn);
                return self.count_tables();
            }
            Event::InputEnding { .. } => {}
            Event::ReceivedDirect { .. } => panic!("a driver receives only bodies directly"),
            Event::Drain | Event::Stop | Event::Disk(_) | Event::StatsSampled(_) | Event::DriverMemory(_) => {
                unreachable!("they name no connection")
            }
        }
        core.after_http(connection, now);
    }

    /// Runs the call of a connection from the queue of sessions.
    pub(in crate::server) fn run_http(&mut self, conn: ConnId, now: Time) {
        let Self { core, connections } = self;
        let Some(connection) = connections.find_http(conn) else { return };
        connection.is_queued = false;
        if connection.state < HttpState::Closed {
            core.run_call(connection, now);
            core.after_http(connection, now);
        }
    }

    /// Renders a piece of one page, if there is a page to render.
    pub(in crate::server) fn step_http(&mut self, now: Time) {
        let Self { core, connections } = self;
        let Some(conn) = core.ready_pages.pop_front() else { return };
        let needs_sample = connections.find_http(conn).is_some_and(|connection| connection.needs_sample());
        if needs_sample && !core.has_sample(now) {
            return core.await_sample(conn);
        }
        self.step_page(conn, now);
    }

    /// Renders a piece of the page of a connection, unless it has been closed.
    pub(in crate::server) fn step_page(&mut self, conn: ConnId, now: Time) {
        let Self { core, connections } = self;
        let Some(connection) = connections.find_http(conn) else { return };
        connection.is_queued = false;
        if connection.state < HttpState::Closed {
            connection.step(core, now);
            core.after_http(connection, now);
        }
    }
}

impl Core {
    /// Answers what can be answered, and brings the driver and the queues in line with it.
    pub(in crate::server) fn after_http(&mut self, connection: &mut HttpConnection, now: Time) {
        if connection.state == HttpState::Closed {
            return;
        }
        self.send_body(connection);
        connection.answer(self);
        if connection.take_wrong_token()
            && let Some(left_out) = self.wrong_tokens.admit(now)
        {
            let (conn, peer) = (connection.number, &connection.peer.name);
            warn!(conn, "an HTTP request from {peer} had a wrong token and was refused{left_out}");
        }
        if connection.is_cut_off() {
            return self.close_http(connection, now);
        }
        let conn = connection.conn;
        if !connection.is_queued {
            connection.is_queued = true;
            if connection.can_step() {
                self.ready_pages.push_back(conn);
            } else if connection.can_run() {
                self.ready_sessions.push_back(conn);
            } else {
                connection.is_queued = false;
            }
        }
        if connection.unsent_bytes() > 0 && !connection.is_sending {
            connection.is_sending = true;
            self.effects.push_back(Effect::Send(conn));
        }
        let is_full = connection.has_much_input();
        if is_full != connection.is_paused && connection.state == HttpState::Open {
            connection.is_paused = is_full;
            self.effects.push_back(if is_full { Effect::Pause(conn) } else { Effect::Resume(conn) });
        }
        if connection.state == HttpState::Closing && connection.is_idle() {
            self.close_http(connection, now);
        }
    }

    fn close_http(&mut self, connection: &mut HttpConnection, now: Time) {
        if connection.state != HttpState::Closed {
            connection.state = HttpState::Closed;
            self.abandon_call(connection, now);
            self.effects.push_back(Effect::Close(connection.conn));
        }
    }
}
