//! The PROXY protocol, version 2: the first bytes of a connection from a load balancer tell who its client is.
//!
//! Source: haproxy.org, `doc/proxy-protocol.txt`, section 2.2.

use core::net::{IpAddr, SocketAddr};
use std::collections::{HashMap, HashSet};

use ppp::v2::{Addresses, Command, Header, ParseError};
use tracing::debug;

use super::forwarded::{HOP_BYTES_MAX, Inbound, admit};
use super::reading::LATE_MAX;
use super::shares::{Key, Shares};
use super::{HANDSHAKES_MAX, Transport};
use crate::server::{ClientAct, Effect, Event, Origin, Peer, PeerKind, Service, handle, increment};
use crate::time::Time;
use crate::values::budget::Cost;
use crate::values::ids::ConnId;
use crate::values::peer_wait::PeerWait;

/// The longest header without its first 16 bytes. A balancer that adds the certificate of its client sends some thousand bytes.
const HEADER_BYTES_MAX: usize = 4 * 1024;

/// The first bytes of a header, which tell the length of the rest.
const FIXED_BYTES: usize = 16;

/// The maximum number of unfinished headers of standbys. After a take-over a standby forwards all of its clients at once, and a driver
/// may accept many of them before it receives the first header.
const HOPS_MAX: usize = 4 * 1024;

/// What a connection takes of memory for the name of its peer, with its entry in the table.
const NAME_BYTES: usize = 160;

/// The connections of listeners for load balancers, and of that for standbys.
pub(super) struct Proxied {
    /// Connections whose header is not complete.
    unfinished: HashMap<ConnId, Unfinished>,
    balanced: Shares,
    forwarded: Shares,
    /// Connections of standbys that only watch this server. They have no input.
    watches: HashSet<ConnId>,
    /// Who the peers of the others are, unless it is the load balancer itself.
    names: HashMap<ConnId, Box<str>>,
}

struct Unfinished {
    received: Vec<u8>,
    sender: Sender,
    key: Key,
}

/// The sender of a header.
pub(super) struct Sender {
    /// The load balancer, or the standby.
    pub peer: Peer,
    /// A standby, whose header must show the secret.
    pub is_standby: bool,
    /// TLS begins after the header of the load balancer.
    pub has_tls: bool,
}

/// What the first bytes of a connection are.
#[derive(PartialEq, Debug)]
enum Preamble {
    Incomplete,
    /// No header, or one that this server does not take.
    Wrong,
    Complete {
        bytes: usize,
        /// The client. None: the load balancer itself, which checks whether the server lives.
        client: Option<Peer>,
    },
}

impl Default for Proxied {
    fn default() -> Self {
        Self {
            unfinished: HashMap::new(),
            balanced: Shares::new(HANDSHAKES_MAX, PeerWait::Header.within()),
            forwarded: Shares::new(HOPS_MAX, PeerWait::Header.within()),
            watches: HashSet::new(),
            names: HashMap::new(),
        }
    }
}

impl Proxied {
    /// Whether input of a connection is not for the server.
    pub fn is_unfinished(&self, conn: ConnId) -> bool {
        !self.unfinished.is_empty() && self.unfinished.contains_key(&conn)
            || !self.watches.is_empty() && self.watches.contains(&conn)
    }

    /// The peer of a connection, if a load balancer has told it.
    pub fn name(&self, conn: ConnId) -> Option<&str> {
        self.names.get(&conn).map(|name| &**name)
    }

    pub fn next_deadline(&self) -> Option<Time> {
        [&self.balanced, &self.forwarded].into_iter().filter_map(Shares::next_deadline).min()
    }

    /// Memory in bytes.
    pub fn bytes(&self) -> usize {
        let one = NAME_BYTES + size_of::<Unfinished>() + FIXED_BYTES;
        (self.names.len() + self.watches.len()) * NAME_BYTES
            + self.balanced.bytes()
            + self.balanced.len() * (one + HEADER_BYTES_MAX)
            + self.forwarded.bytes()
            + self.forwarded.len() * (one + HOP_BYTES_MAX)
    }

    fn shares(&mut self, sender: &Sender) -> &mut Shares {
        if sender.is_standby { &mut self.forwarded } else { &mut self.balanced }
    }

    /// A header that is late.
    fn next_late(&self, now: Time) -> Option<ConnId> {
        self.balanced.next_late(now).or_else(|| self.forwarded.next_late(now))
    }

    fn insert(&mut self, conn: ConnId, sender: Sender, now: Time) {
        let key = self.shares(&sender).insert(conn, sender.peer.origin, now);
        self.unfinished.insert(conn, Unfinished { received: Vec::new(), sender, key });
    }

    fn finish(&mut self, conn: ConnId) -> Option<Unfinished> {
        let finished = self.unfinished.remove(&conn)?;
        self.shares(&finished.sender).remove(finished.key);
        Some(finished)
    }

    /// Forgets a connection that the driver has closed.
    pub fn remove(&mut self, conn: ConnId) {
        self.finish(conn);
        self.names.remove(&conn);
        self.watches.remove(&conn);
    }
}

impl<S: Service> Transport<S> {
    /// Expects a header of this sender before anything else of a connection.
    pub(super) fn expect(&mut self, conn: ConnId, sender: Sender) {
        if let Some(surplus) = self.proxied.shares(&sender).surplus(sender.peer.origin) {
            self.refuse_header(surplus);
        }
        self.proxied.insert(conn, sender, self.now);
        self.count_headers();
    }

    /// Handles an event of a connection whose header is not complete.
    pub(super) fn handle_unfinished(&mut self, conn: ConnId, event: &Event<'_>) {
        match *event {
            Event::Received { .. } | Event::InputEnded { .. } | Event::HungUp { .. }
                if self.proxied.watches.remove(&conn) =>
            {
                handle(&mut self.server, self.now, Event::HungUp { conn });
            }
            Event::Received { bytes, .. } => self.header_input(conn, bytes),
            Event::InputEnding { .. } | Event::Sent { .. } => {}
            Event::ReceivedDirect { .. } => unreachable!("a header has no place in a body"),
            Event::InputEnded { .. } | Event::HungUp { .. } => self.refuse_header(conn),
            _ => {
                self.proxied.remove(conn);
                self.count_headers();
                handle(&mut self.server, self.now, Event::Closed { conn });
            }
        }
    }

    fn header_input(&mut self, conn: ConnId, bytes: &[u8]) {
        let Proxied { unfinished, balanced, forwarded, .. } = &mut self.proxied;
        let Unfinished { received, sender, key } =
            unfinished.get_mut(&conn).expect("the header is not complete");
        let (shares, rest_max) =
            if sender.is_standby { (forwarded, HOP_BYTES_MAX) } else { (balanced, HEADER_BYTES_MAX) };
        shares.note_input(*key);
        let bytes_max = FIXED_BYTES + rest_max;
        // More than the longest header is not kept: what follows it waits in the buffer of the driver.
        let (own, rest) = bytes.split_at(bytes.len().min(bytes_max - received.len()));
        received.reserve_exact(own.len());
        received.extend_from_slice(own);
        self.server.budget().charge(Cost::parsed(received.len()));
        match preamble(received, rest_max) {
            // mutant proxy-plaintext-before-its-header: self.refuse_header(conn) => self.finish_header(conn, 0, None)
            Preamble::Wrong => self.refuse_header(conn),
            Preamble::Incomplete => {}
            Preamble::Complete { bytes, client } => {
                self.finish_header(conn, bytes, client);
                if !rest.is_empty() {
                    self.handle(self.now, Event::Received { conn, bytes: rest });
                }
            }
        }
    }

    /// Continues a connection whose header is complete.
    fn finish_header(&mut self, conn: ConnId, bytes: usize, client: Option<Peer>) {
        let unfinished = &self.proxied.unfinished[&conn];
        let inbound = if unfinished.sender.is_standby {
            let secret = self.link_secret.map(|secret| secret.shown);
            match admit(&unfinished.received[..bytes], secret) {
                None => return self.refuse_header(conn),
                Some(inbound @ Inbound { has_tls, .. }) if !self.takes(inbound) => {
                    return self.refuse_header_as(conn, ClientAct::WrongForwardKind { has_tls });
                }
                inbound => inbound,
            }
        } else {
            None
        };
        let Unfinished { received, sender, .. } =
            self.proxied.finish(conn).expect("the header was not complete");
        if let Some(client) = &client {
            let by = if sender.is_standby { "forwarded by a standby" } else { "behind a load balancer" };
            debug!(conn = self.server.names(conn).number, peer = client.name, "{by}");
            self.proxied.names.insert(conn, client.name.as_str().into());
        }
        self.count_headers();
        let origin = client.as_ref().map_or(sender.peer.origin, |client| client.origin);
        let has_tls = match inbound {
            None => {
                if conn.is_http() {
                    let peer = &client.unwrap_or(sender.peer);
                    handle(&mut self.server, self.now, Event::Peer { conn, peer });
                }
                sender.has_tls
            }
            Some(Inbound { is_watch: true, .. }) => {
                self.proxied.watches.insert(conn);
                false
            }
            Some(Inbound { has_tls, is_proxied: true, .. }) => {
                let balancer = client.unwrap_or_else(Peer::unknown);
                self.expect(conn, Sender { has_tls, peer: Peer { origin, ..balancer }, is_standby: false });
                false
            }
            Some(Inbound { has_tls, .. }) => has_tls,
        };
        if has_tls {
            self.begin_tls(conn, origin);
        }
        if bytes < received.len() {
            self.handle(self.now, Event::Received { conn, bytes: &received[bytes..] });
        }
    }

    /// Whether a listener of this server would take such a client. Without one for plaintext, a client must prove by TLS who it is, also
    /// behind a standby.
    const fn takes(&self, inbound: Inbound) -> bool {
        if inbound.has_tls {
            self.identity.is_some()
        } else {
            inbound.is_watch || !self.refuses_clear_clients
        }
    }

    fn refuse_header(&mut self, conn: ConnId) {
        let is_hop = self.proxied.unfinished.get(&conn).is_some_and(|header| header.sender.is_standby);
        let act = if is_hop { ClientAct::WrongForwardSecret } else { ClientAct::WrongProxyHeader };
        self.refuse_header_as(conn, act);
    }

    fn refuse_header_as(&mut self, conn: ConnId, act: ClientAct) {
        self.proxied.finish(conn);
        self.count_headers();
        increment(&self.counts.wrong_proxy_headers);
        self.effects.push_back(Effect::LogClient(conn, act));
        handle(&mut self.server, self.now, Event::HungUp { conn });
    }

    /// Ends connections whose header takes too long.
    pub(super) fn end_late_headers(&mut self) {
        // Bounded by LATE_MAX: the connections that end in an event-loop iteration.
        for _ in 0..LATE_MAX {
            let Some(conn) = self.proxied.next_late(self.now) else { return };
            self.refuse_header(conn);
        }
    }
}

/// Reads a header. After its first 16 bytes it has at most `bytes_max`.
fn preamble(received: &[u8], bytes_max: usize) -> Preamble {
    match Header::try_from(received) {
        Ok(header) => {
            let client = match header.addresses {
                Addresses::IPv4(from) => peer((from.source_address, from.source_port).into()),
                Addresses::IPv6(from) => peer((from.source_address, from.source_port).into()),
                Addresses::Unix(_) => Peer::new(PeerKind::Network, "unix"),
                // A client whose address the balancer does not tell.
                Addresses::Unspecified => Peer::unknown(),
            };
            let client = Some(client).filter(|_| header.command == Command::Proxy);
            Preamble::Complete { bytes: header.len(), client }
        }
        Err(ParseError::Incomplete(_)) => Preamble::Incomplete,
        Err(ParseError::Partial(_, length)) if length <= bytes_max => Preamble::Incomplete,
        Err(_) => Preamble::Wrong,
    }
}

/// A client that a load balancer names. Its address is never one of this machine: the balancer may run here, and the client does
/// not.
fn peer(address: SocketAddr) -> Peer {
    let network = match address.ip().to_canonical() {
        IpAddr::V4(four) => four.to_ipv6_mapped().to_bits(),
        IpAddr::V6(six) => six.to_bits() & !u128::from(u64::MAX),
    };
    let name = address.to_string();
    Peer { origin: Origin { network, is_local: false }, ..Peer::new(PeerKind::Network, name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preamble_of(received: &[u8]) -> Preamble {
        preamble(received, HEADER_BYTES_MAX)
    }

    const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

    fn header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = (rest.len() as u16).to_be_bytes();
        [SIGNATURE, &[0x20 | command, family], &length, rest].concat()
    }

    #[test]
    fn a_header_names_the_client() {
        let four = header(1, 0x11, &[192, 0, 2, 1, 10, 0, 0, 1, 0x1f, 0x90, 0x2c, 0x88]);
        let Preamble::Complete { bytes, client } = preamble_of(&[&four[..], b"stats\r\n"].concat()) else {
            panic!("it is complete")
        };
        assert_eq!((bytes, client.expect("it has a client").name), (28, "192.0.2.1:8080".to_owned()));
        for end in 0..four.len() {
            assert_eq!(preamble_of(&four[..end]), Preamble::Incomplete, "{end} bytes");
        }
        let six: Vec<u8> = [[0x20; 16], [1; 16]].concat().into_iter().chain([0, 80, 0, 81]).collect();
        let Preamble::Complete { client: Some(client), .. } = preamble_of(&header(1, 0x21, &six)) else {
            panic!("it is complete")
        };
        assert!(client.name.starts_with("[2020:"), "{}", client.name);
        // The balancer's own check, and more after the addresses.
        assert_eq!(preamble_of(&header(0, 0, &[])), Preamble::Complete { bytes: 16, client: None });
        assert_eq!(preamble_of(&header(0, 0, &[7; 100])), Preamble::Complete { bytes: 116, client: None });
        // A client of an address that is not told is not the balancer.
        let client = Some(Peer::unknown());
        assert_eq!(preamble_of(&header(1, 0, &[])), Preamble::Complete { bytes: 16, client });
    }

    #[test]
    fn other_bytes_are_wrong_at_once() {
        let long = [SIGNATURE, &[0x21, 0x11, 0xff, 0xff]].concat();
        for wrong in [
            &b"put 0 0 60 5\r\n"[..],
            b"PROXY TCP4 192.0.2.1 10.0.0.1 8080 11300\r\n",
            &header(2, 0x11, &[0; 12]),
            &header(1, 0x11, &[0; 11]),
            &long,
        ] {
            assert_eq!(preamble_of(wrong), Preamble::Wrong, "{wrong:?}");
        }
    }
}
