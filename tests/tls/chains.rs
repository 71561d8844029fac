//! Chains of certificates that clients show: the work that a refused one makes, and which are accepted.

use std::fs;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use beanring_testkit::chains::{Authority, bare, forged};
use beanring_testkit::process::REPLY_PATIENCE;
use beanring_testkit::tls_stream::{TlsStream, certificate, trusting};
use rustls::ClientConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use super::place::{Place, expect_reply};

/// The name of the authority that the server accepts.
const ROOT: &str = "root";

/// The CPU time that a refused chain may take beyond that of a client without one.
const MORE: Duration = Duration::from_millis(2);

fn place(root: &Authority) -> Place {
    Place::with(&[], |certificates| {
        let path = certificates.ca.with_file_name("clients.pem");
        fs::write(&path, root.pem()).expect("there is space");
        vec!["--tls-client-ca".to_owned(), path.display().to_string()]
    })
}

/// A client that shows its own certificate and some others.
fn client(place: &Place, (own, key): (Vec<u8>, Vec<u8>), others: Vec<Vec<u8>>) -> Arc<ClientConfig> {
    let chain = [vec![own], others].concat().into_iter().map(CertificateDer::from).collect();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key));
    trusting(certificate(&place.certificates.ca), default_provider())
        .with_client_auth_cert(chain, key)
        .expect("the key belongs to the certificate")
        .into()
}

/// Returns the CPU time of the server for a client that it refuses.
fn cost_of_refusal(place: &Place, config: &Arc<ClientConfig>) -> Duration {
    place.server.settle();
    let before = place.server.cpu_time();
    let mut stream = TlsStream::over(place.tcp(), config).expect("the client has finished");
    let error = stream.receive(REPLY_PATIENCE).expect_err("the server refuses");
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    place.server.settle();
    place.server.cpu_time() - before
}

/// Certificates in three layers: each is issued by all of the next layer.
fn branching(count: u16) -> Vec<Vec<u8>> {
    let layer = |number: u16| format!("{}", number / count.div_ceil(3));
    (0..count).map(|number| bare(&layer(number + count.div_ceil(3)), &layer(number), number)).collect()
}

#[test]
fn refused_chains_cost_little() {
    let root = Authority::new(ROOT);
    let of_nobody = Authority::new("0").client();
    let with_forged = |count| (0..count).map(|number| forged(ROOT, "0", number)).collect();
    // The client's own certificate is one more.
    let cases: [(&str, Vec<Vec<u8>>); 6] = [
        ("471 that branch", branching(470)),
        ("216 that branch", branching(215)),
        ("100 with forged signatures", with_forged(99)),
        ("11 that branch", branching(10)),
        ("10 that branch", branching(9)),
        ("10 with forged signatures", with_forged(9)),
    ];
    let mut place = place(&root);
    let none = place.trusting.clone();
    let without = (0..5).map(|_| cost_of_refusal(&place, &none)).min().expect("there are five");
    println!("no certificate: {without:?}");
    for (what, others) in cases {
        let config = client(&place, of_nobody.clone(), others);
        // Other work on the machine makes any of them slower.
        let costs: Vec<Duration> = (0..5).map(|_| cost_of_refusal(&place, &config)).collect();
        println!("{what}: {costs:?}");
        let least = costs.iter().min().expect("there are five");
        assert!(*least <= without + MORE, "{what}: {least:?}, and {without:?} without a certificate");
    }
    let (certificates, others) = (place.failures()[1], place.failures().iter().sum::<u64>());
    assert_eq!((certificates, others), (35, 35), "all fail for their certificates");
    place.expect_service();
}

#[test]
fn chains_are_accepted_in_any_order() {
    let [root, foreign, first, second, third] =
        [ROOT, "foreign", "first", "second", "third"].map(Authority::new);
    let by_root = first.certified_by(&root);
    let longer = [third.certified_by(&second), second.certified_by(&first), by_root.clone()];
    let cross_signed = [first.certified_by(&foreign), foreign.certified_by(&third), by_root.clone()];
    let unrelated: Vec<Vec<u8>> = (0..8).map(|number| bare("nobody", "nothing", number)).collect();
    let cases = [
        ("directly", &root, vec![]),
        ("with the authority itself", &root, vec![root.certified_by(&root)]),
        ("by one in between", &first, vec![by_root.clone()]),
        ("by three", &third, longer.to_vec()),
        ("in the wrong order", &third, longer.iter().rev().cloned().collect()),
        ("cross-signed", &first, cross_signed.to_vec()),
        ("cross-signed, in the other order", &first, cross_signed.iter().rev().cloned().collect()),
        ("with others that do not matter", &first, [unrelated, vec![by_root]].concat()),
    ];
    let mut place = place(&root);
    for (what, issuer, others) in cases {
        println!("{what}");
        let config = client(&place, issuer.client(), others);
        let mut stream = TlsStream::over(place.tcp(), &config).expect("the client has finished");
        stream.send(b"list-tube-used\r\n").expect("the connection is open");
        let received = stream.receive(REPLY_PATIENCE).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(format!("{received:?}").contains("Bytes"), "{what}: {received:?}");
    }
    assert_eq!(place.failures(), [0; 6]);
}

#[test]
fn a_chain_has_seven_certificates_below_the_authority() {
    let root = Authority::new(ROOT);
    let links: Vec<Authority> = (0..7).map(|number| Authority::new(&format!("link {number}"))).collect();
    let issuers = std::iter::once(&root).chain(&links);
    let certificates: Vec<Vec<u8>> =
        links.iter().zip(issuers).map(|(link, issuer)| link.certified_by(issuer)).collect();
    let mut place = place(&root);
    let client =
        |between: usize| client(&place, links[between - 1].client(), certificates[..between].to_vec());
    let [whole, longer] = [client(6), client(7)];
    let mut stream = TlsStream::over(place.tcp(), &whole).expect("the client has finished");
    expect_reply(&mut stream, b"list-tube-used\r\n", "USING default\r\n");
    cost_of_refusal(&place, &longer);
    place.expect_failure("certificate");
    let log = place.log();
    assert!(log.contains("has failed: the client's chain is too long: at most 7 certificates"), "{log}");
}

#[test]
fn more_than_ten_certificates_are_refused() {
    let [root, first] = [ROOT, "first"].map(Authority::new);
    let mut place = place(&root);
    let unrelated: Vec<Vec<u8>> = (0..9).map(|number| bare("nobody", "nothing", number)).collect();
    let config = client(&place, first.client(), [vec![first.certified_by(&root)], unrelated].concat());
    cost_of_refusal(&place, &config);
    place.expect_failure("certificate");
}
