//! The certificates of the authorities that the system trusts, or that `SSL_CERT_FILE` and `SSL_CERT_DIR` name instead, as for OpenSSL.

use std::env;
use std::path::{Path, PathBuf};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls_native_certs::{load_certs_from_paths, load_native_certs};

use super::named_file::{self, FileError, PEM_BYTES_MAX};

/// Returns them. Those that cannot be read are left out, as in other programs.
///
/// # Errors
/// The path in `SSL_CERT_FILE`, if that is no file of certificates.
pub fn authorities() -> Result<Vec<CertificateDer<'static>>, (PathBuf, FileError)> {
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
