//! What changes many jobs, pipelines, and limits.

use beanring::server::{Config, PeerKind};
use beanring_testkit::client;
use beanring_testkit::http_client::{HttpInMemory, delete, get, page, post, put, writable};
use beanring_testkit::in_memory::Cut;
use beanring_testkit::peer::Peer;
use serde_json::json;

use crate::sessions::cuts;

#[test]
fn puts_beyond_the_memory_limit_are_counted() {
    let config = Config { max_memory_bytes: Some(4_000_000), max_job_bytes: 60_000, ..writable() };
    let mut bench = HttpInMemory::new(config, Cut::Whole);
    let full = client::put(0, 0, &"x".repeat(60_000));
    while bench.command(&full).starts_with("INSERTED") {}
    bench.reconnect(PeerKind::Loopback);
    let request = put("tubes/default/jobs", &[b'x'; 60_000]);
    assert!(bench.ask(&request).message().contains("--max-memory 4000000"));
    // One that disconnects within the body is counted too.
    bench.send(&request[..request.len() - 1]);
    bench.reconnect(PeerKind::Loopback);
    let page = bench.ask(&page("/metrics"));
    assert!(page.text().contains("beanring_put_refusals_total{reason=\"memory\"} 3\n"), "{}", page.text());
}

#[test]
fn rules_of_a_thousand_tubes_are_the_most() {
    let mut bench = HttpInMemory::writable();
    for tube in 0..1000 {
        bench.ask(&post(&format!("tubes/t{tube}/config"), "{\"key\":\"rate\",\"value\":1}"));
    }
    let refusal = bench.ask(&post("tubes/t/config", "{\"key\":\"rate\",\"value\":1}"));
    let message = "1,000 tubes have rules: remove those of another one";
    assert_eq!((refusal.status, &*refusal.message()), (507, message));
}

#[test]
fn the_memory_limit_refuses_new_jobs_until_some_are_deleted() {
    let mut bench = HttpInMemory::new(Config { max_memory_bytes: Some(16 << 20), ..writable() }, Cut::Whole);
    let body = vec![b'x'; 60_000];
    let mut jobs = 0;
    let refusal = loop {
        let answer = bench.ask(&put("tubes/a/jobs", &body));
        if answer.status != 201 {
            break answer;
        }
        jobs += 1;
        assert!(jobs < 1000, "the server refuses no job");
    };
    assert_eq!(refusal.error(), (507, "out-of-memory".to_owned()));
    assert!(refusal.message().contains("--max-memory"), "{refusal:?}");
    assert!(jobs > 100, "{jobs} jobs");
    assert!(bench.server.memory_bytes() <= 16 << 20);
    let used = bench.ask(&get("server")).json()["memory"]["used_bytes"].as_u64().expect("a number");
    assert!(used.abs_diff(bench.server.memory_bytes()) < 10_000, "{used} bytes");
    let warnings = bench.ask(&get("server")).json()["warnings"].clone();
    assert_eq!(warnings[0]["kind"], "memory-above-90-percent");
    assert_eq!(warnings[1]["kind"], "puts-refused");
    let text = "Puts refused in the last 5 to 10 minutes: 1, since the limit of memory is reached.";
    assert_eq!(warnings[1]["text"], text);
    for id in 1..=2 {
        assert_eq!(bench.ask(&delete(&format!("jobs/{id}"))).status, 200);
    }
    assert_eq!(bench.ask(&put("tubes/a/jobs", &body)).status, 201);
}

#[test]
fn a_large_kick_is_answered_at_its_end() {
    const JOBS: usize = 20_000;
    let mut bench = HttpInMemory::writable();
    bench.load(&client::put(1, 1000, "x").repeat(JOBS));
    let answer = bench.ask(&post("tubes/default/kick", &format!("{{\"count\":{}}}", JOBS - 1)));
    assert_eq!((answer.status, answer.json()), (200, json!({"kicked": JOBS - 1})));
    assert_eq!(bench.stat("stats\r\n", "current-jobs-delayed"), "1");
    assert_eq!(bench.ask(&post("tubes/default/kick", "{\"count\":4294967295}")).json(), json!({"kicked": 1}));
}

#[test]
fn a_flush_deletes_what_no_client_has_reserved() {
    const JOBS: usize = 20_000;
    let mut bench = HttpInMemory::writable();
    for delay in [0, 1000] {
        bench.load(&client::put(1, delay, "x").repeat(JOBS / 2));
    }
    bench.command("reserve\r\n");
    let answer = bench.ask(&post("tubes/default/flush", "{}"));
    assert_eq!((answer.status, answer.json()), (200, json!({"flushed": JOBS - 1})));
    assert_eq!(bench.stat("stats\r\n", "current-jobs-reserved"), "1");
    assert_eq!(bench.stat("stats\r\n", "cmd-flush-tube"), "1");
    assert_eq!(bench.ask(&post("tubes/default/flush", "{}")).json(), json!({"flushed": 0}));
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    for cut in cuts() {
        let mut bench = HttpInMemory::new(writable(), cut);
        let mut all = Vec::new();
        for number in 1..=20 {
            let body = vec![b'x'; number * 200];
            all.extend(put("tubes/a/jobs", &body));
            all.extend(get(&format!("jobs/{number}/body")));
            all.extend(post("tubes/b/pause", "{\"seconds\":1}"));
            all.extend(get("tubes?limit=1"));
            all.extend(page("/healthz"));
            all.extend(delete(&format!("jobs/{number}")));
        }
        bench.send(&all);
        for number in 1..=20 {
            assert_eq!(bench.response(true).json(), json!({"id": number}), "{cut:?}");
            assert_eq!(bench.response(true).body.len(), number * 200, "{cut:?}");
            assert_eq!(bench.response(true).status, 404, "{cut:?}");
            assert_eq!(bench.response(true).json()["total"], 2, "{cut:?}");
            assert_eq!(bench.response(true).body, b"ok\n", "{cut:?}");
            assert_eq!(bench.response(true).json(), json!({}), "{cut:?}");
        }
        assert!(bench.next(true).is_none() && bench.received.is_empty());
        bench.server.half_close(bench.http);
        assert!(bench.is_closed());
    }
}

#[test]
fn a_client_that_sends_much_and_reads_nothing_is_paused() {
    let mut bench = HttpInMemory::writable();
    bench.ask(&put("tubes/a/jobs", &[b'x'; 20_000]));
    let before = bench.server.memory_bytes();
    bench.server.block(bench.http, true);
    const REQUESTS: usize = 500;
    for _ in 0..REQUESTS {
        bench.send(&get("jobs/1/body"));
    }
    assert!(bench.server.is_paused(bench.http));
    let grown = bench.server.memory_bytes() - before;
    assert!(grown < 400_000, "{grown} bytes");
    bench.server.block(bench.http, false);
    for _ in 0..REQUESTS {
        assert_eq!(bench.response(true).body.len(), 20_000);
    }
    bench.reconnect(PeerKind::Loopback);
    assert!(bench.server.memory_bytes() <= before + 100_000);
}
