//! TLS on a client's connection. Two threads may share it: one sends, another receives.

use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use beanring::io::named_file::{self, PEM_BYTES_MAX};
use beanring::io::trusted::{self, CertificateError};
use beanring::replies::TlsProblem;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::ClientError;
use super::connection::{CONNECT_PATIENCE, Socket, time_left, time_of};
use crate::cli::verbs::ServerFlags;

/// Ciphertext that is read at once: the longest record has 16 KiB and some bytes.
const INPUT_BYTES: usize = 18 * 1024;

/// Plaintext that is encrypted at once. Its ciphertext is sent before the next.
const OUTPUT_BYTES: usize = 64 * 1024;

/// The TLS layer of a connection, shared by its two halves. No thread holds the lock while it waits for the network.
#[derive(Clone, Debug)]
pub(super) struct Channel(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    socket: Socket,
    session: Mutex<ClientConnection>,
}

/// Ciphertext that has arrived and that the session has not taken yet.
#[derive(Debug)]
pub(super) struct Incoming {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

/// Builds the configuration from the files that the flags name.
///
/// # Errors
/// If a file cannot be read or does not contain what it should, or the system has no trusted certificates.
pub(super) fn config(flags: &ServerFlags) -> Result<Arc<ClientConfig>, ClientError> {
    let builder = trusted::client_config().with_root_certificates(roots(flags.tls_ca.as_deref())?);
    let config = match (&flags.tls_cert, &flags.tls_key) {
        (None, None) => builder.with_no_client_auth(),
        (Some(cert), key) => {
            let key = key.as_ref().unwrap_or(cert);
            let chain = certificates("--tls-cert", cert)?;
            let pair = PrivateKeyDer::from_pem_slice(&content(key)?)
                .map_err(|_| unreadable("--tls-key", key, "a private key"))?;
            builder.with_client_auth_cert(chain, pair).map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => {
                    ClientError::Usage("--tls-key is not the key of the certificate in --tls-cert".to_owned())
                }
                error => ClientError::Usage(format!("--tls-cert and --tls-key: {error}")),
            })?
        }
        (None, Some(_)) => return Err(ClientError::Usage("--tls-key needs --tls-cert".to_owned())),
    };
    Ok(Arc::new(config))
}

fn roots(ca: Option<&Path>) -> Result<RootCertStore, ClientError> {
    let roots = trusted::roots(ca).map_err(|(path, error)| failed("--tls-ca", &path, error))?;
    match ca {
        _ if !roots.is_empty() => Ok(roots),
        Some(path) => Err(unreadable("--tls-ca", path, "a certificate")),
        None => {
            let problem = "the system has no trusted certificates; name the CA's certificate with --tls-ca";
            Err(ClientError::Usage(problem.to_owned()))
        }
    }
}

fn failed(flag: &str, path: &Path, error: CertificateError) -> ClientError {
    match error {
        CertificateError::File(error) => {
            ClientError::File { path: Some(path.to_owned()), error: error.into() }
        }
        CertificateError::Pem(_) => unreadable(flag, path, "a certificate"),
        CertificateError::Invalid(error) => {
            let path = path.display();
            ClientError::Usage(format!("{flag} {path} has a certificate that is not valid: {error}"))
        }
    }
}

fn certificates(flag: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, ClientError> {
    let all = trusted::certificates(path).map_err(|error| failed(flag, path, error))?;
    if all.is_empty() { Err(unreadable(flag, path, "a certificate")) } else { Ok(all) }
}

fn content(path: &Path) -> Result<Vec<u8>, ClientError> {
    let read = named_file::read(path, PEM_BYTES_MAX).map(|file| file.content);
    read.map_err(|error| ClientError::File { path: Some(path.to_owned()), error: error.into() })
}

fn unreadable(flag: &str, path: &Path, expected: &str) -> ClientError {
    let path = super::escaped(path.as_os_str().as_encoded_bytes());
    ClientError::Usage(format!("{flag} {path} does not contain {expected} in PEM format"))
}

/// Parses the name that must be in the certificate: a DNS name or an address.
///
/// # Errors
/// If it is neither.
pub(super) fn server_name(name: &str) -> Result<ServerName<'static>, ClientError> {
    // An IPv6 address may name an interface, which no certificate has.
    let bare = name.split('%').next().unwrap_or_default();
    ServerName::try_from(bare.to_owned()).map_err(|_| {
        let name = super::escaped(name.as_bytes());
        ClientError::Usage(format!("no certificate can have the name {name}; set --tls-name"))
    })
}

impl Channel {
    /// Does the handshake on a connected socket, which must be over by `until`.
    ///
    /// # Errors
    /// If the peer speaks no TLS, refuses, is not who it should be, or needs too long.
    pub(super) fn open(
        socket: Socket,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
        until: Instant,
    ) -> Result<(Self, Incoming), TlsProblem> {
        let mut session = ClientConnection::new(config, name).map_err(|error| TlsProblem::of(&error))?;
        session.set_buffer_limit(None);
        let mut incoming = Incoming { bytes: vec![0; INPUT_BYTES].into(), start: 0, end: 0 };
        let failed = |error: io::Error| TlsProblem::in_handshake(&error, CONNECT_PATIENCE);
        while session.is_handshaking() {
            socket.send(&take_output(&mut session), until).map_err(failed)?;
            if incoming.is_empty()
                && incoming.receive(&socket, time_left(until).map_err(failed)?).map_err(failed)? == 0
            {
                return Err(TlsProblem::Closed);
            }
            if let Err(error) = incoming.feed(&mut session) {
                // The server's log should say why. There is nothing to do if this fails too.
                let _ = socket.send(&take_output(&mut session), until);
                return Err(failed(error));
            }
        }
        socket.send(&take_output(&mut session), until).map_err(failed)?;
        Ok((Self(Arc::new(Shared { socket, session: Mutex::new(session) })), incoming))
    }

    /// Reads plaintext. `time_left` is asked before each wait for the network, and the first error ends the wait. Returns 0 at
    /// the end of the connection.
    ///
    /// # Errors
    /// If the connection breaks, the time is over, or the peer sends something else than TLS.
    pub(super) fn read(
        &self,
        incoming: &mut Incoming,
        buffer: &mut [u8],
        time_left: impl Fn() -> io::Result<Option<Duration>>,
    ) -> io::Result<usize> {
        loop {
            // Plaintext first: the session may have it from a record that came with the last reply.
            match self.session().reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                result => return result,
            }
            if incoming.is_empty() && incoming.receive(&self.0.socket, time_left()?)? == 0 {
                return Ok(0);
            }
            // A record without plaintext is possible: a ticket for resumption, or new keys. What it calls for leaves with the
            // next command, so that only one thread ever writes.
            incoming.feed(&mut self.session())?;
        }
    }

    /// Sends plaintext, as long as the peer takes it. The time that a slow line needs is added to `until`.
    ///
    /// # Errors
    /// If the connection breaks, or the peer does not take it in time.
    pub(super) fn send(&self, bytes: &[u8], mut until: Instant) -> io::Result<()> {
        for some in bytes.chunks(OUTPUT_BYTES) {
            let output = {
                let mut session = self.session();
                session.writer().write_all(some)?;
                take_output(&mut session)
            };
            self.0.socket.send(&output, until).map_err(|error| self.reason(error))?;
            until += time_of(some.len());
        }
        Ok(())
    }

    /// Replaces the error of a send by the alert that the server has sent before it closed the connection, if there is one: it
    /// checks the certificate of a client when that already sends commands.
    fn reason(&self, error: io::Error) -> io::Error {
        let mut incoming = Incoming { bytes: vec![0; INPUT_BYTES].into(), start: 0, end: 0 };
        loop {
            match incoming.receive(&self.0.socket, Some(Duration::from_millis(1))) {
                Ok(0) | Err(_) => return error,
                Ok(_) => {}
            }
            if let Err(alert) = incoming.feed(&mut self.session()) {
                return alert;
            }
        }
    }

    fn session(&self) -> MutexGuard<'_, ClientConnection> {
        self.0.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    /// Tells the server that the end is no attack. It is not waited for.
    fn drop(&mut self) {
        let session = self.session.get_mut().unwrap_or_else(PoisonError::into_inner);
        session.send_close_notify();
        let _ = self.socket.send_at_once(&take_output(session));
    }
}

impl Incoming {
    const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Waits for ciphertext. Must be empty. Returns how much has come, 0 at the end.
    fn receive(&mut self, socket: &Socket, timeout: Option<Duration>) -> io::Result<usize> {
        socket.0.set_read_timeout(timeout)?;
        let count = (&*socket.0).read(&mut self.bytes)?;
        (self.start, self.end) = (0, count);
        Ok(count)
    }

    /// Passes ciphertext to the session until that has plaintext or there is no more.
    fn feed(&mut self, session: &mut ClientConnection) -> io::Result<()> {
        while !self.is_empty() {
            let mut rest = &self.bytes[self.start..self.end];
            session.read_tls(&mut rest)?;
            self.start = self.end - rest.len();
            let state = session
                .process_new_packets()
                .map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
            if state.plaintext_bytes_to_read() > 0 || state.peer_has_closed() {
                return Ok(());
            }
        }
        Ok(())
    }
}

fn take_output(session: &mut ClientConnection) -> Vec<u8> {
    let mut output = Vec::new();
    while session.wants_write() {
        session.write_tls(&mut output).expect("memory takes everything");
    }
    output
}
