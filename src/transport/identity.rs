//! The certificate that the server shows, and which clients it accepts.

use std::sync::Arc;

use rustls::crypto::ring::{Ticketer, default_provider};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, ServerConfig, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{InconsistentKeys, RootCertStore};
use x509_cert::Certificate;
use x509_cert::der::{Decode, Encode};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use super::chain::OnePath;
use super::keys::{Checks, KeyKind};
use crate::server::{self, CertificatePart, CertificatePem};
use crate::time::Time;

/// A certificate with its key, ready to be used.
#[derive(Clone, Debug)]
pub struct Identity {
    pub(super) config: Arc<ServerConfig>,
    /// The certificate.
    pub own: OwnCertificate,
    /// A certificate that clients may be signed by is that of an authority.
    pub has_client_authority: bool,
    /// Clients show certificates too.
    knows_clients: bool,
    /// The signatures of clients that were checked.
    pub(super) checks: Arc<Checks>,
}

/// Why files are no certificate that can be used.
// docs/RUNBOOK.md lists these messages.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum IdentityError {
    #[error("the file contains no {holds} in PEM; put one into it, or convert it with openssl")]
    Pem { part: CertificatePart, holds: &'static str },
    #[error("the key has a passphrase; write it without one (openssl pkey -in KEY -out NEW)")]
    Encrypted,
    #[error("the key of --tls-key does not belong to the first certificate; replace one of them")]
    KeyOfAnother,
    #[error("the first certificate cannot be used: {0}")]
    Certificate(String),
    #[error("the key cannot be used: {0}")]
    Key(String),
    #[error("the authorities cannot be used: {0}")]
    Authority(String),
    #[error("the system has no random numbers")]
    Random,
}

impl Identity {
    /// Reads the contents of the files.
    ///
    /// # Errors
    /// [`IdentityError::part`] is the file that is wrong.
    pub fn read(files: &CertificatePem) -> Result<Self, IdentityError> {
        let chain = certificates(&files.chain, CertificatePart::Chain)?;
        let key = PrivateKeyDer::from_pem_slice(&files.key).map_err(|_| no_key(&files.key))?;
        let own = own_certificate(&chain[0]);
        let own = own.ok_or_else(|| IdentityError::Certificate("it is not X.509".to_owned()))?;
        let checks = Arc::new(Checks::default());
        let provider = Arc::new(default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("the provider has suites of TLS 1.3");
        let knows_clients = files.client_ca.is_some();
        let mut has_client_authority = false;
        let builder = match &files.client_ca {
            None => builder.with_no_client_auth(),
            Some(authorities) => {
                let roots = roots(authorities, &mut has_client_authority)?;
                // Bounded by the configuration: the authorities of a file.
                let sizes = roots.roots.iter().map(|root| root.subject_public_key_info.len());
                let kinds = sizes.map(KeyKind::of_info);
                let authority = kinds.max_by_key(|kind| kind.check().steps()).unwrap_or(KeyKind::P256);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build();
                let verifier = verifier
                    .map_err(|error: VerifierBuilderError| IdentityError::Authority(error.to_string()))?;
                let checks = Arc::clone(&checks);
                builder.with_client_cert_verifier(Arc::new(OnePath { verifier, authority, checks }))
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => IdentityError::KeyOfAnother,
            rustls::Error::InvalidCertificate(error) => IdentityError::Certificate(error.to_string()),
            error => IdentityError::Key(error.to_string()),
        })?;
        // A ticket would stand for the certificate of a client after that has expired, or its authority has gone.
        if knows_clients {
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        } else {
            config.ticketer = Ticketer::new().map_err(|_| IdentityError::Random)?;
        }
        let config = config.into();
        Ok(Self { config, own, has_client_authority, knows_clients, checks })
    }

    /// Whether the certificate is valid at this time.
    pub(super) fn is_valid(&self, now: Time) -> bool {
        (self.own.not_before_s..self.own.not_after_s).contains(&now.since(Time::ZERO).as_secs())
    }

    /// An identity that is not from files, with a key of Ed25519.
    #[cfg(feature = "replicate")]
    pub(super) fn of_key(config: Arc<ServerConfig>) -> Self {
        let key = KeyKind::Ed25519;
        let own = OwnCertificate { not_before_s: 0, not_after_s: u64::MAX, is_authority: false, key };
        let checks = Arc::default();
        Self { config, own, has_client_authority: false, knows_clients: false, checks }
    }

    /// Keeps the keys of session tickets, so that clients resume their sessions after a change of the certificate.
    #[must_use]
    pub(super) fn with_tickets_of(mut self, earlier: &Self) -> Self {
        if !self.knows_clients && !earlier.knows_clients {
            let mut config = (*self.config).clone();
            config.ticketer = earlier.config.ticketer.clone();
            self.config = config.into();
        }
        self
    }
}

/// Why a file has no key.
fn no_key(pem: &[u8]) -> IdentityError {
    // RFC 1421 and RFC 5958: both forms of an encrypted key have the word in their header.
    if memchr::memmem::find(pem, b"ENCRYPTED").is_some() {
        IdentityError::Encrypted
    } else {
        IdentityError::Pem { part: CertificatePart::Key, holds: "private key" }
    }
}

fn certificates(pem: &[u8], part: CertificatePart) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let read: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(pem).collect();
    read.ok().filter(|found| !found.is_empty()).ok_or(IdentityError::Pem { part, holds: "certificate" })
}

fn roots(pem: &[u8], has_authority: &mut bool) -> Result<RootCertStore, IdentityError> {
    let mut roots = RootCertStore::empty();
    // Bounded by the configuration: the certificates of a file, read at the start or after a change.
    for certificate in certificates(pem, CertificatePart::ClientCa)? {
        *has_authority |= own_certificate(&certificate).is_some_and(|read| read.is_authority);
        roots.add(certificate).map_err(|error| IdentityError::Authority(error.to_string()))?;
    }
    Ok(roots)
}

impl server::Certificate for Identity {
    fn from_pem(files: &CertificatePem) -> Result<Self, (Option<CertificatePart>, String)> {
        Self::read(files).map_err(|error| (error.part(), error.to_string()))
    }
}

impl IdentityError {
    /// The file that is wrong.
    pub const fn part(&self) -> Option<CertificatePart> {
        match self {
            Self::Pem { part, .. } => Some(*part),
            Self::KeyOfAnother | Self::Certificate(_) => Some(CertificatePart::Chain),
            Self::Encrypted | Self::Key(_) => Some(CertificatePart::Key),
            Self::Authority(_) => Some(CertificatePart::ClientCa),
            Self::Random => None,
        }
    }
}

/// The subject alternative names of a certificate: of DNS, addresses of mail, and URIs.
pub(super) fn names_of(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = Certificate::from_der(certificate) else { return Vec::new() };
    let Ok(Some((_, names))) = certificate.tbs_certificate().get_extension::<SubjectAltName>() else {
        return Vec::new();
    };
    let text = |name: GeneralName| match name {
        GeneralName::DnsName(name)
        | GeneralName::Rfc822Name(name)
        | GeneralName::UniformResourceIdentifier(name) => Some(name.as_str().to_owned()),
        _ => None,
    };
    names.0.into_iter().filter_map(text).collect()
}

/// What the server needs to know of its own certificate.
#[derive(Clone, Debug)]
pub struct OwnCertificate {
    /// When it becomes valid, in seconds since 1970.
    pub not_before_s: u64,
    /// When it expires, in seconds since 1970.
    pub not_after_s: u64,
    /// It is that of an authority, which clients refuse from a server.
    pub is_authority: bool,
    /// The kind of its public key.
    pub(super) key: KeyKind,
}

fn own_certificate(certificate: &CertificateDer<'_>) -> Option<OwnCertificate> {
    use x509_cert::ext::pkix::BasicConstraints;

    let certificate = Certificate::from_der(certificate).ok()?;
    let certificate = certificate.tbs_certificate();
    let validity = certificate.validity();
    let constraints = certificate.get_extension::<BasicConstraints>().ok().flatten();
    let key = certificate.subject_public_key_info().encoded_len().ok()?;
    Some(OwnCertificate {
        not_before_s: validity.not_before.to_unix_duration().as_secs(),
        not_after_s: validity.not_after.to_unix_duration().as_secs(),
        is_authority: constraints.is_some_and(|(_, constraints)| constraints.ca),
        key: KeyKind::of_info(u32::from(key) as usize),
    })
}
