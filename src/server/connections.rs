//! All connections, whatever is spoken over them, by the slots that drivers know them by.

use std::ops::{Index, IndexMut};

use slab::Slab;

use super::http::Exchange;
use super::session::Session;
use crate::ids::ConnId;

/// All connections.
#[derive(Default)]
pub(super) struct Connections {
    slab: Slab<Connection>,
    /// The slots where HTTP is spoken: few, and looked for every turn among very many.
    http: Vec<usize>,
    /// Generation of the last connection.
    generation: u32,
}

enum Connection {
    Client(Box<Session>),
    Http(Box<Exchange>),
}

impl Connections {
    /// What one of them takes in the table.
    pub const ENTRY_BYTES: usize = size_of::<(usize, Connection)>();

    pub fn open_client(&mut self, make: impl FnOnce(ConnId) -> Session) -> ConnId {
        self.open(|conn| Connection::Client(Box::new(make(conn))))
    }

    pub fn open_http(&mut self, make: impl FnOnce(ConnId) -> Exchange) -> ConnId {
        let conn = self.open(|conn| Connection::Http(Box::new(make(conn))));
        self.http.push(conn.slot as usize);
        conn
    }

    fn open(&mut self, make: impl FnOnce(ConnId) -> Connection) -> ConnId {
        self.generation = self.generation.wrapping_add(1);
        let entry = self.slab.vacant_entry();
        let conn = ConnId { slot: entry.key() as u32, generation: self.generation };
        entry.insert(make(conn));
        conn
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// How many the table has room for.
    pub fn capacity(&self) -> usize {
        self.slab.capacity()
    }

    /// The session of a client, unless it has been closed.
    pub fn get(&self, conn: ConnId) -> Option<&Session> {
        match self.slab.get(conn.slot as usize) {
            Some(Connection::Client(session)) if session.conn == conn => Some(session),
            _ => None,
        }
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, conn: ConnId) -> Option<&mut Session> {
        match self.slab.get_mut(conn.slot as usize) {
            Some(Connection::Client(session)) if session.conn == conn => Some(session),
            _ => None,
        }
    }

    /// Where HTTP is spoken, unless it has been closed or is the connection of a client.
    pub fn http_mut(&mut self, conn: ConnId) -> Option<&mut Exchange> {
        match self.slab.get_mut(conn.slot as usize) {
            Some(Connection::Http(exchange)) if exchange.conn == conn => Some(exchange),
            _ => None,
        }
    }

    pub fn is_http(&self, conn: ConnId) -> bool {
        matches!(self.slab.get(conn.slot as usize), Some(Connection::Http(_)))
    }

    /// The driver has closed the connection of a client.
    pub fn close_client(&mut self, conn: ConnId) -> Session {
        match self.slab.remove(conn.slot as usize) {
            Connection::Client(session) if session.conn == conn => *session,
            _ => panic!("an event names a connection that is open"),
        }
    }

    /// The driver has closed one where HTTP was spoken.
    pub fn close_http(&mut self, conn: ConnId) {
        match self.slab.remove(conn.slot as usize) {
            Connection::Http(exchange) if exchange.conn == conn => {
                self.http.retain(|&slot| slot != conn.slot as usize);
            }
            _ => panic!("an event names a connection that is open"),
        }
    }

    pub fn clients(&self) -> impl Iterator<Item = &Session> {
        self.slab.iter().filter_map(|(_, connection)| match connection {
            Connection::Client(session) => Some(&**session),
            Connection::Http(_) => None,
        })
    }

    pub fn exchanges(&self) -> impl Iterator<Item = &Exchange> {
        self.http.iter().map(|&slot| match &self.slab[slot] {
            Connection::Http(exchange) => &**exchange,
            Connection::Client(_) => panic!("the slots of HTTP are known"),
        })
    }
}

impl Index<ConnId> for Connections {
    type Output = Session;

    /// The session of a client.
    ///
    /// # Panics
    /// If it has been closed: a defect of the driver.
    fn index(&self, conn: ConnId) -> &Session {
        self.get(conn).expect("an event names a connection that is open")
    }
}

impl IndexMut<ConnId> for Connections {
    fn index_mut(&mut self, conn: ConnId) -> &mut Session {
        self.get_mut(conn).expect("an event names a connection that is open")
    }
}
