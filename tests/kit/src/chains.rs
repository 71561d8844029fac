//! Chains of certificates in DER: good ones by authorities in memory, and small ones that no key has signed.

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P384_SHA384,
};

/// An authority with a key of P-384: of all keys, its signatures take the longest to check.
pub struct Authority {
    params: CertificateParams,
    key: KeyPair,
}

impl Authority {
    /// # Panics
    /// If the system has no random numbers.
    pub fn new(name: &str) -> Self {
        let mut params = params(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).expect("the system has random numbers");
        Self { params, key }
    }

    /// Returns the certificate that this authority has from itself, in PEM.
    pub fn pem(&self) -> String {
        self.sign(&self.params, &self.key).pem()
    }

    /// Returns the certificate that this authority has from another.
    pub fn certified_by(&self, issuer: &Self) -> Vec<u8> {
        issuer.sign(&self.params, &self.key).der().to_vec()
    }

    /// Returns the certificate of a client, and its key in PKCS #8.
    ///
    /// # Panics
    /// If the system has no random numbers.
    pub fn client(&self) -> (Vec<u8>, Vec<u8>) {
        let mut params = params("client");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().expect("the system has random numbers");
        (self.sign(&params, &key).der().to_vec(), key.serialize_der())
    }

    fn sign(&self, params: &CertificateParams, key: &KeyPair) -> Certificate {
        let issuer = Issuer::from_params(&self.params, &self.key);
        params.signed_by(key, &issuer).expect("the parameters are valid")
    }
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

/// Returns the certificate of an authority that says to be issued by another, with a key and a signature that are none: 130 bytes
/// with short names. `number` tells keys apart.
pub fn bare(issuer: &str, subject: &str, number: u16) -> Vec<u8> {
    made(issuer, subject, number, &[0])
}

/// [`bare`], with a signature of the right form for P-384.
pub fn forged(issuer: &str, subject: &str, number: u16) -> Vec<u8> {
    let half = element(0x02, &[0x11; 48]);
    made(issuer, subject, number, &[&[0][..], &sequence(&[&half, &half])].concat())
}

fn made(issuer: &str, subject: &str, number: u16, signature: &[u8]) -> Vec<u8> {
    const ECDSA_WITH_SHA384: [u8; 10] = *b"\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x03";
    // The extension of basic constraints says that it is an authority.
    const AUTHORITY: [u8; 18] = *b"\xa3\x10\x30\x0e\x30\x0c\x06\x03\x55\x1d\x13\x04\x05\x30\x03\x01\x01\xff";
    let algorithm = sequence(&[&ECDSA_WITH_SHA384]);
    let [from, until] = [b"750101000000Z", b"491231235959Z"].map(|time| element(0x17, time));
    let key = sequence(&[&element(0x04, &number.to_be_bytes())]);
    let contents = sequence(&[
        b"\xa0\x03\x02\x01\x02",
        &element(0x02, &[1]),
        &algorithm,
        &name(issuer),
        &sequence(&[&from, &until]),
        &name(subject),
        &key,
        &AUTHORITY,
    ]);
    sequence(&[&contents, &algorithm, &element(0x03, signature)])
}

/// A distinguished name with a common name alone.
fn name(common_name: &str) -> Vec<u8> {
    let value = sequence(&[b"\x06\x03\x55\x04\x03", &element(0x0c, common_name.as_bytes())]);
    sequence(&[&element(0x31, &value)])
}

fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    element(0x30, &parts.concat())
}

/// A tag, the length and the content.
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let head = match u8::try_from(length).expect("it is short") {
        short @ ..0x80 => vec![tag, short],
        long => vec![tag, 0x81, long],
    };
    [&head, content].concat()
}
