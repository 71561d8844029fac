//! Who may use the API, and which requests it does not understand.

use beanring::server::{Config, Hosts, HttpAccess, PeerKind, Token};
use beanring_testkit::config::config;
use beanring_testkit::http_client::{
    HttpInMemory, JSON, OCTETS, api, delete, get, page, post, put, request, with_fields, writable,
};
use beanring_testkit::in_memory::Cut;

const SECRET: &str = "0123456789abcdef";
const KINDS: [PeerKind; 3] = [PeerKind::Unix, PeerKind::Loopback, PeerKind::Network];

fn bench(token: bool, allow_writes: bool) -> HttpInMemory {
    let token = token.then(|| Token::parse(SECRET.as_bytes()).expect("the token is good"));
    HttpInMemory::new(Config { http_access: HttpAccess { token, allow_writes }, ..config(100) }, Cut::Whole)
}

/// The answer to a read and to a write: the status, and the word of an error.
fn ask_both(bench: &mut HttpInMemory, fields: &str) -> [(u16, String); 2] {
    let read = api("GET", "server", fields, None);
    let write = api("POST", "tubes/default/pause", fields, Some((JSON, b"{\"seconds\":0}")));
    [read, write].map(|request| {
        let response = bench.ask(&request);
        if response.status == 200 { (200, String::new()) } else { response.error() }
    })
}

#[test]
fn a_token_or_the_address_decides_who_may_read_and_write() {
    let right = format!("Authorization: Bearer {SECRET}\r\n");
    for kind in KINDS {
        for allow_writes in [false, true] {
            let mut open = bench(false, allow_writes);
            open.reconnect(kind);
            let forbidden = || (403, "forbidden".to_owned());
            let fine = || (200, String::new());
            let expected = match kind {
                PeerKind::Network => [forbidden(), forbidden()],
                _ if allow_writes => [fine(), fine()],
                _ => [fine(), forbidden()],
            };
            for fields in ["", &right] {
                assert_eq!(ask_both(&mut open, fields), expected, "{kind:?} {allow_writes} {fields}");
            }
            let server = open.ask(&get("server"));
            if kind == PeerKind::Network {
                assert!(server.message().contains("--http-token"));
            } else {
                assert_eq!(server.json()["may_write"], allow_writes);
            }

            let mut closed = bench(true, allow_writes);
            closed.reconnect(kind);
            assert_eq!(ask_both(&mut closed, &right), [fine(), fine()], "{kind:?}");
            for fields in [
                "",
                "Authorization: Bearer 0123456789abcdeF\r\n",
                "Authorization: Bearer 0123456789abcdef0\r\n",
                "Authorization: Bearer 0123456789abcde\r\n",
                "Authorization: Basic 0123456789abcdef\r\n",
                "Authorization: 0123456789abcdef\r\n",
            ] {
                let unauthorized = (401, "unauthorized".to_owned());
                assert_eq!(ask_both(&mut closed, fields), [unauthorized.clone(), unauthorized], "{fields}");
                let answer = closed.ask(&api("GET", "nothing", fields, None));
                assert_eq!((answer.status, answer.field("WWW-Authenticate")), (401, Some("Bearer")));
            }
            assert_eq!(closed.ask(&api("GET", "nothing", &right, None)).status, 404);
            // Monitoring and probes need no token.
            for path in ["/healthz", "/readyz", "/metrics"] {
                assert_eq!(closed.ask(&page(path)).status, 200, "{path}");
            }
        }
    }
}

#[test]
fn pages_of_other_sites_change_nothing_and_learn_nothing() {
    let mut bench = HttpInMemory::writable();
    for (fields, status) in [
        ("", 200),
        ("Origin: http://localhost:1\r\n", 200),
        ("Origin: https://Localhost:1\r\n", 200),
        ("Origin: http://localhost\r\n", 403),
        ("Origin: http://localhost:2\r\n", 403),
        ("Origin: http://evil.example\r\n", 403),
        ("Origin: http://localhost:1.evil.example\r\n", 403),
        ("Origin: null\r\n", 403),
        ("Origin: \r\n", 403),
        ("Sec-Fetch-Site: same-origin\r\n", 200),
        ("Sec-Fetch-Site: none\r\n", 200),
        ("Sec-Fetch-Site: same-site\r\n", 403),
        ("Sec-Fetch-Site: cross-site\r\n", 403),
        ("Origin: http://localhost:1\r\nSec-Fetch-Site: cross-site\r\n", 403),
    ] {
        for request in [
            api("POST", "tubes/default/pause", fields, Some((JSON, b"{\"seconds\":0}"))),
            api("POST", "tubes/default/jobs", fields, Some((OCTETS, b"x"))),
            api("PUT", "schedules/a?tube=a&when=every:9", fields, Some((OCTETS, b"x"))),
            api("POST", "drain", fields, Some((JSON, b"{}"))),
            api("POST", "undrain", fields, Some((JSON, b"{}"))),
        ] {
            let answer = bench.ask(&request);
            let wanted = if answer.status == 201 { 200 } else { answer.status };
            assert!(wanted == status || status == 200 && answer.status == 503, "{fields}: {answer:?}");
            assert!(!answer.head.contains("Access-Control"), "{answer:?}");
        }
        let (read, delete) = (api("GET", "server", fields, None), api("DELETE", "jobs/9", fields, None));
        // A frame of another site would learn whether there is something to read.
        let is_asked_by_other = fields.contains("same-site") || fields.contains("cross-site");
        assert_eq!(bench.ask(&read).status, if is_asked_by_other { 403 } else { 200 }, "{fields}");
        assert_eq!(bench.ask(&delete).status, if status == 200 { 404 } else { 403 }, "{fields}");
    }
    let before = bench.stat("stats-tube default\r\n", "total-jobs");
    assert_eq!(before, "5", "only those of the own page were stored");
}

#[test]
fn only_the_own_host_is_served() {
    let config = Config { http_hosts: Hosts::named(["b".to_owned()]), ..writable() };
    let mut bench = HttpInMemory::new(config, Cut::Whole);
    let to = |host: &str, request: Vec<u8>| {
        String::from_utf8(request).expect("text").replace("Host: localhost", &format!("Host: {host}"))
    };
    for request in [get("server"), post("drain", "{}"), put("tubes/a/jobs", b"body"), delete("jobs/1")] {
        let answer = bench.ask(to("a", request).as_bytes());
        assert_eq!(answer.error(), (421, "misdirected-request".to_owned()));
    }
    assert_eq!(bench.ask(to("b", get("server")).as_bytes()).json()["draining"], false);
}

#[test]
fn bodies_that_the_api_does_not_understand_are_refused() {
    let mut bench = HttpInMemory::writable();
    let schedule = |fields: &str, body| api("PUT", "schedules/a?tube=a&when=every:9", fields, body);
    for (request, status, word) in [
        (api("POST", "drain", "", Some(("text/plain", b"{}"))), 415, "unsupported-media-type"),
        (api("POST", "tubes/a/jobs", &format!("Content-Type: {OCTETS}\r\n"), None), 411, "bad-request"),
        (post("drain", ""), 400, "bad-request"),
        (post("drain", &"x".repeat(4097)), 413, "too-large"),
        (put("tubes/-a/jobs", b""), 400, "bad-request"),
        (schedule("", Some((JSON, b"{}"))), 415, "unsupported-media-type"),
        (schedule(&format!("Content-Type: {OCTETS}\r\n"), None), 411, "bad-request"),
        (schedule("", Some((OCTETS, &[b'x'; 65_536]))), 413, "too-large"),
    ] {
        let shown = request.escape_ascii().to_string();
        assert_eq!(bench.ask(&request).error(), (status, word.to_owned()), "{shown}");
        // The refused body is discarded, and the next request is answered.
        assert_eq!(bench.ask(&get("server")).json()["jobs"]["ready"], 0, "{shown}");
    }
    assert_eq!(bench.stat("stats\r\n", "current-tubes"), "1");
    assert_eq!(bench.ask(&get("schedules/a")).status, 404);
}

#[test]
fn every_error_of_the_api_is_an_object() {
    let mut bench = HttpInMemory::writable();
    let server = |fields: &str| with_fields(&get("server"), fields);
    let chunks = b"Host: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
    for (request, status, word) in [
        ([b"POST /api/v1/drain HTTP/1.1\r\n", &chunks[..]].concat(), 411, "bad-request"),
        ([b"POST http://a/api/v2/x?y HTTP/1.1\r\n", &chunks[..]].concat(), 411, "bad-request"),
        (b"GET /api/v1/server HTTP/1.1\r\n\r\n".to_vec(), 400, "bad-request"),
        (b"GET /api/v1/server HTTP/3.0\r\nHost: a\r\n\r\n".to_vec(), 400, "bad-request"),
        (server("no colon\r\n"), 400, "bad-request"),
        (with_fields(&post("drain", "{}"), "Content-Length: 2\r\n"), 400, "bad-request"),
        (server("Authorization: Bearer \u{e4}\u{0}\r\n"), 400, "bad-request"),
        (server(&format!("X: {}\r\n", "x".repeat(9000))), 431, "too-large"),
    ] {
        let answer = bench.ask(&request);
        let request = request.escape_ascii();
        assert_eq!(answer.error(), (status, word.to_owned()), "{request}");
        assert_eq!(answer.field("Content-Type"), Some(JSON), "{request}");
        assert!(bench.is_closed(), "{request}");
        bench.reconnect(PeerKind::Loopback);
    }
    // Errors of other paths are plain text.
    for (target, fields, status) in [("/apis", "", 404), ("/healthz", "Content-Length: 1\r\n", 400)] {
        let answer = bench.ask(&request("GET", target, fields, None));
        assert_eq!(answer.status, status, "{target}");
        assert_ne!(answer.field("Content-Type"), Some(JSON), "{target}");
    }
    assert!(bench.is_closed());
}
