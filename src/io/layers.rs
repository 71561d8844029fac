//! The layers between a driver and the server: TLS, and the headers of proxies and standbys.

#[cfg(not(feature = "tls"))]
use std::convert::Infallible;
#[cfg(feature = "tls")]
use std::rc::Rc;

use super::driver::PreparedDriver;
use super::{DriverError, Exit, Resources};
use crate::server::Server;
#[cfg(feature = "tls")]
use crate::server::{Service, TlsCounts};
#[cfg(feature = "tls")]
use crate::transport::{Identity, Transport};

/// The certificate of a server.
#[cfg(feature = "tls")]
pub type Certificate = Identity;

/// There is none: the configuration of a program without TLS has no certificate.
#[cfg(not(feature = "tls"))]
pub type Certificate = Infallible;

/// What the layers need.
pub struct Layers {
    /// That of the listeners with TLS, if there are any.
    pub certificate: Option<Certificate>,
    /// A listener is for load balancers or standbys.
    pub expects_headers: bool,
    /// A listener takes clients without TLS.
    pub serves_clear_clients: bool,
}

impl Layers {
    /// Runs the server behind its layers until it stops or restarts in place. Drivers are generic, and a program that runs them itself
    /// compiles them again, at its own level of optimization.
    ///
    /// # Errors
    /// If the driver cannot start or continue, or the server fails.
    pub fn run(
        self,
        driver: PreparedDriver,
        server: Server,
        resources: Resources,
    ) -> Result<Exit, DriverError> {
        driver.run(self.before(server), resources)
    }

    #[cfg(feature = "tls")]
    fn before(self, mut server: Server) -> impl Service + 'static {
        let counts = Rc::new(TlsCounts::default());
        if self.certificate.is_some() || self.expects_headers {
            server.show_tls(counts.clone());
        }
        let mut transport = Transport::new(server, self.certificate, counts);
        if !self.serves_clear_clients {
            transport.refuse_clear_clients();
        }
        #[cfg(feature = "replicate")]
        let transport = crate::transport::link::Link::new(transport);
        transport
    }

    #[cfg(not(feature = "tls"))]
    fn before(self, server: Server) -> Server {
        server
    }
}
