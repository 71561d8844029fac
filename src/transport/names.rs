//! The names in a certificate.

use rustls::pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::der::Decode;
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

/// When a certificate expires, in seconds since 1970, and whether it is one of an authority.
pub(super) fn validity_of(certificate: &CertificateDer<'_>) -> Option<(u64, bool)> {
    use x509_cert::ext::pkix::BasicConstraints;

    let certificate = Certificate::from_der(certificate).ok()?;
    let certificate = certificate.tbs_certificate();
    let not_after = certificate.validity().not_after.to_unix_duration().as_secs();
    let constraints = certificate.get_extension::<BasicConstraints>().ok().flatten();
    Some((not_after, constraints.is_some_and(|(_, constraints)| constraints.ca)))
}
