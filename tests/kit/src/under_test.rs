//! A server in memory, with or without TLS before it.

use beanring::server::{Server, Service};

/// A server in memory as a driver sees it, and the [`Server`] in it as a test does.
pub trait UnderTest: Service {
    /// Returns the server.
    fn server(&self) -> &Server;

    /// Returns the server, to be changed.
    fn server_mut(&mut self) -> &mut Server;

    /// Whether a connection has more to exchange before its client can send: it does so in each [`Service::turn`].
    fn is_shaking_hands(&self) -> bool {
        false
    }
}

impl UnderTest for Server {
    fn server(&self) -> &Server {
        self
    }

    fn server_mut(&mut self) -> &mut Server {
        self
    }
}
