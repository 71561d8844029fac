//! The link between a standby and its leader: TLS 1.3 around everything that the standby forwards.
//!
//! Both ends derive an Ed25519 key from the [secret](LinkSecret) that the leader has written to the database. The leader proves that it
//! has the key, as a raw public key (RFC 7250), so there is no certificate, no name and no date. A standby talks to no other key, and
//! shows its part of the secret only after that. So there is nothing to configure, and another leader has another key.

use std::io::IoSlice;
use std::rc::Rc;
use std::sync::Arc;

use ring::hkdf::{HKDF_SHA256, Salt};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, Resumption};
use rustls::crypto::ring::{default_provider, sign::any_eddsa_type};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage, ServerConfig};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

use super::{Identity, Transport};
use crate::bodies::Bodies;
use crate::server::{
    ConnNames, Effect, Entry, Event, Priced, Protocol, Service, Status, TlsCounts, Update, Users, handle,
};
use crate::time::Time;
use crate::values::account::Account;
use crate::values::budget::Budget;
use crate::values::ids::ConnId;
use crate::values::link_secret::LinkSecret;
use crate::wal::LogRequest;

/// A private key of Ed25519 without its 32 bytes (RFC 8410, 7).
const PKCS8_HEAD: [u8; 16] = *b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20";

/// A service whose connections from standbys are over TLS. The transport within serves what was decrypted, which may be TLS again:
/// that of a client.
pub struct Link<S>(Transport<Transport<S>>);

impl<S: Service> Link<S> {
    /// Puts the link before a transport.
    pub fn new(transport: Transport<S>) -> Self {
        // Handshakes of standbys are none of clients: no one reads these counts.
        Self(Transport::new(transport, None, Rc::new(TlsCounts::default())))
    }

    fn inner(&mut self) -> &mut Transport<S> {
        &mut self.0.server
    }

    /// Whether no connection is one of a standby, so that events need not pass by here.
    #[inline(always)]
    fn is_unused(&self) -> bool {
        self.0.sessions.is_empty()
    }
}

impl<S: Service> Service for Link<S> {
    type Identity = Identity;

    fn accept(&mut self, now: Time, protocol: Protocol, entry: Entry) -> ConnId {
        let Entry::Forwarded(standby) = entry else { return self.inner().accept(now, protocol, entry) };
        let conn = self.inner().accept(now, protocol, entry);
        if self.0.identity.is_some() {
            self.0.now = now;
            self.0.begin_tls(conn, standby);
        } else {
            // It does not lead.
            handle(self.inner(), now, Event::HungUp { conn });
        }
        conn
    }

    #[inline]
    fn handle_event(&mut self, now: Time, event: Priced<'_>) {
        if self.is_unused() && !matches!(event.event(), Event::OuterMemory(_)) {
            self.inner().handle_event(now, event);
        } else {
            self.0.handle_event(now, event);
        }
    }

    fn update(&mut self, now: Time, update: Update<Identity>) -> Option<Users> {
        if let Update::LinkSecret(secret) = &update {
            self.0.identity = secret.map(|secret| Identity::of_key(leader_config(secret)));
        }
        self.inner().update(now, update)
    }

    fn turn(&mut self, now: Time) {
        self.0.turn(now);
    }

    fn poll_effect(&mut self) -> Option<Effect> {
        self.0.poll_effect()
    }

    fn next_deadline(&self) -> Option<Time> {
        self.0.next_deadline()
    }

    fn direct(&mut self, conn: ConnId) -> Option<&mut [u8]> {
        self.0.direct(conn)
    }

    fn outgoing<'a>(&'a mut self, conn: ConnId, slices: &mut Vec<IoSlice<'a>>) {
        self.0.outgoing(conn, slices);
    }

    fn poll_log_request(&mut self, now: Time) -> Option<LogRequest> {
        self.inner().poll_log_request(now)
    }

    fn names(&self, conn: ConnId) -> ConnNames<'_> {
        self.0.server.names(conn)
    }

    fn status(&self) -> Status {
        self.0.server.status()
    }

    #[inline]
    fn budget(&mut self) -> &mut Budget {
        self.inner().budget()
    }

    fn account(&self) -> Rc<Account> {
        self.0.account()
    }

    fn body_memory(&mut self) -> Option<&mut Bodies> {
        self.inner().body_memory()
    }
}

/// The key of the leader that has written this secret.
fn key_of(secret: LinkSecret) -> Arc<dyn SigningKey> {
    let known = Salt::new(HKDF_SHA256, b"beanring link").extract(&secret.to_bytes());
    let mut seed = [0; 32];
    let derived = known.expand(&[b"Ed25519"], HKDF_SHA256);
    derived.and_then(|derived| derived.fill(&mut seed)).expect("32 bytes are one block of SHA-256");
    let pkcs8 = [&PKCS8_HEAD[..], &seed].concat();
    any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8)).expect("any 32 bytes are a key of Ed25519")
}

fn public(key: &dyn SigningKey) -> SubjectPublicKeyInfoDer<'static> {
    let shown = key.public_key().expect("a key of Ed25519 shows its public part");
    SubjectPublicKeyInfoDer::from(shown.to_vec())
}

/// How a leader speaks TLS with standbys.
pub fn leader_config(secret: LinkSecret) -> Arc<ServerConfig> {
    let key = key_of(secret);
    let shown = CertificateDer::from(public(&*key).to_vec());
    let certified = Arc::new(CertifiedKey::new(vec![shown], key));
    let mut config = ServerConfig::builder_with_provider(default_provider().into())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider has suites of TLS 1.3")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(certified)));
    // A handshake saves little by a ticket, and tickets would outlive the term.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.into()
}

/// How a standby speaks TLS with the leader that has written this secret, and with no one else.
pub fn standby_config(secret: LinkSecret) -> Arc<ClientConfig> {
    let provider = default_provider();
    let pinned =
        Pinned { key: public(&*key_of(secret)), algorithms: provider.signature_verification_algorithms };
    let mut config = ClientConfig::builder_with_provider(provider.into())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider has suites of TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(pinned))
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    config.into()
}

/// Accepts one key.
#[derive(Debug)]
struct Pinned {
    key: SubjectPublicKeyInfoDer<'static>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if shown.as_ref() == self.key.as_ref() {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("the link speaks only TLS 1.3".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        _: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature_with_raw_key(message, &self.key, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::session::text_of;
    use super::*;

    /// Such as `openssl s_client`, which does offer TLS 1.3.
    #[test]
    fn a_client_that_wants_a_certificate_is_told_from_one_without_tls_13() {
        let config = ClientConfig::builder_with_provider(default_provider().into())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("the provider has suites of TLS 1.3")
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").expect("it is one");
        let mut client = rustls::ClientConnection::new(config.into(), name).expect("it can begin");
        let leader = leader_config(LinkSecret { token: 1, shown: 2 });
        let mut leader = rustls::ServerConnection::new(leader).expect("it can begin");
        let mut hello = Vec::new();
        client.write_tls(&mut hello).expect("a vector grows");
        leader.read_tls(&mut &hello[..]).expect("it is read");
        let error = leader.process_new_packets().expect_err("it has no certificate");
        assert_eq!(text_of(&error), "the client wants a certificate, and the port is for standbys");
    }

    #[test]
    fn each_secret_has_a_key_of_its_own() {
        let secret = |token, shown| LinkSecret { token, shown };
        let keys = [(1, 2), (2, 1), (1, 3), (0, 0), (u64::MAX, u64::MAX)]
            .map(|(token, shown)| public(&*key_of(secret(token, shown))));
        for (at, key) in keys.iter().enumerate() {
            assert!(keys[..at].iter().all(|other| other != key), "{at}");
        }
        assert_eq!(public(&*key_of(secret(1, 2))), keys[0]);
        assert!(!format!("{:?}", secret(0x1234_5678, 1)).contains("1234"));
    }
}
