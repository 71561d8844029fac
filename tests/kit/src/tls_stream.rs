//! A client's connection over TLS to a server process.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::client::WantsClientCert;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, ConfigBuilder, RootCertStore};

use super::certificates::Pair;
use super::peer::Received;
use super::process::REPLY_PATIENCE;

/// The most plaintext that one receive returns.
const PIECE_BYTES: usize = 64 * 1024;

/// The most plaintext in a record (RFC 8446, 5.1).
const RECORD_BYTES: usize = 16 * 1024;

/// A connection over TLS.
#[derive(Debug)]
pub struct TlsStream {
    pub tcp: TcpStream,
    pub tls: Box<ClientConnection>,
}

/// Returns the settings of a client that trusts the authority in a file, and shows a certificate if it has one.
///
/// # Panics
/// If a file is no certificate.
pub fn client_config(ca: &Path, own: Option<&Pair>) -> Arc<ClientConfig> {
    let builder = trusting(certificate(ca), default_provider());
    let config = match own {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let key = fs::read(&pair.key).expect("the key is readable");
            let key = PrivateKeyDer::from_pem_slice(&key).expect("the key is PEM");
            let chain = vec![certificate(&pair.certificate)];
            builder.with_client_auth_cert(chain, key).expect("the key belongs to the certificate")
        }
    };
    config.into()
}

/// Begins the settings of a client that trusts an authority.
///
/// # Panics
/// If the certificate is not valid.
pub fn trusting(
    authority: CertificateDer<'static>,
    provider: CryptoProvider,
) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    let mut roots = RootCertStore::empty();
    roots.add(authority).expect("the authority is valid");
    ClientConfig::builder_with_provider(provider.into())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider has suites of TLS 1.3")
        .with_root_certificates(roots)
}

/// Returns the first certificate of a file.
///
/// # Panics
/// If the file has none.
pub fn certificate(path: &Path) -> CertificateDer<'static> {
    let pem = fs::read(path).expect("the certificate is readable");
    CertificateDer::from_pem_slice(&pem).expect("the certificate is PEM")
}

/// Returns the client's end of a connection to a server on this machine, before any byte was exchanged.
pub fn client(config: &Arc<ClientConfig>) -> ClientConnection {
    let name = ServerName::try_from("localhost").expect("the name is valid");
    let mut tls = ClientConnection::new(config.clone(), name).expect("the configuration is valid");
    tls.set_buffer_limit(None);
    tls
}

/// Returns what a client sends next: what its handshake needs, and then this.
pub fn sealed(tls: &mut ClientConnection, plaintext: &[u8]) -> Vec<u8> {
    tls.writer().write_all(plaintext).expect("the buffer has no limit");
    let mut bytes = Vec::new();
    while tls.wants_write() {
        tls.write_tls(&mut bytes).expect("a vector grows");
    }
    bytes
}

impl TlsStream {
    /// Shakes hands over a connection.
    ///
    /// # Errors
    /// If the handshake fails. The server may refuse a client only after that, when it sees the client's certificate.
    pub fn over(mut tcp: TcpStream, config: &Arc<ClientConfig>) -> io::Result<Self> {
        tcp.set_read_timeout(Some(REPLY_PATIENCE))?;
        let mut tls = client(config);
        while tls.is_handshaking() || tls.wants_write() {
            tls.complete_io(&mut tcp)?;
        }
        Ok(Self { tcp, tls: tls.into() })
    }

    /// Encrypts and sends bytes.
    ///
    /// # Errors
    /// If the connection has ended.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.tls.writer().write_all(bytes)?;
        self.flush()
    }

    /// Sends what is encrypted.
    ///
    /// # Errors
    /// If the connection has ended.
    pub fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.tcp)?;
        }
        Ok(())
    }

    /// Encrypts record by record while the server receives them at once. The next call sends the rest of the last one first. Returns
    /// the bytes of plaintext that were encrypted.
    ///
    /// # Errors
    /// If the connection has ended.
    pub fn send_now(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while self.flush_now()? && !rest.is_empty() {
            let (record, after) = rest.split_at(rest.len().min(RECORD_BYTES));
            self.tls.writer().write_all(record)?;
            rest = after;
        }
        Ok(bytes.len() - rest.len())
    }

    /// Sends what the server receives at once of what is encrypted. Returns whether that was everything.
    fn flush_now(&mut self) -> io::Result<bool> {
        if !self.tls.wants_write() {
            return Ok(true);
        }
        self.tcp.set_nonblocking(true)?;
        let result = self.flush();
        self.tcp.set_nonblocking(false)?;
        match result {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            result => result.map(|()| true),
        }
    }

    /// Returns what has arrived, or arrives within `patience`.
    ///
    /// # Panics
    /// If the server sends what is not TLS.
    pub fn receive(&mut self, patience: Duration) -> io::Result<Received> {
        let until = Instant::now() + patience;
        loop {
            if let Some(received) = self.decrypted()? {
                return Ok(received);
            }
            let left = until.saturating_duration_since(Instant::now());
            self.tcp.set_read_timeout(Some(left.max(Duration::from_micros(1))))?;
            if !self.read()? {
                return Ok(self.decrypted()?.unwrap_or(Received::Closed));
            }
        }
    }

    /// Returns what has arrived by now.
    pub fn receive_now(&mut self) -> io::Result<Received> {
        if let Some(received) = self.decrypted()? {
            return Ok(received);
        }
        self.tcp.set_nonblocking(true)?;
        let result = self.read();
        self.tcp.set_nonblocking(false)?;
        let is_open = result?;
        Ok(self.decrypted()?.unwrap_or(if is_open { Received::Silence } else { Received::Closed }))
    }

    /// Reads ciphertext. Returns false at its end.
    fn read(&mut self) -> io::Result<bool> {
        let bytes = loop {
            match self.tls.read_tls(&mut self.tcp) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => break result?,
            }
        };
        self.tls.process_new_packets().map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        // A hang-up shows at the next read.
        let _ = self.flush_now();
        Ok(bytes > 0)
    }

    /// Returns plaintext, or its end, if there is any.
    fn decrypted(&mut self) -> io::Result<Option<Received>> {
        let mut buffer = vec![0; PIECE_BYTES];
        match self.tls.reader().read(&mut buffer) {
            Ok(0) => Ok(Some(Received::Closed)),
            Ok(bytes) => {
                buffer.truncate(bytes);
                Ok(Some(Received::Bytes(buffer)))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(Some(Received::Closed)),
            Err(error) => Err(error),
        }
    }

    /// Ends the output: with close_notify, and in TCP.
    pub fn shut_down(&mut self, how: Shutdown) -> io::Result<()> {
        self.tls.send_close_notify();
        self.flush()?;
        self.tcp.shutdown(how)
    }
}
