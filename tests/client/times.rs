//! Times with decimals, which a server accepts with `--sub-second`.

use beanring::io::driver::Driver;
use beanring_testkit::driver;
use beanring_testkit::process::Transport;

use super::place::{Place, with_both};

#[test]
fn times_may_have_decimals() {
    for io in Driver::ALL.iter().copied().filter(|&io| driver::is_allowed(io, "decimals by the client")) {
        let place = Place::beanring(io, Transport::Tcp, &["--sub-second"]);
        assert_eq!(place.ok(&["put", "x", "--delay", "0.05", "--ttr", "1.50s"]), "1\n");
        let job = place.json(&["job", "1"]);
        assert_eq!((&job["delay_seconds"], &job["ttr_seconds"]), (&0.05.into(), &1.5.into()));
        place.wait_for_jobs([1, 0, 0, 0]);
        assert_eq!(place.ok(&["release", "1", "--delay", "99.25"]), "1 released\n");
        assert_eq!(place.json(&["job", "1"])["delay_seconds"], 99.25);
        place
            .run(&["reserve", "--timeout", "0.05"])
            .fails(1, "reserve: TIMED_OUT: no job became ready within 0.05 s");
        place
            .run(&["wait", "1", "--timeout", "0.25"])
            .fails(5, "job 1: TIMED_OUT: the job was neither deleted nor buried within 0.25 s");
        assert_eq!(place.ok(&["pause", "default", "30.5"]), "paused default for 30.5 s\n");
        assert_eq!(place.json(&["tube", "default"])["pause_seconds"], 30.5);
        assert_eq!(place.json(&["pause", "default", "0.125"])["seconds"], 0.125);
        place.ok(&["delete", "1"]);
        // The third failure buries the job.
        place.ok(&["put", "x", "-q", "-t", "work"]);
        let flags = ["--on-failure", "release", "--delay", "0.01", "--max-delay", "0.5", "--tries", "2"];
        let work = [&["work", "-t", "work"], &flags[..], &["--until-empty", "--", "false"]].concat();
        let said = place.run(&work).stderr;
        assert!(said.contains("; released, ready in 0.01 s\n"), "{said}");
        place.wait_until("the delay ends", |place| place.json(&["job", "2"])["state"] == "ready");
        assert!(place.run(&work).stderr.contains("; buried\n"));
    }
}

#[test]
fn a_server_with_whole_seconds_is_named() {
    with_both("decimals for a server without them", |place| {
        place.ok(&["put", "x"]);
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
