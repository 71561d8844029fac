//! The server that a verb talks to, and what the client needs to be let in.

use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(feature = "tls")]
use std::sync::{Arc, Mutex, PoisonError};

use beanring::config::address::Remote;
use beanring::config::passwords;
use beanring::io::named_file::{self, FileError};

use super::{ClientError, Connection, escaped, say};
use crate::cli::verbs::ServerFlags;

/// The longest token.
const TOKEN_BYTES_MAX: usize = 200;

/// The largest file of a token.
const TOKEN_FILE_BYTES_MAX: usize = 4096;

/// A server, and the files for TLS and a token. Connections may be opened again and again: files that have changed are read
/// again, as a certificate is renewed while `beanring work` runs.
#[derive(Debug)]
pub(super) struct ServerTarget {
    remote: Remote,
    flags: ServerFlags,
    has_warned: AtomicBool,
    #[cfg(feature = "tls")]
    tls: Mutex<Option<Loaded>>,
}

/// A configuration, and when its files were written.
#[cfg(feature = "tls")]
#[derive(Clone, Debug)]
struct Loaded {
    config: Arc<rustls::ClientConfig>,
    written: Vec<Option<(std::time::SystemTime, u64)>>,
}

/// A token. It is never shown.
struct Token(Vec<u8>);

impl ServerTarget {
    /// Takes what the flags and the variables say.
    ///
    /// # Errors
    /// If a variable is not valid, a flag of TLS is given and the address has none, or the address needs TLS and the program was
    /// built without it.
    pub(super) fn new(flags: &ServerFlags) -> Result<Self, ClientError> {
        let remote = flags.remote()?;
        // The variables may be there for another server.
        if let Some(flag) = flags.first_of_tls().filter(|_| !remote.is_tls) {
            return Err(ClientError::Usage(format!(
                "{flag} has no effect at {remote}, an address without TLS; use -a beanstalks://HOST"
            )));
        }
        #[cfg(not(feature = "tls"))]
        if remote.is_tls {
            let problem = beanring::replies::TlsProblem::NotBuilt;
            return Err(ClientError::Usage(format!("{problem}{}", problem.advice())));
        }
        Ok(Self {
            remote,
            flags: flags.or_variables(),
            has_warned: AtomicBool::new(false),
            #[cfg(feature = "tls")]
            tls: Mutex::new(None),
        })
    }

    /// The server.
    pub(super) const fn remote(&self) -> &Remote {
        &self.remote
    }

    /// The variables that lead another client to this server.
    pub(super) fn variables(&self) -> Vec<(&'static str, std::ffi::OsString)> {
        self.flags.as_variables(&self.remote)
    }

    /// Connects, over TLS if the address says so, and sends the token.
    ///
    /// # Errors
    /// If a file cannot be read, or the server cannot be reached or does not let the client in.
    pub(super) fn connect(&self) -> Result<Connection, ClientError> {
        let token = self.flags.token_file.as_deref().map(Token::read).transpose()?;
        let mut connection = self.open()?;
        if let Some(token) = token {
            self.warn_of_clear_text(&connection);
            token.send(&mut connection, &self.remote)?;
        }
        Ok(connection)
    }

    #[cfg(feature = "tls")]
    fn open(&self) -> Result<Connection, ClientError> {
        if !self.remote.is_tls {
            return Connection::open(&self.remote.address);
        }
        let host = self.remote.address.host().unwrap_or_default();
        let name = super::tls::server_name(self.flags.tls_name.as_deref().unwrap_or(host))?;
        Connection::open_tls(&self.remote, self.config()?, name)
    }

    #[cfg(not(feature = "tls"))]
    fn open(&self) -> Result<Connection, ClientError> {
        Connection::open(&self.remote.address)
    }

    /// Returns the configuration of TLS. It remembers sessions, so that the next handshake is shorter.
    #[cfg(feature = "tls")]
    fn config(&self) -> Result<Arc<rustls::ClientConfig>, ClientError> {
        use std::os::unix::fs::MetadataExt;
        let ServerFlags { tls_ca, tls_cert, tls_key, .. } = &self.flags;
        let written = |path: &std::path::PathBuf| {
            let found = path.metadata().ok()?;
            Some((found.modified().ok()?, found.ino()))
        };
        let written = [tls_ca, tls_cert, tls_key].into_iter().flatten().map(written).collect();
        let mut loaded = self.tls.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = loaded.as_ref().filter(|loaded| loaded.written == written) {
            return Ok(Arc::clone(&loaded.config));
        }
        let config = super::tls::config(&self.flags)?;
        *loaded = Some(Loaded { config: Arc::clone(&config), written });
        Ok(config)
    }

    fn warn_of_clear_text(&self, connection: &Connection) {
        let peer = connection.socket().peer();
        if !self.remote.is_tls
            && peer.is_some_and(|peer| !IpAddr::is_loopback(&peer.to_canonical()))
            && !self.has_warned.swap(true, Ordering::Relaxed)
        {
            say(format_args!(
                "beanring: warning: the token is sent to {} in clear text; use a TLS port and beanstalks://",
                self.remote
            ));
        }
    }
}

impl Token {
    fn read(path: &Path) -> Result<Self, ClientError> {
        if path.to_str().is_some_and(passwords::may_be_secret) && !path.exists() {
            return Err(ClientError::Usage(
                "--token-file, BEANRING_TOKEN_FILE: there is no such file, and the value may be the token itself; name the file \
                 that contains it"
                    .to_owned(),
            ));
        }
        let failed =
            |error: FileError| ClientError::File { path: Some(path.to_owned()), error: error.into() };
        let mut bytes = named_file::read(path, TOKEN_FILE_BYTES_MAX).map_err(failed)?.content;
        let end = bytes.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n')).map_or(0, |at| at + 1);
        bytes.truncate(end);
        if (1..=TOKEN_BYTES_MAX).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic) {
            return Ok(Self(bytes));
        }
        let path = escaped(path.as_os_str().as_encoded_bytes());
        Err(ClientError::Usage(format!(
            "the token in {path} must be one line of 1 to {TOKEN_BYTES_MAX} printable ASCII characters without spaces"
        )))
    }

    fn send(&self, connection: &mut Connection, remote: &Remote) -> Result<(), ClientError> {
        let reply = connection.ask([b"auth ", &*self.0].concat())?;
        match reply.word() {
            "AUTHENTICATED" => Ok(()),
            "UNAUTHORIZED" => Err(ClientError::Unauthorized { remote: remote.clone() }),
            "UNKNOWN_COMMAND" => Err(ClientError::Unknown {
                what: "tokens",
                advice: "start it with --auth, or leave out --token-file and BEANRING_TOKEN_FILE",
            }),
            _ => Err(ClientError::Unreadable(reply.line().clone())),
        }
    }
}
