//! The client's keys of a connection, for records that no library would send: during the handshake, and after it.

use std::collections::HashMap;
use std::io::Read;
use std::sync::{Arc, Mutex};

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::cipher::{
    AeadKey, InboundOpaqueMessage, Iv, MessageEncrypter, OutboundChunks, OutboundPlainMessage,
};
use rustls::crypto::ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256;
use rustls::crypto::ring::default_provider;
use rustls::crypto::tls13::OkmBlock;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ClientConnection, ContentType, KeyLog, ProtocolVersion, Tls13CipherSuite};

use super::tls_stream::{client, sealed, trusting};

/// The most that a record carries, with its content type and the padding (RFC 8446, 5.4).
const INNER_BYTES_MAX: usize = (1 << 14) + 1;

fn suite() -> &'static Tls13CipherSuite {
    TLS13_CHACHA20_POLY1305_SHA256.tls13().expect("it is one of TLS 1.3")
}

/// The secrets of a connection, by their label.
#[derive(Default, Debug)]
struct Secrets(Mutex<HashMap<String, Vec<u8>>>);

impl KeyLog for Secrets {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        self.0.lock().expect("no thread panics").insert(label.to_owned(), secret.to_owned());
    }
}

/// A client in its handshake.
pub struct Forger {
    tls: ClientConnection,
    secrets: Arc<Secrets>,
}

/// What the client sends when it has read the server's part of the handshake.
pub struct Flight {
    /// The message that ends the handshake.
    pub finished: Vec<u8>,
    /// The keys of the handshake. That message is their first record.
    pub handshake: Sealer,
    /// The keys of the time after that.
    pub data: Sealer,
}

/// Makes records with one key after the other.
pub struct Sealer {
    secret: Vec<u8>,
    encrypter: Box<dyn MessageEncrypter>,
    number: u64,
}

/// Returns the settings of a forger that trusts an authority.
///
/// # Panics
/// If the certificate is not valid.
pub fn config(authority: CertificateDer<'static>) -> ClientConfig {
    let provider =
        CryptoProvider { cipher_suites: vec![TLS13_CHACHA20_POLY1305_SHA256], ..default_provider() };
    let mut config = trusting(authority, provider).with_no_client_auth();
    config.resumption = Resumption::disabled();
    config
}

impl Forger {
    /// Begins a handshake.
    pub fn new(config: &ClientConfig) -> Self {
        let secrets = Arc::new(Secrets::default());
        let mut config = config.clone();
        config.key_log = secrets.clone();
        Self { tls: client(&config.into()), secrets }
    }

    /// Returns what the client sends by now.
    pub fn output(&mut self) -> Vec<u8> {
        sealed(&mut self.tls, b"")
    }

    /// Reads from the server until it has said everything.
    ///
    /// # Panics
    /// If the server does not end the handshake, or is not trusted.
    pub fn flight(&mut self, mut server: impl Read) -> Flight {
        while self.tls.is_handshaking() {
            let bytes = self.tls.read_tls(&mut server).expect("the server answers");
            assert!(bytes > 0, "the server ends the handshake");
            self.tls.process_new_packets().expect("the server is trusted");
        }
        let secret = |label: &str| self.secrets.0.lock().expect("no thread panics")[label].clone();
        let handshake = Sealer::new(secret("CLIENT_HANDSHAKE_TRAFFIC_SECRET"));
        let data = Sealer::new(secret("CLIENT_TRAFFIC_SECRET_0"));
        let bytes = self.output();
        // A record for old middleboxes, then the one with the message.
        let (for_middleboxes, record) = bytes.split_at(6);
        assert_eq!(for_middleboxes, [20, 3, 3, 0, 1, 1]);
        Flight { finished: handshake.open(&record[5..]), handshake, data }
    }
}

impl Sealer {
    fn new(secret: Vec<u8>) -> Self {
        let (key, iv) = keys(&secret);
        Self { secret, encrypter: suite().aead_alg.encrypter(key, iv), number: 0 }
    }

    /// Decrypts the first record.
    fn open(&self, sealed: &[u8]) -> Vec<u8> {
        let (key, iv) = keys(&self.secret);
        let mut sealed = sealed.to_vec();
        let message =
            InboundOpaqueMessage::new(ContentType::ApplicationData, ProtocolVersion::TLSv1_2, &mut sealed);
        let mut decrypter = suite().aead_alg.decrypter(key, iv);
        decrypter.decrypt(message, 0).expect("the client has encrypted it").payload.to_vec()
    }

    /// Returns the next record.
    pub fn record(&mut self, typ: ContentType, payload: &[u8]) -> Vec<u8> {
        let payload = OutboundChunks::Single(payload);
        let message = OutboundPlainMessage { typ, version: ProtocolVersion::TLSv1_2, payload };
        let record = self.encrypter.encrypt(message, self.number).expect("the keys are fresh");
        self.number += 1;
        record.encode()
    }

    /// Returns the next record, padded to the full length.
    pub fn padded(&mut self, typ: ContentType, payload: &[u8]) -> Vec<u8> {
        let mut inner = [payload, &[u8::from(typ)]].concat();
        inner.resize(INNER_BYTES_MAX - 1, 0);
        // The type is the last byte that is not 0.
        self.record(ContentType::from(0), &inner)
    }

    /// Takes the next key, after an update.
    pub fn renew(&mut self) {
        let mut next = vec![0; self.secret.len()];
        expand(&self.secret, b"traffic upd", &mut next);
        *self = Self::new(next);
    }
}

/// The key and the vector of a secret (RFC 8446, 7.3).
fn keys(secret: &[u8]) -> (AeadKey, Iv) {
    let (mut key, mut iv) = ([0; 32], [0; 12]);
    expand(secret, b"key", &mut key);
    expand(secret, b"iv", &mut iv);
    (key.into(), iv.into())
}

/// HKDF-Expand-Label (RFC 8446, 7.1).
fn expand(secret: &[u8], label: &[u8], output: &mut [u8]) {
    let length = u8::try_from(output.len()).expect("it is short");
    let label_length = u8::try_from(6 + label.len()).expect("it is short");
    let info = [&[0, length, label_length][..], b"tls13 ", label, &[0]];
    let expander = suite().hkdf_provider.expander_for_okm(&OkmBlock::new(secret));
    expander.expand_slice(&info, output).expect("it is short");
}
