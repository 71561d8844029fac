//! Faults injected into servers under load: the process is stopped, gets signals, runs out of descriptors, and has a wall clock that
//! steps, while clients send something and vanish. A [control client](control) works on the same server, and loses nothing.
//!
//! Each run of faults takes two seconds. `BEANRING_TEST_SECONDS` makes it longer, alone on the machine: then the latency of the control
//! client is limited too.

mod control;
mod wall_clock;

use std::fs::read_link;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use beanring::io::driver::Driver;
use beanring_testkit::client::{Client, put, serve_under, start};
use beanring_testkit::process::{ServerProcess, Transport, program};
use beanring_testkit::random::{self, Random, seeds};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::statistics::number;
use beanring_testkit::{tests_of_drivers, wait};
use nix::sys::signal::Signal;

use super::churn::{Visitor, await_nothing_left};
use super::hostile::check_server;
use control::Control;
use wall_clock::WallClock;

/// Fewer descriptors than there are clients, so that accept is paused all the time.
const DESCRIPTORS: usize = 150;
const VISITORS: usize = 200;

/// Visitors that others replace while the server is stopped.
const CHANGED: usize = 20;

const PAUSE: Duration = Duration::from_millis(1);

/// For so long consumers are measured at most: the queue grows beside them.
const SPEED_LENGTH_MAX: Duration = Duration::from_secs(3);

/// Signals that change nothing.
const HARMLESS: [Signal; 5] =
    [Signal::SIGPIPE, Signal::SIGCHLD, Signal::SIGWINCH, Signal::SIGURG, Signal::SIGCONT];

/// Signals that end a server. SIGUSR1, before or after one, changes nothing.
const ENDS: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGUSR1];

/// The 99th percentile of the control client's latency.
const LATENCY_MAX: Duration = Duration::from_millis(100);

tests_of_drivers!("faults", serve_beside_faults: epoll_serves_beside_faults, uring_serves_beside_faults, tokio_uring_serves_beside_faults);
tests_of_drivers!("signals in any order", end_in_any_order: epoll_ends_in_any_order, uring_ends_in_any_order, tokio_uring_ends_in_any_order);
tests_of_drivers!("consumers at the memory limit", keep_their_speed: epoll_consumers_keep_their_speed, uring_consumers_keep_their_speed, tokio_uring_consumers_keep_their_speed);

/// Returns how long something is to last, and whether the test has the machine for itself.
fn length(default_ms: u64) -> (Duration, bool) {
    let seconds = random::number("BEANRING_TEST_SECONDS");
    (seconds.map_or(Duration::from_millis(default_ms), Duration::from_secs), seconds.is_some())
}

fn serve_beside_faults(io: Driver) {
    for seed in seeds(1) {
        for flags in [&[][..], &["-b", "DIR", "-f", "0", "-s", "65536"]] {
            println!("{}, flags {flags:?}, seed {seed}", io.name());
            inject(io, flags, Random::new(seed));
        }
    }
}

fn inject(io: Driver, flags: &[&str], mut random: Random) {
    let dir = Scratch::in_memory("stress");
    let path = dir.dir("log").display().to_string();
    let flags: Vec<&str> = flags.iter().map(|&flag| if flag == "DIR" { &path } else { flag }).collect();
    let wall = WallClock::new(&dir);
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -n {DESCRIPTORS}; exec \"$0\" \"$@\""), program()]);
    let (mut server, mut first) = wall.serve(command, io, &flags);
    let mut faults = Faults::new(&server, &wall, &mut first, &mut random);
    let before = descriptors(&server);
    let (length, is_alone) = length(2000);
    let (count, latency) = Control::beside(&server, |control| {
        // After the control client, which would wait in the backlog.
        faults.visitors = (0..VISITORS).map(|_| Visitor::enter(&server)).collect();
        let begun = Instant::now();
        while begun.elapsed() < length {
            faults.inject(control, &HARMLESS);
        }
        // The server refuses puts from now on.
        control.allow_refusals();
        server.signal(Signal::SIGUSR1);
        while begun.elapsed() < length * 3 / 2 {
            faults.inject(control, &[&HARMLESS[..], &[Signal::SIGUSR1]].concat());
        }
    });
    println!("{}: {count} latencies, p99 {latency:?}, {}", io.name(), faults.counts());
    assert!(latency < LATENCY_MAX || !is_alone, "{}: p99 {latency:?}", io.name());
    // The visitors are still there, and silent.
    wait::until("a server with silent clients rests", || server.is_at_rest());
    let Faults { visitors, .. } = faults;
    visitors.into_iter().for_each(|visitor| visitor.vanish(&mut random));
    first.expect("undrain\r\n", "NOT_DRAINING");
    await_nothing_left(&mut first, || descriptors(&server), before);
    wait::until("the server rests", || server.is_at_rest());
    check_server(&mut first);
    end(&mut server, &mut random);
}

/// Returns the number of open descriptors, without those of segments, which come and go.
fn descriptors(server: &ServerProcess) -> usize {
    let open = std::fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("it runs");
    let targets = open.filter_map(|entry| read_link(entry.ok()?.path()).ok());
    targets.filter(|target| !target.to_string_lossy().contains("/log.")).count()
}

/// What happens to a server.
struct Faults<'a> {
    server: &'a ServerProcess,
    wall: &'a WallClock,
    first: &'a mut Client,
    random: &'a mut Random,
    visitors: Vec<Visitor>,
    /// When the job was put whose times are checked, and the uptime at that moment.
    begun: (Instant, f64),
    stops: usize,
    signals: usize,
    steps: usize,
    visits: usize,
}

impl<'a> Faults<'a> {
    fn new(
        server: &'a ServerProcess,
        wall: &'a WallClock,
        first: &'a mut Client,
        random: &'a mut Random,
    ) -> Self {
        first.expect("use clock\r\n", "USING clock");
        // Visitors ask for its body too.
        first.expect(&put(0, wall_clock::LONG, &"b".repeat(5000)), "INSERTED 1");
        let begun = (Instant::now(), wall_clock::seconds(&first.stats(), "uptime"));
        let visitors = Vec::new();
        Self { server, wall, first, random, visitors, begun, stops: 0, signals: 0, steps: 0, visits: 0 }
    }

    fn inject(&mut self, control: &Control, signals: &[Signal]) {
        match self.random.below(200) {
            0 => {
                let span = Duration::from_millis(20 + self.random.below_u64(300));
                control.while_stopped(self.server, || {
                    (0..CHANGED).for_each(|_| self.replace());
                    thread::sleep(span);
                });
                self.stops += 1;
            }
            1..20 => {
                self.server.signal(self.random.pick(signals));
                self.signals += 1;
            }
            20..25 => {
                let step = self.random.pick(&[wall_clock::HOUR, -wall_clock::HOUR, 0]);
                self.wall.step(step);
                self.steps += 1;
                self.check_times();
            }
            25 => assert!(self.first.ask("flush-tube default\r\n").0.starts_with("FLUSHED")),
            26..60 => self.replace(),
            _ => {
                let at = self.random.below(VISITORS);
                self.visitors[at].act(self.random);
            }
        }
        thread::sleep(PAUSE);
    }

    /// A visitor vanishes, and another one comes.
    fn replace(&mut self) {
        let at = self.random.below(VISITORS);
        let mut visitor = Visitor::enter(self.server);
        visitor.act(self.random);
        std::mem::replace(&mut self.visitors[at], visitor).vanish(self.random);
        self.visits += 1;
    }

    /// No time that clients see depends on the wall clock.
    fn check_times(&mut self) {
        let passed = self.begun.0.elapsed().as_secs_f64();
        let stats = self.first.stats();
        let job = self.first.ask("stats-job 1\r\n").1;
        for (what, found) in [
            ("uptime", wall_clock::seconds(&stats, "uptime") - self.begun.1),
            ("age", wall_clock::seconds(&job, "age")),
            ("time-left", f64::from(wall_clock::LONG) - wall_clock::seconds(&job, "time-left")),
        ] {
            assert!((found - passed).abs() < wall_clock::SLACK, "{what}: {found} after {passed} seconds");
        }
    }

    fn counts(&self) -> String {
        let Self { stops, signals, steps, visits, .. } = self;
        assert!(*stops > 0 && *signals > 0 && *steps > 0 && *visits > 0);
        format!("{stops} stops, {signals} signals, {steps} steps of the clock, {visits} visitors")
    }
}

/// Sends signals to a stopped server, in any order. It must end as one SIGTERM ends it.
fn end(server: &mut ServerProcess, random: &mut Random) {
    server.signal(Signal::SIGSTOP);
    (0..random.below(6)).for_each(|_| server.signal(random.pick(&ENDS)));
    server.signal(Signal::SIGTERM);
    server.signal(Signal::SIGCONT);
    assert_eq!(server.wait(), Some(0), "a clean stop");
}

/// Whatever signals end a server, the next one has all acknowledged jobs.
fn end_in_any_order(io: Driver) {
    const JOBS: u64 = 100;
    for seed in seeds(4) {
        let dir = Scratch::in_memory("stress-signals");
        let (mut server, mut client) = start(&dir.0, io, &["-f", "0"]);
        client.insert(1..=JOBS, |_| put(0, 0, "acknowledged"));
        client.send(&put(0, 0, "in flight").repeat(JOBS as usize));
        end(&mut server, &mut Random::new(seed));
        let replies = std::iter::from_fn(|| client.reply());
        let acknowledged = JOBS + replies.filter(|(line, _)| line.starts_with("INSERTED ")).count() as u64;
        drop(server);
        let (_server, mut client) = start(&dir.0, io, &["-f", "0"]);
        let found = client.stat("current-jobs-ready");
        // A job may be there whose reply was not sent.
        assert!((acknowledged..=2 * JOBS).contains(&found), "seed {seed}: {found} of {acknowledged} jobs");
    }
}

/// Producers that never stop, and a full memory, do not slow down consumers.
fn keep_their_speed(io: Driver) {
    let [free, limited] = [&[][..], &["--max-memory", "32m"]].map(|flags| consume(io, flags));
    println!("{}: {limited:.0} jobs per second at the limit, {free:.0} without one", io.name());
    let share = if length(0).1 { 0.8 } else { 0.2 };
    assert!(limited > share * free, "{}: {limited:.0} jobs per second instead of {free:.0}", io.name());
}

/// Returns the number of jobs per second that a consumer takes, once the server is full or has many jobs.
fn consume(io: Driver, flags: &[&str]) -> f64 {
    const FULL: u64 = 30_000;
    let (server, mut client) = serve_under(io, Transport::Tcp, flags);
    let is_over = AtomicBool::new(false);
    let mut take = |most: usize| {
        let replies = client.ask_all(vec!["reserve-with-timeout 0\r\n".to_owned(); most]);
        let ids = replies.iter().filter_map(|(line, _)| line.strip_prefix("RESERVED ")?.split(' ').next());
        let deletes: Vec<String> = ids.map(|id| format!("delete {id}\r\n")).collect();
        let count = deletes.len() as u64;
        client.expect_all(deletes, "DELETED");
        count
    };
    thread::scope(|scope| {
        let mut control = server.client();
        let producer = scope.spawn(|| produce(server.client(), &is_over));
        wait::until("the server is full", || {
            let stats = control.stats();
            let is_large = flags.is_empty() && number(&stats, "current-jobs-ready") >= FULL;
            is_large || number(&stats, "memory-refusals") > 0
        });
        let before = control.stat("total-jobs");
        let (begun, mut taken) = (Instant::now(), 0);
        while begun.elapsed() < length(500).0.min(SPEED_LENGTH_MAX) {
            taken += take(32);
        }
        let speed = taken as f64 / begun.elapsed().as_secs_f64();
        assert!(control.stat("total-jobs") > before, "puts succeed when there is room");
        is_over.store(true, Ordering::Relaxed);
        let inserted = producer.join().expect("the producer does not panic");
        while let count @ 1.. = take(32) {
            taken += count;
        }
        assert_eq!(taken, inserted, "each job that was put is deleted");
        speed
    })
}

/// Puts jobs until it is over. Returns the number of accepted ones.
fn produce(mut client: Client, is_over: &AtomicBool) -> u64 {
    let command = put(0, 0, &"b".repeat(1000));
    let mut inserted = 0;
    while !is_over.load(Ordering::Relaxed) {
        for (line, _) in client.ask_all(vec![command.clone(); 64]) {
            assert!(line.starts_with("INSERTED ") || line == "OUT_OF_MEMORY", "{line}");
            inserted += u64::from(line != "OUT_OF_MEMORY");
        }
    }
    inserted
}
