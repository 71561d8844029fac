//! Tags, groups and moves: what the API shows of them, and what it does.

use beanring_testkit::client;
use beanring_testkit::http_client::{HttpInMemory, delete, get, post, put, writable};
use beanring_testkit::in_memory::Cut;
use serde_json::json;

#[test]
fn tags_are_put_and_shown() {
    for cut in [Cut::Whole, Cut::EveryByte] {
        let mut bench = HttpInMemory::new(writable(), cut);
        let all = "tubes/mail/jobs?con=user-7:2&priority=9&idp=order/7:60&grp=parts";
        assert_eq!(bench.ask(&put(all, b"one")).status, 201);
        let job = bench.ask(&get("jobs/1")).json();
        assert_eq!(job["tags"], json!({"idp": "order/7:60", "con": "user-7:2", "grp": "parts"}));
        assert_eq!((&job["passed_over"], job.get("waits_for")), (&json!(false), None));
        assert_eq!(bench.stat("stats-job 1\r\n", "tags"), "\"idp:order/7:60 con:user-7:2 grp:parts\"");
        // A repeat names the first job, and its new priority.
        for (path, expected) in [
            ("tubes/mail/jobs?priority=9&idp=order/7", json!({"id": 1, "state": "ready"})),
            ("tubes/mail/jobs?priority=3&idp=order/7", json!({"id": 1, "state": "ready", "priority": 3})),
        ] {
            let answer = bench.ask(&put(path, b"another"));
            assert_eq!((answer.status, answer.json()), (200, expected), "{cut:?}");
        }
        bench.ask(&delete("jobs/1"));
        let answer = bench.ask(&put("tubes/mail/jobs?idp=order/7", b"x"));
        assert_eq!((answer.status, answer.json()), (200, json!({"id": 1, "state": "deleted"})));
        for wrong in ["idp=", "con=a:0", "grp=a:1", "aft=a%20idp:b", "tags=idp:a"] {
            let refused = bench.ask(&put(&format!("tubes/mail/jobs?{wrong}"), b"x"));
            assert_eq!(refused.error(), (400, "bad-request".to_owned()), "{wrong}");
        }
        let own = bench.ask(&put("tubes/mail/jobs?grp=a&aft=a", b"x"));
        assert_eq!(own.error(), (409, "conflict".to_owned()));
        assert_eq!(bench.stat("stats\r\n", "total-jobs"), "1");
    }
}

#[test]
fn a_group_shows_its_jobs_and_what_it_waits_for() {
    let mut bench = HttpInMemory::writable();
    assert_eq!(bench.ask(&get("groups/parts")).error(), (404, "not-found".to_owned()));
    bench.ask(&put("tubes/a/jobs?grp=parts", b"x"));
    bench.ask(&put("tubes/a/jobs?grp=parts&delay=9", b"x"));
    bench.ask(&put("tubes/b/jobs?grp=wholes&aft=parts", b"xy"));
    let parts = json!({
        "name": "parts", "ready": 1, "reserved": 0, "delayed": 1, "buried": 0, "held": 0, "waiting_jobs": 1,
        "waits_for": []
    });
    assert_eq!(bench.ask(&get("groups/parts")).json(), parts);
    let wholes = bench.ask(&get("groups/whole%73")).json();
    assert_eq!((&wholes["held"], &wholes["waits_for"]), (&json!(1), &json!(["parts"])));
    let held = json!({
        "id": 3, "tube": "b", "state": "held", "priority": 65536, "age_seconds": 0, "delay_seconds": 0, "ttr_seconds": 60,
        "time_left_seconds": 0, "reserves": 0, "timeouts": 0, "releases": 0, "buries": 0, "kicks": 0, "body_bytes": 2,
        "tags": {"grp": "wholes", "aft": "parts"}, "waits_for": "parts"
    });
    assert_eq!(bench.ask(&get("jobs/3")).json(), held);
    assert_eq!(bench.ask(&get("tubes/b/jobs?state=held")).json(), json!({"jobs": [held]}));
    assert_eq!(bench.ask(&get("tubes/b")).json()["held"], 1);
    assert_eq!(bench.ask(&get("server")).json()["jobs"]["held"], 1);
    let tubes = bench.ask(&get("tubes?sort=held&order=desc&limit=1")).json();
    assert_eq!(tubes["tubes"][0]["name"], "b");
    // Neither is possible while the job is held.
    for action in
        [post("jobs/3/bury", "{\"priority\":1}"), post("jobs/3/release", "{\"priority\":1,\"delay\":0}")]
    {
        assert_eq!(bench.ask(&action).error(), (409, "conflict".to_owned()));
    }
    bench.ask(&delete("jobs/1"));
    bench.ask(&delete("jobs/2"));
    let job = bench.ask(&get("jobs/3")).json();
    assert_eq!((&job["state"], job.get("waits_for")), (&json!("ready"), None));
    assert_eq!(bench.ask(&get("groups/parts")).status, 404);
}

#[test]
fn the_first_reserved_job_of_a_tube_is_shown() {
    let mut bench = HttpInMemory::writable();
    bench.command(&client::put(1, 0, "a"));
    assert_eq!(bench.ask(&get("tubes/default/next/reserved")).status, 404);
    bench.command("reserve-with-timeout 0\r\n");
    let job = bench.ask(&get("tubes/default/next/reserved")).json();
    assert_eq!((&job["id"], &job["state"]), (&json!(1), &json!("reserved")));
}

#[test]
fn a_job_is_moved() {
    let mut bench = HttpInMemory::writable();
    bench.command(&client::put(7, 0, "a"));
    bench.ask(&put("tubes/mail/jobs?idp=key", b"x"));
    bench.ask(&put("tubes/later/jobs?idp=key", b"x"));
    assert_eq!(bench.ask(&post("jobs/1/move", "{\"to\":\"later\"}")).json(), json!({}));
    let job = bench.ask(&get("jobs/1")).json();
    assert_eq!(
        (&job["tube"], &job["state"], &job["priority"]),
        (&json!("later"), &json!("ready"), &json!(7))
    );
    // The other tube has the key.
    let refused = bench.ask(&post("jobs/2/move", "{\"to\":\"later\"}"));
    assert_eq!(refused.error(), (409, "conflict".to_owned()));
    assert!(refused.message().contains("idempotency key"));
    assert_eq!(bench.ask(&post("jobs/9/move", "{\"to\":\"later\"}")).error(), (404, "not-found".to_owned()));
    let refused = bench.ask(&post("jobs/2/move", "{\"to\":\"mail\"}"));
    assert_eq!(refused.error(), (409, "conflict".to_owned()));
    assert_eq!(refused.message(), "the job is in this tube: name another tube");
    assert_eq!(bench.ask(&get("server")).json()["totals"]["moves"], 1);
    bench.command("watch later\r\nreserve-with-timeout 0\r\n");
    let refused = bench.ask(&post("jobs/1/move", "{\"to\":\"mail\"}"));
    assert_eq!(refused.error(), (409, "conflict".to_owned()));
    for wrong in ["{}", "{\"to\":7}", "{\"to\":\"a b\"}", "{\"to\":\"a\",\"count\":1}"] {
        assert_eq!(
            bench.ask(&post("jobs/2/move", wrong)).error(),
            (400, "bad-request".to_owned()),
            "{wrong}"
        );
    }
    assert_eq!(bench.ask(&get("jobs/2")).json()["tube"], "mail");
}

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
