//! Schedules with real server processes: from the configuration file, and across starts. And those that were put while the system clock
//! was wrong.

use std::fs;

use beanring::io::driver::Driver;
use beanring::queue::{Engine, NewSchedule};
use beanring::time::{Seconds, Span, Time};
use beanring::values::schedules::{Missed, Plan};
use beanring::values::tube_name::TubeName;
use beanring::values::when::When;
use beanring_testkit::client::{Client, start};
use beanring_testkit::driver;
use beanring_testkit::scratch::Scratch;
use beanring_testkit::wait::until;
use nix::sys::signal::Signal;

fn names(client: &mut Client) -> String {
    let (reply, data) = client.ask("list-schedules 1000\r\n");
    assert!(reply.starts_with("OK "), "{reply}");
    data.trim().lines().last().expect("it has a line").to_owned()
}

/// A value of `schedule-stats`.
fn stat(client: &mut Client, name: &str, key: &str) -> Option<String> {
    let (_, data) = client.ask(&format!("schedule-stats {name}\r\n"));
    data.lines().find_map(|line| line.strip_prefix(&format!("{key}: "))).map(str::to_owned)
}

#[test]
fn a_start_puts_the_schedules_of_the_file_and_deletes_those_that_it_lacks() {
    for io in driver::allowed("schedules") {
        let scratch = Scratch::new("schedules");
        let (log, config) = (scratch.0.join("log"), scratch.0.join("config.toml"));
        fs::create_dir(&log).expect("the directory is created");
        let flags = ["--config", config.to_str().expect("a name in UTF-8")];
        let write = |text: &str| fs::write(&config, text).expect("the file is written");
        let one = |name: &str, when: &str, more: &str| {
            format!(
                "[[schedule]]\nname = \"{name}\"\ntube = \"mail\"\nwhen = \"{when}\"\nbody = \"work\"\n{more}"
            )
        };
        write(
            &(one("often", "every:1", "overlap = false\n")
                + &one("nightly", "0 3 * * * Europe/Berlin", "ttr = \"5m\"\n")),
        );
        let (mut server, mut client) = start(&log, io, &flags);
        until("the schedules are there", || names(&mut client) == "schedules: [\"nightly\", \"often\"]");
        assert_eq!(stat(&mut client, "nightly", "ttr").as_deref(), Some("300"));
        assert_eq!(stat(&mut client, "nightly", "configured").as_deref(), Some("true"));
        client.expect("schedule-put own 1 0 60 1 mail every:1d\r\nx\r\n", "SCHEDULED");
        until("the one runs", || stat(&mut client, "often", "last-job").as_deref() == Some("1"));
        server.stop();

        // An unchanged schedule goes on, a changed one begins anew, and that of a client stays.
        write(&(one("often", "every:1", "overlap = false\n") + &one("nightly", "0 4 * * *", "")));
        let (mut server, mut client) = start(&log, io, &flags);
        until("the schedule has changed", || {
            stat(&mut client, "nightly", "when").as_deref() == Some("\"0 4 * * *\"")
        });
        assert_eq!(stat(&mut client, "often", "last-job").as_deref(), Some("1"));
        assert_eq!(names(&mut client), "schedules: [\"nightly\", \"often\", \"own\"]");
        client.expect("delete 1\r\n", "DELETED");
        until("it runs again", || stat(&mut client, "often", "last-job").as_deref() == Some("2"));
        server.stop();

        write("");
        let (_server, mut client) = start(&log, io, &flags);
        until("those of the file are gone", || names(&mut client) == "schedules: [\"own\"]");
    }
}

/// The log has two prepared files of 64 KiB, and the schedules take 300 of them.
#[test]
fn many_schedules_of_the_file_wait_for_space_in_the_log() {
    let scratch = Scratch::new("schedules-many");
    let (log, config) = (scratch.0.join("log"), scratch.0.join("config.toml"));
    fs::create_dir(&log).expect("the directory is created");
    let body = "x".repeat(60_000);
    let one = |at: usize, body: &str| {
        format!(
            "[[schedule]]\nname = \"s{at:03}\"\ntube = \"mail\"\nwhen = \"every:1d\"\nbody = \"{body}\"\n"
        )
    };
    // The file is limited to 1 MiB.
    let text: String = (0..16).map(|at| one(at, &body)).collect();
    fs::write(&config, text).expect("the file is written");
    let flags = ["-f", "0", "-s", "65536", "--config", config.to_str().expect("a name in UTF-8")];
    let (mut server, mut client) = start(&log, Driver::Epoll, &flags);
    until("all are there", || names(&mut client).matches('s').count() == 2 + 16);
    server.signal(Signal::SIGKILL);
    server.wait();
    let (mut server, mut client) = start(&log, Driver::Epoll, &flags);
    until("and again", || names(&mut client).matches('s').count() == 2 + 16);
    server.stop();

    // One that no file of the log has room for is left out.
    fs::write(&config, one(777, &"y".repeat(65_000)) + &one(2, "z")).expect("the file is written");
    let (mut server, mut client) = start(&log, Driver::Epoll, &flags);
    until("the small one is there", || names(&mut client) == "schedules: [\"s002\"]");
    client.expect("schedule-run s002\r\n", "INSERTED 1");
    server.stop();
}

const NAME: &str = "tick";
const DAY: Span = Span::from_secs(86_400);

fn tick() -> TubeName<'static> {
    TubeName::new(NAME.as_bytes()).expect("it is a name")
}

fn put_tick(engine: &mut Engine, now: Time) {
    let plan = Plan {
        when: When::restore("every:10m").expect("an interval"),
        pri: 0,
        delay: Seconds::ZERO,
        ttr: Seconds::ZERO,
        missed: Missed::Once,
        overlaps: true,
    };
    let body = engine.bodies_mut().store(b"work\r\n").expect("there is memory");
    engine.put_schedule(NewSchedule { name: tick(), tube: tick(), plan, is_configured: false }, body, now);
}

/// Whether the schedule runs an interval later, by this clock.
fn runs_soon(engine: &Engine, system: Time) -> bool {
    let next = engine.schedule(tick()).expect("it is there").next();
    next == Some(system + Span::from_secs(600))
}

/// The clock is a day ahead when the schedule is put, and is set right then.
#[test]
fn intervals_do_not_wait_for_a_beginning_by_a_clock_that_was_wrong() {
    let right = Time::from_nanos(1_800_000_000_000_000_000);
    let mut engine = Engine::new(0);
    put_tick(&mut engine, right + DAY);

    let logged = engine.logged_schedule(&NAME.as_bytes().into()).expect("it is there");
    let mut next = Engine::new(0);
    next.restore_schedule(&logged);
    next.settle_restored(right);
    assert!(runs_soon(&next, right), "after a start");

    engine.set_system_time(right, right + DAY);
    assert!(runs_soon(&engine, right), "in a running server");
    put_tick(&mut engine, right + DAY);
    assert!(runs_soon(&engine, right), "put again");

    // A run since that start is logged without the beginning.
    let mut logged = engine.logged_schedule(&NAME.as_bytes().into()).expect("it is there");
    (logged.created, logged.progress.handled) = (right + DAY, right);
    let mut next = Engine::new(0);
    next.restore_schedule(&logged);
    next.settle_restored(right + Span::from_secs(1));
    assert!(runs_soon(&next, right), "after a run and a start");
}
