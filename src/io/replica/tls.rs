//! TLS to the database.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ring::digest;
use rustls::ClientConfig;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client;
use x509_cert::Certificate;
use x509_cert::der::Decode;

use super::settings::UrlError;
use crate::io::lenient_verifier::LenientVerifier;
use crate::io::named_file::{self, PEM_BYTES_MAX};
use crate::io::trusted;

/// The checks of the certificate of the database, by the words of `sslmode`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Verification {
    /// Nothing, unless authorities are given: `prefer` and `require`.
    #[default]
    None,
    /// That a trusted authority has issued it: `verify-ca`.
    Authority,
    /// That, and the name of the host: `verify-full`.
    Full,
}

const NO_CERTIFICATE: &str = "it contains no certificate in PEM format";

/// Makes TLS connections to the database.
#[derive(Clone, Debug)]
pub(super) struct Connector(Arc<ClientConfig>);

#[derive(Debug)]
pub(super) struct Handshake {
    config: Arc<ClientConfig>,
    host: ServerName<'static>,
}

/// A connection over TLS.
#[derive(Debug)]
pub(super) struct Stream(client::TlsStream<Socket>);

impl Connector {
    /// Reads the files of the certificates. A client that uses no TLS needs none of the system.
    pub(super) fn new(
        verification: Verification,
        ca: Option<&Path>,
        identity: Option<(PathBuf, PathBuf)>,
        uses_tls: bool,
    ) -> Result<Self, UrlError> {
        let verification = match verification {
            Verification::None if uses_tls && ca.is_some() => Verification::Authority,
            _ if !uses_tls => Verification::None,
            verification => verification,
        };
        let verifier: Arc<dyn ServerCertVerifier> = match verification {
            Verification::None => Arc::new(LenientVerifier::of_any()),
            Verification::Authority => Arc::new(LenientVerifier::of_authority(issued_by(ca)?)),
            Verification::Full => issued_by(ca)?,
        };
        let builder = trusted::client_config().dangerous().with_custom_certificate_verifier(verifier);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some((path, key_path)) => {
                let key = PrivateKeyDer::from_pem_slice(&content(&key_path)?)
                    .map_err(|error| UrlError::File(key_path, error.to_string()))?;
                builder
                    .with_client_auth_cert(certificates(&path)?, key)
                    .map_err(|error| UrlError::File(path, error.to_string()))?
            }
        };
        Ok(Self(Arc::new(config)))
    }
}

fn issued_by(ca: Option<&Path>) -> Result<Arc<WebPkiServerVerifier>, UrlError> {
    let roots = trusted::roots(ca).map_err(|(path, error)| wrong(&path, &error))?;
    if let Some(path) = ca.filter(|_| roots.is_empty()) {
        return Err(wrong(path, &NO_CERTIFICATE));
    }
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), default_provider().into())
        .build()
        .map_err(|error| wrong(ca.unwrap_or(Path::new("sslrootcert")), &error))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, UrlError> {
    let all = trusted::certificates(path).map_err(|error| wrong(path, &error))?;
    if all.is_empty() { Err(wrong(path, &NO_CERTIFICATE)) } else { Ok(all) }
}

fn wrong(path: &Path, error: &dyn ToString) -> UrlError {
    UrlError::File(path.to_owned(), error.to_string())
}

fn content(path: &Path) -> Result<Vec<u8>, UrlError> {
    let read = named_file::read(path, PEM_BYTES_MAX).map(|file| file.content);
    read.map_err(|error| wrong(path, &error))
}

impl MakeTlsConnect<Socket> for Connector {
    type Stream = Stream;
    type TlsConnect = Handshake;
    type Error = rustls::pki_types::InvalidDnsNameError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Handshake, Self::Error> {
        // A socket in a directory has no name, and no TLS.
        let host = if host.is_empty() { "localhost" } else { host };
        Ok(Handshake { config: self.0.clone(), host: ServerName::try_from(host.to_owned())? })
    }
}

impl TlsConnect<Socket> for Handshake {
    type Stream = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    fn connect(self, stream: Socket) -> Self::Future {
        Box::pin(async move { TlsConnector::from(self.config).connect(self.host, stream).await.map(Stream) })
    }
}

impl TlsStream for Stream {
    fn channel_binding(&self) -> ChannelBinding {
        let certificate = self.0.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let end_point = certificate.and_then(end_point);
        end_point.map_or_else(ChannelBinding::none, ChannelBinding::tls_server_end_point)
    }
}

/// The hash of a certificate that ties a password to the connection (RFC 5929, `tls-server-end-point`).
fn end_point(der: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let certificate = Certificate::from_der(der).ok()?;
    let algorithm = match &*certificate.signature_algorithm().oid.to_string() {
        // MD5 and SHA-1 count as SHA-256.
        "1.2.840.113549.1.1.4" | "1.2.840.113549.1.1.5" | "1.2.840.10045.4.1" => &digest::SHA256,
        "1.2.840.113549.1.1.11" | "1.2.840.10045.4.3.2" => &digest::SHA256,
        "1.2.840.113549.1.1.12" | "1.2.840.10045.4.3.3" => &digest::SHA384,
        "1.2.840.113549.1.1.13" | "1.2.840.10045.4.3.4" => &digest::SHA512,
        _ => return None,
    };
    Some(digest::digest(algorithm, der).as_ref().to_vec())
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
