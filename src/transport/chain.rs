//! The certificates that a client may show.
//!
//! Bounded by CHAIN_MAX: the certificates of a client are counted before anything else.
//!
//! A client may send certificates that its path to an authority does not need, so the limit of those that it sends is above that of
//! the path.

use std::collections::VecDeque;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use webpki::EndEntityCert;

use super::keys::{Checks, KeyKind};

/// The maximum number of certificates of a client, its own included. Chains in use have two to four.
pub(super) const CHAIN_MAX: usize = 10;

/// The maximum size of them all.
pub(super) const CHAIN_BYTES_MAX: usize = 32 * 1024;

/// The maximum number of certificates on the path to an authority, that of the client included and that of the authority not. webpki
/// refuses a longer one.
const PATH_MAX: usize = 7;

/// Why a client is refused that goes beyond one of these.
pub(super) const TOO_LONG: &str =
    "the client's chain is too long: at most 7 certificates below the authority, 10 in all, and 32 KiB";

/// Verifies clients by another verifier, which gets one path of certificates: if it had a choice, its work would grow with the
/// number of paths. Counts the signatures that are checked.
#[derive(Debug)]
pub(super) struct OnePath {
    pub verifier: Arc<dyn ClientCertVerifier>,
    /// The most expensive key of an authority.
    pub authority: KeyKind,
    pub checks: Arc<Checks>,
}

impl ClientCertVerifier for OnePath {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let bytes = || end_entity.len() + intermediates.iter().map(|each| each.len()).sum::<usize>();
        if intermediates.len() >= CHAIN_MAX || bytes() > CHAIN_BYTES_MAX {
            return Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure));
        }
        let path = path(end_entity, intermediates, self.root_hint_subjects());
        if path.len() >= PATH_MAX {
            return Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure));
        }
        // Each certificate is signed by the next key, the last one by that of an authority.
        self.checks.add(self.authority);
        path.iter().for_each(|certificate| self.checks.add(key_of(certificate)));
        self.verifier.verify_client_cert(end_entity, &path, now)
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.checks.add(key_of(certificate));
        self.verifier.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

/// The kind of the key in a certificate. The smallest, if it cannot be read: then no signature is checked.
fn key_of(certificate: &CertificateDer<'_>) -> KeyKind {
    let info = EndEntityCert::try_from(certificate).map(|read| read.subject_public_key_info().len());
    KeyKind::of_info(info.unwrap_or(0))
}

/// Returns the certificates between that of the client and an authority, each issued by the next: by their names, the shortest path.
/// Of two that are equal in this, the first counts. Without a path, or if no name can be read, there are none.
fn path<'a>(
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'a>],
    authorities: &[DistinguishedName],
) -> Vec<CertificateDer<'a>> {
    let Ok(end_entity) = EndEntityCert::try_from(end_entity) else { return Vec::new() };
    let mut unseen: Vec<(&CertificateDer<'a>, EndEntityCert<'_>)> =
        intermediates.iter().filter_map(|each| Some((each, EndEntityCert::try_from(each).ok()?))).collect();
    // Paths that have not reached an authority, the shortest first, each with the name that its last certificate is issued by.
    let mut paths = VecDeque::from([(Vec::new(), end_entity.issuer().to_vec())]);
    while let Some((path, issuer)) = paths.pop_front() {
        let name = DistinguishedName::in_sequence(&issuer);
        if authorities.iter().any(|authority| authority.as_ref() == name.as_ref()) {
            return path.into_iter().cloned().collect();
        }
        for (certificate, read) in unseen.extract_if(.., |(_, read)| read.subject() == issuer) {
            let longer = [&path[..], &[certificate]].concat();
            paths.push_back((longer, read.issuer().to_vec()));
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use beanring_testkit::chains::{Authority, bare};
    use beanring_testkit::random::{Random, seeds};
    use rustls::RootCertStore;
    use rustls::crypto::ring::default_provider;
    use rustls::server::WebPkiClientVerifier;

    use super::*;
    use crate::values::budget::Cost;

    /// Returns the path from a certificate that `issuer` has issued to the authority "r". A certificate is its subject and its
    /// issuer, one letter each.
    fn path_of<'a>(issuer: &str, certificates: &[&'a str]) -> Vec<&'a str> {
        let made = |each: &str, number| CertificateDer::from(bare(&each[1..], &each[..1], number));
        let all: Vec<_> = certificates.iter().zip(0..).map(|(each, number)| made(each, number)).collect();
        let path = path(&made(&format!("c{issuer}"), 0), &all, &authorities());
        path.iter()
            .map(|each| certificates[all.iter().position(|one| one == each).expect("one of them")])
            .collect()
    }

    /// Returns the names of the authority "r".
    fn authorities() -> [DistinguishedName; 1] {
        let authority = CertificateDer::from(bare("r", "r", 0));
        let authority = EndEntityCert::try_from(&authority).expect("it can be read");
        [DistinguishedName::in_sequence(authority.subject())]
    }

    /// Returns a verifier of the clients of this authority, whose key is taken for one of this kind.
    fn verifier(root: &Authority, authority: KeyKind) -> OnePath {
        let mut roots = RootCertStore::empty();
        roots.add(root.certified_by(root).into()).expect("it is valid");
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), default_provider().into());
        let verifier = verifier.build().expect("it has an authority");
        OnePath { verifier, authority, checks: Arc::default() }
    }

    #[test]
    fn the_shortest_path_is_found_in_any_order() {
        for (issuer, certificates, expected) in [
            ("r", "", ""),
            ("r", "rr ar", ""),
            ("a", "ar", "ar"),
            ("a", "ar rr", "ar"),
            ("b", "ar ba", "ba ar"),
            ("b", "ba ar", "ba ar"),
            // Issued by two, of which one is known.
            ("a", "ax ar", "ar"),
            ("a", "ax ab xx br", "ab br"),
            ("a", "ab br ar", "ar"),
            // Circles, and a change of the key.
            ("a", "aa ab ba br", "ab br"),
            // No path.
            ("a", "", ""),
            ("a", "ab ba", ""),
            ("a", "br", ""),
        ] {
            let certificates: Vec<&str> = certificates.split_whitespace().collect();
            assert_eq!(path_of(issuer, &certificates).join(" "), expected, "{issuer}, {certificates:?}");
        }
    }

    #[test]
    fn a_path_leaves_no_choice() {
        let names = ["a", "b", "c", "d", "r"];
        for seed in seeds(1000) {
            let mut random = Random::new(seed);
            let certificates: Vec<String> = (0..random.below(CHAIN_MAX))
                .map(|_| random.pick(&names).to_owned() + random.pick(&names))
                .collect();
            let certificates: Vec<&str> = certificates.iter().map(String::as_str).collect();
            let path = path_of("a", &certificates);
            let mut issuer = "a";
            for (at, certificate) in path.iter().enumerate() {
                let is_again = path[..at].iter().any(|before| before[..1] == certificate[..1]);
                assert!(
                    certificate[..1] == *issuer && !is_again,
                    "seed {seed}: {path:?} of {certificates:?}"
                );
                issuer = &certificate[1..];
            }
            let mut reached = vec!["a"];
            for _ in &names {
                let more = certificates.iter().filter(|each| reached.contains(&&each[..1]));
                reached.extend(more.map(|each| &each[1..]).collect::<Vec<_>>());
            }
            let is_complete = issuer == "r";
            assert_eq!(is_complete, reached.contains(&"r"), "seed {seed}: {path:?} of {certificates:?}");
        }
    }

    #[test]
    fn certificates_that_cannot_be_read_are_left_out() {
        let (own, issuer) = (bare("a", "c", 0).into(), CertificateDer::from(bare("r", "a", 0)));
        let unreadable = CertificateDer::from(vec![0x30, 0]);
        let others = [unreadable.clone(), issuer];
        assert_eq!(path(&own, &others, &authorities()), others[1..]);
        assert_eq!(path(&unreadable, &others, &authorities()), []);
    }

    #[test]
    fn chains_are_limited_before_they_are_read() {
        let root = Authority::new("r");
        let verifier = verifier(&root, KeyKind::P256);
        let (own, _) = root.client();
        let room = CHAIN_BYTES_MAX - own.len();
        let own = CertificateDer::from(own);
        let accepts = |sizes: &[usize]| {
            let others: Vec<CertificateDer<'_>> = sizes.iter().map(|&size| vec![0; size].into()).collect();
            let result = verifier.verify_client_cert(&own, &others, UnixTime::now());
            if let Err(error) = &result {
                let expected = CertificateError::ApplicationVerificationFailure;
                assert_eq!(*error, Error::InvalidCertificate(expected), "{sizes:?}");
            }
            result.is_ok()
        };
        assert!(accepts(&[10; CHAIN_MAX - 1]) && !accepts(&[10; CHAIN_MAX]));
        assert!(accepts(&[room - 1, 1]) && !accepts(&[room, 1]));
    }

    #[test]
    fn every_check_of_a_signature_has_its_price() {
        let root = Authority::new("r");
        let authority = KeyKind::Rsa { bits: 4096 };
        let verifier = verifier(&root, authority);
        let (own, _) = root.client();
        verifier.verify_client_cert(&own.into(), &[], UnixTime::now()).expect("it is valid");
        assert_eq!(verifier.checks.take(), authority.check());
        // A path of one more, by whatever key.
        let (own, issuer) = (bare("a", "c", 0).into(), CertificateDer::from(bare("r", "a", 0)));
        assert!(verifier.verify_client_cert(&own, std::slice::from_ref(&issuer), UnixTime::now()).is_err());
        assert_eq!(verifier.checks.take(), authority.check().plus(key_of(&issuer).check()));
        // One beyond the limits of a chain is not looked at.
        let many = vec![issuer; CHAIN_MAX];
        assert!(verifier.verify_client_cert(&own, &many, UnixTime::now()).is_err());
        assert_eq!(verifier.checks.take(), Cost::NOTHING);
    }
}
