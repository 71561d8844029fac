//! What a newcomer types in the first hour, and would not notice to be wrong.

use std::fs;

use beanring::io::driver::Driver;
use beanring::io::socket::PORT_DEFAULT;
use beanring_testkit::process::Transport;
use beanring_testkit::scratch::Scratch;

use super::place::{Place, Ran, client, ran, with_both};

#[test]
fn several_bodies_need_a_tube() {
    with_both("several bodies by the client", |place| {
        let problem = "2 bodies and no tube: each argument is the body of a job; name the tube with -t, such as -t default, \
                       or write one body in quotes";
        place.run(&["put", "mail", "hello"]).fails(2, problem);
        assert_eq!(place.jobs(), [0; 4]);
        assert_eq!(place.ok(&["put", "hello"]), "1\n");
        assert_eq!(place.ok(&["put", "-t", "default", "mail", "hello"]), "2\n3\n");
    });
}

#[test]
fn empty_input_is_no_job_unless_it_may_be() {
    with_both("empty input by the client", |place| {
        let problem =
            "standard input is empty; give a body, or --allow-empty to put a job with an empty body";
        for arguments in [&["put"][..], &["put", "-f", "-"]] {
            place.feed(arguments, b"").fails(2, problem);
        }
        assert_eq!(place.jobs(), [0; 4]);
        assert_eq!(place.feed(&["put", "--allow-empty"], b"").ok(), "1\n");
        assert_eq!(place.ok(&["put", ""]), "2\n");
        assert_eq!(place.run(&["peek", "1", "--body"]).ok(), "");
    });
}

#[test]
fn a_missing_file_is_named_alone() {
    let place = Place::default();
    let scratch = Scratch::new("missing-file");
    let (there, missing) = (scratch.join("there"), scratch.join("missing"));
    fs::write(&there, "body").expect("a file");
    let (there, missing) = (there.to_str().expect("UTF-8"), missing.to_str().expect("UTF-8"));
    let cannot = format!("cannot read {missing}: No such file or directory");
    place.run(&["put", "-f", there, "-f", missing]).fails(2, &cannot);
    place.run(&["put", "-f", missing]).fails(2, &cannot);
    // A word after a file may be meant as a body.
    place.run(&["put", "-f", there, missing]).fails(2, &format!("{cannot}; give bodies or files, not both"));
    assert_eq!(place.jobs(), [0; 4]);
}

#[test]
fn a_host_has_the_usual_port() {
    // Nobody listens there, or it is another server: the address is in the error, or there is none.
    let host = "127.77.66.55";
    let mut command = client();
    let result = ran(command.args(["tubes", "--addr", host]), b"");
    let expected = format!("beanring: cannot connect to {host}:{PORT_DEFAULT}: ");
    assert!(result.code == Some(0) || result.stderr.starts_with(&expected), "{result:?}");
    let mut command = client();
    let result = ran(command.arg("tubes").env("BEANRING_ADDR", host), b"");
    assert!(result.code == Some(0) || result.stderr.starts_with(&expected), "{result:?}");
}

#[test]
fn each_end_of_a_wait_has_its_exit_code() {
    let place = Place::default();
    place.ok(&["put", "-t", "default", "ready", "buried"]);
    place.ok(&["bury", "2"]);
    let code = |arguments: &[&str]| place.run(arguments).code;
    assert_eq!(code(&["wait", "1", "--timeout", "0"]), Some(5));
    assert_eq!(code(&["wait", "2"]), Some(4));
    assert_eq!(code(&["wait", "3"]), Some(6));
    assert_eq!(code(&["wait", "3", "--json"]), Some(6));
    place.ok(&["delete", "1"]);
    assert_eq!(code(&["wait", "1"]), Some(6), "nobody remembers a deleted job");
}

#[test]
fn tubes_are_sorted_by_the_words_of_top() {
    with_both("an order of tubes by the client", |place| {
        place.ok(&["put", "-q", "-t", "one", "a", "b"]);
        place.ok(&["put", "-q", "-t", "two", "a"]);
        place.ok(&["pause", "two", "1h"]);
        place.ok(&["reserve", "-t", "one", "--delete"]);
        let first = |key: &str| {
            let table = place.ok(&["tubes", "--sort", key]);
            table.lines().nth(1).and_then(|row| row.split(' ').next()).expect("a tube").to_owned()
        };
        // put and delete are the older words.
        for (key, tube) in
            [("puts", "one"), ("put", "one"), ("deletes", "one"), ("delete", "one"), ("paused", "two")]
        {
            assert_eq!(first(key), tube, "{key}");
        }
    });
}

#[test]
fn work_looks_for_its_program_first() {
    let place = Place::default();
    for (program, reason) in [
        ("no-such-program", "No such file or directory"),
        ("/etc/passwd", "Permission denied"),
        ("/", "Permission denied"),
    ] {
        place.run(&["work", "--", program]).fails(2, &format!("cannot run {program}: {reason}"));
    }
    assert_eq!(place.number(&["stats"], "protocol.cmd-reserve"), 0);
}

#[test]
fn a_limit_that_refuses_a_job_is_named_with_its_number() {
    let place = Place::beanring(Driver::Epoll, Transport::Tcp, &["--max-memory", "16m"]);
    place.ok(&["tube-config", "mail", "max-jobs", "1"]);
    place.ok(&["put", "-t", "mail", "one"]);
    let full = place.run(&["put", "-t", "mail", "two"]);
    let said = |result: &Ran| result.stderr.lines().last().expect("a line").to_owned();
    assert_eq!(
        (full.code, said(&full)),
        (Some(1), "beanring: limits that refuse jobs here: rule max-jobs 1 of mail".to_owned())
    );
    let bodies = format!("{}\n", "x".repeat(60_000)).repeat(400);
    let full = place.feed(&["put", "--lines"], bodies.as_bytes());
    assert_eq!(
        (full.code, said(&full)),
        (Some(1), "beanring: limits that refuse jobs here: --max-memory 16MiB".to_owned())
    );
}
