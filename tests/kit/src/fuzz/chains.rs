//! Clients that must show a certificate, and what they show: good certificates, forged ones and bytes that are none, in any order and
//! number. Only a client with a path to the authority is served.

use std::sync::{Arc, LazyLock};

use beanring::server::{CertificatePem, Protocol};
use beanring::transport::Identity;
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use rustls::client::ResolvesClientCert;
use rustls::crypto::ring::default_provider;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{ClientConnection, SignatureScheme};

use super::door::Door;
use super::input::Input;
use crate::chains::{Authority, bare, forged};
use crate::config::config;
use crate::tls_stream::{client, sealed, trusting};

/// The most that a client shows: more than the server takes.
const CHAIN_BYTES_MAX: usize = 60_000;

/// What a chain is made of.
struct Parts {
    server: Identity,
    /// The server's certificate, which the clients trust.
    trusted: CertificateDer<'static>,
    /// Certificates of clients, each with its key: by the authority, by one below it, and by one that the server does not know.
    leaves: [(Vec<u8>, Arc<dyn SigningKey>); 3],
    /// Those of authorities.
    between: Vec<Vec<u8>>,
}

/// A client's chain, and what the server must say to it.
struct Chain {
    certificates: Vec<Vec<u8>>,
    key: Arc<dyn SigningKey>,
    /// None: it depends on what was changed.
    is_good: Option<bool>,
}

#[derive(Debug)]
struct Shown(Arc<CertifiedKey>);

impl ResolvesClientCert for Shown {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

fn parts() -> &'static Parts {
    static PARTS: LazyLock<Parts> = LazyLock::new(|| {
        let [root, below, foreign] = ["root", "below", "foreign"].map(Authority::new);
        let key = KeyPair::generate_for(&PKCS_ED25519).expect("the system has random numbers");
        let params = CertificateParams::new(["localhost".to_owned()]).expect("the name is valid");
        let own = params.self_signed(&key).expect("the parameters are valid");
        let (chain, key) = (own.pem().into_bytes(), key.serialize_pem().into_bytes());
        let server = Identity::read(&CertificatePem { chain, key, client_ca: Some(root.pem().into_bytes()) });
        let leaf = |issuer: &Authority| {
            let (certificate, key) = issuer.client();
            let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key));
            (certificate, any_supported_type(&key).expect("the key can sign"))
        };
        let between = vec![
            below.certified_by(&root),
            root.certified_by(&root),
            below.certified_by(&foreign),
            foreign.certified_by(&below),
            foreign.certified_by(&foreign),
        ];
        Parts {
            server: server.expect("the certificate can be used"),
            trusted: own.der().clone(),
            leaves: [leaf(&root), leaf(&below), leaf(&foreign)],
            between,
        }
    });
    &PARTS
}

/// Runs an input. Each client of it shows a chain, in pieces.
pub fn run(data: &[u8]) {
    let (mut input, parts) = (Input::new(data), parts());
    let mut door = Door::new(config(100), parts.server.clone());
    while !input.is_empty() && door.gates.len() < 4 {
        let chain = Chain::read(&mut input, parts);
        let at = door.open_tls(Protocol::Beanstalk);
        let is_served = attempt(&mut door, at, &chain, parts, &mut input);
        assert!(chain.is_good.is_none_or(|is_good| is_good == is_served), "{:?}: {is_served}", chain.is_good);
    }
    door.finish();
}

impl Chain {
    /// Builds a chain. The first certificate is the client's own.
    fn read(input: &mut Input<'_>, parts: &Parts) -> Self {
        let issuer = input.below(parts.leaves.len() + 1);
        let (leaf, key) = &parts.leaves[issuer % parts.leaves.len()];
        let mut chain = Self { certificates: Vec::new(), key: key.clone(), is_good: None };
        if issuer < parts.leaves.len() {
            chain.certificates.push(leaf.clone());
        }
        let mut bytes = leaf.len();
        let mut is_plain = issuer < parts.leaves.len();
        for _ in 0..input.below(16) {
            let (made, is_unchanged) = certificate(input, parts);
            let copies = if input.below(16) == 1 { 1 + input.below(200) } else { 1 };
            is_plain &= is_unchanged;
            for _ in 0..copies {
                bytes += made.len();
                if bytes < CHAIN_BYTES_MAX {
                    chain.certificates.push(made.clone());
                }
            }
        }
        let is_short = chain.certificates.len() <= 10 && bytes < 32 * 1024;
        let has_below = chain.certificates.iter().skip(1).any(|each| *each == parts.between[0]);
        let has_empty = chain.certificates.iter().any(Vec::is_empty);
        chain.is_good = match issuer {
            _ if has_empty => None,
            _ if !is_short => Some(false),
            0 => Some(true),
            1 if !has_below => Some(false),
            1 if is_plain => Some(true),
            // The authority that has issued it is known to none but itself, unless another one has certified it.
            2 if is_plain => {
                Some(has_below && chain.certificates.iter().any(|each| *each == parts.between[3]))
            }
            _ => None,
        };
        chain
    }
}

/// Returns a certificate of a chain, or what is none. Whether it is one of those that authorities have made comes with it.
fn certificate(input: &mut Input<'_>, parts: &Parts) -> (Vec<u8>, bool) {
    const NAMES: [&str; 4] = ["root", "below", "foreign", "other"];
    match input.below(8) {
        0..3 => (parts.between[input.below(parts.between.len())].clone(), true),
        3 => (bare(input.pick(&NAMES), input.pick(&NAMES), u16::from(input.byte())), false),
        4 => (forged(input.pick(&NAMES), input.pick(&NAMES), u16::from(input.byte())), false),
        5 => (parts.leaves[input.below(parts.leaves.len())].0.clone(), true),
        6 => {
            let length = input.below(256);
            (input.bytes(length).to_vec(), false)
        }
        _ => {
            let mut changed = parts.between[input.below(parts.between.len())].clone();
            for _ in 0..1 + input.below(4) {
                let at = usize::from(input.half()) % changed.len();
                changed[at] = input.byte();
            }
            changed.truncate(changed.len() - input.below(4));
            (changed, false)
        }
    }
}

/// Shows a chain. Returns whether the server executes a command then.
fn attempt(door: &mut Door, at: usize, chain: &Chain, parts: &Parts, input: &mut Input<'_>) -> bool {
    let certificates = chain.certificates.iter().cloned().map(CertificateDer::from).collect();
    let shown = Shown(CertifiedKey::new(certificates, chain.key.clone()).into());
    let clients =
        trusting(parts.trusted.clone(), default_provider()).with_client_cert_resolver(Arc::new(shown));
    let mut tls = client(&clients.into());
    std::io::Write::write_all(&mut tls.writer(), b"put 0 0 60 5\r\nhello\r\n").expect("it has no limit");
    let jobs = door.server().engine().jobs().len();
    let piece = match input.below(8) {
        0 => 1 + input.below(300),
        _ => usize::MAX,
    };
    for _ in 0..4 {
        send(door, at, &mut tls, piece);
        door.settle();
        let said = std::mem::take(&mut door.gates[at].received);
        if !read(&mut tls, &said) {
            break;
        }
    }
    door.server().engine().jobs().len() > jobs
}

/// Has the server receive what the client has to say.
fn send(door: &mut Door, at: usize, tls: &mut ClientConnection, piece: usize) {
    door.write(at, &sealed(tls, b""));
    while door.gates[at].is_usable() && door.receive(at, piece) {
        door.turn();
    }
}

/// Returns whether the client goes on.
fn read(tls: &mut ClientConnection, mut said: &[u8]) -> bool {
    while !said.is_empty() {
        tls.read_tls(&mut said).expect("there is little plaintext");
        if tls.process_new_packets().is_err() {
            return false;
        }
    }
    true
}
