//! What the clients in this program need for TLS: their configuration, and the authorities that they trust.

use std::env;
use std::path::{Path, PathBuf};

use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier};
use rustls_native_certs::{load_certs_from_paths, load_native_certs};

use super::named_file::{self, FileError, PEM_BYTES_MAX};

/// Why a file of certificates is of no use.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum CertificateError {
    #[error("{0}")]
    File(FileError),
    #[error("{0}")]
    Pem(pem::Error),
    #[error("{0}")]
    Invalid(rustls::Error),
}

/// Begins the configuration of a client.
///
/// # Panics
/// Never: the provider has suites of TLS 1.3.
pub fn client_config() -> ConfigBuilder<ClientConfig, WantsVerifier> {
    ClientConfig::builder_with_provider(default_provider().into())
        .with_safe_default_protocol_versions()
        .expect("ring has the cipher suites of TLS 1.3")
}

/// Returns the authorities in a file, or those of the system. There may be none.
///
/// # Errors
/// A file that is of no use.
pub fn roots(file: Option<&Path>) -> Result<RootCertStore, (PathBuf, CertificateError)> {
    let mut roots = RootCertStore::empty();
    let Some(path) = file else {
        let found = authorities().map_err(|(path, error)| (path, CertificateError::File(error)))?;
        roots.add_parsable_certificates(found);
        return Ok(roots);
    };
    let failed = |error| (path.to_owned(), error);
    for certificate in certificates(path).map_err(failed)? {
        roots.add(certificate).map_err(|error| failed(CertificateError::Invalid(error)))?;
    }
    Ok(roots)
}

/// Returns the certificates in a file. There may be none.
///
/// # Errors
/// If it cannot be read, or has something that is not PEM.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let file = named_file::read(path, PEM_BYTES_MAX).map_err(CertificateError::File)?;
    CertificateDer::pem_slice_iter(&file.content).collect::<Result<_, _>>().map_err(CertificateError::Pem)
}

/// Returns the authorities that the system trusts, or that `SSL_CERT_FILE` and `SSL_CERT_DIR` name instead, as for OpenSSL. Those
/// that cannot be read are left out, as in other programs.
///
/// # Errors
/// The path in `SSL_CERT_FILE`, if that is no file of certificates.
fn authorities() -> Result<Vec<CertificateDer<'static>>, (PathBuf, FileError)> {
    let (file, dirs) = (env::var_os("SSL_CERT_FILE"), env::var_os("SSL_CERT_DIR"));
    let dirs: Vec<PathBuf> =
        dirs.iter().flat_map(env::split_paths).filter(|dir| *dir != Path::new("")).collect();
    if file.is_none() && dirs.is_empty() {
        return Ok(load_native_certs().certs);
    }
    let mut found = match file.map(PathBuf::from) {
        Some(path) => certificates_in(&path).map_err(|error| (path, error))?,
        None => Vec::new(),
    };
    // Only the regular files of a directory are read.
    found.extend(dirs.iter().flat_map(|dir| load_certs_from_paths(None, Some(dir)).certs));
    Ok(found)
}

fn certificates_in(path: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let file = named_file::read(path, PEM_BYTES_MAX)?;
    Ok(CertificateDer::pem_slice_iter(&file.content).filter_map(Result::ok).collect())
}
