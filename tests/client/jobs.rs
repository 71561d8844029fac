//! Verbs for single jobs: reserve, peek, kick, bury, delete, release, touch.

use nix::sys::signal::Signal;
use serde_json::json;

use super::place::everywhere;
use super::session::sessions;

sessions! {
    everywhere peek_by_state_and_by_id "peek by the client" r#"
        put ready -t mail
        put delayed -t mail -d 1h
        put buried -t mail
        bury 3
        peek -t mail => job 1, 5 B:\nready
        peek -t mail -s delayed --body =| delayed
        peek -t mail -s buried =~ {"body": "buried"}
        peek 2 --body =| delayed
        peek 9 =1> job 9: NOT_FOUND: there is no such job
        peek =1> tube default: NOT_FOUND: the tube has no ready job
    "#

    everywhere kick_all_leaves_delayed_jobs "kick of all buried jobs by the client" r#"
        put -t mail -d 1h delayed
        put -t mail buried 'buried too'
        bury 2 3
        kick -t mail --all => kicked 2 jobs
        kick -t mail --all => kicked 0 jobs
        [2 0 1 0]
        # A number takes delayed jobs if none is buried.
        kick -t mail -n 5 => kicked 1 job
        [3 0 0 0]
    "#

    everywhere bury_kick_release_and_delete "bury and kick by the client" r#"
        put --lines -p 9 << 1\n2\n3\n4\n
        bury 1 2 3 => 1 buried\n2 buried\n3 buried
        job 1 =~ {"priority": 9}
        [1 0 0 3]
        kick 2 => 2 kicked
        kick -n 1 => kicked 1 job
        kick --all =~ {"kicked": 1}
        kick 4 =1> job 4: it is ready already
        kick 9 =1> job 9: NOT_FOUND: there is no such job
        release 4 -d 1h -p 3 => 4 released
        job 4 =~ {"state": "delayed", "priority": 3}
        release 4 => 4 released
        job 4 =~ {"state": "ready", "priority": 3}
        delete 1 9 --json =1| {"id":1,"done":true,"reply":"DELETED"}\n{"id":9,"done":false,"reply":"NOT_FOUND","error":"not-found","message":"job 9: NOT_FOUND: there is no such job"}
        delete 9 2 =1> job 9: NOT_FOUND: there is no such job
        [2 0 0 0]
        bury 9 =1> job 9: NOT_FOUND: there is no such job
    "#
}

#[test]
fn jobs_of_a_tube_are_listed() {
    everywhere("jobs by the client", |place| {
        place.session(
            r#"
            put --lines -t mail -d 1h << 1\n22\n333\n
            beanstalkd: jobs mail =1> tube mail: UNKNOWN_COMMAND: the server does not know list-jobs; beanring peek shows the next job of a state
            beanring: jobs mail -s delayed --after 1 -n 1 =~ {"id": 2}
            beanring: jobs mail --json =|
            beanring: peek -t mail -s reserved =1> tube mail: NOT_FOUND: the tube has no reserved job
            beanring: jobs none =1> tube none: NOT_FOUND: there is no such tube
            "#,
        );
        if !place.is_beanring {
            return;
        }
        let jobs = place.json_lines(&["jobs", "mail", "-s", "delayed"]);
        let column =
            |key: &str| jobs.iter().map(|job| job[key].as_u64().expect("a number")).collect::<Vec<_>>();
        assert_eq!((column("id"), column("body_bytes")), (vec![1, 2, 3], vec![1, 2, 3]));
        assert!(column("time_left_seconds").iter().all(|left| (3500..=3600).contains(left)));
        let table = place.ok(&["jobs", "mail", "-s", "delayed", "--after", "2"]);
        let words: Vec<&str> = table.split_whitespace().collect();
        assert_eq!(words[..8], ["ID", "PRI", "AGE", "SIZE", "READY", "IN", "3", "65536"], "{table}");
        assert!(words[8].parse::<u64>().is_ok(), "an age: {table}");
    });
}

#[test]
fn wait_until_a_job_is_deleted_or_buried() {
    const BURIED: &str = "job 2: BURIED: the job is buried; look at it, then kick or delete it";
    everywhere("wait by the client", |place| {
        place.session("put -t default one two three");
        if !place.is_beanring {
            return place.session(
                "wait 1 =1> job 1: UNKNOWN_COMMAND: the server does not know wait-job; beanring job 1 shows the job",
            );
        }
        let waiting = ["1", "2"].map(|id| place.begin(&["wait", id, "--json", "--timeout", "1h"]));
        place.await_stat("current-job-waits", 2);
        place.session("delete 1\nbury 2");
        let [deleted, buried] = waiting.map(|running| {
            let ran = running.end();
            (ran.code, ran.json())
        });
        assert_eq!(deleted, (Some(0), json!({"id": 1, "done": true, "reply": "DELETED"})));
        let error =
            json!({"id": 2, "done": false, "reply": "BURIED", "error": "conflict", "message": BURIED});
        assert_eq!(buried, (Some(4), error));
        place.session(&format!("wait 2 =4> {BURIED}"));
        place.session(
            "
            wait 3 --timeout 0 =5> job 3: TIMED_OUT: the job was neither deleted nor buried within 0 s
            wait 1 =6> job 1: NOT_FOUND: there is no such job; it may have been deleted before
            ",
        );
        let running = place.begin(&["wait", "3"]);
        place.await_stat("current-job-waits", 1);
        place.session("delete 3");
        assert_eq!(running.end().ok(), "3 deleted\n");
    });
}

#[test]
fn reserve_deletes_or_releases_or_holds() {
    everywhere("reserve by the client", |place| {
        place.session("put one\nput two -t mail");
        let result = place.run(&["reserve", "--timeout", "0"]);
        let note = "beanring: job 1 is released now; --delete deletes it, --hold keeps it reserved\n";
        assert_eq!((result.text().as_str(), &*result.stderr), ("job 1, 3 B:\none\n", note));
        place.wait_for_jobs([2, 0, 0, 0]);
        place.session("reserve -t mail,other --delete --body =| two\n[1 0 0 0]");
        let running = place.begin(&["reserve", "--hold", "--json"]);
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
            let result = place.run(&[verb, "1", "--json"]).json();
            let reason = result["message"].as_str().expect("a text");
            assert!(reason.starts_with("job 1: another client has reserved it, "), "{result}");
        }
        running.signal(Signal::SIGTERM);
        let ran = running.end();
        assert_eq!((ran.code, &*ran.text()), (Some(0), "{\"id\":1,\"body_bytes\":3,\"body\":\"one\"}\n"));
        place.wait_for_jobs([1, 0, 0, 0]);
    });
}

#[test]
fn a_held_job_does_not_time_out() {
    everywhere("a job held by the client", |place| {
        place.session("put x -r 1");
        assert_eq!(place.run(&["touch", "1", "--for", "3"]).code, Some(0));
        place.wait_for_jobs([1, 0, 0, 0]);
        place.session(r#"job 1 =~ {"timeouts": 0}"#);
    });
}

#[test]
fn touch_restores_the_state() {
    everywhere("touch by the client", |place| {
        place.session("put buried\nbury 1 -p 5\nput delayed -d 1h");
        let result = place.run(&["touch", "1", "2", "--for", "1"]);
        assert_eq!((result.code, &*result.stderr), (Some(0), "beanring: reserved for 1 s: 1 2\n"));
        place.session(
            r#"
            job 1 =~ {"state": "buried", "priority": 5}
            job 2 =~ {"state": "delayed"}
            "#,
        );
        assert!(place.number(&["job", "2"], "time_left_seconds") > 3500);
    });
}

#[test]
fn touch_keeps_the_jobs_that_it_can() {
    everywhere("touch of some jobs by the client", |place| {
        place.session("put good");
        let result = place.run(&["touch", "999999", "1", "--for", "1"]);
        let said = "beanring: job 999999: NOT_FOUND: there is no such job\n\
                    beanring: reserved for 1 s: 1\n";
        assert_eq!((result.code, &*result.stderr), (Some(1), said));
        place.wait_for_jobs([1, 0, 0, 0]);
        place.session("touch 999999 =1> job 999999: NOT_FOUND: there is no such job");
    });
}
