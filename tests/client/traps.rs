//! What a newcomer types in the first hour, and would not notice to be wrong.

use std::fs;

use beanring::io::driver::Driver;
use beanring::io::socket::PORT_DEFAULT;
use beanring_testkit::process::Transport;
use beanring_testkit::scratch::Scratch;

use super::place::{Place, Ran, client, ran, run_at, with_both};
use super::session::sessions;

sessions! {
    with_both several_bodies_need_a_tube "several bodies by the client" r#"
        put mail hello =2> 2 bodies and no tube: each argument is the body of a job; name the tube with -t, such as -t default, or write one body in quotes
        [0 0 0 0]
        put hello => 1
        put -t default mail hello => 2\n3
    "#

    with_both empty_input_is_no_job_unless_it_may_be "empty input by the client" r#"
        put =2> standard input is empty; give a body, or --allow-empty to put a job with an empty body
        put -f - =2> standard input is empty; give a body, or --allow-empty to put a job with an empty body
        [0 0 0 0]
        put --allow-empty => 1
        put '' => 2
        peek 1 --body =|
    "#
}

#[test]
fn a_missing_file_is_named_alone() {
    let place = Place::default();
    let scratch = Scratch::new("missing-file");
    let (there, missing) = (scratch.join("there"), scratch.join("missing"));
    fs::write(&there, "body").expect("a file");
    let (there, missing) = (there.display(), missing.display());
    // A word after a file may be meant as a body.
    place.session(&format!(
        "
        put -f {there} -f {missing} =2> cannot read {missing}: No such file or directory
        put -f {missing} =2> cannot read {missing}: No such file or directory
        put -f {there} {missing} =2> cannot read {missing}: No such file or directory; give bodies or files, not both
        [0 0 0 0]
        "
    ));
}

#[test]
fn a_host_has_the_usual_port() {
    // Nobody listens there, or it is another server: the address is in the error, or there is none.
    let host = "127.77.66.55";
    let expected = format!("beanring: cannot connect to {host}:{PORT_DEFAULT}: ");
    for result in [ran(client().args(["tubes", "--addr", host]), b""), run_at(host, &["tubes"])] {
        assert!(result.code == Some(0) || result.stderr.starts_with(&expected), "{result:?}");
    }
}

#[test]
fn each_end_of_a_wait_has_its_exit_code() {
    Place::default().session(
        "
        put -t default ready buried
        bury 2
        wait 1 --timeout 0 =5
        wait 2 =4
        wait 3 =6
        wait 3 --json =6
        delete 1
        # Nobody remembers a deleted job.
        wait 1 =6
        ",
    );
}

#[test]
fn tubes_are_sorted_by_the_words_of_top() {
    with_both("an order of tubes by the client", |place| {
        place.session("put -q -t one a b\nput -q -t two a\npause two 1h\nreserve -t one --delete");
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
    Place::default().session(
        r#"
        work -- no-such-program =2> cannot run no-such-program: No such file or directory
        work -- /etc/passwd =2> cannot run /etc/passwd: Permission denied
        work -- / =2> cannot run /: Permission denied
        stats =~ {"protocol": {"cmd-reserve": 0}}
        "#,
    );
}

#[test]
fn a_limit_that_refuses_a_job_is_named_with_its_number() {
    let place = Place::beanring(Driver::Epoll, Transport::Tcp, &["--max-memory", "16m"]);
    place.session("tube-config mail max-jobs 1\nput -t mail one");
    let refused = |ran: Ran, limit: &str| {
        let said = format!("beanring: limits that refuse jobs here: {limit}");
        assert_eq!((ran.code, ran.stderr.lines().last()), (Some(1), Some(&*said)));
    };
    refused(place.run(&["put", "-t", "mail", "two"]), "rule max-jobs 1 of mail");
    let bodies = format!("{}\n", "x".repeat(60_000)).repeat(400);
    refused(place.feed(&["put", "--lines"], bodies.as_bytes()), "--max-memory 16MiB");
}
