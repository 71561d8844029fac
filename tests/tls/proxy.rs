//! Listeners for load balancers: the PROXY protocol, version 2, before TLS, plaintext and HTTP.

use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use beanring_testkit::client::Client;
use beanring_testkit::driver;
use beanring_testkit::http_client::{HttpClient, get};
use beanring_testkit::process::{Address, REPLY_PATIENCE, ServerProcess, Transport, program};
use beanring_testkit::scratch::await_text;
use beanring_testkit::stream::Stream;

use super::place::{Place, read_to_end};

/// A header from 192.0.2.7:5555. Command 1 is PROXY, and 0 is LOCAL.
pub fn header(command: u8) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    header.extend([0x20 | command, 0x11, 0, 12, 192, 0, 2, 7, 10, 0, 0, 1]);
    header.extend([5555_u16.to_be_bytes(), 11400_u16.to_be_bytes()].concat());
    header
}

#[test]
fn a_header_before_tls_names_the_client() {
    driver::under_each("a load balancer before TLS", |io| {
        let mut place = Place::under(io, &["--proxy-protocol", "tls-listen", "--log-level", "info"]);
        for (header, command, reply, line) in [
            (header(1), "drain\r\n", "DRAINING", " drain from 192.0.2.7:5555"),
            // The balancer's own check keeps its address.
            (header(0), "undrain\r\n", "NOT_DRAINING", " undrain from 127.0.0.1:"),
        ] {
            let mut tcp = place.tcp();
            tcp.set_nodelay(true).expect("a socket option");
            // In pieces, each in a packet of its own.
            for byte in header {
                tcp.write_all(&[byte]).expect("the server reads");
            }
            Client::new(Stream::Tls(place.over(tcp))).expect(command, reply);
            await_text(&place.dir.join("stderr"), line, 1);
        }
        // The other listener expects none.
        place.expect_service();
        assert_eq!(place.failures(), [0; 6]);
    });
}

#[test]
fn a_connection_without_a_header_is_closed_and_counted() {
    let mut place = Place::new(&["--proxy-protocol", "tls-listen"]);
    for (number, wrong) in [
        (1, &b"put 0 0 60 1\r\n"[..]),
        (2, b"\x16\x03\x01\x02\x00\x01"),
        (3, b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n"),
    ] {
        let mut tcp = place.tcp();
        tcp.write_all(wrong).expect("the server reads");
        assert_eq!(read_to_end(&tcp), b"");
        assert_eq!(place.control.stat("proxy-header-failures"), number);
    }
    let lines = place.log().lines().filter(|line| line.contains("a header of the PROXY protocol")).count();
    assert_eq!(lines, 1, "the log is limited: {}", place.log());

    // Half a header: closed after five seconds, or when the client goes.
    let mut slow = place.tcp();
    slow.write_all(&header(1)[..20]).expect("the server reads");
    let mut gone = place.tcp();
    gone.write_all(&header(1)[..20]).expect("the server reads");
    drop(gone);
    place.await_stat("proxy-header-failures", 4);
    let begun = Instant::now();
    slow.set_read_timeout(Some(2 * REPLY_PATIENCE)).expect("a socket option");
    assert_eq!(read_to_end(&slow), b"");
    assert!(begun.elapsed() > Duration::from_secs(3), "{:?}", begun.elapsed());
    assert_eq!(place.control.stat("proxy-header-failures"), 5);
    place.expect_service();
}

#[test]
fn rules_of_http_see_the_client_and_not_the_balancer() {
    let http = Address::fresh_tcp();
    let flags = ["--http", &http.to_string(), "--proxy-protocol", "http"];
    let command = Command::new(program());
    let (_server, _stream) = ServerProcess::launch(command, Address::fresh(Transport::Tcp), &flags);
    let status = |command: u8| {
        let mut client = HttpClient::tcp(http);
        client.stream.send(&header(command));
        client.ask(&get("tubes")).status
    };
    // The balancer is on this machine, which may read. Its client is not.
    assert_eq!((status(0), status(1)), (200, 403));
    // Nor is a client of another family of addresses.
    let mut client = HttpClient::tcp(http);
    client.stream.send(b"\r\n\r\n\0\r\nQUIT\n\x21\0\0\0");
    assert_eq!(client.ask(&get("tubes")).status, 403);
}

#[test]
fn a_health_check_sends_the_header_of_a_balancer() {
    let at = Address::fresh_tcp();
    let proxied = ["--proxy-protocol", "listen"];
    let (_server, _stream) = ServerProcess::launch(Command::new(program()), Address::Tcp(at), &proxied);
    let mut check = Command::new(program());
    check.args(["-l", &at.ip().to_string(), "-p", &at.port().to_string()]).args(proxied).arg("healthcheck");
    let output = check.output().expect("the program runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
