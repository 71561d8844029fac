//! All connections, by the slots under which drivers know them.

use slab::Slab;

use super::beanstalk::Session;
use super::client_state::SessionState;
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

enum Connection {
    Client(Box<Session>),
    Http(Box<HttpConnection>),
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

    /// Returns the number of an open connection in log lines.
    ///
    /// # Panics
    /// If the connection has been closed: a defect of the driver.
    pub fn number(&self, conn: ConnId) -> u64 {
        match &self.slab[conn.slot as usize] {
            Connection::Client(session) if session.conn == conn => session.output.number(),
            Connection::Http(connection) if connection.conn == conn => connection.number,
            _ => panic!("a driver names connections that are open"),
        }
    }

    /// Returns the user of a connection. Each request over HTTP may have another one.
    pub fn user(&self, conn: ConnId) -> Option<&User> {
        match self.slab.get(conn.slot as usize)? {
            Connection::Client(session) if session.conn == conn => {
                Some(&session.protocol.access.as_ref()?.user)
            }
            _ => None,
        }
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

    /// Returns the session in a slot, if it has one.
    pub fn client_at(&mut self, slot: usize) -> Option<&mut Session> {
        match self.slab.get_mut(slot) {
            Some(Connection::Client(session)) => Some(session),
            _ => None,
        }
    }

    /// Returns the HTTP connection in a slot, if it has one that is open.
    pub fn http_at(&mut self, slot: usize) -> Option<&mut HttpConnection> {
        match self.slab.get_mut(slot) {
            Some(Connection::Http(connection)) if connection.state < HttpState::Closed => Some(connection),
            _ => None,
        }
    }

    /// Whether the next turn of this connection stores a whole `put-batch`.
    pub fn is_storing(&self, conn: ConnId) -> bool {
        match self.slab.get(conn.slot as usize) {
            Some(Connection::Client(session)) if session.conn == conn => {
                session.protocol.state == SessionState::Storing
            }
            _ => false,
        }
    }

    /// Returns the session of a client that an event or a driver names.
    ///
    /// # Panics
    /// If the connection has been closed: a defect of the driver.
    #[inline]
    pub fn client(&mut self, conn: ConnId) -> &mut Session {
        self.find(conn).expect("a driver names connections that are open")
    }

    /// Returns an HTTP connection, unless it has been closed.
    pub fn find_http(&mut self, conn: ConnId) -> Option<&mut HttpConnection> {
        match self.slab.get_mut(conn.slot as usize) {
            Some(Connection::Http(connection)) if connection.conn == conn => Some(connection),
            _ => None,
        }
    }

    /// Returns the HTTP connection that an event or a driver names.
    ///
    /// # Panics
    /// If it has been closed: a defect of the driver.
    pub fn http(&mut self, conn: ConnId) -> &mut HttpConnection {
        self.find_http(conn).expect("a driver names connections that are open")
    }

    /// Removes a client connection that the driver has closed.
    pub fn remove_client(&mut self, conn: ConnId) -> Session {
        match self.slab.remove(conn.slot as usize) {
            Connection::Client(session) if session.conn == conn => *session,
            _ => panic!("a driver closes a connection once"),
        }
    }

    /// Removes an HTTP connection that the driver has closed.
    pub fn remove_http(&mut self, conn: ConnId) {
        match self.slab.remove(conn.slot as usize) {
            Connection::Http(connection) if connection.conn == conn => {
                // Bounded by CONNECTIONS_MAX: the HTTP connections.
                self.http.retain(|&slot| slot != conn.slot);
            }
            _ => panic!("a driver closes a connection once"),
        }
    }

    pub fn clients(&self) -> impl Iterator<Item = &Session> {
        // Bounded by its caller: an iterator, for tests.
        self.slab.iter().filter_map(|(_, connection)| match connection {
            Connection::Client(session) => Some(&**session),
            Connection::Http(_) => None,
        })
    }

    pub fn clients_mut(&mut self) -> impl Iterator<Item = &mut Session> {
        // Bounded by its caller: an iterator, for the end of the server.
        self.slab.iter_mut().filter_map(|(_, connection)| match connection {
            Connection::Client(session) => Some(&mut **session),
            Connection::Http(_) => None,
        })
    }

    /// Looks at all connections.
    pub fn all_http_mut(&mut self) -> impl Iterator<Item = &mut HttpConnection> {
        // Bounded by its caller: an iterator, for the end of the server.
        self.slab.iter_mut().filter_map(|(_, connection)| match connection {
            Connection::Client(_) => None,
            Connection::Http(connection) => Some(&mut **connection),
        })
    }

    pub fn all_http(&self) -> impl Iterator<Item = &HttpConnection> {
        // Bounded by CONNECTIONS_MAX: the HTTP connections.
        self.http.iter().map(|&slot| match &self.slab[slot as usize] {
            Connection::Http(connection) => &**connection,
            Connection::Client(_) => panic!("the list of HTTP slots is exact"),
        })
    }
}
