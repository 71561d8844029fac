//! Certificates for tests of TLS: an authority, leaves of it that are fine, and leaves that a peer must refuse.

use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, date_time_ymd,
};

/// The names of a server on this machine.
pub const LOCAL_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// The name in [`Certificates::client`], as its common name and as its DNS name.
pub const CLIENT_NAME: &str = "client.test";

/// The only name in [`Certificates::other_name`].
pub const OTHER_NAME: &str = "queue.test";

/// A kind of private key that TLS 1.3 uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyKind {
    EcdsaP256,
    EcdsaP384,
    Ed25519,
    Rsa2048,
    Rsa4096,
}

impl KeyKind {
    pub const ALL: [Self; 5] =
        [Self::EcdsaP256, Self::EcdsaP384, Self::Ed25519, Self::Rsa2048, Self::Rsa4096];

    pub const fn name(self) -> &'static str {
        match self {
            Self::EcdsaP256 => "ECDSA P-256",
            Self::EcdsaP384 => "ECDSA P-384",
            Self::Ed25519 => "Ed25519",
            Self::Rsa2048 => "RSA 2048",
            Self::Rsa4096 => "RSA 4096",
        }
    }

    /// Returns a key of this kind. Those of RSA are always the same, since the library makes none.
    ///
    /// # Panics
    /// If the system has no random numbers.
    pub fn key(self) -> KeyPair {
        let key = match self {
            Self::EcdsaP256 => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
            Self::EcdsaP384 => KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384),
            Self::Ed25519 => KeyPair::generate_for(&PKCS_ED25519),
            Self::Rsa2048 => KeyPair::from_pem(include_str!("../keys/rsa-2048.pem")),
            Self::Rsa4096 => KeyPair::from_pem(include_str!("../keys/rsa-4096.pem")),
        };
        key.expect("the key is valid")
    }
}

/// The files of a certificate and its private key, both PEM.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The certificate, `NAME.pem`.
    pub certificate: PathBuf,
    /// The key, `NAME.key`, which only its owner can read.
    pub key: PathBuf,
}

impl Pair {
    /// Returns the flags of a server with this certificate.
    pub fn flags(&self) -> [String; 4] {
        let (certificate, key) = (self.certificate.display().to_string(), self.key.display().to_string());
        ["--tls-cert".to_owned(), certificate, "--tls-key".to_owned(), key]
    }
}

/// A directory with certificates, all in PEM files. Leaves are valid from 1975 to 4096, except for [`Self::expired`].
pub struct Certificates {
    dir: PathBuf,
    authority: Issuer<'static, KeyPair>,
    /// The certificate of the authority: `ca.pem`.
    pub ca: PathBuf,
    /// A server with [`LOCAL_NAMES`]: `server.pem`, `server.key`.
    pub server: Pair,
    /// A client with [`CLIENT_NAME`]: `client.pem`, `client.key`.
    pub client: Pair,
    /// A server with [`LOCAL_NAMES`] that expired in 2001: `expired.pem`, `expired.key`.
    pub expired: Pair,
    /// A server with [`OTHER_NAME`] alone: `other-name.pem`, `other-name.key`.
    pub other_name: Pair,
    /// The certificate of another authority: `other-ca.pem`.
    pub other_ca: PathBuf,
    /// A server with [`LOCAL_NAMES`] by the other authority: `other-server.pem`, `other-server.key`.
    pub other_server: Pair,
    /// A client with [`CLIENT_NAME`] by the other authority: `other-client.pem`, `other-client.key`.
    pub other_client: Pair,
}

impl Certificates {
    /// Creates authorities and leaves in a directory that exists. Takes some milliseconds.
    ///
    /// # Panics
    /// If the files cannot be written.
    pub fn new(dir: &Path) -> Self {
        let (authority, ca) = authority_named(dir, "ca");
        let (other, other_ca) = authority_named(dir, "other-ca");
        let server = ExtendedKeyUsagePurpose::ServerAuth;
        let client = ExtendedKeyUsagePurpose::ClientAuth;
        let mut expired = params("expired.test", &LOCAL_NAMES, server.clone());
        expired.not_after = date_time_ymd(2001, 1, 1);
        let by = |issuer, file, params| signed(dir, issuer, file, &params);
        Self {
            server: by(&authority, "server", params("server.test", &LOCAL_NAMES, server.clone())),
            client: by(&authority, "client", params(CLIENT_NAME, &[CLIENT_NAME], client.clone())),
            expired: by(&authority, "expired", expired),
            other_name: by(&authority, "other-name", params(OTHER_NAME, &[OTHER_NAME], server.clone())),
            other_server: by(&other, "other-server", params("server.test", &LOCAL_NAMES, server)),
            other_client: by(&other, "other-client", params(CLIENT_NAME, &[CLIENT_NAME], client)),
            dir: dir.to_owned(),
            authority,
            ca,
            other_ca,
        }
    }

    /// Creates `FILE.pem` and `FILE.key` for a server with these names or addresses, or replaces them.
    ///
    /// # Panics
    /// If the files cannot be written.
    pub fn for_server(&self, file: &str, names: &[&str]) -> Pair {
        signed(&self.dir, &self.authority, file, &params(file, names, ExtendedKeyUsagePurpose::ServerAuth))
    }

    /// Creates a pair as [`Self::for_server`] does for [`LOCAL_NAMES`], with a key of this kind.
    ///
    /// # Panics
    /// If the files cannot be written.
    pub fn for_server_with(&self, file: &str, kind: KeyKind) -> Pair {
        let params = params(file, &LOCAL_NAMES, ExtendedKeyUsagePurpose::ServerAuth);
        signed_with(&self.dir, &self.authority, file, &params, &kind.key())
    }

    /// Creates a pair as [`Self::for_client`] does for [`CLIENT_NAME`], with a key of this kind.
    ///
    /// # Panics
    /// If the files cannot be written.
    pub fn for_client_with(&self, file: &str, kind: KeyKind) -> Pair {
        let params = params(CLIENT_NAME, &[CLIENT_NAME], ExtendedKeyUsagePurpose::ClientAuth);
        signed_with(&self.dir, &self.authority, file, &params, &kind.key())
    }

    /// Creates a pair as [`Self::for_server`] does, which is valid from a time on.
    ///
    /// # Panics
    /// If the files cannot be written.
    pub fn for_server_from(&self, file: &str, names: &[&str], from: SystemTime) -> Pair {
        let mut params = params(file, names, ExtendedKeyUsagePurpose::ServerAuth);
        params.not_before = from.into();
        signed(&self.dir, &self.authority, file, &params)
    }

    /// Returns the flags of a client for a server with one of [`LOCAL_NAMES`] that listens at this address.
    pub fn client_flags(&self, at: SocketAddr) -> String {
        format!("-a beanstalks://{at} --tls-name {} --tls-ca {}", LOCAL_NAMES[0], self.ca.display())
    }

    /// Creates `FILE.pem` and `FILE.key` for a client with these names, or replaces them. The first one is the common name too.
    ///
    /// # Panics
    /// If there is no name, or the files cannot be written.
    pub fn for_client(&self, file: &str, names: &[&str]) -> Pair {
        let params = params(names[0], names, ExtendedKeyUsagePurpose::ClientAuth);
        signed(&self.dir, &self.authority, file, &params)
    }
}

fn authority_named(dir: &Path, name: &str) -> (Issuer<'static, KeyPair>, PathBuf) {
    let key = KeyPair::generate().expect("the system has random numbers");
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, format!("beanring tests {name}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = params.self_signed(&key).expect("the parameters are valid");
    let path = dir.join(format!("{name}.pem"));
    fs::write(&path, certificate.pem()).expect("there is space");
    (Issuer::new(params, key), path)
}

fn params(common_name: &str, names: &[&str], usage: ExtendedKeyUsagePurpose) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let mut params = CertificateParams::new(names).expect("the names are valid");
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    params.use_authority_key_identifier_extension = true;
    params
}

fn signed(dir: &Path, issuer: &Issuer<'static, KeyPair>, file: &str, params: &CertificateParams) -> Pair {
    signed_with(dir, issuer, file, params, &KeyKind::EcdsaP256.key())
}

fn signed_with(
    dir: &Path,
    issuer: &Issuer<'static, KeyPair>,
    file: &str,
    params: &CertificateParams,
    key: &KeyPair,
) -> Pair {
    let certificate = params.signed_by(key, issuer).expect("the parameters are valid");
    let pair = Pair { certificate: dir.join(format!("{file}.pem")), key: dir.join(format!("{file}.key")) };
    fs::write(&pair.certificate, certificate.pem()).expect("there is space");
    let mut key_file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&pair.key)
        .expect("there is space");
    key_file.write_all(key.serialize_pem().as_bytes()).expect("there is space");
    pair
}
