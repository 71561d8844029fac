//! Settings that only the system can check: an error about one names its source, like any other error of the configuration.

use std::error::Error;
use std::fmt;

use super::settings::{Origin, Setting, Settings};
use crate::io::certificate::CertificateNames;

/// The sources of settings that only the system can check. Without a source, the default applies.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Given {
    /// Where `-l` and `-p` were given.
    pub listen: Vec<Origin>,
    /// Where `--http` was given.
    pub http: Option<Origin>,
    /// Where `--tls-listen` was given.
    pub tls_listen: Option<Origin>,
    /// What errors call the files of the certificate.
    pub certificate: CertificateNames,
    /// The file of the token.
    pub http_token: Option<Setting>,
    /// The file of users.
    pub auth: Option<Setting>,
    /// The directory of the job log.
    pub wal_dir: Option<Setting>,
    /// The database of the job log.
    pub replicate: Option<Origin>,
    /// Where `--advertise` was given.
    pub advertise: Option<Origin>,
    /// The user to run as.
    pub user: Option<Setting>,
}

/// An error of the system about settings that are valid in themselves.
#[derive(Debug)]
pub struct SettingError {
    sources: String,
    error: Box<dyn Error>,
}

impl Given {
    /// Returns the sources among these settings.
    pub(super) fn of(settings: &Settings) -> Self {
        let origin = |name| settings.get(name).map(|setting| setting.origin.clone());
        let name = |name| settings.get(name).map(ToString::to_string);
        let chain = name("tls-cert").unwrap_or_default();
        let is_unix = settings
            .get("listen")
            .is_some_and(|listen| listen.value.as_encoded_bytes().starts_with(b"unix:"));
        let names = if is_unix { &["listen"][..] } else { &["listen", "port"] };
        Self {
            listen: names.iter().copied().filter_map(origin).collect(),
            http: origin("http"),
            tls_listen: origin("tls-listen"),
            certificate: CertificateNames {
                key: name("tls-key").unwrap_or_else(|| chain.clone()),
                client_ca: name("tls-client-ca").unwrap_or_default(),
                chain,
            },
            http_token: settings.get("http-token").cloned(),
            auth: settings.get("auth").cloned(),
            wal_dir: settings.get("wal-dir").cloned(),
            replicate: origin("replicate"),
            advertise: origin("advertise"),
            user: settings.get("user").cloned(),
        }
    }
}

impl SettingError {
    /// Returns an error about the settings from these sources.
    pub fn about(sources: impl IntoIterator<Item: fmt::Display>, error: impl Error + 'static) -> Self {
        let sources: Vec<String> = sources.into_iter().map(|source| source.to_string()).collect();
        Self { sources: sources.join(" and "), error: Box::new(error) }
    }

    /// The error of the system.
    pub fn error(&self) -> &(dyn Error + 'static) {
        &*self.error
    }
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.sources.is_empty() {
            write!(f, "{}: ", self.sources)?;
        }
        self.error.fmt(f)
    }
}

impl Error for SettingError {}
