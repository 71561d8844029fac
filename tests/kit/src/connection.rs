//! The driver's end of a connection, without a kernel: its input, output and state.

use std::io::IoSlice;

use beanring::server::{Effect, Event, Service, handle};
use beanring::time::Time;
use beanring::values::ids::ConnId;

/// One connection between a client and a server in memory.
pub struct Connection {
    pub conn: ConnId,
    /// Bytes that the client has sent and the server has not received.
    pub unreceived: Vec<u8>,
    pub is_paused: bool,
    /// The client sends nothing more.
    pub is_half_closed: bool,
    has_reported_ending: bool,
    has_reported_end: bool,
    pub wants_send: bool,
    /// The send in flight: the address and the bytes of each slice.
    in_flight: Option<Vec<(usize, Vec<u8>)>>,
    /// Bytes that the client has received, and those that the server has shown for it.
    sent_bytes: usize,
    shown_bytes: usize,
    pub state: ConnectionState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectionState {
    Open,
    /// The server wants it closed. The driver cannot close it before its send has ended.
    Closing,
    Closed,
}

impl Connection {
    pub const fn new(conn: ConnId) -> Self {
        Self {
            conn,
            unreceived: Vec::new(),
            is_paused: false,
            is_half_closed: false,
            has_reported_ending: false,
            has_reported_end: false,
            wants_send: false,
            in_flight: None,
            sent_bytes: 0,
            shown_bytes: 0,
            state: ConnectionState::Open,
        }
    }

    /// Receives up to `bytes` of the input; with `direct`, straight into the body that the server names. Returns the received
    /// bytes.
    pub fn receive(
        &mut self,
        bytes: usize,
        direct: bool,
        server: &mut (impl Service + ?Sized),
        now: Time,
    ) -> Vec<u8> {
        let conn = self.conn;
        let mut count = bytes.min(self.unreceived.len());
        let place = server.direct(conn).filter(|_| direct).map(|place| {
            count = count.min(place.len());
            place[..count].copy_from_slice(&self.unreceived[..count]);
        });
        let received: Vec<u8> = self.unreceived.drain(..count).collect();
        handle(
            server,
            now,
            match place {
                Some(()) => Event::ReceivedDirect { conn, bytes: count },
                None => Event::Received { conn, bytes: &received },
            },
        );
        received
    }

    /// Returns the event that reports the end of the input, if one is due.
    pub fn end_of_input(&mut self) -> Option<Event<'static>> {
        let conn = self.conn;
        if !self.is_half_closed || self.has_reported_end {
            None
        } else if self.unreceived.is_empty() {
            (self.has_reported_ending, self.has_reported_end) = (true, true);
            Some(Event::InputEnded { conn })
        } else if self.is_paused && !self.has_reported_ending {
            self.has_reported_ending = true;
            Some(Event::InputEnding { conn })
        } else {
            None
        }
    }

    /// Records that the end of the input was reported before its last bytes.
    pub const fn note_ending(&mut self) {
        self.has_reported_ending = true;
    }

    /// Records an effect on this connection.
    ///
    /// # Panics
    /// If the effect contradicts the state: the connection is not open, or already paused or resumed.
    pub fn apply(&mut self, effect: &Effect) {
        assert!(self.is_open(), "{effect:?} on a connection that is not open");
        match effect {
            Effect::Send(_) => self.wants_send = true,
            Effect::Pause(_) => {
                assert!(!std::mem::replace(&mut self.is_paused, true), "the connection is already paused");
            }
            Effect::Resume(_) => {
                assert!(std::mem::replace(&mut self.is_paused, false), "the connection is not paused");
            }
            Effect::Close(_) => (self.state, self.wants_send) = (ConnectionState::Closing, false),
            other => panic!("{other:?} is not about a connection"),
        }
    }

    /// Closes a connection that is [`ConnectionState::Closing`] and has no send in flight. Returns whether it did.
    pub fn close(&mut self, server: &mut (impl Service + ?Sized), now: Time) -> bool {
        let can_close = self.state == ConnectionState::Closing && !self.is_sending();
        if can_close {
            self.state = ConnectionState::Closed;
            handle(server, now, Event::Closed { conn: self.conn });
        }
        can_close
    }

    /// Begins to send all that the server shows. Returns what it shows for the first time.
    pub fn begin_send(&mut self, server: &mut (impl Service + ?Sized)) -> Vec<u8> {
        let slices = slices(server, self.conn);
        if slices.is_empty() {
            self.wants_send = false;
            return Vec::new();
        }
        let bytes = concatenated(&slices);
        let known = self.shown_bytes - self.sent_bytes;
        assert!(bytes.len() >= known, "bytes that were shown and not sent are gone");
        self.shown_bytes = self.sent_bytes + bytes.len();
        self.in_flight = Some(slices);
        bytes[known..].to_vec()
    }

    /// Ends the send in flight after at least 1 and at most `bytes_max` bytes. Returns those; the caller reports them as
    /// [`Event::Sent`].
    ///
    /// # Panics
    /// If no send is in flight, or the server has moved or changed its bytes: until now the kernel may have read all.
    pub fn end_send(&mut self, bytes_max: usize, server: &mut (impl Service + ?Sized)) -> Vec<u8> {
        let before = self.in_flight.take().expect("a send is in flight");
        let after = slices(server, self.conn);
        for ((address, bytes), (address_now, bytes_now)) in before.iter().zip(&after) {
            assert_eq!(address, address_now, "bytes in flight have moved");
            assert!(bytes_now.starts_with(bytes), "bytes in flight have changed");
        }
        assert!(before.len() <= after.len(), "bytes in flight are gone");
        let mut sent = concatenated(&before);
        sent.truncate(bytes_max.max(1));
        self.sent_bytes += sent.len();
        sent
    }

    pub fn is_open(&self) -> bool {
        self.state == ConnectionState::Open
    }

    pub const fn is_sending(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Returns whether the end of the input has been reported, possibly before the server has received all input.
    pub const fn has_reported_ending(&self) -> bool {
        self.has_reported_ending
    }

    /// Returns whether the driver has input, or the end of it, to report.
    pub fn has_input(&self) -> bool {
        let ends = self.is_half_closed && !self.has_reported_end;
        let is_news = !self.is_paused && (!self.unreceived.is_empty() || ends);
        self.is_open() && (is_news || ends && !self.has_reported_ending && !self.unreceived.is_empty())
    }
}

/// Sends all that the server has for a connection. Returns it.
pub fn send_all(server: &mut (impl Service + ?Sized), conn: ConnId, now: Time) -> Vec<u8> {
    let mut sent = Vec::new();
    loop {
        let bytes = outgoing(server, conn);
        if bytes.is_empty() {
            return sent;
        }
        handle(server, now, Event::Sent { conn, bytes: bytes.len() });
        sent.extend(bytes);
    }
}

/// Returns the bytes that the server shows for a connection now.
pub fn outgoing(server: &mut (impl Service + ?Sized), conn: ConnId) -> Vec<u8> {
    concatenated(&slices(server, conn))
}

fn slices(server: &mut (impl Service + ?Sized), conn: ConnId) -> Vec<(usize, Vec<u8>)> {
    let mut slices: Vec<IoSlice<'_>> = Vec::new();
    server.outgoing(conn, &mut slices);
    slices.iter().map(|slice| (slice.as_ptr() as usize, slice.to_vec())).collect()
}

fn concatenated(slices: &[(usize, Vec<u8>)]) -> Vec<u8> {
    slices.iter().map(|(_, bytes)| bytes.as_slice()).collect::<Vec<_>>().concat()
}
