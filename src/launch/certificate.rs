//! The certificate at the start, and the server behind TLS.

#[cfg(feature = "tls")]
mod with_tls {
    use std::rc::Rc;

    use tracing::warn;

    use crate::config::{Proxied, ServerConfig, SettingError};
    use crate::server::{Server, Service, TlsCounts};
    use crate::time::Time;
    use crate::transport::{Identity, Transport};

    /// The certificate of a start.
    pub type Certificate = Identity;

    /// Reads the certificate.
    ///
    /// # Errors
    /// If it cannot be read or used.
    pub fn read(config: &ServerConfig) -> Result<Option<Certificate>, SettingError> {
        let Some(tls) = &config.tls else { return Ok(None) };
        // Both errors name the flag and the file.
        let files = tls.files.read().map_err(|error| SettingError::about(&None::<&str>, error))?;
        let identity = Identity::read(&files).map_err(|error| SettingError::about(&None::<&str>, error))?;
        Ok(Some(identity))
    }

    /// Puts TLS before the server.
    pub fn with_tls(
        mut server: Server,
        certificate: Option<Certificate>,
        proxied: Proxied,
    ) -> impl Service + 'static {
        let counts = Rc::new(TlsCounts::default());
        if certificate.is_some() || proxied != Proxied::default() {
            server.show_tls(counts.clone());
        }
        Transport::new(server, certificate, counts)
    }

    /// Warns of what an operator may not have meant.
    pub fn report(config: &ServerConfig, certificate: Option<&Certificate>, now: Time) {
        let Some((tls, certificate)) = config.tls.as_ref().zip(certificate) else { return };
        if tls.files.is_key_open() {
            let path = tls.files.key.display();
            warn!("--tls-key {path}: every user of this machine can read the key: run chmod o-r on the file");
        }
        if certificate.not_after_s <= now.since(Time::ZERO).as_secs() {
            warn!(
                "--tls-cert {}: the certificate has expired, and clients refuse it",
                tls.files.chain.display()
            );
        }
        if certificate.is_authority {
            warn!(
                "--tls-cert {}: the certificate is that of an authority, which many clients refuse: sign one for the server with \
                 it (docs/OPERATIONS.md)",
                tls.files.chain.display()
            );
        }
    }
}

#[cfg(not(feature = "tls"))]
mod without_tls {
    use std::convert::Infallible;

    use crate::config::{Proxied, ServerConfig, SettingError};
    use crate::server::Server;
    use crate::time::Time;

    /// There is none: the configuration of a program without TLS has no certificate.
    pub type Certificate = Infallible;

    pub fn read(_: &ServerConfig) -> Result<Option<Certificate>, SettingError> {
        Ok(None)
    }

    pub fn with_tls(server: Server, _: Option<Certificate>, _: Proxied) -> Server {
        server
    }

    pub fn report(_: &ServerConfig, _: Option<&Certificate>, _: Time) {}
}

#[cfg(feature = "tls")]
pub(crate) use self::with_tls::{Certificate, read, report, with_tls};
#[cfg(not(feature = "tls"))]
pub(crate) use self::without_tls::{Certificate, read, report, with_tls};
