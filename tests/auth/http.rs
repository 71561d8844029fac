//! The HTTP API with users: the rights are those of the protocol.

use beanring::server::{PeerKind, Protocol, Rights};
use beanring_testkit::peer::Peer;

use super::Bench;

const PRODUCE: Rights = Rights::PRODUCE;
const CONSUME: Rights = Rights::CONSUME;
const INSPECT: Rights = Rights::INSPECT;
const ADMIN: Rights = Rights::ADMIN;

/// Operations of the API, the rights of which one is enough, and whether it must be one on all tubes.
const OPERATIONS: [(&str, &str, &str, Rights, bool); 22] = [
    ("GET", "server", "", INSPECT, false),
    ("GET", "tubes", "", INSPECT, false),
    ("GET", "tubes/a", "", INSPECT, false),
    ("GET", "tubes/a/next/ready", "", INSPECT, false),
    ("GET", "tubes/a/jobs?state=ready", "", INSPECT, false),
    ("GET", "groups/g", "", INSPECT, true),
    ("GET", "jobs/1", "", INSPECT.or(CONSUME).or(ADMIN), false),
    ("GET", "jobs/1/body", "", INSPECT, false),
    ("POST", "tubes/a/jobs", "x", PRODUCE, false),
    ("POST", "tubes/a/pause", "{\"seconds\":0}", ADMIN, false),
    ("POST", "tubes/a/kick", "{\"count\":1}", ADMIN, false),
    ("POST", "tubes/a/flush", "{}", ADMIN, false),
    ("POST", "tubes/a/move", "{\"state\":\"buried\",\"to\":\"ab\",\"count\":1}", ADMIN, false),
    ("POST", "tubes/a/move", "{\"state\":\"buried\",\"to\":\"elsewhere\",\"count\":1}", ADMIN, true),
    ("POST", "tubes/a/config", "{\"key\":\"rate\",\"value\":9}", ADMIN, false),
    ("POST", "jobs/2/kick", "{}", ADMIN, false),
    ("POST", "jobs/1/move", "{\"to\":\"ab\"}", ADMIN, false),
    ("POST", "jobs/1/bury", "{\"priority\":1}", CONSUME.or(ADMIN), false),
    ("POST", "jobs/2/release", "{\"priority\":1,\"delay\":0}", CONSUME.or(ADMIN), false),
    ("DELETE", "jobs/1", "", CONSUME.or(ADMIN), false),
    ("POST", "drain", "{}", ADMIN, true),
    ("POST", "undrain", "{}", ADMIN, true),
];

fn request(method: &str, path: &str, token: &str, body: &str) -> String {
    let token = if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
    let kind = if path.ends_with("a/jobs") && method == "POST" {
        "application/octet-stream"
    } else {
        "application/json"
    };
    let body = match method {
        "POST" => format!("Content-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}", body.len()),
        _ => "\r\n".to_owned(),
    };
    format!("{method} {path} HTTP/1.1\r\nHost: a\r\n{token}{body}")
}

/// The status and the text of the answer to a request on a connection of its own.
fn ask(bench: &mut Bench, method: &str, path: &str, token: &str, body: &str) -> (u16, String) {
    let conn = bench.server.open_http(PeerKind::Network);
    let answer = bench.ask(conn, &request(method, path, token, body));
    bench.server.close(conn);
    let status = answer.strip_prefix("HTTP/1.1 ").unwrap_or_else(|| panic!("{method} {path}: {answer:?}"));
    (status[..3].parse().expect("a status"), answer)
}

fn bench(rights: &str) -> Bench {
    let mut bench = Bench::new(&format!("[users.one]\ntoken = \"one-one-one-one-one\"\n{rights}\n"));
    let root = bench.root();
    bench.ask(root, "use a\r\nput 0 0 99 1\r\n1\r\nput 0 0 99 1\r\n2\r\nreserve-job 2\r\nbury 2 0\r\nput 0 0 99 1 grp:g\r\n3\r\n");
    bench
}

#[test]
fn every_operation_needs_its_right() {
    for (method, path, body, needed, is_everywhere) in OPERATIONS {
        let path = format!("/api/v1/{path}");
        for (right, word) in Rights::ALL {
            for (tubes, is_all) in [("\"a\", \"ab\"", false), ("\"*\"", true)] {
                let mut bench = bench(&format!("{word} = [{tubes}]"));
                let (status, answer) = ask(&mut bench, method, &path, "one-one-one-one-one", body);
                let may = right.has_any(needed) && (is_all || !is_everywhere);
                if may {
                    assert!((200..300).contains(&status), "{method} {path} with {word} on {tubes}: {answer}");
                } else {
                    assert_eq!(status, 403, "{method} {path} with {word} on {tubes}: {answer}");
                    let words = Rights::ALL.into_iter().filter(|(right, _)| right.has_any(needed));
                    let words: Vec<&str> = words.map(|(_, word)| word).collect();
                    // Jobs that go elsewhere need a right there too.
                    let is_elsewhere = body.contains("elsewhere") && right.has_any(needed);
                    let lacks = match (is_elsewhere, is_everywhere && !body.contains("elsewhere")) {
                        (true, _) => "produce or admin on the tube".to_owned(),
                        (false, true) => format!("{} on all tubes", words.join(" or ")),
                        (false, false) => format!("{} on the tube", words.join(" or ")),
                    };
                    let said = format!(
                        "{{\"error\":\"forbidden\",\"message\":\"this user lacks the right {lacks}: see the file of --auth\"}}"
                    );
                    assert!(answer.ends_with(&said), "{answer}");
                }
            }
        }
        let (status, answer) = ask(&mut bench(""), method, &path, "one-one-one-one-onf", body);
        assert_eq!(status, 401, "{answer}");
        assert!(answer.contains("WWW-Authenticate: Bearer"), "{answer}");
        let (status, _) = ask(&mut bench(""), method, &path, "", body);
        assert_eq!(status, 401);
    }
}

#[test]
fn lists_and_metrics_show_what_may_be_seen() {
    let mut bench = bench("inspect = [\"ab\"]\n[anonymous]\ninspect = [\"open\"]");
    let root = bench.root();
    bench.ask(root, "watch ab\r\nwatch open\r\n");
    let token = "one-one-one-one-one";
    let (_, tubes) = ask(&mut bench, "GET", "/api/v1/tubes", token, "");
    assert!(tubes.contains("\"total\":1,\"matched\":1") && tubes.contains("\"name\":\"ab\""), "{tubes}");
    let (_, tubes) = ask(&mut bench, "GET", "/api/v1/tubes", "root-root-root-root", "");
    assert!(tubes.contains("\"total\":4,\"matched\":4"), "{tubes}");
    let (_, tubes) = ask(&mut bench, "GET", "/api/v1/tubes", "", "");
    assert!(tubes.contains("\"total\":1,\"matched\":1") && tubes.contains("\"name\":\"open\""), "{tubes}");

    let shown = |page: &str| {
        let names = ["default", "a", "ab", "open"];
        names.map(|name| page.contains(&format!("{{tube=\"{name}\"")))
    };
    let (_, page) = ask(&mut bench, "GET", "/metrics", token, "");
    assert_eq!(shown(&page), [false, false, true, false]);
    let (_, page) = ask(&mut bench, "GET", "/metrics", "root-root-root-root", "");
    assert_eq!(shown(&page), [true; 4]);
    let (_, page) = ask(&mut bench, "GET", "/metrics", "", "");
    assert_eq!(shown(&page), [false, false, false, true]);
    let (status, _) = ask(&mut bench, "GET", "/metrics", "no-such-token-at-all", "");
    assert_eq!(status, 401);
    for path in ["/healthz", "/readyz"] {
        assert_eq!(ask(&mut bench, "GET", path, "no-such-token-at-all", "").0, 200);
    }
}

#[test]
fn failures_are_counted_by_reason() {
    let mut bench = bench("");
    ask(&mut bench, "GET", "/api/v1/server", "no-such-token-at-all", "");
    ask(&mut bench, "GET", "/metrics", "no-such-token-at-all", "");
    bench.server.open_certified(Protocol::Beanstalk, &["nobody.example"]);
    let conn = bench.open();
    bench.expect(conn, "auth x\r\n", "");
    let (_, page) = ask(&mut bench, "GET", "/metrics", "", "");
    for line in [
        "beanring_auth_users 2",
        "beanring_auth_failures_total{reason=\"token\"} 1",
        "beanring_auth_failures_total{reason=\"http\"} 2",
        "beanring_auth_failures_total{reason=\"certificate\"} 1",
        "beanring_auth_reload_failures_total 0",
    ] {
        assert!(page.contains(&format!("\n{line}\n")), "{line}");
    }
}

#[test]
fn a_certificate_is_the_user_of_its_requests() {
    let mut bench = bench("certificate = [\"one.example\"]\ninspect = [\"*\"]");
    let conn = bench.server.open_certified(Protocol::Http, &["one.example"]);
    let read = request("GET", "/api/v1/tubes/a", "", "");
    assert!(bench.ask(conn, &read).starts_with("HTTP/1.1 200 "));
    // A token goes first.
    let wrong = request("GET", "/api/v1/tubes/a", "no-such-token-at-all", "");
    assert!(bench.ask(conn, &wrong).starts_with("HTTP/1.1 401 "));
    bench.server.replace_users(super::users(super::ROOT));
    assert!(bench.ask(conn, &read).starts_with("HTTP/1.1 401 "));
}
