//! `beanring move`: what a job keeps, and what remains if the program dies.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use beanring_testkit::client::Client;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::place::{Place, everywhere, spawn, wait_until, with_both};

#[test]
fn a_moved_job_keeps_state_priority_delay_and_ttr() {
    everywhere("move by the client", |place| {
        place.ok(&["put", "-t", "a", "-p", "7", "-r", "33", "ready"]);
        place.ok(&["put", "-t", "a", "-p", "8", "-r", "34", "-d", "1h", "delayed"]);
        place.ok(&["put", "-t", "a", "-p", "9", "-r", "35", "buried"]);
        place.ok(&["bury", "3"]);
        for state in ["ready", "delayed", "buried"] {
            assert_eq!(place.ok(&["move", "a", "b", "--state", state]), "moved 1 job from a to b\n");
            let job = place.json(&["peek", "-t", "b", "--state", state]);
            assert_eq!(job["body"], state);
            let job = place.json(&["job", &job["id"].to_string()]);
            let is_same = job["id"].as_u64().is_some_and(|id| id <= 3);
            assert_eq!(is_same, place.is_beanring, "a job keeps its id if the server moves it");
            let (pri, ttr) = match state {
                "ready" => (7, 33),
                "delayed" => (8, 34),
                _ => (9, 35),
            };
            assert_eq!(
                (&job["priority"], &job["ttr_seconds"], &job["state"]),
                (&pri.into(), &ttr.into(), &state.into())
            );
            if state == "delayed" {
                assert!(job["time_left_seconds"].as_u64().is_some_and(|seconds| seconds > 3500), "{job}");
            }
        }
        place.run(&["tube", "a"]).code.filter(|&code| code == 1).expect("the tube is gone");
        assert_eq!(place.jobs(), [1, 0, 1, 1]);
        place.run(&["move", "none", "b"]).fails(1, "tube none: NOT_FOUND: there is no such tube");
    });
}

#[test]
fn a_number_of_jobs_moves() {
    with_both("move of some jobs by the client", |place| {
        place.feed(&["put", "--lines", "-t", "a"], b"1\n2\n3\n4\n5\n").ok();
        assert_eq!(place.json(&["move", "a", "b", "-n", "2"])["moved"], 2);
        assert_eq!(place.ok(&["peek", "-t", "b", "--body"]), "1");
        assert_eq!(place.ok(&["peek", "-t", "a", "--body"]), "3");
        assert_eq!(place.ok(&["move", "a", "b"]), "moved 3 jobs from a to b\n");
    });
}

#[test]
fn a_move_that_is_refused_loses_nothing() {
    let place = Place::default();
    place.feed(&["put", "--lines", "-t", "a"], b"1\n2\n").ok();
    // The other tube has the key already.
    let mut client = Client::new(place.server.connect());
    client.expect("use a\r\n", "USING a");
    client.expect("put 0 0 60 1 idp:key\r\n3\r\n", "INSERTED 3");
    client.expect("use b\r\n", "USING b");
    client.expect("put 0 0 60 1 idp:key\r\n4\r\n", "INSERTED 4");
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
    assert_eq!(place.jobs(), [4, 0, 0, 0]);
    place.ok(&["delete", "4"]);
    place.ok(&["tube-config", "b", "max-jobs", "2"]);
    let full = "stopped at job 3: OUT_OF_MEMORY: b is full by its rules (beanring tube-config b), or the disk of the job log \
                is full";
    refused("0 jobs", full);
    place.ok(&["tube-config", "b", "max-jobs", "3"]);
    assert_eq!(place.ok(&["move", "a", "b"]), "moved 1 job from a to b\n");
    assert_eq!(place.number(&["tube", "b"], "ready"), 3);
}

#[test]
fn jobs_whose_concurrency_key_is_at_its_limit_stay() {
    let place = Place::default();
    place.ok(&["put", "-q", "-t", "a", "--con", "key", "1", "2"]);
    let mut client = Client::new(place.server.connect());
    client.expect("reserve-job 1\r\n", "RESERVED 1 1");
    assert_eq!(place.ok(&["move", "a", "b"]), "moved 0 jobs from a to b\n");
    client.expect("release 1 0 0\r\n", "RELEASED");
    assert_eq!(place.ok(&["move", "a", "b"]), "moved 2 jobs from a to b\n");
}

#[test]
fn a_signal_ends_a_move_between_two_jobs() {
    with_both("a move that a signal ends", |place| {
        if place.is_beanring {
            // It is over before a signal comes.
            return;
        }
        let lines: String = (0..20_000).map(|line| format!("{line}\n")).collect();
        place.feed(&["put", "--lines", "-t", "a", "-q"], lines.as_bytes()).ok();
        let ready = |tube: &str| {
            let tubes = place.json_lines(&["tubes", tube]);
            tubes.first().and_then(|tube| tube["ready"].as_u64()).unwrap_or(0)
        };
        let mut moved = 0;
        for (signal, name, code) in [(Signal::SIGINT, "SIGINT", 130), (Signal::SIGTERM, "SIGTERM", 143)] {
            let mut command = place.command(&["move", "a", "b"]);
            let child = spawn(command.stdin(Stdio::null()));
            wait_until(|| ready("b") > moved, || "no job moves".to_owned());
            kill(Pid::from_raw(child.id() as i32), signal).expect("it runs");
            let output = child.wait_with_output().expect("it is ours");
            let now = ready("b");
            let said = String::from_utf8(output.stderr).expect("text");
            let jobs = if now - moved == 1 { "job" } else { "jobs" };
            assert_eq!(said, format!("beanring: moved {} {jobs}; stopped by {name}\n", now - moved));
            assert_eq!(output.status.code(), Some(code));
            moved = now;
            wait_until(|| place.jobs()[1] == 0, || "a job stays reserved".to_owned());
            assert_eq!(ready("a") + ready("b"), 20_000);
        }
    });
}

#[test]
fn a_move_that_is_killed_loses_nothing() {
    with_both("a killed move by the client", |place| {
        let lines: String = (0..3_000).map(|line| format!("{line}\n")).collect();
        place.feed(&["put", "--lines", "-t", "a", "-q"], lines.as_bytes()).ok();
        for pause in [5, 20, 50] {
            let mut command = place.command(&["move", "a", "b"]);
            let mut child = spawn(command.stdin(Stdio::null()));
            thread::sleep(Duration::from_millis(pause));
            child.kill().expect("it is ours");
            child.wait().expect("it is ours");
        }
        // The job that was being moved is ready again when the server notices the end of its client.
        wait_until(|| place.jobs()[1] == 0, || "a job stays reserved".to_owned());
        let mut client = Client::new(place.server.connect());
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
