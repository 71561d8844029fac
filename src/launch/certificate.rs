//! The certificate at the start, and the server behind TLS.

#[cfg(feature = "tls")]
mod with_tls {
    use std::rc::Rc;

    use crate::config::{ServerConfig, SettingError};
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

    /// Puts TLS before the server. `expects_headers` is whether a listener is for load balancers or standbys, and
    /// `serves_clear_clients` whether one takes clients without TLS.
    pub fn with_tls(
        mut server: Server,
        certificate: Option<Certificate>,
        expects_headers: bool,
        serves_clear_clients: bool,
    ) -> impl Service + 'static {
        let counts = Rc::new(TlsCounts::default());
        if certificate.is_some() || expects_headers {
            server.show_tls(counts.clone());
        }
        let mut transport = Transport::new(server, certificate, counts);
        if !serves_clear_clients {
            transport.refuse_clear_clients();
        }
        #[cfg(feature = "replicate")]
        let transport = crate::transport::link::Link::new(transport);
        transport
    }

    /// What an operator may not have meant.
    // docs/RUNBOOK.md lists these messages.
    pub fn certificate_warnings(
        config: &ServerConfig,
        certificate: Option<&Certificate>,
        now: Time,
    ) -> Vec<String> {
        let Some((tls, certificate)) = config.tls.as_ref().zip(certificate) else { return Vec::new() };
        let (key, chain) = (tls.files.key.display(), tls.files.chain.display());
        let mut warnings = Vec::new();
        if tls.files.is_key_open() {
            warnings.push(format!(
                "--tls-key {key}: every user of this machine can read the key: run chmod o-r on the file"
            ));
        }
        if certificate.not_after_s <= now.since(Time::ZERO).as_secs() {
            warnings.push(format!("--tls-cert {chain}: the certificate has expired, and clients refuse it"));
        }
        if certificate.is_authority {
            warnings.push(format!(
                "--tls-cert {chain}: the certificate is that of an authority, which many clients refuse: sign one for the server \
                 with it (docs/OPERATIONS.md)"
            ));
        }
        warnings
    }
}

#[cfg(not(feature = "tls"))]
mod without_tls {
    use std::convert::Infallible;

    use crate::config::{ServerConfig, SettingError};
    use crate::server::Server;
    use crate::time::Time;

    /// There is none: the configuration of a program without TLS has no certificate.
    pub type Certificate = Infallible;

    pub fn read(_: &ServerConfig) -> Result<Option<Certificate>, SettingError> {
        Ok(None)
    }

    pub fn with_tls(server: Server, _: Option<Certificate>, _: bool, _: bool) -> Server {
        server
    }

    pub fn certificate_warnings(_: &ServerConfig, _: Option<&Certificate>, _: Time) -> Vec<String> {
        Vec::new()
    }
}

#[cfg(feature = "tls")]
pub(crate) use self::with_tls::{Certificate, certificate_warnings, read, with_tls};
#[cfg(not(feature = "tls"))]
pub(crate) use self::without_tls::{Certificate, certificate_warnings, read, with_tls};
