//! Moves of many jobs.

use beanring_testkit::client;
use beanring_testkit::http_client::{HttpInMemory, get, post, put};
use serde_json::json;

#[test]
fn a_move_that_stops_says_where_and_why() {
    const JOBS: usize = 20_000;
    let mut bench = HttpInMemory::writable();
    bench.load(&client::put(1, 0, "x").repeat(JOBS));
    let rule = |max: usize| post("tubes/later/config", &format!("{{\"key\":\"max-jobs\",\"value\":{max}}}"));
    let all = post("tubes/default/move", "{\"state\":\"ready\",\"to\":\"later\",\"count\":4294967295}");
    for (max, moved) in [(2, 2), (JOBS / 2, JOBS / 2 - 2)] {
        bench.ask(&rule(max));
        let answer = bench.ask(&all);
        let full = format!("the tube is full by its rule max-jobs {max}: delete jobs, or raise the rule");
        let expected = json!({"moved": moved, "stopped_at": max + 1, "reason": full});
        assert_eq!((answer.status, answer.json()), (200, expected));
        let refused = bench.ask(&all);
        assert_eq!(refused.error(), (507, "out-of-memory".to_owned()));
        assert_eq!(refused.message(), format!("stopped at job {}: {full}", max + 1));
    }
    // A move that its count ends has not stopped.
    bench.ask(&rule(JOBS / 2 + 1));
    let one = post("tubes/default/move", "{\"state\":\"ready\",\"to\":\"later\",\"count\":1}");
    assert_eq!(bench.ask(&one).json(), json!({"moved": 1}));
    bench.ask(&rule(0));
    for tube in ["mail", "later"] {
        assert_eq!(bench.ask(&put(&format!("tubes/{tube}/jobs?idp=key"), b"x")).status, 201);
    }
    let keyed = post("tubes/mail/move", "{\"state\":\"ready\",\"to\":\"later\",\"count\":9}");
    let refused = bench.ask(&keyed);
    assert_eq!(refused.error(), (409, "conflict".to_owned()));
    let message = "the other tube has a job with the same idempotency key: delete one of the jobs";
    assert_eq!(refused.message(), format!("stopped at job {}: {message}", JOBS + 1));
}

#[test]
fn many_jobs_are_moved() {
    const JOBS: usize = 20_000;
    let mut bench = HttpInMemory::writable();
    bench.load(&client::put(1, 1000, "x").repeat(JOBS));
    let all = format!("{{\"state\":\"delayed\",\"to\":\"later\",\"count\":{}}}", JOBS - 1);
    let answer = bench.ask(&post("tubes/default/move", &all));
    assert_eq!((answer.status, answer.json()), (200, json!({"moved": JOBS - 1})));
    assert_eq!(bench.stat("stats-tube later\r\n", "current-jobs-delayed"), (JOBS - 1).to_string());
    assert_eq!(bench.ask(&post("tubes/default/move", &all)).json(), json!({"moved": 1}));
    assert_eq!(bench.ask(&post("tubes/default/move", &all)).json(), json!({"moved": 0}));
    assert_eq!(bench.ask(&get("server")).json()["totals"]["moves"], JOBS);
    assert_eq!(bench.ask(&post("tubes/none/move", &all)).error(), (404, "not-found".to_owned()));
    assert_eq!(bench.ask(&post("tubes/later/move", &all)).error(), (409, "conflict".to_owned()));
    for wrong in [
        "{\"state\":\"reserved\",\"to\":\"a\",\"count\":1}",
        "{\"state\":\"held\",\"to\":\"a\",\"count\":1}",
        "{\"state\":\"ready\",\"to\":\"-a\",\"count\":1}",
        "{\"state\":\"ready\",\"to\":\"a\"}",
        "{\"state\":\"ready\",\"to\":\"a\",\"count\":-1}",
    ] {
        assert_eq!(
            bench.ask(&post("tubes/later/move", wrong)).error(),
            (400, "bad-request".to_owned()),
            "{wrong}"
        );
    }
}
