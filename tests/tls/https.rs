//! Changes through the HTTP API over TLS, under each driver.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use beanring_testkit::driver;
use beanring_testkit::http_client::{HttpClient, delete, get, post, put, signed};
use beanring_testkit::process::{Address, REPLY_PATIENCE};
use beanring_testkit::scratch::secret;
use beanring_testkit::stream::Stream;

use super::place::{Place, read_to_end};

const TOKEN: &str = "a-token-of-this-test";

/// One that fills several records and has every byte.
const BODY_BYTES: usize = 60_000;

/// A server with the API over TLS, and a connection to it.
struct Api {
    place: Place,
    http: SocketAddr,
    client: HttpClient,
}

/// Runs a test under each driver. With a token, clients must send it. Without one, those on this machine may change everything.
fn under_each(what: &str, has_token: bool, test: impl Fn(Api) + Sync) {
    driver::under_each(what, |io| {
        let http = Address::fresh_tcp();
        let flags = ["--http", &http.to_string(), "--http-tls", "--log-level", "info"];
        let place = Place::with(&[&driver::flags(io)[..], &flags].concat(), |certificates| {
            if !has_token {
                return vec!["--http-allow-writes".to_owned()];
            }
            let token = certificates.ca.with_file_name("token");
            secret(&token, TOKEN);
            vec!["--http-token".to_owned(), token.display().to_string()]
        });
        let tcp = TcpStream::connect(http).expect("the server listens");
        let client = HttpClient::new(Stream::Tls(place.over(tcp)));
        test(Api { place, http, client });
    });
}

#[test]
fn a_job_lives_and_ends_over_https() {
    under_each("changes over HTTPS", false, |Api { mut place, mut client, .. }| {
        let body: Vec<u8> = (0..BODY_BYTES).map(|at| at as u8).collect();
        // One record after the other, and one for each 7 bytes.
        for (id, piece_bytes) in [(1, usize::MAX), (2, 7)] {
            for piece in put("tubes/mail/jobs?priority=10", &body).chunks(piece_bytes) {
                client.stream.send(piece);
            }
            let reply = client.response(true);
            assert_eq!((reply.status, reply.text()), (201, &*format!("{{\"id\":{id}}}")));
            let shown = client.ask(&get(&format!("jobs/{id}/body")));
            assert!(
                shown.status == 200 && shown.body == body,
                "{}, {} bytes",
                shown.status,
                shown.body.len()
            );
        }
        for (request, reply) in [
            (post("jobs/1/bury", "{\"priority\":5}"), "{}"),
            (post("tubes/mail/kick", "{\"count\":9}"), "{\"kicked\":1}"),
            (post("jobs/1/release", "{\"priority\":5,\"delay\":3600}"), "{}"),
            (post("jobs/1/kick", "{}"), "{}"),
            (post("jobs/1/move", "{\"to\":\"other\"}"), "{}"),
            (post("tubes/mail/move", "{\"state\":\"ready\",\"to\":\"other\",\"count\":9}"), "{\"moved\":1}"),
            (post("tubes/other/pause", "{\"seconds\":0}"), "{}"),
            (post("tubes/other/config", "{\"key\":\"max-jobs\",\"value\":9}"), "{}"),
            (delete("jobs/1"), "{}"),
            (post("tubes/other/flush", "{}"), "{\"flushed\":1}"),
            (post("drain", "{}"), "{}"),
            (post("undrain", "{}"), "{}"),
        ] {
            let answer = client.ask(&request);
            assert_eq!((answer.status, answer.text()), (200, reply), "{}", request.escape_ascii());
        }
        assert_eq!(client.ask(&delete("jobs/1")).error(), (404, "not-found".to_owned()));
        assert_eq!(place.control.stat("total-jobs"), 2);
        assert_eq!(place.control.stat("current-jobs-ready"), 0);
        // Each change is a line with the address of the client.
        let Stream::Tls(stream) = &client.stream else { panic!("it is TLS") };
        let peer = stream.tcp.local_addr().expect("it is connected");
        let log = place.log();
        assert_eq!(log.matches(&format!(" from {peer}: ")).count(), 2 + 12, "{log}");
    });
}

/// The body of a request that is refused is received to its end, so the next request is served.
#[test]
fn requests_that_are_refused_leave_the_connection_in_order() {
    under_each("refused changes over HTTPS", true, |Api { mut place, mut client, .. }| {
        let put = |bytes: usize| put("tubes/mail/jobs", &vec![b'x'; bytes]);
        let right = signed(&put(BODY_BYTES), TOKEN);
        let wrong = signed(&put(BODY_BYTES), "a-token-of-another-test");
        for (request, expected) in [
            (&put(BODY_BYTES), 401),
            (&wrong, 401),
            (&right, 201),
            (&put(BODY_BYTES), 401),
            (&right, 201),
            (&signed(&put(65_536), TOKEN), 413),
        ] {
            let answer = client.ask(request);
            assert_eq!(answer.status, expected, "{answer:?}");
        }
        assert_eq!(place.control.stat("total-jobs"), 2);
        assert!(!place.log().contains(TOKEN));
    });
}

#[test]
fn a_change_in_plaintext_is_refused() {
    under_each("changes in plaintext where HTTPS is served", false, |Api { mut place, http, mut client }| {
        let mut tcp = TcpStream::connect(http).expect("the server listens");
        tcp.set_read_timeout(Some(REPLY_PATIENCE)).expect("a socket option");
        tcp.write_all(&put("tubes/mail/jobs", b"hello")).expect("the server receives");
        // The server may reset the connection, since there is input that it has not received.
        let received = read_to_end(&tcp);
        assert!(!received.windows(4).any(|four| four == b"HTTP"), "{}", received.escape_ascii());
        place.expect_failure("protocol");
        assert_eq!(place.control.stat("total-jobs"), 0);
        let answer = client.ask(&put("tubes/mail/jobs", b"hello"));
        assert_eq!((answer.status, answer.text()), (201, "{\"id\":1}"));
    });
}
