//! `beanring move`: what a job keeps, and what remains if the program dies.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use beanring_testkit::{statistics, wait};
use nix::sys::signal::Signal;
use serde_json::json;

use super::place::{Place, everywhere, with_both};
use super::session::sessions;

sessions! {
    with_both a_number_of_jobs_moves "move of some jobs by the client" r#"
        put --lines -t a << 1\n2\n3\n4\n5\n
        move a b -n 2 =~ {"moved": 2}
        peek -t b --body =| 1
        peek -t a --body =| 3
        move a b => moved 3 jobs from a to b
    "#
}

#[test]
fn a_moved_job_keeps_state_priority_delay_and_ttr() {
    everywhere("move by the client", |place| {
        place.session(
            "
            put -t a -p 7 -r 33 ready
            put -t a -p 8 -r 34 -d 1h delayed
            put -t a -p 9 -r 35 buried
            bury 3
            ",
        );
        for (state, pri, ttr) in [("ready", 7, 33), ("delayed", 8, 34), ("buried", 9, 35)] {
            assert_eq!(place.ok(&["move", "a", "b", "--state", state]), "moved 1 job from a to b\n");
            let job = place.json(&["peek", "-t", "b", "--state", state]);
            assert_eq!(job["body"], state);
            let job = place.json(&["job", &job["id"].to_string()]);
            let is_same = job["id"].as_u64().is_some_and(|id| id <= 3);
            assert_eq!(is_same, place.is_beanring, "a job keeps its id if the server moves it");
            let kept = json!([job["priority"], job["ttr_seconds"], job["state"]]);
            assert_eq!(kept, json!([pri, ttr, state]));
            if state == "delayed" {
                assert!(job["time_left_seconds"].as_u64().is_some_and(|seconds| seconds > 3500), "{job}");
            }
        }
        place.session("tube a =1\n[1 0 1 1]\nmove none b =1> tube none: NOT_FOUND: there is no such tube");
    });
}

#[test]
fn a_move_that_is_refused_loses_nothing() {
    let place = Place::default();
    place.session(r"put --lines -t a << 1\n2\n");
    // The other tube has the key already.
    let mut client = place.control();
    for (tube, body) in [("a", 3), ("b", 4)] {
        client.expect(&format!("use {tube}\r\n"), &format!("USING {tube}"));
        client.expect(&format!("put 0 0 60 1 idp:key\r\n{body}\r\n"), &format!("INSERTED {body}"));
    }
    let refused = |moved: &str, reason: &str| {
        let result = place.run(&["move", "a", "b"]);
        assert_eq!(result.text(), format!("moved {moved} from a to b\n"));
        result.fails(1, reason);
    };
    let key = "stopped at job 3: NOT_MOVED: b has a job with the same idempotency key; delete one of the two";
    refused("0 jobs", key);
    assert_eq!(place.jobs(), [4, 0, 0, 0]);
    let json = place.run(&["move", "a", "b", "--json"]);
    let stopped = "{\"from\":\"a\",\"to\":\"b\",\"moved\":0,\"stopped_at\":3,\"reason\":\"b has a job with the same idempotency key; \
                   delete one of the two\"}\n";
    let error = format!("{{\"error\":\"conflict\",\"message\":\"{key}\"}}\n");
    assert_eq!((json.code, json.text()), (Some(1), format!("{stopped}{error}")));
    // The other jobs come first now.
    client.expect("reserve-job 3\r\n", "RESERVED 3 1");
    client.expect("release 3 100000 0\r\n", "RELEASED");
    refused("2 jobs", key);
    place.session("[4 0 0 0]\ndelete 4\ntube-config b max-jobs 2");
    let full = "stopped at job 3: OUT_OF_MEMORY: b is full by its rules (beanring tube-config b), or the disk of the job log \
                is full";
    refused("0 jobs", full);
    place.session(
        r#"
        tube-config b max-jobs 3
        move a b => moved 1 job from a to b
        tube b =~ {"ready": 3}
        "#,
    );
}

#[test]
fn jobs_whose_concurrency_key_is_at_its_limit_stay() {
    let place = Place::default();
    place.session("put -q -t a --con key 1 2");
    let mut client = place.control();
    client.expect("reserve-job 1\r\n", "RESERVED 1 1");
    place.session("move a b => moved 0 jobs from a to b");
    client.expect("release 1 0 0\r\n", "RELEASED");
    place.session("move a b => moved 2 jobs from a to b");
}

/// Fills a tube with jobs whose bodies are the numbers from 0.
fn fill(place: &Place, tube: &str, count: usize) {
    let lines: String = (0..count).map(|line| format!("{line}\n")).collect();
    place.feed(&["put", "--lines", "-t", tube, "-q"], lines.as_bytes()).ok();
}

#[test]
fn a_signal_ends_a_move_between_two_jobs() {
    with_both("a move that a signal ends", |place| {
        if place.is_beanring {
            // It is over before a signal comes.
            return;
        }
        fill(place, "a", 20_000);
        let ready = |tube: &str| {
            let (_, stats) = place.control().ask(&format!("stats-tube {tube}\r\n"));
            statistics::value(&stats, "current-jobs-ready")
                .map_or(0, |number| number.parse().expect("a number"))
        };
        let mut moved: u64 = 0;
        for (signal, name, code) in [(Signal::SIGINT, "SIGINT", 130), (Signal::SIGTERM, "SIGTERM", 143)] {
            let running = place.begin(&["move", "a", "b"]);
            wait::until("a job moves", || ready("b") > moved);
            running.signal(signal);
            let ran = running.end();
            let now = ready("b");
            let jobs = if now - moved == 1 { "job" } else { "jobs" };
            ran.fails(code, &format!("moved {} {jobs}; stopped by {name}", now - moved));
            moved = now;
            wait::until("no job is reserved", || place.jobs()[1] == 0);
            assert_eq!(ready("a") + ready("b"), 20_000);
        }
    });
}

#[test]
fn a_move_that_is_killed_loses_nothing() {
    with_both("a killed move by the client", |place| {
        fill(place, "a", 3_000);
        for pause in [5, 20, 50] {
            let mut running = place.begin(&["move", "a", "b"]);
            thread::sleep(Duration::from_millis(pause));
            running.0.kill().expect("it is ours");
            running.end();
        }
        // The job that was being moved is ready again when the server notices the end of its client.
        wait::until("no job is reserved", || place.jobs()[1] == 0);
        let mut client = place.control();
        client.expect("watch a\r\n", "WATCHING 2");
        client.expect("watch b\r\n", "WATCHING 3");
        let mut copies: BTreeMap<String, u32> = BTreeMap::new();
        loop {
            let (line, body) = client.ask("reserve-with-timeout 0\r\n");
            let Some(id) = line.strip_prefix("RESERVED ").and_then(|rest| rest.split(' ').next()) else {
                break;
            };
            client.expect(&format!("delete {id}\r\n"), "DELETED");
            *copies.entry(body).or_default() += 1;
        }
        assert_eq!(copies.len(), 3_000, "no job is lost");
        assert!(copies.values().sum::<u32>() <= 3_003, "at most one job per death is in both tubes");
    });
}
