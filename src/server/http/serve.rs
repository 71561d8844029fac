//! The connections where HTTP is spoken, beside those of clients.

use crate::ids::ConnId;
use crate::limits::HTTP_CONNECTIONS_MAX;
use crate::server::http::{Exchange, Phase};
use crate::server::{Effect, Event, Server};
use crate::time::Time;

impl Server {
    /// A connection was accepted where HTTP is spoken. If there are too many, one makes room: the one that has been
    /// silent longest of those that have nothing to do, or else of all.
    pub(in crate::server) fn open_http(&mut self) -> ConnId {
        // Who has just come is about to ask.
        let is_done = |one: &Exchange| one.is_idle() && one.has_asked;
        let open = || self.sessions.exchanges().filter(|one| one.phase < Phase::Closed);
        // It has just come: nobody has been active later.
        let active = open().map(|one| one.active).max().unwrap_or(Time::ZERO);
        if open().count() >= HTTP_CONNECTIONS_MAX {
            let silent = open().min_by_key(|one| (!is_done(one), one.active)).expect("there are many");
            let conn = silent.conn;
            self.close_http(conn);
        }
        let conn = self.sessions.open_http(|conn| Exchange::new(conn, active));
        self.weigh_tables();
        conn
    }

    /// Something happened on such a connection.
    pub(in crate::server) fn http_event(&mut self, conn: ConnId, event: &Event<'_>, now: Time) {
        let Self { core, sessions, .. } = self;
        let exchange = sessions.http_mut(conn).expect("an event names a connection that is open");
        match *event {
            Event::Received { bytes, .. } => {
                exchange.active = now;
                exchange.received(bytes, core);
            }
            Event::InputEnded { .. } => exchange.input_ended(core),
            Event::Sent { bytes, .. } => {
                exchange.active = now;
                exchange.is_sending = false;
                exchange.sent(bytes, core);
            }
            Event::HungUp { .. } => return self.close_http(conn),
            Event::Closed { .. } => {
                assert_eq!(exchange.phase, Phase::Closed, "a driver closes what it was told to");
                sessions.close_http(conn);
                return self.weigh_tables();
            }
            Event::InputEnding { .. } => {}
            Event::ReceivedDirect { .. } => panic!("only the bytes of a body are received directly"),
            Event::Drain | Event::Stop | Event::Disk(_) | Event::StatsSampled(_) | Event::DriverMemory(_) => {
                unreachable!("they are not of a connection")
            }
        }
        self.after_http(conn);
    }

    /// Renders a piece of a page that was asked for, if there is one.
    pub(in crate::server) fn step_http(&mut self, now: Time) {
        let Some(conn) = self.pages.pop_front() else { return };
        let Self { core, sessions, effects, sample_waiters, .. } = self;
        if sessions.http_mut(conn).is_some_and(|exchange| exchange.needs_sample()) && !core.has_sample(now) {
            return Self::await_sample(sample_waiters, effects, conn);
        }
        self.step_page(conn, now);
    }

    /// Renders a piece of the page that a connection waits for, unless it was closed.
    pub(in crate::server) fn step_page(&mut self, conn: ConnId, now: Time) {
        let Self { core, sessions, .. } = self;
        let Some(exchange) = sessions.http_mut(conn) else { return };
        exchange.is_queued = false;
        if exchange.phase < Phase::Closed {
            exchange.step(core, now);
            self.after_http(conn);
        }
    }

    fn after_http(&mut self, conn: ConnId) {
        let Self { sessions, effects, pages, .. } = self;
        let exchange = sessions.http_mut(conn).expect("it is open");
        if exchange.phase == Phase::Closed {
            return;
        }
        if exchange.wants_step() && !exchange.is_queued {
            exchange.is_queued = true;
            pages.push_back(conn);
        }
        if exchange.pending() > 0 && !exchange.is_sending {
            exchange.is_sending = true;
            effects.push_back(Effect::Send(conn));
        }
        if exchange.phase == Phase::Closing && exchange.is_idle() {
            self.close_http(conn);
        }
    }

    fn close_http(&mut self, conn: ConnId) {
        let exchange = self.sessions.http_mut(conn).expect("it is open");
        if exchange.phase != Phase::Closed {
            exchange.phase = Phase::Closed;
            self.effects.push_back(Effect::Close(conn));
        }
    }
}
