//! Each endpoint, and what it does to jobs and tubes.

use beanring::server::{Config, PeerKind};
use beanring_testkit::client;
use beanring_testkit::http_client::{HttpInMemory, delete, get, page, post, put, writable};
use beanring_testkit::in_memory::Cut;
use beanring_testkit::peer::Peer;
use beanring_testkit::random::seeds;
use serde_json::{Value, json};

/// All ways to cut input and output.
fn cuts() -> Vec<Cut> {
    let random = seeds(4).map(|seed| Cut::Random { seed });
    [Cut::Whole, Cut::EveryByte].into_iter().chain(random).collect()
}

/// A job of `mail` as the API shows it, with what is not 0.
fn job(mut more: Value) -> Value {
    let mut job = json!({
        "tube": "mail", "age_seconds": 0, "delay_seconds": 0, "time_left_seconds": 0, "reserves": 0, "timeouts": 0,
        "releases": 0, "buries": 0, "kicks": 0, "body_bytes": 3
    });
    job.as_object_mut().expect("an object").append(more.as_object_mut().expect("an object"));
    job
}

#[test]
fn every_endpoint_does_what_it_says_however_its_input_is_cut() {
    let percentiles = json!({"p50_seconds": 1e-6, "p95_seconds": 1e-6, "p99_seconds": 1e-6});
    for cut in cuts() {
        let mut bench = HttpInMemory::new(writable(), cut);
        for (number, (request, status, expected)) in [
            (put("tubes/mail/jobs?priority=5&delay=0&ttr=7", b"one"), 201, json!({"id": 1})),
            (put("tubes/mail/jobs?delay=60", b"two"), 201, json!({"id": 2})),
            (get("jobs/1"), 200, job(json!({"id": 1, "state": "ready", "priority": 5, "ttr_seconds": 7}))),
            (
                get("tubes/mail/next/delayed"),
                200,
                job(json!({
                    "id": 2, "state": "delayed", "priority": 65536, "ttr_seconds": 60, "delay_seconds": 60,
                    "time_left_seconds": 60
                })),
            ),
            (post("jobs/1/bury", "{\"priority\":9}"), 200, json!({})),
            (
                get("tubes/mail/next/buried"),
                200,
                job(json!({
                    "id": 1, "state": "buried", "priority": 9, "ttr_seconds": 7, "reserves": 1, "buries": 1
                })),
            ),
            (post("jobs/1/kick", "{}"), 200, json!({})),
            (post("tubes/mail/kick", "{\"count\":9}"), 200, json!({"kicked": 1})),
            (post("jobs/2/release", "{\"priority\":1,\"delay\":0}"), 200, json!({})),
            (
                get("tubes/mail/next/ready"),
                200,
                job(json!({
                    "id": 2, "state": "ready", "priority": 1, "ttr_seconds": 60, "reserves": 1, "releases": 1, "kicks": 1
                })),
            ),
            (post("tubes/mail/pause", "{\"seconds\":30}"), 200, json!({})),
            (
                get("tubes/mail"),
                200,
                json!({
                    "name": "mail", "ready": 2, "reserved": 0, "delayed": 0, "buried": 0, "held": 0, "urgent": 2, "waiting": 0,
                    "watching": 0, "using": 0, "puts": 2, "deletes": 0, "timeouts": 0, "paused_seconds": 30,
                    "oldest_ready_seconds": 0, "pause_seconds": 30, "pauses": 1, "buries": 1,
                    "percentiles": {"queue_time": percentiles, "reserved_time": percentiles}
                }),
            ),
            (post("tubes/mail/pause", "{\"seconds\":0.0}"), 200, json!({})),
            (post("tubes/mail/config", "{\"key\":\"max-jobs\",\"value\":2}"), 200, json!({})),
            (post("tubes/mail/config", "{\"value\":\"dead\",\"key\":\"dead-letter\"}"), 200, json!({})),
            (
                put("tubes/mail/jobs", b"x"),
                507,
                json!({
                    "error": "out-of-memory",
                    "message": "the tube is full by its rule max-jobs 2: delete jobs, or raise the rule"
                }),
            ),
            (delete("jobs/1"), 200, json!({})),
            (post("drain", " {} "), 200, json!({})),
            (post("undrain", "{}"), 200, json!({})),
            (delete("jobs/2"), 200, json!({})),
        ]
        .into_iter()
        .enumerate()
        {
            let answer = bench.ask(&request);
            assert_eq!((answer.status, answer.json()), (status, expected), "{cut:?}, request {number}");
        }
        assert_eq!(bench.ask(&get("tubes/mail")).status, 404, "a tube without jobs and clients is gone");
        assert_eq!(bench.stat("stats\r\n", "current-tubes"), "1");
    }
}

#[test]
fn the_server_shows_its_state() {
    let mut bench = HttpInMemory::new(
        Config { max_memory_bytes: Some(1 << 30), max_connections: Some(9), max_tubes: None, ..writable() },
        Cut::Whole,
    );
    let worker = bench.server.open();
    bench.server.send(worker, b"reserve\r\n");
    bench.command(&client::put(1, 0, "a"));
    bench.command(&client::put(1, 0, "b"));
    bench.command(&client::put(1, 9, "c"));
    bench.advance(5);
    let server = bench.ask(&get("server")).json();
    for (path, expected) in [
        ("/version", json!("1")),
        ("/driver", json!("test")),
        ("/hostname", json!("host")),
        ("/uptime_seconds", json!(5)),
        ("/draining", json!(false)),
        ("/may_write", json!(true)),
        ("/jobs", json!({"ready": 1, "reserved": 1, "delayed": 1, "buried": 0, "held": 0, "urgent": 1})),
        (
            "/totals",
            json!({
                "puts": 3, "reserves": 1, "deletes": 0, "releases": 0, "buries": 0, "kicks": 0, "moves": 0,
                "timeouts": 0,
                "connections": 2
            }),
        ),
        ("/tubes", json!(1)),
        ("/connections", json!({"clients": 2, "producers": 1, "workers": 1, "waiting": 0, "max": 9})),
        ("/memory/max_bytes", json!(1 << 30)),
        ("/job_log", json!(null)),
        ("/limits", json!({"max_job_bytes": 65_535, "max_tubes": null})),
        ("/warnings", json!([])),
    ] {
        assert_eq!(server.pointer(path), Some(&expected), "{path}: {server}");
    }
    let used = server["memory"]["used_bytes"].as_u64().expect("a number");
    assert!(used.abs_diff(bench.server.memory_bytes()) < 10_000, "{used} bytes");
    // Requests over HTTP are no client connections.
    for _ in 0..3 {
        bench.ask(&put("tubes/other/jobs", b"x"));
        bench.ask(&get("jobs/1"));
    }
    let server = bench.ask(&get("server")).json();
    assert_eq!(server["connections"]["clients"], 2);
    assert_eq!(server["totals"]["connections"], 2);
    assert_eq!(server["connections"]["producers"], 1);
    let tube = bench.ask(&get("tubes/default")).json();
    assert_eq!((&tube["using"], &tube["watching"]), (&json!(2), &json!(2)));
    bench.server.drain();
    let server = bench.ask(&get("server")).json();
    assert_eq!((&server["draining"], &server["warnings"][0]["kind"]), (&json!(true), &json!("draining")));
}

#[test]
fn a_job_that_a_client_has_reserved_is_left_alone() {
    let mut bench = HttpInMemory::writable();
    bench.command(&client::put(1, 0, "a"));
    bench.command("reserve-with-timeout 0\r\n");
    for request in [
        post("jobs/1/kick", "{}"),
        post("jobs/1/bury", "{\"priority\":1}"),
        post("jobs/1/release", "{\"priority\":1,\"delay\":1}"),
        delete("jobs/1"),
    ] {
        assert_eq!(bench.ask(&request).error(), (409, "conflict".to_owned()));
        assert_eq!(bench.stat("stats-job 1\r\n", "state"), "reserved");
        assert_eq!(bench.stat("stats-job 1\r\n", "reserves"), "1");
    }
    assert_eq!(bench.command("release 1 1 0\r\n"), "RELEASED\r\n");
    // A ready job cannot be kicked.
    assert_eq!(bench.ask(&post("jobs/1/kick", "{}")).error(), (409, "conflict".to_owned()));
    for (state, request) in [
        ("buried", post("jobs/1/bury", "{\"priority\":1}")),
        ("buried", post("jobs/1/bury", "{\"priority\":2}")),
        ("delayed", post("jobs/1/release", "{\"priority\":1,\"delay\":9}")),
        ("delayed", post("jobs/1/release", "{\"priority\":1,\"delay\":8}")),
        ("ready", post("jobs/1/release", "{\"priority\":1,\"delay\":0}")),
        ("ready", post("jobs/1/release", "{\"priority\":7,\"delay\":0}")),
    ] {
        assert_eq!(bench.ask(&request).status, 200);
        assert_eq!(bench.stat("stats-job 1\r\n", "state"), state);
        assert_eq!(bench.stat("stats\r\n", "current-jobs-reserved"), "0");
    }
    // A worker that waits gets a released job.
    bench.command("reserve-with-timeout 0\r\nbury 1 7\r\n");
    bench.server.send(bench.client, b"reserve\r\n");
    assert_eq!(bench.ask(&post("jobs/1/release", "{\"priority\":7,\"delay\":0}")).status, 200);
    assert!(bench.command("").starts_with("RESERVED 1 1\r\n"));
}

#[test]
fn an_error_names_what_is_in_the_way() {
    let mut bench = HttpInMemory::writable();
    bench.command(&client::put(1, 0, "a"));
    bench.command("reserve-with-timeout 0\r\n");
    bench.command(&client::put(1, 0, "b"));
    bench.ask(&put("tubes/mail/jobs?grp=parts&delay=9", b"part"));
    bench.ask(&put("tubes/mail/jobs?aft=parts", b"whole"));
    let reserved = "a client has reserved the job, and its TTR ends in 60 s: wait, or stop that worker";
    let held = "the job waits for a group: kick it first";
    let keys =
        "key must be one of max-attempts, max-jobs, max-bytes, default-ttr, retention, rate or dead-letter";
    let name = "name has 1 to 200 bytes of A-Z a-z 0-9 - + / ; . $ _ ( ), and does not begin with -";
    for (request, status, message) in [
        (delete("jobs/1"), 409, reserved),
        (post("jobs/1/kick", "{}"), 409, reserved),
        (post("jobs/1/bury", "{\"priority\":1}"), 409, reserved),
        (post("jobs/1/move", "{\"to\":\"default\"}"), 409, reserved),
        (
            post("jobs/2/kick", "{}"),
            409,
            "the job is ready: only a buried, delayed or held job can be kicked",
        ),
        (post("jobs/4/bury", "{\"priority\":1}"), 409, held),
        (post("jobs/4/release", "{\"priority\":1,\"delay\":0}"), 409, held),
        (get("tubes/default/next/buried"), 404, "the tube has no job in this state at the moment"),
        (get("tubes/none/next/buried"), 404, "there is no such tube: look at /api/v1/tubes"),
        (
            get("tubes/mail/next/held"),
            404,
            "next has the states ready, reserved, delayed and buried: list held jobs with jobs?state=held",
        ),
        (get("groups/-a"), 400, &format!("a group {name}")),
        (get("tubes/-a"), 400, &format!("a tube {name}")),
        (post("tubes/mail/config", "{\"key\":\"speed\",\"value\":1}"), 400, keys),
        (
            post("tubes/mail/move", "{\"state\":1,\"to\":\"a\",\"count\":1}"),
            400,
            "state must be a JSON string",
        ),
    ] {
        let shown = String::from_utf8_lossy(&request).into_owned();
        let answer = bench.ask(&request);
        assert_eq!((answer.status, &*answer.message()), (status, message), "{shown}");
    }
    assert_eq!(bench.ask(&delete("jobs/4")).status, 200, "a held job can be deleted");
}

#[test]
fn what_rules_have_led_to_is_counted() {
    let mut bench = HttpInMemory::writable();
    assert_eq!(
        bench.ask(&get("server")).json()["rule_counts"],
        json!({"refusals": 0, "dead_letters": 0, "expiries": 0, "rate_waits": 0})
    );
    for (tube, jobs) in [("mail", 1), ("video", 2)] {
        bench.ask(&post(
            &format!("tubes/{tube}/config"),
            &format!("{{\"key\":\"max-jobs\",\"value\":{jobs}}}"),
        ));
        for _ in 0..4 {
            bench.ask(&put(&format!("tubes/{tube}/jobs"), b"x"));
        }
    }
    bench.ask(&post("tubes/mail/config", "{\"key\":\"max-attempts\",\"value\":1}"));
    bench.ask(&post("jobs/1/release", "{\"priority\":1,\"delay\":0}"));
    let counts = |refusals: u32, dead_letters: u32| json!({"refusals": refusals, "dead_letters": dead_letters, "expiries": 0, "rate_waits": 0});
    for (path, expected) in
        [("tubes/mail", counts(3, 1)), ("tubes/video", counts(2, 0)), ("server", counts(5, 1))]
    {
        assert_eq!(bench.ask(&get(path)).json()["rule_counts"], expected, "{path}");
    }
    assert_eq!(bench.stat("stats-tube mail\r\n", "rule-refusals"), "3");
    bench.command(&client::put(1, 0, "a"));
    assert_eq!(bench.ask(&get("tubes/default")).json().get("rule_counts"), None);
    let shown = bench.ask(&page("/metrics"));
    let lines = shown.text().lines().filter(|line| line.starts_with("beanring_tube_rule_refusals_total"));
    let expected = [
        "beanring_tube_rule_refusals_total{tube=\"mail\"} 3",
        "beanring_tube_rule_refusals_total{tube=\"video\"} 2",
    ];
    assert!(lines.eq(expected), "{}", shown.text());
    for tube in ["mail", "video"] {
        for key in ["max-jobs", "max-attempts"] {
            bench.ask(&post(&format!("tubes/{tube}/config"), &format!("{{\"key\":\"{key}\",\"value\":0}}")));
        }
    }
    assert!(!bench.ask(&page("/metrics")).text().contains("tube_rule_refusals"), "no tube has rules");
}

#[test]
fn drain_mode_and_limits_refuse_new_jobs() {
    let mut bench = HttpInMemory::new(Config { max_tubes: Some(3), ..writable() }, Cut::Whole);
    bench.ask(&post("drain", "{}"));
    assert_eq!(bench.command(&client::put(0, 0, "a")), "DRAINING\r\n");
    let ready = bench.ask(&page("/readyz"));
    assert_eq!(ready.status, 503);
    assert_eq!(bench.ask(&put("tubes/a/jobs", b"body")).error(), (503, "draining".to_owned()));
    assert_eq!(bench.ask(&get("tubes/a")).status, 404, "the tube was not kept");
    bench.ask(&post("undrain", "{}"));
    assert_eq!(bench.ask(&put("tubes/a/jobs", b"body")).status, 201);
    let job = bench.ask(&put("tubes/b/jobs", b"body")).json()["id"].clone();
    // The job must not end up in another tube.
    let body = vec![b'x'; 50_000];
    assert_eq!(bench.ask(&put("tubes/c/jobs", &body)).error(), (507, "out-of-memory".to_owned()));
    let refusal = bench.ask(&put("tubes/c/jobs", b"body"));
    assert_eq!(refusal.error(), (507, "out-of-memory".to_owned()));
    assert!(refusal.message().contains("--max-tubes"), "{refusal:?}");
    let refusal = bench.ask(&post(&format!("jobs/{job}/move"), "{\"to\":\"c\"}"));
    assert!(refusal.message().contains("--max-tubes"), "{refusal:?}");
    assert_eq!(bench.ask(&get("tubes/default")).json()["puts"], 0);
    assert_eq!(bench.stat("stats\r\n", "tube-refusals"), "3");
}

#[test]
fn every_refused_put_is_counted_with_its_reason() {
    let config = Config { max_memory_bytes: Some(4_000_000), max_job_bytes: 60_000, ..writable() };
    let mut bench = HttpInMemory::new(config, Cut::Whole);
    let mut expected =
        [("memory", 0), ("disk", 0), ("tube_rule", 0), ("draining", 0), ("too_big", 0), ("keys", 0)];
    let check = |bench: &mut HttpInMemory, counts: &[(&str, u32)]| {
        let page = bench.ask(&page("/metrics"));
        for (reason, count) in counts {
            let line = format!("beanring_put_refusals_total{{reason=\"{reason}\"}} {count}\n");
            assert!(page.text().contains(&line), "{line}{}", page.text());
        }
    };
    check(&mut bench, &expected);
    // By the protocol, in a batch, and over HTTP. A malformed put is not counted.
    let one = "put 0 0 60 5\r\nsmall\r\n";
    let batch = "put-batch 2\r\nput 0 0 60 1\r\nx\r\nput 0 0 60 1\r\ny\r\n";
    bench.command("tube-config default max-jobs 1\r\n");
    assert_eq!(bench.command(one), "INSERTED 1\r\n");
    assert_eq!(bench.command("put 0 0 60 5\r\nsmallXX"), "EXPECTED_CRLF\r\n");
    for command in [one, batch] {
        assert_eq!(bench.command(command), "OUT_OF_MEMORY\r\n");
    }
    assert_eq!(bench.ask(&put("tubes/default/jobs", b"x")).status, 507);
    expected[2].1 = 3;
    check(&mut bench, &expected);
    bench.command("tube-config default max-jobs 0\r\ndrain\r\n");
    for command in [one, batch] {
        assert_eq!(bench.command(command), "DRAINING\r\n");
    }
    assert_eq!(bench.ask(&put("tubes/default/jobs", b"x")).status, 503);
    expected[3].1 = 3;
    check(&mut bench, &expected);
    bench.command("undrain\r\n");
    let large = client::put(0, 0, &"x".repeat(60_001));
    assert_eq!(bench.command(&large), "JOB_TOO_BIG\r\n");
    let refusal = bench.ask(&put("tubes/default/jobs", &[b'x'; 60_001]));
    assert_eq!(refusal.message(), "a job body has at most 60000 bytes (-z/--max-job-size)");
    expected[4].1 = 2;
    check(&mut bench, &expected);
    let full = client::put(0, 0, &"x".repeat(60_000));
    while bench.command(&full).starts_with("INSERTED") {}
    bench.reconnect(PeerKind::Loopback);
    let refusal = bench.ask(&put("tubes/default/jobs", &[b'x'; 60_000]));
    assert!(refusal.message().contains("--max-memory 4000000"), "{refusal:?}");
    // One that disconnects within the body is counted too.
    let request = put("tubes/default/jobs", &[b'x'; 60_000]);
    bench.send(&request[..request.len() - 1]);
    bench.reconnect(PeerKind::Loopback);
    expected[0].1 = 3;
    check(&mut bench, &expected);
    assert_eq!(bench.stat("stats\r\n", "put-refusals-tube-rule"), "3");
}

#[test]
fn a_full_tube_names_its_rule() {
    let mut bench = HttpInMemory::writable();
    for (to, key, value) in [("a", "max-jobs", 1), ("b", "max-bytes", 5)] {
        let rule = format!("{{\"key\":\"{key}\",\"value\":{value}}}");
        bench.ask(&post(&format!("tubes/{to}/config"), &rule));
        assert_eq!(bench.ask(&put(&format!("tubes/{to}/jobs"), b"four")).status, 201);
        let full = format!("the tube is full by its rule {key} {value}: delete jobs, or raise the rule");
        let refusal = bench.ask(&put(&format!("tubes/{to}/jobs"), b"four"));
        assert_eq!((refusal.status, refusal.message()), (507, full.clone()));
        let other = bench.ask(&put("tubes/other/jobs", b"four")).json()["id"].clone();
        let refusal = bench.ask(&post(&format!("jobs/{other}/move"), &format!("{{\"to\":\"{to}\"}}")));
        assert_eq!((refusal.status, refusal.message()), (507, full.clone()));
    }
    for tube in 0..1000 {
        bench.ask(&post(&format!("tubes/t{tube}/config"), "{\"key\":\"rate\",\"value\":1}"));
    }
    let refusal = bench.ask(&post("tubes/t/config", "{\"key\":\"rate\",\"value\":1}"));
    assert_eq!(
        (refusal.status, &*refusal.message()),
        (507, "1,000 tubes have rules: remove those of another one")
    );
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
    let warnings = bench.ask(&get("server")).json()["warnings"].clone();
    assert_eq!(warnings[0]["kind"], "memory-above-90-percent");
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
