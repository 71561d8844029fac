//! The kinds of listeners.

use crate::server::Protocol;

/// What the connections of a listener speak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenerKind {
    /// The protocol.
    pub protocol: Protocol,
    /// It is inside TLS.
    pub has_tls: bool,
    /// Connections begin with a header of the PROXY protocol.
    pub is_proxied: bool,
    /// Connections are from standbys, which forward clients.
    pub is_forwarded: bool,
}

impl ListenerKind {
    /// What clients speak by default.
    pub const CLEAR: Self =
        Self { protocol: Protocol::Beanstalk, has_tls: false, is_proxied: false, is_forwarded: false };
    /// Clients over TLS.
    pub const TLS: Self = Self { has_tls: true, ..Self::CLEAR };
    /// HTTP without TLS.
    pub const HTTP: Self = Self { protocol: Protocol::Http, ..Self::CLEAR };
    /// Standbys, which forward clients without TLS and over it.
    pub const FORWARDED: Self = Self { is_forwarded: true, ..Self::CLEAR };

    /// Whether it is for clients without TLS.
    pub fn is_clear(self) -> bool {
        self.protocol == Protocol::Beanstalk && !self.has_tls && !self.is_forwarded
    }

    /// Whether it is for clients over TLS.
    pub fn is_tls(self) -> bool {
        self.protocol == Protocol::Beanstalk && self.has_tls
    }

    /// Whether it is for HTTP, with TLS or without.
    pub fn is_http(self) -> bool {
        self.protocol == Protocol::Http
    }
}
