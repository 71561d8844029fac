//! A client's end of a connection, and the bytes in transit.

use std::io::IoSlice;

use beanring::ids::ConnId;
use beanring::server::{Event, Server, Service};
use beanring::time::Time;

/// One connection between a client and the server.
pub struct Link {
    pub conn: ConnId,
    /// Bytes that the client has sent and that have not arrived.
    pub wire: Vec<u8>,
    pub is_paused: bool,
    pub is_half_closed: bool,
    reported_ending: bool,
    reported_ended: bool,
    pub wants_send: bool,
    /// The current send: the addresses of its slices and copies of their bytes.
    sending: Option<Vec<(usize, Vec<u8>)>>,
    /// Bytes that the kernel took.
    taken: usize,
    /// Bytes that the server has shown for a send.
    shown: usize,
    pub state: LinkState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkState {
    Open,
    /// The driver must close it, but cannot before its send has ended.
    Closing,
    Closed,
}

impl Link {
    pub const fn new(conn: ConnId) -> Self {
        Self {
            conn,
            wire: Vec::new(),
            is_paused: false,
            is_half_closed: false,
            reported_ending: false,
            reported_ended: false,
            wants_send: false,
            sending: None,
            taken: 0,
            shown: 0,
            state: LinkState::Open,
        }
    }

    pub fn is_open(&self) -> bool {
        self.state == LinkState::Open
    }

    pub const fn is_sending(&self) -> bool {
        self.sending.is_some()
    }

    /// Whether anything can arrive.
    pub fn has_input(&self) -> bool {
        let ends = self.is_half_closed && !self.reported_ended;
        let can_receive = !self.is_paused && (!self.wire.is_empty() || ends);
        self.is_open() && (can_receive || ends && !self.reported_ending && !self.wire.is_empty())
    }

    /// Delivers up to `bytes` bytes to the server. Returns the number delivered.
    pub fn deliver(&mut self, bytes: usize, direct: bool, server: &mut Server, now: Time) -> usize {
        let conn = self.conn;
        let mut count = bytes.min(self.wire.len());
        if let Some(place) = server.direct(conn).filter(|_| direct) {
            count = count.min(place.len());
            place[..count].copy_from_slice(&self.wire[..count]);
            server.handle(now, Event::ReceivedDirect { conn, bytes: count });
        } else {
            server.handle(now, Event::Received { conn, bytes: &self.wire[..count] });
        }
        self.wire.drain(..count);
        count
    }

    /// Returns the event that the end of the input requires, if the driver has not sent it yet.
    pub fn end_event(&mut self) -> Option<Event<'static>> {
        let conn = self.conn;
        if !self.is_half_closed || self.reported_ended {
            None
        } else if self.wire.is_empty() {
            (self.reported_ending, self.reported_ended) = (true, true);
            Some(Event::InputEnded { conn })
        } else if self.is_paused && !self.reported_ending {
            self.reported_ending = true;
            Some(Event::InputEnding { conn })
        } else {
            None
        }
    }

    /// Begins a send. Returns the bytes that the server shows for the first time.
    pub fn begin_send(&mut self, server: &mut Server) -> Vec<u8> {
        let slices = shown(server, self.conn);
        if slices.is_empty() {
            self.wants_send = false;
            return Vec::new();
        }
        let bytes: Vec<u8> = slices.iter().flat_map(|(_, bytes)| bytes).copied().collect();
        let known = self.shown - self.taken;
        assert!(bytes.len() >= known, "the server shows bytes until they are sent");
        self.shown = self.taken + bytes.len();
        self.sending = Some(slices);
        bytes[known..].to_vec()
    }

    /// Ends the send: the kernel took `bytes` bytes, at least one and at most all. It may have read any of them until now.
    pub fn end_send(&mut self, bytes: usize, server: &mut Server, now: Time) {
        let before = self.sending.take().expect("a send is in progress");
        let after = shown(server, self.conn);
        for ((place, bytes), (place_now, bytes_now)) in before.iter().zip(&after) {
            assert_eq!(place, place_now, "bytes in flight have moved");
            assert!(bytes_now.starts_with(bytes), "bytes in flight have changed");
        }
        assert!(before.len() <= after.len(), "bytes in flight are gone");
        let length = before.iter().map(|(_, bytes)| bytes.len()).sum();
        let count = bytes.clamp(1, length);
        self.taken += count;
        if self.is_open() {
            server.handle(now, Event::Sent { conn: self.conn, bytes: count });
        }
    }
}

fn shown(server: &mut Server, conn: ConnId) -> Vec<(usize, Vec<u8>)> {
    let mut slices: Vec<IoSlice<'_>> = Vec::new();
    server.outgoing(conn, &mut slices);
    slices.iter().map(|slice| (slice.as_ptr() as usize, slice.to_vec())).collect()
}
