//! All connections, by the slots under which drivers know them.

use slab::Slab;

use super::beanstalk::Session;
use super::client_state::SessionState;
use super::commit_gate::Output;
use super::http::{HttpConnection, HttpState};
use super::users::User;
use crate::values::ids::ConnId;

/// All connections. The [`ConnId`] tells the kind of a connection; both kinds share the slots, which drivers index by.
#[derive(Default)]
pub(super) struct Connections {
    slab: Slab<Connection>,
    /// The slots of HTTP connections: few, and looked for in every iteration among very many.
    http: Vec<u32>,
    /// Connections opened so far.
    opened: u64,
}

pub(super) enum Connection {
    Client(Box<Session>),
    Http(Box<HttpConnection>),
}

impl Connection {
    fn conn(&self) -> ConnId {
        match self {
            Self::Client(session) => session.conn,
            Self::Http(connection) => connection.conn,
        }
    }

    pub fn output(&mut self) -> &mut Output {
        match self {
            Self::Client(session) => &mut session.output,
            Self::Http(connection) => &mut connection.output,
        }
    }
}

impl Connections {
    /// The size of an entry of the table.
    pub const ENTRY_BYTES: usize = size_of::<(usize, Connection)>();

    /// Adds the session that `make` returns for an id and a number.
    pub fn open_client(&mut self, make: impl FnOnce(ConnId, u64) -> Session) -> ConnId {
        self.opened += 1;
        let entry = self.slab.vacant_entry();
        let conn = ConnId::client(entry.key() as u32, self.opened as u32);
        entry.insert(Connection::Client(Box::new(make(conn, self.opened))));
        conn
    }

    /// Opens an HTTP connection.
    pub fn open_http(&mut self, make: impl FnOnce(ConnId, u64) -> HttpConnection) -> ConnId {
        self.opened += 1;
        let entry = self.slab.vacant_entry();
        let conn = ConnId::http(entry.key() as u32, self.opened as u32);
        entry.insert(Connection::Http(Box::new(make(conn, self.opened))));
        self.http.push(conn.slot);
        conn
    }

    pub fn len(&self) -> usize {
        self.slab.len()
    }

    pub fn capacity(&self) -> usize {
        self.slab.capacity()
    }

    fn session(&self, conn: ConnId) -> Option<&Session> {
        match self.slab.get(conn.slot as usize) {
            Some(Connection::Client(session)) if session.conn == conn => Some(session),
            _ => None,
        }
    }

    /// Returns the output of a connection that a driver names.
    ///
    /// # Panics
    /// If the connection has been closed: a defect of the driver.
    pub fn output(&mut self, conn: ConnId) -> &mut Output {
        if conn.is_http() { &mut self.http(conn).output } else { &mut self.client(conn).output }
    }

    /// Returns the number of an open connection in log lines.
    ///
    /// # Panics
    /// If the connection has been closed: a defect of the driver.
    pub fn number(&self, conn: ConnId) -> u64 {
        match &self.slab[conn.slot as usize] {
            Connection::Client(session) if session.conn == conn => session.output.number(),
            Connection::Http(connection) if connection.conn == conn => connection.output.number(),
            _ => panic!("a driver names connections that are open"),
        }
    }

    /// Returns the user of a connection. Each request over HTTP may have another one.
    pub fn user(&self, conn: ConnId) -> Option<&User> {
        Some(&self.session(conn)?.protocol.access.as_ref()?.user)
    }

    /// Returns the session of a client, unless the connection has been closed.
    #[inline]
    pub fn find(&mut self, conn: ConnId) -> Option<&mut Session> {
        match self.slab.get_mut(conn.slot as usize) {
            // mutant generation-not-looked-at: session.conn == conn => true
            Some(Connection::Client(session)) if session.conn == conn => Some(session),
            _ => None,
        }
    }

    /// Returns the connection in a slot, if it has one.
    pub fn at(&mut self, slot: usize) -> Option<&mut Connection> {
        self.slab.get_mut(slot)
    }

    /// Whether the next turn of this connection stores a whole `put-batch`.
    pub fn is_storing(&self, conn: ConnId) -> bool {
        self.session(conn).is_some_and(|session| session.protocol.state == SessionState::Storing)
    }

    /// Returns the session of a client that an event or a driver names.
    ///
    /// # Panics
    /// If the connection has been closed: a defect of the driver.
    #[inline]
    pub fn client(&mut self, conn: ConnId) -> &mut Session {
        self.find(conn).expect("a driver names connections that are open")
    }

    /// Returns an HTTP connection, unless it is closed.
    pub fn find_http(&mut self, conn: ConnId) -> Option<&mut HttpConnection> {
        self.known_http(conn).filter(|connection| connection.state < HttpState::Closed)
    }

    fn known_http(&mut self, conn: ConnId) -> Option<&mut HttpConnection> {
        match self.slab.get_mut(conn.slot as usize) {
            Some(Connection::Http(connection)) if connection.conn == conn => Some(connection),
            _ => None,
        }
    }

    /// Returns the HTTP connection that an event or a driver names.
    ///
    /// # Panics
    /// If the driver has closed it: a defect of the driver.
    pub fn http(&mut self, conn: ConnId) -> &mut HttpConnection {
        self.known_http(conn).expect("a driver names connections that are open")
    }

    /// Removes a connection that the driver has closed.
    pub fn remove(&mut self, conn: ConnId) -> Connection {
        let removed = self.slab.remove(conn.slot as usize);
        assert_eq!(removed.conn(), conn, "a driver closes a connection once");
        if conn.is_http() {
            // Bounded by HTTP_CONNECTIONS_MAX: the HTTP connections.
            self.http.retain(|&slot| slot != conn.slot);
        }
        removed
    }

    pub fn clients(&self) -> impl Iterator<Item = &Session> {
        // Bounded by its caller: an iterator, for tests.
        self.slab.iter().filter_map(|(_, connection)| match connection {
            Connection::Client(session) => Some(&**session),
            Connection::Http(_) => None,
        })
    }

    pub fn all_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        // Bounded by its caller: an iterator, for the end of the server.
        self.slab.iter_mut().map(|(_, connection)| connection)
    }

    pub fn all_http(&self) -> impl Iterator<Item = &HttpConnection> {
        // Bounded by HTTP_CONNECTIONS_MAX: the HTTP connections.
        self.http.iter().map(|&slot| match &self.slab[slot as usize] {
            Connection::Http(connection) => &**connection,
            Connection::Client(_) => panic!("the list of HTTP slots is exact"),
        })
    }
}
