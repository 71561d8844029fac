//! Log lines about connections: each has the number of its connection, and the address of the client where it is known.

use std::os::fd::RawFd;

use nix::errno::Errno;
use tracing::{debug, info, warn};

use super::shell::InputState;
use super::socket::peer_name;
use crate::protocol::foreign::Foreign;
use crate::server::{ClientAct, HandshakeFailure, Protocol};
use crate::time::{Span, Time};
use crate::values::log_limit::LogLimit;

/// A kernel that refuses one send may refuse all of them, so warnings are limited to one in this time.
const REFUSED_INTERVAL: Span = Span::from_secs(10);

/// How often, at most, a request of another protocol is logged. A scanner or a misdirected probe may send them all day.
const FOREIGN_INTERVAL: Span = Span::from_secs(60);

/// How often, at most, a failed TLS handshake is logged. `/metrics` counts all of them.
const HANDSHAKE_INTERVAL: Span = Span::from_secs(10);

/// How many changes of drain mode are logged in this time. A client may change it at any rate.
const DRAIN_LINES: u32 = 20;
const DRAIN_INTERVAL: Span = Span::from_secs(10);

/// Logs what clients and the kernel do to connections, at a limited rate.
#[derive(Debug)]
pub struct ConnectionLog {
    refused: LogLimit,
    foreign: LogLimit,
    handshakes: LogLimit,
    headers: LogLimit,
    forwarded: LogLimit,
    wrong_token: LogLimit,
    drain: LogLimit,
}

impl Default for ConnectionLog {
    fn default() -> Self {
        Self {
            refused: LogLimit::every(REFUSED_INTERVAL),
            foreign: LogLimit::every(FOREIGN_INTERVAL),
            handshakes: LogLimit::every(HANDSHAKE_INTERVAL),
            headers: LogLimit::every(FOREIGN_INTERVAL),
            forwarded: LogLimit::every(FOREIGN_INTERVAL),
            wrong_token: LogLimit::every(FOREIGN_INTERVAL),
            drain: LogLimit::lines(DRAIN_LINES, DRAIN_INTERVAL),
        }
    }
}

impl ConnectionLog {
    /// Logs that a connection was accepted.
    pub fn opened(&self, conn: u64, fd: RawFd, protocol: Protocol) {
        match protocol {
            Protocol::Beanstalk => debug!(conn, peer = peer_name(fd), "connection opened"),
            Protocol::Http => debug!(conn, peer = peer_name(fd), protocol = "http", "connection opened"),
        }
    }

    /// Logs that a connection is closed, and how far its input was.
    pub fn closed(&self, conn: u64, input: InputState) {
        let reason = match input {
            InputState::Ended => "client",
            InputState::Broken => "broken",
            _ => "server",
        };
        debug!(conn, reason, "connection closed");
    }

    /// Logs how many warnings were left out, at the end of a run.
    pub fn end(&mut self) {
        self.foreign.end("a request of another protocol");
        self.handshakes.end("a TLS handshake has failed");
        self.headers.end("a connection without a header of the PROXY protocol");
        self.forwarded.end("a connection without the secret for standbys");
        self.wrong_token.end("a client sent a wrong token");
        self.drain.end("a client began or ended drain mode");
        self.refused.end("the kernel refuses to send or receive");
    }

    /// Logs what a client has done. `peer` finds out who it is.
    pub fn acted(&mut self, now: Time, conn: u64, peer: impl FnOnce() -> String, act: ClientAct) {
        let limit = match act {
            ClientAct::Drain | ClientAct::Undrain => &mut self.drain,
            // It has only gone.
            ClientAct::HandshakeFailed(HandshakeFailure::Disconnected, _) => {
                return debug!(conn, "the client has closed the connection within the TLS handshake");
            }
            ClientAct::HandshakeFailed(..) => &mut self.handshakes,
            ClientAct::WrongProxyHeader => &mut self.headers,
            ClientAct::WrongForwardSecret | ClientAct::WrongForwardKind { .. } => &mut self.forwarded,
            ClientAct::WrongToken => &mut self.wrong_token,
            ClientAct::ForeignRequest(_) => &mut self.foreign,
        };
        let Some(left_out) = limit.admit(now) else { return };
        let peer = peer();
        match act {
            ClientAct::Drain => info!(conn, "drain from {peer}: {}{left_out}", ClientAct::DRAIN_EFFECT),
            ClientAct::Undrain => info!(conn, "undrain from {peer}: {}{left_out}", ClientAct::UNDRAIN_EFFECT),
            ClientAct::HandshakeFailed(_, reason) => {
                warn!(conn, "the TLS handshake with {peer} has failed: {reason}{left_out}");
            }
            ClientAct::WrongProxyHeader => warn!(
                conn,
                "closed the connection from {peer}, which did not begin with a header of the PROXY protocol, version 2: the \
                 port is for a load balancer{left_out}"
            ),
            ClientAct::WrongForwardSecret => warn!(
                conn,
                "closed the connection from {peer}, which did not show the secret of the present leader: the port is for \
                 standbys, and one that follows an earlier leader is refused{left_out}"
            ),
            ClientAct::WrongForwardKind { has_tls } => {
                let with = if has_tls { "with" } else { "without" };
                warn!(
                    conn,
                    "a client of the standby at {peer} came {with} TLS, and this server has no listener {with} TLS: give all \
                     servers the same listeners{left_out}"
                );
            }
            ClientAct::WrongToken => {
                warn!(conn, "a client at {peer} sent a wrong token and was refused{left_out}");
            }
            ClientAct::ForeignRequest(protocol) => {
                let request = match protocol {
                    Foreign::Http => "an HTTP request",
                    Foreign::Tls => "a TLS handshake",
                    Foreign::Proxy => "a PROXY header, which --proxy-protocol reads in version 2",
                };
                warn!(
                    conn,
                    "closed the connection from {peer}, which began with {request}: the port is for beanstalk clients{left_out}"
                );
            }
        }
    }

    /// Logs why a connection breaks: as a warning if the server's own kernel or requests caused it.
    pub fn broke(&mut self, now: Time, conn: u64, errno: Errno) {
        if is_of_the_network(errno) {
            debug!(conn, "connection broke: {}", errno.desc());
        } else if let Some(left_out) = self.refused.admit(now) {
            warn!(
                conn,
                "the kernel refuses to send or receive, and the connection is closed: {}{left_out}",
                errno.desc()
            );
        }
    }
}

/// Whether a peer, or the network in between, can make a send or a receive fail like this.
const fn is_of_the_network(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::EPIPE
            | Errno::ECONNRESET
            | Errno::ECONNABORTED
            | Errno::ECONNREFUSED
            | Errno::ENOTCONN
            | Errno::ETIMEDOUT
            | Errno::EHOSTUNREACH
            | Errno::EHOSTDOWN
            | Errno::ENETUNREACH
            | Errno::ENETDOWN
            | Errno::ENETRESET
            | Errno::ENONET
            | Errno::ENOPROTOOPT
            | Errno::EPROTO
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_that_no_peer_causes_are_warnings() {
        for (errno, expected) in [
            (Errno::ECONNRESET, false),
            (Errno::EPIPE, false),
            (Errno::ETIMEDOUT, false),
            (Errno::EHOSTUNREACH, false),
            (Errno::EINVAL, true),
            (Errno::EBADF, true),
            (Errno::EOPNOTSUPP, true),
            (Errno::ENOMEM, true),
        ] {
            let mut log = ConnectionLog::default();
            log.broke(Time::ZERO, 1, errno);
            // A warning leaves no room for another one at the same time.
            assert_eq!(log.refused.admit(Time::ZERO).is_none(), expected, "{errno}");
        }
    }
}
