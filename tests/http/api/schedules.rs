//! Schedules over HTTP: pages of the list, bodies that are cut off, and memory.

use beanring::server::{Config, PeerKind};
use beanring_testkit::client;
use beanring_testkit::http_client::{HttpInMemory, OCTETS, api, delete, get, post, writable};
use beanring_testkit::in_memory::Cut;
use serde_json::{Value, json};

/// A request that puts a schedule for the tube `mail`.
fn put(name: &str, body: &[u8]) -> Vec<u8> {
    api("PUT", &format!("schedules/{name}?tube=mail&when=every:1h"), "", Some((OCTETS, body)))
}

fn names(page: &Value) -> Vec<&str> {
    let all = page["schedules"].as_array().expect("a list");
    all.iter().map(|one| one["name"].as_str().expect("a name")).collect()
}

#[test]
fn the_list_has_pages_in_the_order_of_names() {
    let mut bench = HttpInMemory::writable();
    for number in 0..250 {
        assert_eq!(bench.ask(&put(&format!("s{number:03}"), b"x")).status, 200);
    }
    let all: Vec<String> = (0..250).map(|number| format!("s{number:03}")).collect();
    for limit in [1, 7, 100, 249, 250, 500] {
        let (mut found, mut after) = (Vec::new(), String::new());
        loop {
            let page = bench.ask(&get(&format!("schedules?limit={limit}{after}"))).json();
            let names = names(&page);
            assert!(names.len() <= limit, "{limit}");
            found.extend(names.into_iter().map(str::to_owned));
            let Some(next) = page["next"].as_str() else { break };
            assert_eq!(found.last().map(String::as_str), Some(next));
            after = format!("&after={next}");
        }
        assert_eq!(found, all, "{limit}");
    }
    assert_eq!(names(&bench.ask(&get("schedules")).json()).len(), 100);
    // The name of a deleted schedule still says where to go on.
    assert_eq!(bench.ask(&delete("schedules/s100")).status, 200);
    assert_eq!(names(&bench.ask(&get("schedules?after=s100&limit=1")).json()), ["s101"]);
    let full = bench.ask(&get("schedules?limit=1")).json()["schedules"][0].clone();
    assert_eq!(full, bench.ask(&get("schedules/s000")).json());
}

#[test]
fn names_are_encoded_like_those_of_tubes() {
    let mut bench = HttpInMemory::writable();
    for (name, path) in
        [("a/b", "a%2Fb"), ("a/../b", "a%252F..%252Fb"), ("..", "%252E%252E"), ("a;(b)$_+", "a;(b)$_+")]
    {
        assert_eq!(bench.ask(&put(path, b"x")).status, 200, "{name}");
        assert_eq!(bench.ask(&get(&format!("schedules/{path}"))).json()["name"], name);
        assert_eq!(bench.ask(&post(&format!("schedules/{path}/run"), "{}")).status, 201, "{name}");
        let encoded = path.replace("%25", "%");
        let page = bench.ask(&get(&format!("schedules?after={}", encoded.replace('+', "%2B")))).json();
        assert!(!names(&page).contains(&name), "{page}");
        assert_eq!(bench.ask(&delete(&format!("schedules/{path}"))).status, 200, "{name}");
    }
}

#[test]
fn the_jobs_of_a_schedule_have_the_body_of_its_put() {
    let body = b"\r\n\0delete 1\r\n{}\r\n".repeat(900);
    let mut bench = HttpInMemory::writable();
    assert_eq!(bench.ask(&put("empty", b"")).status, 200);
    assert_eq!(bench.ask(&post("schedules/empty/run", "{}")).status, 201);
    assert_eq!(bench.ask(&get("jobs/1/body")).body, b"");
    for cut in [Cut::Whole, Cut::EveryByte, Cut::Random { seed: 3 }] {
        let mut bench = HttpInMemory::new(writable(), cut);
        assert_eq!(bench.ask(&put("a", &body)).json()["body_bytes"], json!(body.len()));
        assert_eq!(bench.ask(&post("schedules/a/run", "{}")).json(), json!({"id": 1}));
        assert!(bench.ask(&get("jobs/1/body")).body == body, "{cut:?}");
    }
}

#[test]
fn a_body_that_is_cut_off_puts_no_schedule() {
    let mut bench = HttpInMemory::writable();
    bench.ask(&put("a", b"before"));
    let whole = put("a", &[b'x'; 9000]);
    let before = bench.server.memory_bytes();
    for end in [whole.len() - 9000, whole.len() - 8999, whole.len() - 1] {
        bench.send(&whole[..end]);
        bench.server.check();
        bench.reconnect(PeerKind::Loopback);
        bench.server.check();
    }
    assert_eq!(bench.ask(&get("schedules/a")).json()["body_bytes"], 6);
    bench.reconnect(PeerKind::Loopback);
    assert!(bench.server.memory_bytes() <= before + 100_000, "the bodies are freed");
}

#[test]
fn the_memory_limit_refuses_schedules_until_jobs_are_deleted() {
    let mut bench = HttpInMemory::new(Config { max_memory_bytes: Some(16 << 20), ..writable() }, Cut::Whole);
    assert_eq!(bench.ask(&put("first", &[b'x'; 60_000])).status, 200);
    let full = client::put(0, 0, &"x".repeat(60_000));
    while bench.command(&full).starts_with("INSERTED") {}
    let refusal = bench.ask(&put("second", &[b'x'; 60_000]));
    assert_eq!(refusal.error(), (507, "out-of-memory".to_owned()));
    assert!(refusal.message().contains("--max-memory"), "{refusal:?}");
    assert_eq!(bench.ask(&post("schedules/first/run", "{}")).error(), (507, "out-of-memory".to_owned()));
    // An operator still sees the schedules.
    assert_eq!(names(&bench.ask(&get("schedules")).json()), ["first"]);
    assert!(bench.server.memory_bytes() <= 16 << 20);
    for id in 1..=4 {
        assert_eq!(bench.ask(&delete(&format!("jobs/{id}"))).status, 200);
    }
    assert_eq!(bench.ask(&put("second", &[b'x'; 60_000])).status, 200);
    assert_eq!(bench.ask(&post("schedules/first/run", "{}")).status, 201);
}

#[test]
fn ten_thousand_schedules_are_the_most() {
    let mut bench = HttpInMemory::writable();
    let put_on_the_wire = |number| format!("schedule-put s{number} 0 0 60 1 mail every:1h\r\nx\r\n");
    bench.load(&(0..10_000).map(put_on_the_wire).collect::<String>());
    let refusal = bench.ask(&put("one-more", b"x"));
    let message = "there are 10,000 schedules: delete another one";
    assert_eq!((refusal.status, &*refusal.message()), (507, message));
    assert_eq!(bench.ask(&put("s5", b"x")).status, 200, "one is replaced");
}

#[test]
fn times_that_are_too_long_are_refused_with_the_reason() {
    let mut bench = HttpInMemory::writable();
    let path = format!("schedules/a?tube=mail&when={}", "1,".repeat(300));
    let refusal = bench.ask(&api("PUT", &path, "", Some((OCTETS, b"x"))));
    assert_eq!((refusal.status, &*refusal.message()), (400, "when is longer than 512 bytes"));
    // The body was discarded, and the connection goes on.
    assert_eq!(bench.ask(&get("schedules")).json(), json!({"schedules": []}));
}
