//! The HTTP API with users: the rights are those of the protocol.

use std::time::Duration;

use beanring::server::{Config, HttpAccess, PeerKind, Protocol, Rights, Token};
use beanring_testkit::config::config;
use beanring_testkit::http_client::{
    HttpInMemory, JSON, OCTETS, Response, api, get, page, put, request, signed,
};
use beanring_testkit::in_memory::Cut;
use beanring_testkit::peer::Peer;
use serde_json::Value;

use super::{ROOT, one, users, with_users};

const TOKEN: &str = "one-one-one-one-one";

const PRODUCE: Rights = Rights::PRODUCE;
const CONSUME: Rights = Rights::CONSUME;
const INSPECT: Rights = Rights::INSPECT;
const ADMIN: Rights = Rights::ADMIN;

/// Operations of the API, the rights of which one is enough, and whether it must be one on all tubes.
const OPERATIONS: [(&str, &str, &str, Rights, bool); 27] = [
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
    ("GET", "schedules", "", PRODUCE.or(INSPECT).or(ADMIN), false),
    ("GET", "schedules/s", "", PRODUCE.or(INSPECT).or(ADMIN), false),
    ("PUT", "schedules/s?tube=a&when=every:9", "x", PRODUCE, false),
    ("POST", "schedules/s/run", "{}", PRODUCE.or(ADMIN), false),
    ("DELETE", "schedules/s", "", PRODUCE.or(ADMIN), false),
    ("POST", "drain", "{}", ADMIN, true),
    ("POST", "undrain", "{}", ADMIN, true),
];

/// Sends a request to the API on a connection of its own, with a token if it has one.
fn ask(bench: &mut HttpInMemory, method: &str, target: &str, token: &str, body: &str) -> Response {
    let kind = if target.ends_with("a/jobs") || method == "PUT" { OCTETS } else { JSON };
    let has_body = matches!(method, "POST" | "PUT");
    let request = request(method, target, "", has_body.then_some((kind, body.as_bytes())));
    bench.reconnect(PeerKind::Network);
    bench.ask(&if token.is_empty() { request } else { signed(&request, token) })
}

/// A server with these rights of the user `one`, whose client is root.
fn bench(rights: &str) -> HttpInMemory {
    let mut bench = HttpInMemory::new(with_users(&one(rights)), Cut::Whole);
    bench.command("auth root-root-root-root\r\nuse a\r\nput 0 0 99 1\r\n1\r\nput 0 0 99 1\r\n2\r\n");
    bench.command("reserve-job 2\r\nbury 2 0\r\nput 0 0 99 1 grp:g\r\n3\r\n");
    bench.command("schedule-put s 0 0 60 1 a every:1h\r\nx\r\n");
    bench
}

#[test]
fn every_operation_needs_its_right() {
    for (method, path, body, needed, is_everywhere) in OPERATIONS {
        let path = format!("/api/v1/{path}");
        for (right, word) in Rights::ALL {
            for (tubes, is_all) in [("\"a\", \"ab\"", false), ("\"*\"", true)] {
                let mut bench = bench(&format!("{word} = [{tubes}]"));
                let answer = ask(&mut bench, method, &path, TOKEN, body);
                let what = format!("{method} {path} with {word} on {tubes}: {}", answer.text());
                if right.has_any(needed) && (is_all || !is_everywhere) {
                    assert!((200..300).contains(&answer.status), "{what}");
                    continue;
                }
                let words = Rights::ALL.into_iter().filter(|(right, _)| right.has_any(needed));
                let words: Vec<&str> = words.map(|(_, word)| word).collect();
                // Jobs that go elsewhere need a right there too.
                let is_elsewhere = body.contains("elsewhere") && right.has_any(needed);
                let place = match path.strip_prefix("/api/v1/").expect("it has this prefix") {
                    _ if is_elsewhere => "on the tube elsewhere",
                    "server" | "tubes" | "schedules" => "on any tube",
                    "drain" | "undrain" | "groups/g" => "on all tubes",
                    of if of.starts_with("jobs/") => "on the tube of the job",
                    of if of.starts_with("schedules/s?") => "on the tube a",
                    of if of.starts_with("schedules/") => "on the tube of the schedule",
                    _ => "on the tube a",
                };
                let words = if is_elsewhere { vec!["produce", "admin"] } else { words };
                let lacks = format!("{} {place}", words.join(" or "));
                let said = format!("this user lacks the right {lacks}: see the file of --auth");
                assert_eq!(
                    (answer.error(), answer.message()),
                    ((403, "forbidden".to_owned()), said),
                    "{what}"
                );
                assert_eq!(answer.json()["missing_rights"], Value::from(words), "{what}");
            }
        }
        let wrong = ask(&mut bench(""), method, &path, "one-one-one-one-onf", body);
        assert_eq!((wrong.status, wrong.field("WWW-Authenticate")), (401, Some("Bearer")), "{wrong:?}");
        assert_eq!(ask(&mut bench(""), method, &path, "", body).status, 401);
    }
}

#[test]
fn lists_and_metrics_show_what_may_be_seen() {
    let mut bench = bench("inspect = [\"ab\"]\n[anonymous]\ninspect = [\"open\"]");
    bench.command("watch ab\r\nwatch open\r\n");
    let names = ["default", "a", "ab", "open"];
    for (token, first, shown) in [
        (TOKEN, "ab", [false, false, true, false]),
        ("root-root-root-root", "a", [true; 4]),
        ("", "open", [false, false, false, true]),
    ] {
        let tubes = ask(&mut bench, "GET", "/api/v1/tubes", token, "").json();
        let count = shown.iter().filter(|&&is_shown| is_shown).count();
        assert_eq!((&tubes["total"], &tubes["matched"]), (&count.into(), &count.into()), "{tubes}");
        assert_eq!(tubes["tubes"][0]["name"], first, "{tubes}");
        let page = ask(&mut bench, "GET", "/metrics", token, "");
        assert_eq!(names.map(|name| page.text().contains(&format!("{{tube=\"{name}\""))), shown, "{token}");
    }
    for (target, status) in [("/metrics", 401), ("/healthz", 200), ("/readyz", 200)] {
        assert_eq!(ask(&mut bench, "GET", target, "no-such-token-at-all", "").status, status, "{target}");
    }
}

#[test]
fn schedules_are_those_of_tubes_with_a_right() {
    let mut bench = bench("produce = [\"ab\"]\ninspect = [\"open\"]\nconsume = [\"*\"]");
    for (name, tube) in [("t", "ab"), ("u", "open"), ("v", "other")] {
        bench.command(&format!("schedule-put {name} 0 0 60 1 {tube} every:1h\r\nx\r\n"));
    }
    let mut ask = |method: &str, path: &str, body: &str| {
        ask(&mut bench, method, &format!("/api/v1/schedules{path}"), TOKEN, body)
    };
    let page = ask("GET", "", "").json();
    let names: Vec<&str> =
        page["schedules"].as_array().expect("a list").iter().filter_map(|one| one["name"].as_str()).collect();
    assert_eq!(names, ["t", "u"]);
    // A page is cut before those that are left out.
    let first = ask("GET", "?limit=1", "").json();
    assert_eq!((&first["schedules"], &first["next"]), (&serde_json::json!([]), &"s".into()));
    for (method, path, status) in [
        ("GET", "/t", 200),
        ("GET", "/u", 200),
        ("GET", "/v", 403),
        ("GET", "/missing", 404),
        ("POST", "/t/run", 201),
        ("POST", "/u/run", 403),
        ("PUT", "/t?tube=ab&when=every:9", 200),
        ("PUT", "/t?tube=open&when=every:9", 403),
        ("PUT", "/v?tube=ab&when=every:9", 403),
        ("DELETE", "/v", 403),
        ("DELETE", "/t", 200),
    ] {
        assert_eq!(ask(method, path, "{}").status, status, "{method} {path}");
    }
}

/// The users may change while the body of a schedule arrives.
#[test]
fn a_schedule_that_is_arriving_needs_its_user_at_its_end() {
    let other = "[users.one]\ntoken = \"one-one-one-one-one\"\nproduce = [\"other\"]\n";
    for (left, expected) in [("", (401, "unauthorized")), (other, (403, "forbidden"))] {
        let mut bench = bench("produce = [\"a\"]");
        let put = api("PUT", "schedules/new?tube=a&when=every:9", "", Some((OCTETS, b"hello")));
        let whole = signed(&put, TOKEN);
        let (first, rest) = whole.split_at(whole.len() - 2);
        bench.send(first);
        assert!(bench.next(true).is_none());
        bench.server.replace_users(users(&format!("{ROOT}{left}")));
        bench.send(rest);
        let answer = bench.next(true).expect("the body is complete");
        assert_eq!(answer.error(), (expected.0, expected.1.to_owned()), "{}", answer.message());
        assert!(bench.command("schedule-stats new\r\n").starts_with("NOT_FOUND"));
    }
}

#[test]
fn failures_are_counted_by_reason() {
    let mut bench = bench("");
    ask(&mut bench, "GET", "/api/v1/server", "no-such-token-at-all", "");
    ask(&mut bench, "GET", "/metrics", "no-such-token-at-all", "");
    bench.server.open_certified(Protocol::Beanstalk, &["nobody.example"]);
    let conn = bench.server.open();
    bench.server.expect(conn, "auth x\r\n", "");
    let page = ask(&mut bench, "GET", "/metrics", "", "");
    for line in [
        "beanring_auth_users 2",
        "beanring_auth_failures_total{reason=\"token\"} 1",
        "beanring_auth_failures_total{reason=\"http\"} 2",
        "beanring_auth_failures_total{reason=\"certificate\"} 1",
        "beanring_auth_reload_failures_total 0",
    ] {
        assert!(page.text().contains(&format!("\n{line}\n")), "{line}");
    }
}

#[test]
fn a_certificate_is_the_user_of_its_requests() {
    let mut bench = bench("certificate = [\"one.example\"]\ninspect = [\"*\"]");
    bench.http = bench.server.open_certified(Protocol::Http, &["one.example"]);
    let read = get("tubes/a");
    assert_eq!(bench.ask(&read).status, 200);
    // A token goes first.
    assert_eq!(bench.ask(&signed(&read, "no-such-token-at-all")).status, 401);
    bench.server.replace_users(users(ROOT));
    assert_eq!(bench.ask(&read).status, 401);
}

/// A wrong token over HTTP is answered after a second, as on the wire, and so is each request after it on its connection.
#[test]
fn wrong_tokens_are_answered_after_a_second() {
    let token_of_api = Config {
        http_access: HttpAccess { token: Token::parse(TOKEN.as_bytes()), allow_writes: false },
        ..config(65_535)
    };
    for (config, path) in
        [(with_users(""), "/api/v1/server"), (with_users(""), "/metrics"), (token_of_api, "/api/v1/server")]
    {
        let mut bench = HttpInMemory::new(config, Cut::Whole);
        let wrong = signed(&request("GET", path, "", None), "no-such-token-at-all");
        bench.send(&wrong.repeat(2));
        for _ in 0..2 {
            bench.server.advance(Duration::from_millis(999));
            assert!(bench.next(true).is_none(), "{path}");
            bench.server.advance(Duration::from_millis(1));
            let answer = bench.next(true).expect("the second is over");
            assert_eq!((answer.status, answer.field("WWW-Authenticate")), (401, Some("Bearer")));
        }
        // Others are answered at once, and so is a health check with whatever token.
        bench.reconnect(PeerKind::Loopback);
        bench.send(&wrong);
        let held = bench.http;
        bench.http = bench.server.open_http(PeerKind::Loopback);
        bench.send(&signed(&page("/healthz"), "no-such-token-at-all"));
        assert_eq!(bench.next(true).expect("it is answered at once").status, 200);
        bench.server.close(held);
        bench.advance(2);
        let page = bench.ask(&page("/metrics"));
        assert!(page.text().contains("beanring_auth_failures_total{reason=\"http\"} 3\n"), "{}", page.text());
    }
}

/// At most 64 refusals wait.
#[test]
fn many_wrong_tokens_are_answered_early() {
    let mut bench = bench("");
    let wrong = signed(&get("server"), "no-such-token-at-all");
    bench.send(&wrong);
    for _ in 0..64 {
        let conn = bench.server.open();
        bench.server.expect(conn, "auth x\r\n", "");
    }
    assert_eq!(bench.next(true).expect("it is the oldest").status, 401);
}

#[test]
fn a_put_that_is_arriving_needs_its_user_at_its_end() {
    let other = "[users.one]\ntoken = \"one-one-one-one-one\"\nproduce = [\"other\"]\n";
    for (left, expected) in [("", (401, "unauthorized")), (other, (403, "forbidden"))] {
        let mut bench = bench("produce = [\"a\"]");
        let whole = signed(&put("tubes/a/jobs", b"hello"), TOKEN);
        let (first, rest) = whole.split_at(whole.len() - 2);
        bench.send(first);
        assert!(bench.next(true).is_none());
        bench.server.replace_users(users(&format!("{ROOT}{left}")));
        bench.send(rest);
        let answer = bench.next(true).expect("the body is complete");
        assert_eq!(answer.error(), (expected.0, expected.1.to_owned()), "{}", answer.message());
        assert_eq!(bench.stat("stats\r\n", "total-jobs"), "3");
    }
}
