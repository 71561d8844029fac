//! The names in a certificate.

use rustls::pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::der::{Decode, Encode};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// The subject alternative names of a certificate: of DNS, addresses of mail, and URIs.
pub(super) fn names_of(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = Certificate::from_der(certificate) else { return Vec::new() };
    let Ok(Some((_, names))) = certificate.tbs_certificate().get_extension::<SubjectAltName>() else {
        return Vec::new();
    };
    let text = |name: GeneralName| match name {
        GeneralName::DnsName(name) => Some(name.as_str().to_owned()),
        GeneralName::Rfc822Name(name) => Some(name.as_str().to_owned()),
        GeneralName::UniformResourceIdentifier(name) => Some(name.as_str().to_owned()),
        _ => None,
    };
    names.0.into_iter().filter_map(text).collect()
}

/// What the server needs to know of its own certificate.
pub(super) struct OwnCertificate {
    /// When it becomes valid and when it expires, in seconds since 1970.
    pub not_before_s: u64,
    pub not_after_s: u64,
    /// It is that of an authority.
    pub is_authority: bool,
    /// The size of its public key in DER.
    pub key_bytes: usize,
}

pub(super) fn own_certificate(certificate: &CertificateDer<'_>) -> Option<OwnCertificate> {
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
        key_bytes: u32::from(key) as usize,
    })
}
