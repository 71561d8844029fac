//! Verbs for single jobs: reserve, peek, kick, bury, delete, release, touch.

use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::place::{Place, everywhere, spawn};

fn state(place: &Place, id: &str) -> String {
    place.json(&["job", id])["state"].as_str().expect("text").to_owned()
}

#[test]
fn peek_by_state_and_by_id() {
    everywhere("peek by the client", |place| {
        place.ok(&["put", "ready", "-t", "mail"]);
        place.ok(&["put", "delayed", "-t", "mail", "-d", "1h"]);
        place.ok(&["put", "buried", "-t", "mail"]);
        place.ok(&["bury", "3"]);
        assert_eq!(place.ok(&["peek", "-t", "mail"]), "job 1, 5 B:\nready\n");
        assert_eq!(place.ok(&["peek", "-t", "mail", "-s", "delayed", "--body"]), "delayed");
        assert_eq!(place.json(&["peek", "-t", "mail", "-s", "buried"])["body"], "buried");
        assert_eq!(place.ok(&["peek", "2", "--body"]), "delayed");
        place.run(&["peek", "9"]).fails(1, "job 9: NOT_FOUND: there is no such job");
        place.run(&["peek"]).fails(1, "tube default: NOT_FOUND: the tube has no ready job");
    });
}

#[test]
fn jobs_of_a_tube_are_listed() {
    everywhere("jobs by the client", |place| {
        place.feed(&["put", "--lines", "-t", "mail", "-d", "1h"], b"1\n22\n333\n").ok();
        let arguments = ["jobs", "mail", "-s", "delayed"];
        if !place.is_beanring {
            let reason = "tube mail: UNKNOWN_COMMAND: the server does not know list-jobs; beanring peek shows the next job of a state";
            return place.run(&arguments).fails(1, reason);
        }
        let jobs = place.json_lines(&arguments);
        let column =
            |key: &str| jobs.iter().map(|job| job[key].as_u64().expect("a number")).collect::<Vec<_>>();
        assert_eq!((column("id"), column("body_bytes")), (vec![1, 2, 3], vec![1, 2, 3]));
        assert!(column("time_left_seconds").iter().all(|left| (3500..=3600).contains(left)));
        assert_eq!(
            place.json_lines(&["jobs", "mail", "-s", "delayed", "--after", "1", "-n", "1"])[0]["id"],
            2
        );
        let table = place.ok(&["jobs", "mail", "-s", "delayed", "--after", "2"]);
        let words: Vec<&str> = table.split_whitespace().collect();
        assert_eq!(words[..9], ["ID", "PRI", "AGE", "SIZE", "READY", "IN", "3", "65536", "0"], "{table}");
        assert_eq!(place.json_lines(&["jobs", "mail"]).len(), 0);
        place
            .run(&["peek", "-t", "mail", "-s", "reserved"])
            .fails(1, "tube mail: NOT_FOUND: the tube has no reserved job");
        place.run(&["jobs", "none"]).fails(1, "tube none: NOT_FOUND: there is no such tube");
    });
}

#[test]
fn wait_until_a_job_is_deleted_or_buried() {
    everywhere("wait by the client", |place| {
        place.ok(&["put", "-t", "default", "one", "two", "three"]);
        if !place.is_beanring {
            let reason =
                "job 1: UNKNOWN_COMMAND: the server does not know wait-job; beanring job 1 shows the job";
            return place.run(&["wait", "1"]).fails(1, reason);
        }
        let waiting: Vec<_> = ["1", "2"]
            .map(|id| {
                (id, spawn(place.command(&["wait", id, "--json", "--timeout", "1h"]).stdin(Stdio::null())))
            })
            .into_iter()
            .collect();
        place.wait_until("both wait", |place| place.json(&["stats"])["protocol"]["current-job-waits"] == 2);
        place.ok(&["delete", "1"]);
        place.ok(&["bury", "2"]);
        for ((id, child), (code, done, word)) in
            waiting.into_iter().zip([(0, true, "DELETED"), (4, false, "BURIED")])
        {
            let output = child.wait_with_output().expect("it is ours");
            let result: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
            let id: u64 = id.parse().expect("a number");
            assert_eq!(output.status.code(), Some(code), "{output:?}");
            let mut expected = serde_json::json!({"id": id, "done": done, "reply": word});
            if !done {
                expected["error"] = "conflict".into();
                expected["message"] =
                    "job 2: BURIED: the job is buried; look at it, then kick or delete it".into();
            }
            assert_eq!(result, expected);
        }
        let reason = "job 2: BURIED: the job is buried; look at it, then kick or delete it";
        place.run(&["wait", "2"]).fails(4, reason);
        let reason = "job 3: TIMED_OUT: the job was neither deleted nor buried within 0 s";
        place.run(&["wait", "3", "--timeout", "0"]).fails(5, reason);
        let reason = "job 1: NOT_FOUND: there is no such job; it may have been deleted before";
        place.run(&["wait", "1"]).fails(6, reason);
        let child = spawn(place.command(&["wait", "3"]).stdin(Stdio::null()));
        place.wait_until("it waits", |place| place.json(&["stats"])["protocol"]["current-job-waits"] == 1);
        place.ok(&["delete", "3"]);
        let output = child.wait_with_output().expect("it is ours");
        assert_eq!((output.status.code(), &*output.stdout), (Some(0), &b"3 deleted\n"[..]));
    });
}

#[test]
fn reserve_deletes_or_releases_or_holds() {
    everywhere("reserve by the client", |place| {
        place.ok(&["put", "one"]);
        place.ok(&["put", "two", "-t", "mail"]);
        let result = place.run(&["reserve", "--timeout", "0"]);
        let note = "beanring: job 1 is released now; --delete deletes it, --hold keeps it reserved\n";
        assert_eq!((result.text().as_str(), &*result.stderr), ("job 1, 3 B:\none\n", note));
        place.wait_for_jobs([2, 0, 0, 0]);
        assert_eq!(place.ok(&["reserve", "-t", "mail,other", "--delete", "--body"]), "two");
        assert_eq!(place.jobs(), [1, 0, 0, 0]);
        let mut command = place.command(&["reserve", "--hold", "--json"]);
        let child = spawn(command.stdin(Stdio::null()));
        place.wait_for_jobs([0, 1, 0, 0]);
        for (verb, can) in [
            ("bury", "bury"),
            ("release", "release"),
            ("touch", "touch"),
            ("delete", "delete"),
            ("kick", "release"),
        ] {
            let result = place.run(&[verb, "1"]);
            let begin = "beanring: job 1: another client has reserved it, and its TTR ends in ";
            assert_eq!(result.code, Some(1), "{result:?}");
            assert!(result.stderr.starts_with(begin), "{result:?}");
            assert!(result.stderr.ends_with(&format!(" s; only that client can {can} it\n")), "{result:?}");
            {
                let result: serde_json::Value =
                    serde_json::from_slice(&place.run(&[verb, "1", "--json"]).stdout).expect("JSON");
                let reason = result["message"].as_str().expect("a text");
                assert!(reason.starts_with("job 1: another client has reserved it, "), "{result}");
            }
        }
        kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("it runs");
        let output = child.wait_with_output().expect("it is ours");
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(output.stdout, b"{\"id\":1,\"body_bytes\":3,\"body\":\"one\"}\n");
        place.wait_for_jobs([1, 0, 0, 0]);
    });
}

#[test]
fn a_held_job_does_not_time_out() {
    everywhere("a job held by the client", |place| {
        place.ok(&["put", "x", "-r", "1"]);
        let mut command = place.command(&["touch", "1", "--for", "3"]);
        let mut child = spawn(command.stdin(Stdio::null()));
        assert_eq!(child.wait().expect("it is ours").code(), Some(0));
        place.wait_for_jobs([1, 0, 0, 0]);
        assert_eq!(place.number(&["job", "1"], "timeouts"), 0);
    });
}

#[test]
fn touch_restores_the_state() {
    everywhere("touch by the client", |place| {
        place.ok(&["put", "buried"]);
        place.ok(&["bury", "1", "-p", "5"]);
        place.ok(&["put", "delayed", "-d", "1h"]);
        let result = place.run(&["touch", "1", "2", "--for", "1"]);
        assert_eq!(result.code, Some(0), "{result:?}");
        assert_eq!(result.stderr, "beanring: reserved for 1 s: 1 2\n");
        assert_eq!((state(place, "1"), state(place, "2")), ("buried".to_owned(), "delayed".to_owned()));
        assert_eq!(place.number(&["job", "1"], "priority"), 5);
        assert!(place.number(&["job", "2"], "time_left_seconds") > 3500);
    });
}

#[test]
fn touch_keeps_the_jobs_that_it_can() {
    everywhere("touch of some jobs by the client", |place| {
        place.ok(&["put", "good"]);
        let result = place.run(&["touch", "999999", "1", "--for", "1"]);
        let said = "beanring: job 999999: NOT_FOUND: there is no such job\n\
                    beanring: reserved for 1 s: 1\n";
        assert_eq!((result.code, &*result.stderr), (Some(1), said));
        place.wait_for_jobs([1, 0, 0, 0]);
        place.run(&["touch", "999999"]).fails(1, "job 999999: NOT_FOUND: there is no such job");
    });
}

#[test]
fn kick_all_leaves_delayed_jobs() {
    everywhere("kick of all buried jobs by the client", |place| {
        place.ok(&["put", "-t", "mail", "-d", "1h", "delayed"]);
        place.ok(&["put", "-t", "mail", "buried", "buried too"]);
        place.ok(&["bury", "2", "3"]);
        assert_eq!(place.ok(&["kick", "-t", "mail", "--all"]), "kicked 2 jobs\n");
        assert_eq!(place.ok(&["kick", "-t", "mail", "--all"]), "kicked 0 jobs\n");
        assert_eq!(place.jobs(), [2, 0, 1, 0]);
        // A number takes delayed jobs if none is buried.
        assert_eq!(place.ok(&["kick", "-t", "mail", "-n", "5"]), "kicked 1 job\n");
        assert_eq!(place.jobs(), [3, 0, 0, 0]);
    });
}

#[test]
fn bury_kick_release_and_delete() {
    everywhere("bury and kick by the client", |place| {
        place.feed(&["put", "--lines", "-p", "9"], b"1\n2\n3\n4\n").ok();
        assert_eq!(place.ok(&["bury", "1", "2", "3"]), "1 buried\n2 buried\n3 buried\n");
        assert_eq!(place.number(&["job", "1"], "priority"), 9);
        assert_eq!(place.jobs(), [1, 0, 0, 3]);
        assert_eq!(place.ok(&["kick", "2"]), "2 kicked\n");
        assert_eq!(place.ok(&["kick", "-n", "1"]), "kicked 1 job\n");
        assert_eq!(place.json(&["kick", "--all"])["kicked"], 1);
        place.run(&["kick", "4"]).fails(1, "job 4: it is ready already");
        place.run(&["kick", "9"]).fails(1, "job 9: NOT_FOUND: there is no such job");
        assert_eq!(place.ok(&["release", "4", "-d", "1h", "-p", "3"]), "4 released\n");
        assert_eq!((state(place, "4"), place.number(&["job", "4"], "priority")), ("delayed".to_owned(), 3));
        assert_eq!(place.ok(&["release", "4"]), "4 released\n");
        assert_eq!((state(place, "4"), place.number(&["job", "4"], "priority")), ("ready".to_owned(), 3));
        let result = place.run(&["delete", "1", "9", "2", "--json"]);
        assert_eq!(
            result.text(),
            "{\"id\":1,\"done\":true,\"reply\":\"DELETED\"}\n{\"id\":9,\"done\":false,\"reply\":\"NOT_FOUND\",\"error\":\"not-found\",\
             \"message\":\"job 9: NOT_FOUND: there is no such job\"}\n\
             {\"id\":2,\"done\":true,\"reply\":\"DELETED\"}\n"
        );
        result.fails(1, "job 9: NOT_FOUND: there is no such job");
        assert_eq!(place.jobs(), [2, 0, 0, 0]);
        place.run(&["bury", "9"]).fails(1, "job 9: NOT_FOUND: there is no such job");
    });
}
