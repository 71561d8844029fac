//! A client's end of a connection, and what is on its way.

use std::io::IoSlice;

use beanring::ids::ConnId;
use beanring::server::{Event, Server, Service};
use beanring::time::Time;

/// One connection between a client and the server.
pub struct Link {
    pub conn: ConnId,
    /// Sent by the client and not arrived.
    pub wire: Vec<u8>,
    pub is_paused: bool,
    pub is_half_closed: bool,
    told_ending: bool,
    told_ended: bool,
    pub wants_send: bool,
    /// The send under way: where its bytes are, and what they are.
    sending: Option<Vec<(usize, Vec<u8>)>>,
    /// Bytes that the client has, and that have been shown for it.
    taken: usize,
    shown: usize,
    pub state: LinkState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkState {
    Open,
    /// The driver has been told to close it, and cannot before its send has ended.
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
            told_ending: false,
            told_ended: false,
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

    /// Whether something could arrive.
    pub fn has_input(&self) -> bool {
        let ends = self.is_half_closed && !self.told_ended;
        let is_news = !self.is_paused && (!self.wire.is_empty() || ends);
        self.is_open() && (is_news || ends && !self.told_ending && !self.wire.is_empty())
    }

    /// Brings up to so many bytes to the server. Returns how many.
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

    /// What the driver has to say of the end of the input, if that is news.
    pub fn news_of_end(&mut self) -> Option<Event<'static>> {
        let conn = self.conn;
        if !self.is_half_closed || self.told_ended {
            None
        } else if self.wire.is_empty() {
            (self.told_ending, self.told_ended) = (true, true);
            Some(Event::InputEnded { conn })
        } else if self.is_paused && !self.told_ending {
            self.told_ending = true;
            Some(Event::InputEnding { conn })
        } else {
            None
        }
    }

    /// Begins a send. Returns what the server shows for the first time.
    pub fn begin_send(&mut self, server: &mut Server) -> Vec<u8> {
        let slices = shown(server, self.conn);
        if slices.is_empty() {
            self.wants_send = false;
            return Vec::new();
        }
        let bytes: Vec<u8> = slices.iter().flat_map(|(_, bytes)| bytes).copied().collect();
        let known = self.shown - self.taken;
        assert!(bytes.len() >= known, "what was shown once is shown until it is sent");
        self.shown = self.taken + bytes.len();
        self.sending = Some(slices);
        bytes[known..].to_vec()
    }

    /// Ends the send: the kernel took so many bytes, if there were as many. Until now it may have read all of it.
    pub fn end_send(&mut self, bytes: usize, server: &mut Server, now: Time) {
        let before = self.sending.take().expect("a send is under way");
        let after = shown(server, self.conn);
        for ((place, bytes), (place_now, bytes_now)) in before.iter().zip(&after) {
            assert_eq!(place, place_now, "what is being sent has moved");
            assert!(bytes_now.starts_with(bytes), "what is being sent has changed");
        }
        assert!(before.len() <= after.len(), "what is being sent is gone");
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
