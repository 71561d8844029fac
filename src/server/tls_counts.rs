//! What the TLS listeners count, for the server to read when a reply shows it.

use std::cell::Cell;

/// Why a TLS connection ended before its handshake did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HandshakeFailure {
    /// The client sent something else than TLS, an old version, or what TLS does not allow.
    Protocol,
    /// The certificate of the client is missing, expired, or not of an accepted authority.
    Certificate,
    /// The client has refused the server with an alert: often it does not trust the certificate of the server.
    Alert,
    /// The handshake took too long.
    Timeout,
    /// Too many handshakes were unfinished, and the address of the client had most of them.
    Surplus,
    /// The client has closed the connection.
    Disconnected,
}

impl HandshakeFailure {
    /// Every failure.
    pub const ALL: [Self; 6] =
        [Self::Protocol, Self::Certificate, Self::Alert, Self::Timeout, Self::Surplus, Self::Disconnected];

    /// What an operator reads in the log, where no reason is more exact.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Protocol => "the client does not speak TLS 1.3",
            Self::Certificate => "the certificate of the client is not valid",
            Self::Alert => {
                "the client has refused, perhaps because it does not trust the certificate of the server"
            }
            Self::Timeout => "the handshake takes too long",
            Self::Surplus => "too many handshakes are unfinished, and most of them are from this address",
            Self::Disconnected => "the client has closed the connection",
        }
    }

    /// The value of the label `reason`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Protocol => "protocol",
            Self::Certificate => "certificate",
            Self::Alert => "alert",
            Self::Timeout => "timeout",
            Self::Surplus => "surplus",
            Self::Disconnected => "disconnected",
        }
    }
}

/// The counts of TLS, which the transport keeps and the server reads. Both run on one thread.
#[derive(Default, Debug)]
#[allow(missing_docs)]
pub struct TlsCounts {
    /// Open connections over TLS, with unfinished handshakes.
    pub connections: Cell<u64>,
    pub unfinished_handshakes: Cell<u64>,
    /// Finished handshakes that took a signature.
    pub full_handshakes: Cell<u64>,
    /// Finished handshakes that resumed an earlier session.
    pub resumed_handshakes: Cell<u64>,
    /// Connections closed because they did not begin with a header of the PROXY protocol, or not with the secret for standbys.
    pub wrong_proxy_headers: Cell<u64>,
    failures: [Cell<u64>; HandshakeFailure::ALL.len()],
    /// When the certificate expires, in seconds since 1970.
    pub not_after_s: Cell<u64>,
    /// Certificates that were taken into use after the start, and those that were refused.
    pub reloads: Cell<u64>,
    pub reload_failures: Cell<u64>,
    /// The latest change of the files was refused: the certificate in use is an older one.
    pub is_outdated: Cell<bool>,
}

impl TlsCounts {
    /// Counts a handshake that has failed.
    pub fn add_failure(&self, failure: HandshakeFailure) {
        increment(&self.failures[failure as usize]);
    }

    /// The number of handshakes that have failed for this reason.
    pub const fn failures(&self, failure: HandshakeFailure) -> u64 {
        self.failures[failure as usize].get()
    }
}

/// Adds one to a count.
pub fn increment(count: &Cell<u64>) {
    count.set(count.get() + 1);
}
