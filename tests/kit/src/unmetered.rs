//! A server behind TLS for which the memory of TLS may not count, so that a limit that is exact to some bytes means the same as
//! without TLS.

use std::convert::Infallible;
use std::io::IoSlice;
use std::rc::Rc;

use beanring::bodies::Bodies;
use beanring::server::{DriverCounts, Effect, Peer, Priced, Protocol, Server, Service, Users};
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

    fn accept(&mut self, protocol: Protocol) -> ConnId {
        self.server.accept(protocol)
    }

    fn set_peer(&mut self, now: Time, conn: ConnId, peer: Peer) {
        self.server.set_peer(now, conn, peer);
    }

    fn certified(&mut self, conn: ConnId, names: &[String]) {
        self.server.certified(conn, names);
    }

    fn replace_users(&mut self, users: Users) -> Option<Users> {
        self.server.replace_users(users)
    }

    fn users_refused(&mut self) {
        self.server.users_refused();
    }

    fn account(&self) -> Rc<Account> {
        if self.is_metered { self.server.account() } else { Rc::default() }
    }

    fn show_counts(&mut self, counts: Rc<dyn DriverCounts>) {
        self.server.show_counts(counts);
    }

    fn number(&self, conn: ConnId) -> u64 {
        self.server.number(conn)
    }

    fn budget(&mut self) -> &mut Budget {
        self.server.budget()
    }

    fn take(&mut self, now: Time, event: Priced<'_>) {
        self.server.take(now, event);
    }

    fn turn(&mut self, now: Time) {
        self.server.turn(now);
    }

    fn next_effect(&mut self) -> Option<Effect> {
        self.server.next_effect()
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

    fn log_request(&mut self, now: Time) -> Option<LogRequest> {
        self.server.log_request(now)
    }

    fn is_draining(&self) -> bool {
        self.server.is_draining()
    }

    fn is_settled(&self) -> bool {
        self.server.is_settled()
    }

    fn failure(&self) -> Option<String> {
        self.server.failure()
    }

    fn body_memory(&mut self) -> Option<&mut Bodies> {
        self.server.body_memory()
    }
}
