//! A server behind TLS for which the memory of TLS may not count, so that a limit that is exact to some bytes means the same as
//! without TLS.

use std::convert::Infallible;
use std::io::IoSlice;
use std::rc::Rc;

use beanring::bodies::Bodies;
use beanring::server::{ConnNames, Effect, Entry, Priced, Protocol, Server, Service, Status, Update, Users};
use beanring::time::Time;
use beanring::values::account::Account;
use beanring::values::budget::Budget;
use beanring::values::ids::ConnId;
use beanring::wal::LogRequest;

/// A server, and whether it learns of the memory of TLS.
pub struct Unmetered {
    pub server: Server,
    pub is_metered: bool,
}

impl Service for Unmetered {
    type Identity = Infallible;

    fn accept(&mut self, now: Time, protocol: Protocol, entry: Entry) -> ConnId {
        self.server.accept(now, protocol, entry)
    }

    fn handle_event(&mut self, now: Time, event: Priced<'_>) {
        self.server.handle_event(now, event);
    }

    fn update(&mut self, now: Time, update: Update<Infallible>) -> Option<Users> {
        self.server.update(now, update)
    }

    fn turn(&mut self, now: Time) {
        self.server.turn(now);
    }

    fn poll_effect(&mut self) -> Option<Effect> {
        self.server.poll_effect()
    }

    fn next_deadline(&self) -> Option<Time> {
        self.server.next_deadline()
    }

    fn direct(&mut self, conn: ConnId) -> Option<&mut [u8]> {
        self.server.direct(conn)
    }

    fn outgoing<'a>(&'a mut self, conn: ConnId, slices: &mut Vec<IoSlice<'a>>) {
        self.server.outgoing(conn, slices);
    }

    fn poll_log_request(&mut self, now: Time) -> Option<LogRequest> {
        self.server.poll_log_request(now)
    }

    fn names(&self, conn: ConnId) -> ConnNames<'_> {
        self.server.names(conn)
    }

    fn status(&self) -> Status {
        self.server.status()
    }

    fn budget(&mut self) -> &mut Budget {
        self.server.budget()
    }

    fn account(&self) -> Rc<Account> {
        if self.is_metered { self.server.account() } else { Rc::default() }
    }

    fn body_memory(&mut self) -> Option<&mut Bodies> {
        self.server.body_memory()
    }
}
