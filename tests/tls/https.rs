//! Changes through the HTTP API over TLS, under each driver.

use std::fs::{self, Permissions};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use beanring::io::driver::Driver;
use beanring_testkit::driver;
use beanring_testkit::peer::Received;
use beanring_testkit::process::{Address, REPLY_PATIENCE, Transport, program};
use beanring_testkit::tls_stream::TlsStream;

use super::place::Place;

const TOKEN: &str = "a-token-of-this-test";

/// One that fills several records and has every byte.
const BODY_BYTES: usize = 60_000;

/// A server with the API over TLS, and a connection to it.
struct Api {
    place: Place,
    http: SocketAddr,
    stream: TlsStream,
}

impl Api {
    /// With a token, clients must send it. Without one, those on this machine may change everything.
    fn start(io: Driver, has_token: bool) -> Self {
        let Address::Tcp(http) = Address::fresh(Transport::Tcp) else { unreachable!("it is one for TCP") };
        let at = http.to_string();
        let flags = driver::flags(io);
        let mut flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        flags.extend(["--http", &at, "--http-tls", "--http-host", "localhost", "--log-level", "info"]);
        let place = Place::with(Command::new(program()), &flags, |certificates| {
            if !has_token {
                return vec!["--http-allow-writes".to_owned()];
            }
            let token = certificates.ca.with_file_name("token");
            fs::write(&token, TOKEN).expect("there is space");
            fs::set_permissions(&token, Permissions::from_mode(0o600)).expect("it is ours");
            vec!["--http-token".to_owned(), token.display().to_string()]
        });
        let tcp = TcpStream::connect(http).expect("the server listens");
        let stream = TlsStream::over(tcp, &place.trusting).expect("the server is trusted");
        Self { place, http, stream }
    }

    /// Sends a request in pieces of `piece` bytes, each of which is a record, and returns the status and the body of its response.
    fn request_in_pieces(&mut self, head: &str, body: &[u8], piece: usize) -> (u16, Vec<u8>) {
        let kind = if head.contains("/jobs") && head.starts_with("POST /api/v1/tubes") {
            "application/octet-stream"
        } else {
            "application/json"
        };
        let (line, fields) = head.split_once('\n').unwrap_or((head, ""));
        let head = format!(
            "{line} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{fields}\r\n",
            body.len()
        );
        for piece in [head.as_bytes(), body].concat().chunks(piece) {
            self.stream.send(piece).expect("the connection is open");
        }
        self.response()
    }

    fn request(&mut self, head: &str, body: &str) -> (u16, String) {
        let (status, body) = self.request_in_pieces(head, body.as_bytes(), usize::MAX);
        (status, String::from_utf8(body).expect("JSON"))
    }

    /// Reads the next response, which has a `Content-Length`.
    fn response(&mut self) -> (u16, Vec<u8>) {
        let mut received = Vec::new();
        loop {
            if let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&received[..end]).to_lowercase();
                let field = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                let bytes: usize = field.and_then(|text| text.parse().ok()).expect("a length");
                if received.len() == end + 4 + bytes {
                    let status = head.split(' ').nth(1).and_then(|text| text.parse().ok());
                    return (status.expect("a status"), received.split_off(end + 4));
                }
            }
            match self.stream.receive(REPLY_PATIENCE).expect("the connection is open") {
                Received::Bytes(bytes) => received.extend(bytes),
                other => panic!("{other:?} after {}", received.escape_ascii()),
            }
        }
    }
}

fn under_each(what: &str, has_token: bool, test: impl Fn(Api)) {
    for &io in Driver::ALL {
        if driver::is_allowed(io, what) {
            test(Api::start(io, has_token));
        }
    }
}

#[test]
fn a_job_lives_and_ends_over_https() {
    under_each("changes over HTTPS", false, |mut api| {
        let body: Vec<u8> = (0..BODY_BYTES).map(|at| at as u8).collect();
        // One record after the other, and one for each 7 bytes.
        for (id, piece) in [(1, usize::MAX), (2, 7)] {
            let (status, reply) =
                api.request_in_pieces("POST /api/v1/tubes/mail/jobs?priority=10", &body, piece);
            assert_eq!((status, reply), (201, format!("{{\"id\":{id}}}").into_bytes()));
            let (status, shown) =
                api.request_in_pieces(&format!("GET /api/v1/jobs/{id}/body"), b"", usize::MAX);
            assert!(status == 200 && shown == body, "{status}, {} bytes", shown.len());
        }
        for (head, body, reply) in [
            ("POST /api/v1/jobs/1/bury", "{\"priority\":5}", "{}"),
            ("POST /api/v1/tubes/mail/kick", "{\"count\":9}", "{\"kicked\":1}"),
            ("POST /api/v1/jobs/1/release", "{\"priority\":5,\"delay\":3600}", "{}"),
            ("POST /api/v1/jobs/1/kick", "{}", "{}"),
            ("POST /api/v1/jobs/1/move", "{\"to\":\"other\"}", "{}"),
            (
                "POST /api/v1/tubes/mail/move",
                "{\"state\":\"ready\",\"to\":\"other\",\"count\":9}",
                "{\"moved\":1}",
            ),
            ("POST /api/v1/tubes/other/pause", "{\"seconds\":0}", "{}"),
            ("POST /api/v1/tubes/other/config", "{\"key\":\"max-jobs\",\"value\":9}", "{}"),
            ("DELETE /api/v1/jobs/1", "", "{}"),
            ("POST /api/v1/tubes/other/flush", "{}", "{\"flushed\":1}"),
            ("POST /api/v1/drain", "{}", "{}"),
            ("POST /api/v1/undrain", "{}", "{}"),
        ] {
            let (status, said) = api.request(head, body);
            assert_eq!((status, &*said), (200, reply), "{head}");
        }
        let (status, said) = api.request("DELETE /api/v1/jobs/1", "");
        assert!(status == 404 && said.contains("not-found"), "{said}");
        assert_eq!(api.place.control.stat("total-jobs"), 2);
        assert_eq!(api.place.control.stat("current-jobs-ready"), 0);
        // Each change is a line with the address of the client.
        let log = api.place.log();
        let peer = api.stream.tcp.local_addr().expect("it is connected");
        assert_eq!(log.matches(&format!(" from {peer}: ")).count(), 2 + 12, "{log}");
    });
}

/// The body of a request that is refused is received to its end, so the next request is served.
#[test]
fn requests_that_are_refused_leave_the_connection_in_order() {
    under_each("refused changes over HTTPS", true, |mut api| {
        let body = "x".repeat(BODY_BYTES);
        let right = format!("Authorization: Bearer {TOKEN}\r\n");
        let wrong = "Authorization: Bearer a-token-of-another-test\r\n";
        let post = "POST /api/v1/tubes/mail/jobs";
        for (fields, expected) in [("", 401), (wrong, 401), (&*right, 201), ("", 401), (&*right, 201)] {
            let (status, said) = api.request(&format!("{post}\n{fields}"), &body);
            assert_eq!(status, expected, "{fields:?}: {said}");
        }
        let (status, said) = api.request(&format!("{post}\n{right}"), &"x".repeat(65_536));
        assert_eq!(status, 413, "{said}");
        assert_eq!(api.place.control.stat("total-jobs"), 2);
        assert!(!api.place.log().contains(TOKEN));
    });
}

#[test]
fn a_change_in_plaintext_is_refused() {
    use std::io::{Read, Write};
    under_each("changes in plaintext where HTTPS is served", false, |mut api| {
        let mut tcp = TcpStream::connect(api.http).expect("the server listens");
        tcp.set_read_timeout(Some(REPLY_PATIENCE)).expect("a socket option");
        let request = "POST /api/v1/tubes/mail/jobs HTTP/1.1\r\nHost: localhost\r\n\
             Content-Type: application/octet-stream\r\nContent-Length: 5\r\n\r\nhello";
        tcp.write_all(request.as_bytes()).expect("the server receives");
        let mut received = Vec::new();
        // The server may reset the connection, since there is input that it has not received.
        let _ = tcp.read_to_end(&mut received);
        assert!(!received.windows(4).any(|four| four == b"HTTP"), "{}", received.escape_ascii());
        api.place.expect_failure("protocol");
        assert_eq!(api.place.control.stat("total-jobs"), 0);
        let (status, said) = api.request("POST /api/v1/tubes/mail/jobs", "hello");
        assert_eq!((status, &*said), (201, "{\"id\":1}"));
    });
}
