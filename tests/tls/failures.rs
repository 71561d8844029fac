//! Handshakes that must fail: each is counted by its reason, and is one line in the log.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use beanring_testkit::certificates::Pair;
use beanring_testkit::process::REPLY_PATIENCE;
use beanring_testkit::random::{Random, seeds};
use beanring_testkit::tls_stream::{TlsStream, client, client_config, sealed};

use super::place::{Place, expect_reply, read_to_end};

/// The maximum number of unfinished handshakes of the server.
const HANDSHAKES_MAX: usize = 256;

/// Returns the first bytes of a client.
fn hello(place: &Place) -> Vec<u8> {
    sealed(&mut client(&place.trusting), b"")
}

#[test]
fn plaintext_is_refused() {
    for text in ["put 0 0 60 5\r\nhello\r\n", "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"] {
        let mut place = Place::new(&[]);
        let mut tcp = place.tcp();
        tcp.write_all(text.as_bytes()).expect("the server receives");
        read_to_end(&tcp);
        place.expect_failure("protocol");
        assert_eq!(place.control.stat("total-jobs"), 0);
    }
}

#[test]
fn old_versions_are_refused() {
    if !super::others::has("openssl", "TLS 1.2") {
        return;
    }
    let mut place = Place::new(&[]);
    let output = Command::new("openssl")
        .args(["s_client", "-tls1_2", "-connect", &place.at.to_string()])
        .stdin(Stdio::null())
        .output()
        .expect("openssl runs");
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("alert protocol version"), "{error}");
    place.expect_failure("protocol");
}

#[test]
fn a_client_that_does_not_trust_the_server_is_counted() {
    let mut place = Place::new(&[]);
    let config = client_config(&place.certificates.other_ca, None);
    TlsStream::over(place.tcp(), &config).expect_err("the client refuses");
    place.expect_failure("alert");
}

#[test]
fn a_client_that_goes_away_is_counted() {
    for sent in [0, 1, 100] {
        let mut place = Place::new(&[]);
        let hello = hello(&place);
        place.tcp().write_all(&hello[..sent]).expect("the server receives");
        place.expect_failure("disconnected");
    }
}

#[test]
fn a_client_that_ends_its_input_is_counted() {
    let mut place = Place::new(&[]);
    let mut tcp = place.tcp();
    tcp.write_all(&hello(&place)).expect("the server receives");
    tcp.shutdown(Shutdown::Write).expect("the connection is open");
    read_to_end(&tcp);
    place.expect_failure("disconnected");
}

#[test]
fn a_handshake_has_five_seconds() {
    let mut place = Place::new(&[]);
    let started = Instant::now();
    let mut tcp = place.tcp();
    tcp.write_all(&hello(&place)[..50]).expect("the server receives");
    read_to_end(&tcp);
    let took = started.elapsed();
    assert!(took > Duration::from_millis(4900), "ended after {took:?}");
    assert!(took < Duration::from_secs(20), "ended after {took:?}");
    place.expect_failure("timeout");
}

#[test]
fn the_oldest_of_too_many_handshakes_ends() {
    let mut place = Place::new(&[]);
    let oldest = place.tcp();
    place.await_stat("current-tls-handshakes", 1);
    let mut others: Vec<TcpStream> = (0..HANDSHAKES_MAX).map(|_| place.tcp()).collect();
    read_to_end(&oldest);
    place.expect_failure("surplus");
    assert_eq!(place.control.stat("current-tls-handshakes"), HANDSHAKES_MAX as u64);
    // Every other one can finish, in any order.
    others.truncate(16);
    for tcp in others.into_iter().rev() {
        place.over(tcp);
    }
}

#[test]
fn clients_without_the_right_certificate_are_refused() {
    type Own = fn(&Place) -> Option<Pair>;
    let cases: [(&str, Own); 4] = [
        ("the client has sent no certificate", |_| None),
        ("the certificate of the client has expired", |place| Some(place.certificates.expired.clone())),
        ("the certificate of the client is not from an authority of --tls-client-ca", |place| {
            Some(place.certificates.other_client.clone())
        }),
        ("the certificate of the client is not valid", |place| Some(place.certificates.server.clone())),
    ];
    for (said, own) in cases {
        println!("{said}");
        let mut place = Place::with_client_ca(&[]);
        let config = client_config(&place.certificates.ca, own(&place).as_ref());
        // The client of TLS 1.3 has finished before the server sees its certificate.
        let mut refused = TlsStream::over(place.tcp(), &config).expect("the client has finished");
        // The server may have closed already.
        let _ = refused.send(b"put 0 0 60 5\r\nhello\r\n");
        let received = refused.receive(REPLY_PATIENCE);
        let error = received.expect_err("the server sends an alert");
        println!("{error}");
        place.expect_failure("certificate");
        assert!(place.log().contains(&format!("has failed: {said}\n")), "{}", place.log());
        assert_eq!(place.control.stat("total-jobs"), 0);
        // The right one is served, in every new connection: nothing resumes a session.
        let config = client_config(&place.certificates.ca, Some(&place.certificates.client));
        for _ in 0..3 {
            let mut served = TlsStream::over(place.tcp(), &config).expect("the client is accepted");
            expect_reply(&mut served, b"list-tube-used\r\n", "USING default\r\n");
        }
        assert_eq!(place.control.stat("tls-handshakes-resumed"), 0);
        assert_eq!(place.control.stat("tls-handshakes-full"), 3);
    }
}

#[test]
fn handshakes_in_pieces_succeed() {
    let mut place = Place::new(&[]);
    for seed in seeds(10) {
        println!("BEANRING_TEST_SEED={seed}");
        let mut random = Random::new(seed);
        let mut tcp = place.tcp();
        tcp.set_nodelay(true).expect("a socket option");
        let mut tls = client(&place.trusting);
        while tls.is_handshaking() || tls.wants_write() {
            let mut bytes = sealed(&mut tls, b"");
            while !bytes.is_empty() {
                let piece: Vec<u8> = bytes.drain(..(1 + random.below(60)).min(bytes.len())).collect();
                tcp.write_all(&piece).expect("the server receives");
                thread::sleep(Duration::from_micros(random.below_u64(500)));
            }
            if tls.is_handshaking() {
                tls.read_tls(&mut tcp).expect("the server answers");
                tls.process_new_packets().expect("the server answers");
            }
        }
        let mut stream = TlsStream { tcp, tls: tls.into() };
        expect_reply(&mut stream, b"list-tube-used\r\n", "USING default\r\n");
    }
    assert_eq!(place.failures(), [0; 6]);
}
