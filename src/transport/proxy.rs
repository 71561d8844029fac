//! The PROXY protocol, version 2: the first bytes of a connection from a load balancer tell who its client is.
//!
//! Source: haproxy.org, `doc/proxy-protocol.txt`, section 2.2.

use std::collections::{HashMap, VecDeque};

use ppp::v2::{Addresses, Command, Header, ParseError};
use tracing::debug;

use super::{HANDSHAKE_TIME, HANDSHAKES_MAX, Transport};
use crate::server::{ClientAct, Effect, Event, Origin, Peer, PeerKind, Service, increment};
use crate::time::Time;
use crate::values::ids::ConnId;

/// The longest header without its first 16 bytes. A balancer that adds the certificate of its client sends some thousand bytes.
const HEADER_BYTES_MAX: usize = 4 * 1024;

/// What a connection takes of memory for the name of its peer, with its entry in the table.
const NAME_BYTES: usize = 160;

/// The connections of listeners for load balancers.
#[derive(Default)]
pub(super) struct Proxied {
    /// Connections whose header is not complete.
    unfinished: HashMap<ConnId, Unfinished>,
    /// When each of them must have sent it, with some that have.
    deadlines: VecDeque<(Time, ConnId)>,
    /// Who the peers of the others are, unless it is the load balancer itself.
    names: HashMap<ConnId, Box<str>>,
}

struct Unfinished {
    received: Vec<u8>,
    /// TLS begins after the header.
    has_tls: bool,
    /// The load balancer, for a connection over HTTP.
    balancer: Option<Peer>,
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

impl Proxied {
    pub fn is_unfinished(&self, conn: ConnId) -> bool {
        !self.unfinished.is_empty() && self.unfinished.contains_key(&conn)
    }

    /// The peer of a connection, if a load balancer has told it.
    pub fn name(&self, conn: ConnId) -> Option<&str> {
        self.names.get(&conn).map(|name| &**name)
    }

    pub fn next_deadline(&self) -> Option<Time> {
        self.deadlines.front().map(|&(until, _)| until)
    }

    /// Memory in bytes.
    pub fn bytes(&self) -> usize {
        self.names.len() * NAME_BYTES
            + self.unfinished.len() * (NAME_BYTES + size_of::<Unfinished>() + HEADER_BYTES_MAX)
    }

    fn insert(&mut self, conn: ConnId, unfinished: Unfinished, until: Time) {
        self.unfinished.insert(conn, unfinished);
        self.deadlines.push_back((until, conn));
    }

    fn finish(&mut self, conn: ConnId) -> Option<Unfinished> {
        let unfinished = self.unfinished.remove(&conn);
        while self.deadlines.front().is_some_and(|(_, conn)| !self.unfinished.contains_key(conn)) {
            self.deadlines.pop_front();
        }
        // Behind one that takes its time, many others may have finished.
        if self.deadlines.len() > 16 + 4 * self.unfinished.len() {
            self.deadlines.retain(|(_, conn)| self.unfinished.contains_key(conn));
        }
        unfinished
    }

    /// Forgets a connection that the driver has closed.
    pub fn remove(&mut self, conn: ConnId) {
        self.finish(conn);
        self.names.remove(&conn);
    }
}

impl<S: Service> Transport<S> {
    /// Expects a header before anything else of a connection.
    pub(super) fn expect_header(&mut self, conn: ConnId, has_tls: bool, balancer: Option<Peer>) {
        if self.proxied.unfinished.len() >= HANDSHAKES_MAX
            && let Some(&(_, oldest)) = self.proxied.deadlines.front()
        {
            self.refuse_header(oldest);
        }
        let unfinished = Unfinished { received: Vec::new(), has_tls, balancer };
        self.proxied.insert(conn, unfinished, self.now + HANDSHAKE_TIME);
    }

    /// Handles an event of a connection whose header is not complete.
    pub(super) fn handle_unfinished(&mut self, conn: ConnId, event: &Event<'_>) {
        match *event {
            Event::Received { bytes, .. } => self.header_input(conn, bytes),
            Event::InputEnding { .. } | Event::Sent { .. } => {}
            Event::ReceivedDirect { .. } => unreachable!("a header has no place in a body"),
            Event::InputEnded { .. } | Event::HungUp { .. } => self.refuse_header(conn),
            _ => {
                self.proxied.remove(conn);
                self.server.handle(self.now, Event::Closed { conn });
            }
        }
    }

    fn header_input(&mut self, conn: ConnId, bytes: &[u8]) {
        let unfinished = self.proxied.unfinished.get_mut(&conn).expect("the header is not complete");
        unfinished.received.extend_from_slice(bytes);
        match preamble(&unfinished.received) {
            Preamble::Incomplete => {}
            Preamble::Wrong => self.refuse_header(conn),
            Preamble::Complete { bytes, client } => {
                let Unfinished { received, has_tls, balancer } =
                    self.proxied.finish(conn).expect("the header was not complete");
                if let Some(client) = &client {
                    debug!(conn = self.server.number(conn), peer = client.name, "behind a load balancer");
                    self.proxied.names.insert(conn, client.name.as_str().into());
                }
                if let Some(balancer) = balancer {
                    self.server.set_peer(conn, client.unwrap_or(balancer));
                }
                if has_tls {
                    self.begin_tls(self.now, conn);
                }
                if bytes < received.len() {
                    self.handle(self.now, Event::Received { conn, bytes: &received[bytes..] });
                }
            }
        }
    }

    fn refuse_header(&mut self, conn: ConnId) {
        self.proxied.finish(conn);
        increment(&self.counts.wrong_proxy_headers);
        self.effects.push_back(Effect::LogClient(conn, ClientAct::WrongProxyHeader));
        self.server.handle(self.now, Event::HungUp { conn });
    }

    /// Ends connections whose header takes too long.
    pub(super) fn end_late_headers(&mut self) {
        while let Some(&(_, conn)) = self.proxied.deadlines.front().filter(|(until, _)| *until <= self.now) {
            self.refuse_header(conn);
        }
    }
}

/// Reads a header.
fn preamble(received: &[u8]) -> Preamble {
    match Header::try_from(received) {
        Ok(header) => {
            let client = match (header.command, header.addresses) {
                (Command::Proxy, Addresses::IPv4(address)) => {
                    Some(peer((address.source_address, address.source_port).into()))
                }
                (Command::Proxy, Addresses::IPv6(address)) => {
                    Some(peer((address.source_address, address.source_port).into()))
                }
                (Command::Proxy, Addresses::Unix(_)) => Some(Peer::new(PeerKind::Network, "unix")),
                (Command::Local, _) | (Command::Proxy, Addresses::Unspecified) => None,
            };
            Preamble::Complete { bytes: header.len(), client }
        }
        Err(ParseError::Incomplete(_)) => Preamble::Incomplete,
        Err(ParseError::Partial(_, length)) if length <= HEADER_BYTES_MAX => Preamble::Incomplete,
        Err(_) => Preamble::Wrong,
    }
}

/// A client that a load balancer names. Its address is never one of this machine: the balancer may run here, and the client does
/// not.
fn peer(address: core::net::SocketAddr) -> Peer {
    let network = match address.ip().to_canonical() {
        core::net::IpAddr::V4(four) => four.to_ipv6_mapped().to_bits(),
        core::net::IpAddr::V6(six) => six.to_bits() & !u128::from(u64::MAX),
    };
    let name = address.to_string();
    Peer { origin: Origin { network, is_local: false }, ..Peer::new(PeerKind::Network, name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

    fn header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = (rest.len() as u16).to_be_bytes();
        [SIGNATURE, &[0x20 | command, family], &length, rest].concat()
    }

    #[test]
    fn a_header_names_the_client() {
        let four = header(1, 0x11, &[192, 0, 2, 1, 10, 0, 0, 1, 0x1f, 0x90, 0x2c, 0x88]);
        let Preamble::Complete { bytes, client } = preamble(&[&four[..], b"stats\r\n"].concat()) else {
            panic!("it is complete")
        };
        assert_eq!((bytes, client.expect("it has a client").name), (28, "192.0.2.1:8080".to_owned()));
        for end in 0..four.len() {
            assert_eq!(preamble(&four[..end]), Preamble::Incomplete, "{end} bytes");
        }
        let six: Vec<u8> = [[0x20; 16], [1; 16]].concat().into_iter().chain([0, 80, 0, 81]).collect();
        let Preamble::Complete { client: Some(client), .. } = preamble(&header(1, 0x21, &six)) else {
            panic!("it is complete")
        };
        assert!(client.name.starts_with("[2020:"), "{}", client.name);
        // The balancer's own check, and more after the addresses.
        assert_eq!(preamble(&header(0, 0, &[])), Preamble::Complete { bytes: 16, client: None });
        assert_eq!(preamble(&header(0, 0, &[7; 100])), Preamble::Complete { bytes: 116, client: None });
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
            assert_eq!(preamble(wrong), Preamble::Wrong, "{wrong:?}");
        }
    }
}
