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
}

impl ListenerKind {
    /// What clients speak by default.
    pub const CLEAR: Self = Self { protocol: Protocol::Beanstalk, has_tls: false, is_proxied: false };
    /// Clients over TLS.
    pub const TLS: Self = Self { protocol: Protocol::Beanstalk, has_tls: true, is_proxied: false };
    /// HTTP without TLS.
    pub const HTTP: Self = Self { protocol: Protocol::Http, has_tls: false, is_proxied: false };

    /// Whether it is for clients without TLS.
    pub fn is_clear(self) -> bool {
        self.protocol == Protocol::Beanstalk && !self.has_tls
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
