//! Schedules with real server processes: from the configuration file, and across starts. And those that were put while the system clock
//! was wrong.

use std::fs;

use beanring::io::driver::Driver;
use beanring::queue::{Engine, NewSchedule};
use beanring::time::{Seconds, Span, Time};
use beanring::values::schedules::{Missed, Plan};
use beanring::values::tube_name::TubeName;
use beanring::values::when::When;
use beanring::wal::Batch;
use beanring::wal::record::{Lsn, Record, Stamp};
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

        // An unchanged schedule goes on, a changed one starts over, and that of a client stays.
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

    fs::write(&config, one(2, "z")).expect("the file is written");
    let (mut server, mut client) = start(&log, Driver::Epoll, &flags);
    until("the others are gone", || names(&mut client) == "schedules: [\"s002\"]");
    client.expect("schedule-run s002\r\n", "INSERTED 1");
    server.stop();
}

fn put(engine: &mut Engine, name: &str, when: &str, missed: Missed, now: Time) {
    let name = TubeName::new(name.as_bytes()).expect("it is a name");
    let when = When::parse(when, Time::ZERO).expect("it says times");
    let (delay, ttr) = (Seconds::ZERO, Seconds::whole(60));
    let plan = Plan { when, pri: 0, delay, ttr, missed, overlaps: true };
    let body = engine.bodies_mut().store(b"x\r\n").expect("there is memory");
    engine.put_schedule(NewSchedule { name, tube: TubeName::DEFAULT, plan, is_configured: false }, body, now);
}

/// Has the schedule run that comes first, and returns its name.
fn run_next(engine: &mut Engine, now: Time) -> Option<String> {
    let name = engine.due_schedule(now)?.shared_name();
    let due = engine.begin_run(&name, now).expect("it runs");
    engine.run_schedule(&name, due, now).expect("there is space");
    engine.check();
    Some(String::from_utf8(name.to_vec()).expect("a name"))
}

/// A schedule that is due by the system clock, which is set after it was put and is not that of the server.
#[test]
fn the_system_clock_decides_what_is_due() {
    let mut engine = Engine::new(1);
    let now = Time::ZERO + Span::from_secs(5);
    let noon = Time::ZERO + Span::from_secs(20_000 * 86_400 + 43_200);
    engine.set_system_time(noon.back(Span::from_secs(3)), now);
    put(&mut engine, "noon", "0 12 * * *", Missed::Once, now);
    assert_eq!(engine.next_deadline(), Some(now + Span::from_secs(3)));
    engine.set_system_time(noon, now);
    assert_eq!(engine.next_deadline(), Some(now));
    engine.check();
    // A standby that reads all again has a new queue.
    let mut again = Engine::new(1);
    again.keep_system_clock(&engine);
    assert_eq!(again.system_time(now), noon);
}

#[test]
fn missed_times_are_made_up_for_behind_what_is_due() {
    let mut engine = Engine::new(1);
    let mut now = Time::ZERO + Span::from_secs(5);
    for name in ["a", "b"] {
        put(&mut engine, name, "every:1", Missed::All, now);
    }
    put(&mut engine, "in-time", "every:89", Missed::Once, now);
    now = now + Span::from_secs(90);
    let mut order = Vec::new();
    for _ in 0..5 {
        order.extend(run_next(&mut engine, now));
        now = now + Span::from_millis(1);
    }
    assert_eq!(order, ["a", "b", "in-time", "a", "b"]);
    // One that waits for space does not hold up the others.
    let first = engine.due_schedule(now).expect("one is due").shared_name();
    engine.postpone_run(&first, now + Span::from_secs(1));
    engine.check();
    assert_eq!(run_next(&mut engine, now).as_deref(), Some("b"));
    now = now + Span::from_secs(1);
    while run_next(&mut engine, now).is_some() {}
    let runs = |name: &str| {
        engine.schedule(TubeName::new(name.as_bytes()).expect("a name")).expect("it is there").progress.runs
    };
    assert_eq!(["a", "b", "in-time"].map(runs), [91, 91, 1]);
}

/// Clients cannot take the places of the configuration file.
#[test]
fn schedules_of_the_file_have_places_of_their_own() {
    const SCHEDULES_MAX: usize = 10_000;
    let scratch = Scratch::new("schedules-limit");
    let (log, config) = (scratch.0.join("log"), scratch.0.join("config.toml"));
    fs::create_dir(&log).expect("the directory is created");
    fs::write(&config, "").expect("the file is written");
    let flags = ["--config", config.to_str().expect("a name in UTF-8")];
    let (mut server, mut client) = start(&log, Driver::Epoll, &flags);
    let puts = (0..=SCHEDULES_MAX).map(|at| format!("schedule-put s{at} 0 0 60 1 mail every:1d\r\nx\r\n"));
    let mut replies = client.ask_all(puts);
    assert_eq!(replies.pop().expect("there are some").0, "OUT_OF_MEMORY");
    assert!(replies.iter().all(|(reply, _)| reply == "SCHEDULED"));
    server.stop();
    let text = "[[schedule]]\nname = \"file\"\ntube = \"mail\"\nwhen = \"every:1d\"\nbody = \"work\"\n";
    fs::write(&config, text).expect("the file is written");
    let (_server, mut client) = start(&log, Driver::Epoll, &flags);
    until("it is there", || stat(&mut client, "file", "configured").as_deref() == Some("true"));
    client.expect("schedule-put one-more 0 0 60 1 mail every:1d\r\nx\r\n", "OUT_OF_MEMORY");
    client.expect("schedule-delete s0\r\n", "DELETED");
    client.expect("schedule-put one-more 0 0 60 1 mail every:1d\r\nx\r\n", "SCHEDULED");
}

const NAME: &str = "tick";
const DAY: Span = Span::from_secs(86_400);

fn tick() -> TubeName<'static> {
    TubeName::new(NAME.as_bytes()).expect("it is a name")
}

/// Whether the schedule runs an interval later, by this clock.
fn runs_soon(engine: &Engine, system: Time) -> bool {
    let next = engine.schedule(tick()).expect("it is there").next();
    next == Some(system + Span::from_secs(600))
}

/// As a version has written it that knows a zone which this one does not.
#[test]
fn a_schedule_in_an_unknown_zone_stays_in_the_log_and_does_not_run() {
    let now = Time::from_nanos(1_800_000_000_000_000_000);
    let mut engine = Engine::new(0);
    put(&mut engine, NAME, "every:10m", Missed::Once, now);
    let mut logged = engine.logged_schedule(&NAME.as_bytes().into()).expect("it is there");
    for (text, is_text) in [("0 3 * * * Mars/Olympus", true), ("every:1fortnight", true), ("a\nb", false)] {
        assert_eq!(When::logged(text).is_some(), is_text, "{text}");
    }
    logged.plan.when = When::logged("0 3 * * * Mars/Olympus").expect("it is a text");
    let mut batch = Batch::default();
    let stamp = Stamp { seed: 0, at: Lsn(0), durable: Lsn(0) };
    Record::Schedule(Box::new(logged)).encode(&stamp, &mut batch);
    assert!(Record::is_sound(batch.bytes(), stamp.seed));
    let Record::Schedule(read) = Record::decode(batch.bytes()).record else {
        panic!("it is the record of a schedule")
    };
    let mut next = Engine::new(0);
    next.restore_schedule(&read);
    next.settle_restored(now + DAY);
    next.check();
    let restored = next.schedule(tick()).expect("it is kept");
    assert_eq!((restored.next(), restored.plan.when.as_str()), (None, "0 3 * * * Mars/Olympus"));
    assert!(next.due_schedule(now + DAY + DAY).is_none());
}

/// Only a line with a fixed minute and hour waits for the time that the clock had, so that it repeats no run.
#[test]
fn a_clock_that_is_set_back_by_two_hours_holds_up_fixed_times_only() {
    // 12:00 in UTC.
    let noon = Time::from_nanos(1_800_014_400_000_000_000);
    let ahead = noon + Span::from_secs(2 * 3600);
    let mut engine = Engine::new(0);
    for (name, line) in [("every", "every:1"), ("minutely", "* * * * *"), ("fixed", "30 13 * * *")] {
        put(&mut engine, name, line, Missed::Once, ahead);
    }
    engine.set_system_time(noon, ahead);
    while engine.recheck_schedule(ahead) {}
    engine.check();
    let next = |name: &str| {
        let name = TubeName::new(name.as_bytes()).expect("it is a name");
        engine.schedule(name).expect("it is there").next().expect("it has a time").since(noon)
    };
    assert_eq!(next("every"), Span::from_secs(1));
    assert_eq!(next("minutely"), Span::from_secs(60));
    assert_eq!(next("fixed"), Span::from_secs(25 * 3600 + 1800), "13:30 of today has passed");
}

/// The clock is a day ahead when the schedule is put, and is set right then.
#[test]
fn intervals_do_not_wait_for_a_beginning_by_a_clock_that_was_wrong() {
    let right = Time::from_nanos(1_800_000_000_000_000_000);
    let mut engine = Engine::new(0);
    put(&mut engine, NAME, "every:10m", Missed::Once, right + DAY);

    let logged = engine.logged_schedule(&NAME.as_bytes().into()).expect("it is there");
    let mut next = Engine::new(0);
    next.restore_schedule(&logged);
    next.settle_restored(right);
    assert!(runs_soon(&next, right), "after a start");

    engine.set_system_time(right, right + DAY);
    engine.check();
    while engine.recheck_schedule(right + DAY) {}
    engine.check();
    assert!(runs_soon(&engine, right), "in a running server");
    put(&mut engine, NAME, "every:10m", Missed::Once, right + DAY);
    assert!(runs_soon(&engine, right), "put again");

    // A run since that start is logged without the beginning.
    let mut logged = engine.logged_schedule(&NAME.as_bytes().into()).expect("it is there");
    (logged.created, logged.progress.handled) = (right + DAY, right);
    let mut next = Engine::new(0);
    next.restore_schedule(&logged);
    next.settle_restored(right + Span::from_secs(1));
    assert!(runs_soon(&next, right), "after a run and a start");
}

/// A machine without a clock of its own begins in 1970, until it asks others.
#[test]
fn a_clock_that_is_set_for_the_first_time_is_no_outage() {
    // 12:00 in UTC.
    let noon = Time::from_nanos(1_800_014_400_000_000_000);
    let mut before = Engine::new(0);
    put(&mut before, "daily", "0 3 * * *", Missed::All, noon);
    let logged = before.logged_schedule(&b"daily"[..].into()).expect("it is there");

    let (mut engine, boot) = (Engine::new(0), Time::from_nanos(60_000_000_000));
    engine.restore_schedule(&logged);
    engine.settle_restored(boot);
    put(&mut engine, NAME, "every:10m", Missed::All, boot);
    assert!(engine.due_schedule(boot).is_none(), "it waits until the clock is set");
    engine.set_system_time(noon + DAY, boot);
    while engine.recheck_schedule(boot) {}
    engine.check();
    let daily = engine.schedule(TubeName::new(b"daily").expect("a name")).expect("it is there").next();
    assert_eq!(daily, Some(noon + Span::from_secs(15 * 3600)), "only the night between was missed");
    assert!(runs_soon(&engine, noon + DAY), "there are no times before the clock was set");
}
