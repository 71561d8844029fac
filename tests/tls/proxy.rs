//! Listeners for load balancers: the PROXY protocol, version 2, before TLS, plaintext and HTTP.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use beanring::io::driver::Driver;
use beanring_testkit::client::Client;
use beanring_testkit::driver;
use beanring_testkit::process::{Address, REPLY_PATIENCE, ServerProcess, Transport, program};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::stream::Stream;
use beanring_testkit::tls_stream::TlsStream;

use super::place::Place;

/// A header from 192.0.2.7:5555. Command 1 is PROXY, and 0 is LOCAL.
fn header(command: u8) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    header.extend([0x20 | command, 0x11, 0, 12, 192, 0, 2, 7, 10, 0, 0, 1]);
    header.extend([5555_u16.to_be_bytes(), 11400_u16.to_be_bytes()].concat());
    header
}

/// Returns what the server sends until it closes the connection.
fn rest(mut tcp: &TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A reset is an end too.
    let _ = tcp.read_to_end(&mut bytes);
    bytes
}

#[test]
fn a_header_before_tls_names_the_client() {
    for &io in Driver::ALL {
        if !driver::is_allowed(io, "a load balancer before TLS") {
            continue;
        }
        let mut flags = vec!["--proxy-protocol", "tls-listen", "--log-level", "info"];
        let of_driver = driver::flags(io);
        flags.extend(of_driver.iter().map(String::as_str));
        let mut place = Place::new(&flags);
        let mut tcp = place.tcp();
        // In pieces, each in a packet of its own.
        for byte in header(1) {
            tcp.write_all(&[byte]).expect("the server reads");
        }
        let stream = TlsStream::over(tcp, &place.trusting).expect("the handshake follows the header");
        let mut client = Client::new(Stream::Tls(stream));
        client.expect("drain\r\n", "DRAINING");
        place.wait_for("the line", |place| place.log().contains(" drain from 192.0.2.7:5555"));

        // The balancer's own check keeps its address.
        let mut tcp = place.tcp();
        tcp.write_all(&header(0)).expect("the server reads");
        let stream = TlsStream::over(tcp, &place.trusting).expect("the handshake follows the header");
        Client::new(Stream::Tls(stream)).expect("undrain\r\n", "NOT_DRAINING");
        place.wait_for("the line", |place| place.log().contains("undrain from 127.0.0.1:"));

        // The other listener expects none.
        place.expect_service();
        assert_eq!(place.failures(), [0; 6]);
    }
}

#[test]
fn a_connection_without_a_header_is_closed_and_counted() {
    let mut place = Place::new(&["--proxy-protocol", "tls-listen"]);
    for (number, wrong) in
        [&b"put 0 0 60 1\r\n"[..], b"\x16\x03\x01\x02\x00\x01", b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n"]
            .into_iter()
            .enumerate()
    {
        let mut tcp = place.tcp();
        tcp.write_all(wrong).expect("the server reads");
        assert_eq!(rest(&tcp), b"");
        assert_eq!(place.control.stat("proxy-header-failures"), number as u64 + 1);
    }
    let lines = place.log().lines().filter(|line| line.contains("a header of the PROXY protocol")).count();
    assert_eq!(lines, 1, "the log is limited: {}", place.log());

    // Half a header: closed after five seconds, or when the client goes.
    let mut slow = place.tcp();
    slow.write_all(&header(1)[..20]).expect("the server reads");
    let mut gone = place.tcp();
    gone.write_all(&header(1)[..20]).expect("the server reads");
    drop(gone);
    place.wait_for("the end of the client", |place| place.control.stat("proxy-header-failures") == 4);
    let begun = Instant::now();
    slow.set_read_timeout(Some(2 * REPLY_PATIENCE)).expect("a socket option");
    assert_eq!(rest(&slow), b"");
    assert!(begun.elapsed() > Duration::from_secs(3), "{:?}", begun.elapsed());
    assert_eq!(place.control.stat("proxy-header-failures"), 5);
    place.expect_service();
}

#[test]
fn rules_of_http_see_the_client_and_not_the_balancer() {
    let dir = Scratch::new("tls-proxy");
    let Address::Tcp(http) = Address::fresh(Transport::Tcp) else { unreachable!("it is one for TCP") };
    let mut command = Command::new(program());
    command.stderr(File::create(dir.join("stderr")).expect("there is space"));
    let flags = ["--http", &http.to_string(), "--proxy-protocol", "http"].map(str::to_owned);
    let (_server, _stream) = ServerProcess::launch(command, Address::fresh(Transport::Tcp), &flags);
    let status = |command: u8| {
        let mut tcp = TcpStream::connect(http).expect("the server accepts connections");
        tcp.set_read_timeout(Some(REPLY_PATIENCE)).expect("a socket option");
        tcp.write_all(&header(command)).expect("the server reads");
        write!(tcp, "GET /api/v1/tubes HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\n\r\n")
            .expect("the server reads");
        String::from_utf8_lossy(&rest(&tcp)).split(' ').nth(1).map(str::to_owned)
    };
    let log = || fs::read_to_string(dir.join("stderr")).expect("the log is readable");
    // The balancer is on this machine, which may read. Its client is not.
    assert_eq!(status(0).as_deref(), Some("200"), "{}", log());
    assert_eq!(status(1).as_deref(), Some("403"), "{}", log());
}

#[test]
fn a_health_check_sends_the_header_of_a_balancer() {
    let Address::Tcp(at) = Address::fresh(Transport::Tcp) else { unreachable!("it is one for TCP") };
    let (ip, port) = (at.ip().to_string(), at.port().to_string());
    let flags = ["-l", &ip, "-p", &port, "--proxy-protocol", "listen"];
    let mut server =
        Command::new(program()).args(flags).stderr(Stdio::null()).spawn().expect("the program runs");
    let check = || Command::new(program()).args(flags).arg("healthcheck").output().expect("the program runs");
    let begun = Instant::now();
    let mut output = check();
    while !output.status.success() && begun.elapsed() < REPLY_PATIENCE {
        output = check();
    }
    server.kill().expect("the server runs");
    server.wait().expect("the server ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
