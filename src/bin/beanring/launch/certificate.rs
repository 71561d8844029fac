//! The certificate at the start.

#[cfg(feature = "tls")]
mod with_tls {
    use beanring::config::{ServerConfig, SettingError};
    use beanring::io::layers::Certificate;
    use beanring::time::{Time, date};
    use beanring::transport::{Identity, IdentityError};

    /// Reads the certificate.
    ///
    /// # Errors
    /// If it cannot be read or used.
    pub fn read(config: &ServerConfig) -> Result<Option<Certificate>, SettingError> {
        let Some(tls) = &config.tls else { return Ok(None) };
        let names = &config.given.certificate;
        let files = tls.files.read().map_err(|(part, error)| SettingError::about([names.of(part)], error))?;
        let refused =
            |error: IdentityError| SettingError::about(error.part().map(|part| names.of(part)), error);
        Ok(Some(Identity::read(&files).map_err(refused)?))
    }

    /// What an operator may not have meant.
    // docs/RUNBOOK.md lists these messages.
    pub fn certificate_warnings(
        config: &ServerConfig,
        certificate: Option<&Certificate>,
        now: Time,
    ) -> Vec<String> {
        let Some((tls, certificate)) = config.tls.as_ref().zip(certificate) else { return Vec::new() };
        let chain = tls.files.chain.display();
        let mut warnings = Vec::new();
        warnings.extend(tls.files.open_key());
        let (now_s, valid_s) = (now.since(Time::ZERO).as_secs(), certificate.own.not_before_s);
        if valid_s > now_s {
            warnings.push(format!(
                "--tls-cert {chain}: the certificate becomes valid on {}, and clients refuse it until then",
                date(valid_s)
            ));
        }
        if certificate.own.not_after_s <= now_s {
            warnings.push(format!("--tls-cert {chain}: the certificate has expired, and clients refuse it"));
        }
        if let Some(path) = tls.files.client_ca.as_ref().filter(|_| !certificate.has_client_authority) {
            warnings.push(format!(
                "--tls-client-ca {}: the file contains no certificate of an authority: put that of the authority into it which has \
                 signed those of the clients",
                path.display()
            ));
        }
        if certificate.own.is_authority {
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
    use beanring::config::{ServerConfig, SettingError};
    use beanring::io::layers::Certificate;
    use beanring::time::Time;

    pub fn read(_: &ServerConfig) -> Result<Option<Certificate>, SettingError> {
        Ok(None)
    }

    pub fn certificate_warnings(_: &ServerConfig, _: Option<&Certificate>, _: Time) -> Vec<String> {
        Vec::new()
    }
}

#[cfg(feature = "tls")]
pub(crate) use self::with_tls::{certificate_warnings, read};
#[cfg(not(feature = "tls"))]
pub(crate) use self::without_tls::{certificate_warnings, read};
