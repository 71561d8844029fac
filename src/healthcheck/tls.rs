//! The health check of a server over TLS.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{
    AlertDescription, ClientConfig, ClientConnection, Error as TlsError, RootCertStore, StreamOwned,
};

use crate::io::lenient_verifier::LenientVerifier;
use crate::io::named_file::{self, PEM_BYTES_MAX};
use crate::io::probe::{self, Probe};
use crate::io::socket::{Address, text_of};

/// Why the health of a server with TLS is not known.
#[derive(Debug)]
pub struct TlsProbeError {
    address: Address,
    problem: Problem,
}

#[derive(Debug)]
enum Problem {
    /// The file of the CA, or the name to look for in the certificate.
    Ca(String),
    /// No connection, or the connection broke.
    System(io::Error),
    Silent(Duration),
    Closed,
    Tls(TlsError),
    /// The reply is a different one.
    Wrong(Vec<u8>),
}

/// Connects to `address`, or to the loopback address if that stands for all addresses, and sends the command over TLS. A server
/// that wants a client certificate is healthy, because it has done the rest of the handshake. Without the file of a CA, any
/// certificate will do: the check is about this machine's own server, and sends no secret.
///
/// # Errors
/// If the reply does not come in time or is a different one, or the certificate is not one of the CA.
pub fn run(
    address: &Address,
    ca: Option<&Path>,
    probe: Probe,
    timeout: Duration,
) -> Result<(), TlsProbeError> {
    let address = probe::reachable(address);
    let failed = |problem| TlsProbeError { address: address.clone(), problem };
    exchange(&address, ca, probe, Instant::now() + timeout).map_err(|problem| match problem {
        Problem::System(error) => match (tls_error(&error), error.kind()) {
            (Some(error), _) => failed(Problem::Tls(error)),
            (None, ErrorKind::WouldBlock | ErrorKind::TimedOut) => failed(Problem::Silent(timeout)),
            (None, ErrorKind::UnexpectedEof) => failed(Problem::Closed),
            (None, _) => failed(Problem::System(error)),
        },
        problem => failed(problem),
    })
}

fn tls_error(error: &io::Error) -> Option<TlsError> {
    error.get_ref().and_then(|error| error.downcast_ref::<TlsError>()).cloned()
}

fn exchange(address: &Address, ca: Option<&Path>, probe: Probe, until: Instant) -> Result<(), Problem> {
    let name = address.host().unwrap_or("localhost").to_owned();
    let name = ServerName::try_from(name).map_err(|error| Problem::Ca(error.to_string()))?;
    let session = ClientConnection::new(config(ca)?, name).map_err(Problem::Tls)?;
    let socket = connect(address, until).map_err(Problem::System)?;
    let mut stream = StreamOwned::new(session, Limited { socket, until });
    stream.write_all(probe.command).map_err(Problem::System)?;
    let mut received = Vec::new();
    while received.len() < probe.reply.len() {
        let mut buffer = [0; 64];
        match stream.read(&mut buffer) {
            Ok(0) => return Err(Problem::Closed),
            Ok(count) => received.extend_from_slice(&buffer[..count]),
            Err(error) if tls_error(&error) == Some(CERTIFICATE_REQUIRED) => return Ok(()),
            Err(error) => return Err(Problem::System(error)),
        }
        if !probe.reply.starts_with(&received) {
            return Err(Problem::Wrong(received));
        }
    }
    Ok(())
}

/// What a server sends that verifies its clients.
const CERTIFICATE_REQUIRED: TlsError = TlsError::AlertReceived(AlertDescription::CertificateRequired);

fn config(ca: Option<&Path>) -> Result<Arc<ClientConfig>, Problem> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(Problem::Tls)?;
    let Some(path) = ca else {
        let any = Arc::new(LenientVerifier::of_any(provider));
        return Ok(Arc::new(builder.dangerous().with_custom_certificate_verifier(any).with_no_client_auth()));
    };
    let mut roots = RootCertStore::empty();
    let wrong = |error: String| Problem::Ca(format!("--tls-ca {}: {error}", path.display()));
    let file = named_file::read(path, PEM_BYTES_MAX).map_err(|error| wrong(error.to_string()))?;
    for certificate in CertificateDer::pem_slice_iter(&file.content) {
        let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
        roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
    }
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

/// A socket of either kind.
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A socket that is given up at a moment.
struct Limited {
    socket: Socket,
    until: Instant,
}

fn connect(address: &Address, until: Instant) -> io::Result<Socket> {
    let (host, port) = match address {
        Address::Tcp { host, port } => (host.as_str(), *port),
        Address::Unix(path) => return UnixStream::connect(path).map(Socket::Unix),
    };
    let mut refusal = io::Error::new(ErrorKind::NotFound, "no such host");
    for place in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&place, left(until)?) {
            Ok(stream) => return Ok(Socket::Tcp(stream)),
            Err(error) => refusal = error,
        }
    }
    Err(refusal)
}

fn left(until: Instant) -> io::Result<Duration> {
    match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

impl Read for Limited {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = Some(left(self.until)?);
        match &mut self.socket {
            Socket::Tcp(stream) => stream.set_read_timeout(left).and_then(|()| stream.read(buffer)),
            Socket::Unix(stream) => stream.set_read_timeout(left).and_then(|()| stream.read(buffer)),
        }
    }
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = Some(left(self.until)?);
        match &mut self.socket {
            Socket::Tcp(stream) => stream.set_write_timeout(left).and_then(|()| stream.write(bytes)),
            Socket::Unix(stream) => stream.set_write_timeout(left).and_then(|()| stream.write(bytes)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Display for TlsProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, problem } = self;
        match problem {
            Problem::Ca(text) => f.write_str(text),
            Problem::System(error) => {
                write!(
                    f,
                    "cannot connect to {address}: {}; start the server, or correct the address",
                    text_of(error)
                )
            }
            Problem::Silent(timeout) => {
                write!(f, "{address}: no reply over TLS within {} s", timeout.as_secs())
            }
            Problem::Closed => write!(f, "{address}: the connection was closed without a reply"),
            Problem::Tls(error) => write!(f, "{address}: no TLS with the server: {error}"),
            Problem::Wrong(received) => {
                let received = received.escape_ascii();
                write!(f, "{address}: this is not a beanstalk server: it replied \"{received}\"")
            }
        }
    }
}

impl std::error::Error for TlsProbeError {}
