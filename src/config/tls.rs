//! The settings of TLS: a listener, and the files of its certificate.

use super::settings::{Setting, Settings};
use super::{ConfigError, Problem, Warning, address, switch};
use crate::io::certificate::CertificateFiles;
use crate::io::socket::{Address, SocketAccess};

/// The settings of TLS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tls {
    /// The address of the listener for clients, if there is one.
    pub listen: Option<Address>,
    /// Who may connect to it, if it is a UNIX socket.
    pub access: SocketAccess,
    /// The files of the certificate.
    pub files: CertificateFiles,
    /// The HTTP listener has TLS too.
    pub serves_http: bool,
}

/// The listeners whose connections begin with a header of the PROXY protocol.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Proxied {
    /// That of `-l`.
    pub listen: bool,
    /// That of `--tls-listen`.
    pub tls_listen: bool,
    /// That of `--http`.
    pub http: bool,
}

const LISTENERS: [&str; 3] = ["listen", "tls-listen", "http"];

/// Reads the names of listeners. `has` says which of [`LISTENERS`] there are.
///
/// # Errors
/// If one is not the name of a listener.
pub(super) fn proxied(
    given: Vec<Setting>,
    has: [bool; LISTENERS.len()],
    warnings: &mut Vec<Warning>,
) -> Result<Proxied, ConfigError> {
    let mut proxied = [false; LISTENERS.len()];
    for setting in given {
        for name in setting.text()?.split(',') {
            let found = LISTENERS.iter().position(|known| *known == name);
            let at = found.ok_or_else(|| setting.error(Problem::Choice(&LISTENERS)))?;
            proxied[at] = true;
            if !has[at] {
                warnings
                    .push(Warning::WithoutListener { origin: setting.origin.clone(), name: LISTENERS[at] });
            }
        }
        if !cfg!(feature = "tls") {
            return Err(setting.error(Problem::NotBuilt("tls")));
        }
    }
    let [listen, tls_listen, http] = proxied;
    Ok(Proxied { listen, tls_listen, http })
}

/// Checks the settings of TLS. Returns `None` if there are none.
///
/// # Errors
/// If one is not valid, or misses another.
pub(super) fn tls(given: &mut Settings) -> Result<Option<Tls>, ConfigError> {
    let http = given.get("http-tls").cloned();
    let serves_http = switch(given, "http-tls")?;
    let listen = given.take("tls-listen");
    let mut file = |name| given.take(name).map(Setting::for_file).transpose();
    let (chain, key, client_ca) = (file("tls-cert")?, file("tls-key")?, file("tls-client-ca")?);
    let needs_certificate = listen.as_ref().or(http.as_ref().filter(|_| serves_http));
    let Some(chain) = chain else {
        let others = [needs_certificate, key.as_ref(), client_ca.as_ref()];
        return match others.into_iter().flatten().next() {
            Some(setting) => Err(setting.error(Problem::CertificateMissing)),
            None => Ok(None),
        };
    };
    if !cfg!(feature = "tls") {
        return Err(chain.error(Problem::NotBuilt("tls")));
    }
    if needs_certificate.is_none() {
        return Err(chain.error(Problem::TlsListenerMissing));
    }
    let path = |setting: &Setting| setting.path().to_owned();
    let files = CertificateFiles {
        chain: path(&chain),
        key: path(key.as_ref().unwrap_or(&chain)),
        client_ca: client_ca.as_ref().map(path),
    };
    let (listen, access) = listen.as_ref().map(address::tls_endpoint).transpose()?.unzip();
    Ok(Some(Tls { listen, access: access.unwrap_or_default(), files, serves_http }))
}
