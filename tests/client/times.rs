//! Times with decimals, which a server accepts with `--sub-second`.

use beanring_testkit::driver;
use beanring_testkit::process::Transport;

use super::place::{Place, with_both};

#[test]
fn times_may_have_decimals() {
    driver::under_each("decimals by the client", |io| {
        let place = Place::beanring(io, Transport::Tcp, &["--sub-second"]);
        place.session(
            r#"
            put x --delay 0.05 --ttr 1.50s => 1
            job 1 =~ {"delay_seconds": 0.05, "ttr_seconds": 1.5}
            until [1 0 0 0]
            release 1 --delay 99.25 => 1 released
            job 1 =~ {"delay_seconds": 99.25}
            reserve --timeout 0.05 =1> reserve: TIMED_OUT: no job became ready within 0.05 s
            wait 1 --timeout 0.25 =5> job 1: TIMED_OUT: the job was neither deleted nor buried within 0.25 s
            pause default 30.5 => paused default for 30.5 s
            tube default =~ {"pause_seconds": 30.5}
            pause default 0.125 =~ {"seconds": 0.125}
            delete 1
            schedule add often x -w every:1h --delay 0.5 --ttr 1.5 =~ {"delay_seconds": 0.5, "ttr_seconds": 1.5}
            put x -q -t work
            "#,
        );
        // The third failure buries the job.
        // The delay is longer than a busy machine needs to see that the tube is empty.
        let flags = ["--on-failure", "release", "--delay", "1.25", "--max-delay", "2.5", "--tries", "2"];
        let work = [&["work", "-t", "work"], &flags[..], &["--until-empty", "--", "false"]].concat();
        let said = place.run(&work).stderr;
        assert!(said.contains("; released, ready in 1.25 s\n"), "{said}");
        place.wait_for_jobs([1, 0, 0, 0]);
        assert!(place.run(&work).stderr.contains("; buried\n"));
    });
}

#[test]
fn a_server_with_whole_seconds_is_named() {
    with_both("decimals for a server without them", |place| {
        place.session("put x");
        let flags = ["--on-failure", "release", "--delay", "0.25"];
        let work = [&["work"], &flags[..], &["--", "true"]].concat();
        for verb in [
            &["put", "quit", "--delay", "0.25"][..],
            &["put", "quit", "--ttr", "0.25"],
            &["release", "1", "--delay", "0.25"],
            &["reserve", "--timeout", "0.25"],
            &["wait", "1", "--timeout", "0.25"],
            &["pause", "default", "0.25"],
            &work,
        ] {
            place.run(verb).fails(
                1,
                "0.25 s: BAD_FORMAT: the server accepts whole seconds only; round the time, or use beanring with \
                 --sub-second",
            );
        }
        if place.is_beanring {
            let said = "0.25 s: BAD_FORMAT: the server accepts whole seconds only; round the time, or use beanring with --sub-second";
            place.run(&["schedule", "add", "a", "quit", "-w", "every:9", "--ttr", "0.25"]).fails(1, said);
        }
        assert_eq!(place.jobs(), [1, 0, 0, 0]);
        // A failure that buries needs no delay.
        place.run(&["work", "--delay", "0.25", "--until-empty", "--", "true"]);
        assert_eq!(place.jobs(), [0; 4]);
        let rule = "must be a number of seconds with one to three decimals, such as 0.25, or a whole number with a unit, such as 90m";
        for wrong in ["0.1234", ".5", "1.5m", "1e0.5"] {
            place.run(&["put", "x", "--delay", wrong]).fails(2, &format!("-d/--delay \"{wrong}\": {rule}"));
        }
    });
}
