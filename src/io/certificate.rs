//! The files of the certificate of TLS.

use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::named_file::{self, FileError, PEM_BYTES_MAX};
use crate::server::CertificatePem;

/// The permission of every user to read.
const OTHERS_READ: u32 = 0o004;

/// The files of a certificate, in PEM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CertificateFiles {
    /// The certificate of the server, then those between it and its authority.
    pub chain: PathBuf,
    /// Its key. It may be in the same file.
    pub key: PathBuf,
    /// The authorities whose certificates clients must show, if they must.
    pub client_ca: Option<PathBuf>,
}

/// A file of a certificate cannot be read.
#[derive(Debug)]
pub struct CertificateFileError {
    flag: &'static str,
    path: PathBuf,
    error: FileError,
}

impl CertificateFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// If one of them cannot be read.
    pub fn read(&self) -> Result<CertificatePem, CertificateFileError> {
        Ok(CertificatePem {
            chain: content("--tls-cert", &self.chain)?,
            key: content(if self.key == self.chain { "--tls-cert" } else { "--tls-key" }, &self.key)?,
            client_ca: self.client_ca.as_deref().map(|path| content("--tls-client-ca", path)).transpose()?,
        })
    }

    /// Whether every user of the machine can read the key.
    pub fn is_key_open(&self) -> bool {
        self.key.metadata().is_ok_and(|file| file.permissions().mode() & OTHERS_READ != 0)
    }

    /// All files, each once.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let key = Some(&self.key).filter(|&key| *key != self.chain);
        [Some(&self.chain), key, self.client_ca.as_ref()].into_iter().flatten().map(PathBuf::as_path)
    }
}

fn content(flag: &'static str, path: &Path) -> Result<Vec<u8>, CertificateFileError> {
    let read = named_file::read(path, PEM_BYTES_MAX);
    read.map(|file| file.content).map_err(|error| CertificateFileError { flag, path: path.to_owned(), error })
}

impl CertificateFileError {
    /// Whether the path or the file is wrong.
    pub const fn is_wrong(&self) -> bool {
        self.error.is_wrong()
    }

    /// Whether another attempt may succeed although the file stays the same.
    pub fn is_temporary(&self) -> bool {
        self.error.is_temporary()
    }
}

impl fmt::Display for CertificateFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.flag, self.path.display(), self.error)
    }
}

impl std::error::Error for CertificateFileError {}
