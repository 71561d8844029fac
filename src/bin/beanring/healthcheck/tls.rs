//! The health check of a server over TLS.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use beanring::io::dial::DialError;
use beanring::io::lenient_verifier::LenientVerifier;
use beanring::io::socket::Address;
use beanring::io::trusted;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig, ClientConnection, Error as TlsError, StreamOwned};

use super::{Limited, Probe, ProbeError, Problem, is_late, reachable};

/// What a server sends that verifies its clients.
const CERTIFICATE_REQUIRED: TlsError = TlsError::AlertReceived(AlertDescription::CertificateRequired);

/// What may be corrected.
const ADDRESS: &str = "the address";

/// Connects to `address`, or to the loopback address if that stands for all addresses, and sends the command over TLS. A server
/// that wants a client certificate is healthy, because it has done the rest of the handshake. Without the file of a CA, any
/// certificate will do: the check is about this machine's own server, and sends no secret.
///
/// # Errors
/// If the reply does not come in time or is a different one, or the certificate is not one of the CA.
pub(super) fn run(
    address: &Address,
    ca: Option<&Path>,
    probe: Probe,
    timeout: Duration,
) -> Result<(), ProbeError> {
    let address = reachable(address);
    let problem = match exchange(&address, ca, probe, Instant::now() + timeout) {
        Ok(()) => return Ok(()),
        Err(Problem::Broken(error) | Problem::Unreachable(error, _)) => match tls_error(&error) {
            Some(CERTIFICATE_REQUIRED) => return Ok(()),
            Some(error) => Problem::Tls(error),
            None if is_late(&error) => Problem::Silent(timeout, " over TLS"),
            None if error.kind() == ErrorKind::UnexpectedEof => Problem::Closed,
            None => Problem::Unreachable(error, ADDRESS),
        },
        Err(problem) => problem,
    };
    Err(ProbeError { address, problem })
}

fn tls_error(error: &io::Error) -> Option<TlsError> {
    error.get_ref().and_then(|error| error.downcast_ref::<TlsError>()).cloned()
}

fn exchange(address: &Address, ca: Option<&Path>, probe: Probe, until: Instant) -> Result<(), Problem> {
    let name = address.host().unwrap_or("localhost").to_owned();
    let name = ServerName::try_from(name).map_err(|error| Problem::Ca(error.to_string()))?;
    let session = ClientConnection::new(config(ca)?, name).map_err(Problem::Tls)?;
    let connection = Limited::dial(address, until).map_err(|error| {
        let error = match error {
            DialError::Lookup(error) | DialError::Refused(error) => error,
            DialError::NoAddress => io::Error::new(ErrorKind::NotFound, "no such host"),
        };
        Problem::Unreachable(error, ADDRESS)
    })?;
    super::exchange(&mut StreamOwned::new(session, connection), probe)
}

fn config(ca: Option<&Path>) -> Result<Arc<ClientConfig>, Problem> {
    let builder = trusted::client_config();
    let builder = match ca {
        None => builder.dangerous().with_custom_certificate_verifier(Arc::new(LenientVerifier::of_any())),
        Some(_) => builder.with_root_certificates(
            trusted::roots(ca)
                .map_err(|(path, error)| Problem::Ca(format!("--tls-ca {}: {error}", path.display())))?,
        ),
    };
    Ok(Arc::new(builder.with_no_client_auth()))
}
