//! The files of the certificate of TLS.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::named_file::{self, FileError, PEM_BYTES_MAX};
use crate::server::{CertificatePart, CertificatePem};

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

/// What errors call the files: each by the source of its setting, with the path.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CertificateNames {
    /// The certificate.
    pub chain: String,
    /// Its key.
    pub key: String,
    /// The authorities of clients.
    pub client_ca: String,
}

impl CertificateNames {
    /// The name of a part.
    pub fn of(&self, part: CertificatePart) -> &str {
        match part {
            CertificatePart::Chain => &self.chain,
            CertificatePart::Key => &self.key,
            CertificatePart::ClientCa => &self.client_ca,
        }
    }
}

impl CertificateFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// The first one that cannot be read.
    pub fn read(&self) -> Result<CertificatePem, (CertificatePart, FileError)> {
        let client_ca = self.client_ca.as_deref();
        Ok(CertificatePem {
            chain: content(CertificatePart::Chain, &self.chain)?,
            key: content(CertificatePart::Key, &self.key)?,
            client_ca: client_ca.map(|path| content(CertificatePart::ClientCa, path)).transpose()?,
        })
    }

    /// The warning that every user of the machine can read the key.
    // docs/RUNBOOK.md lists these messages.
    pub fn open_key(&self) -> Option<String> {
        let is_open = self.key.metadata().is_ok_and(|file| file.permissions().mode() & OTHERS_READ != 0);
        is_open.then(|| {
            let key = self.key.display();
            format!("--tls-key {key}: every user of this machine can read the key: run chmod o-r on the file")
        })
    }

    /// All files, each once.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let key = Some(&self.key).filter(|&key| *key != self.chain);
        [Some(&self.chain), key, self.client_ca.as_ref()].into_iter().flatten().map(PathBuf::as_path)
    }
}

fn content(part: CertificatePart, path: &Path) -> Result<Vec<u8>, (CertificatePart, FileError)> {
    named_file::read(path, PEM_BYTES_MAX).map(|file| file.content).map_err(|error| (part, error))
}
