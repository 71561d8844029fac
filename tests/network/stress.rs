//! Faults injected into servers under load: the process is stopped, gets signals, runs out of descriptors, and has a wall clock that
//! steps, while clients send something and vanish. A [control client](control) works on the same server, and loses nothing.
//!
//! Each run of faults takes a second and a half. `BEANRING_TEST_SECONDS` makes it longer, alone on the machine: then the latency of
//! the control client is limited too.

mod control;
mod wall_clock;

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, iter, thread};

use beanring::io::driver::Driver;
use beanring_testkit::client::{Client, put, serve_under, start};
use beanring_testkit::process::{ServerProcess, Transport, program};
use beanring_testkit::random::{self, Random, seeds};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::{driver, wait};
use nix::sys::signal::Signal;

use super::churn::{Visitor, await_nothing_left};
use super::hostile::check_server;
use control::Control;
use wall_clock::WallClock;

/// Fewer descriptors than there are clients, so that accept is paused all the time.
const DESCRIPTORS: usize = 150;
const VISITORS: usize = 200;

/// Signals that change nothing, the last one in drain mode.
const HARMLESS: [Signal; 6] =
    [Signal::SIGPIPE, Signal::SIGCHLD, Signal::SIGWINCH, Signal::SIGURG, Signal::SIGCONT, Signal::SIGUSR1];

/// Signals that end a server. SIGUSR1, before or after one, changes nothing.
const ENDS: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGUSR1];

/// The 99th percentile of the control client's latency, alone on the machine.
const LATENCY_MAX: Duration = Duration::from_millis(100);

/// How long faults last, if the test has the machine for itself.
fn seconds() -> Option<Duration> {
    random::number("BEANRING_TEST_SECONDS").map(Duration::from_secs)
}

#[test]
fn a_control_client_notices_no_fault() {
    // `churn` has servers without a job log.
    let logs = if seconds().is_some() { &[true, false][..] } else { &[true] };
    for io in driver::allowed("faults") {
        for seed in seeds(1) {
            logs.iter().for_each(|&has_log| inject(io, has_log, Random::new(seed)));
        }
    }
}

fn inject(io: Driver, has_log: bool, mut random: Random) {
    let dir = Scratch::in_memory("stress");
    let log = dir.dir("log").display().to_string();
    let flags = if has_log { &["-b", &log, "-f", "0", "-s", "65536"][..] } else { &[] };
    let wall = WallClock::new(&dir);
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -n {DESCRIPTORS}; exec \"$0\" \"$@\""), program()]);
    let (mut server, mut first) = wall.serve(command, io, flags);
    first.expect("use clock\r\n", "USING clock");
    // Visitors ask for its body, too.
    first.expect(&put(0, wall_clock::LONG, &"b".repeat(5000)), "INSERTED 1");
    let (descriptors, begun) = (descriptors(&server), Instant::now());
    let started = wall_clock::seconds(&first.stats(), "uptime");
    let mut faults =
        Faults { server: &server, first, random: &mut random, visitors: Vec::new(), counts: [0; 4] };
    let length = seconds().unwrap_or(Duration::from_secs(1));
    let (count, latency) = Control::beside(&server, |control| {
        // After the control client, which would wait in the backlog.
        faults.visitors.extend((0..VISITORS).map(|_| Visitor::enter(&server)));
        for (last, signals) in [(length, &HARMLESS[..5]), (length * 3 / 2, &HARMLESS)] {
            while begun.elapsed() < last {
                faults.inject(control, &wall, signals);
                if faults.random.one_in(20) {
                    wall_clock::check(&mut faults.first, begun, started);
                }
            }
            // The server refuses puts from now on.
            control.may_refuse.store(true, Ordering::Relaxed);
            server.signal(Signal::SIGUSR1);
        }
    });
    let Faults { mut first, visitors, counts, .. } = faults;
    println!("{}, log {has_log}: {count} latencies, p99 {latency:?}; {counts:?}", io.name());
    assert!(latency < LATENCY_MAX || seconds().is_none(), "{}: p99 {latency:?}", io.name());
    assert!(counts.iter().all(|&count| count > 0) && first.stat("put-refusals-draining") > 0, "{counts:?}");
    wait::until("a server with silent clients rests", || server.is_at_rest());
    visitors.into_iter().for_each(|visitor| visitor.vanish(&mut random));
    first.expect("undrain\r\n", "NOT_DRAINING");
    await_nothing_left(&mut first, || self::descriptors(&server), descriptors);
    wait::until("the server rests", || server.is_at_rest());
    check_server(&mut first);
    end(&mut server, &mut random);
}

/// Returns the number of open descriptors, without those of segments, which come and go.
fn descriptors(server: &ServerProcess) -> usize {
    let open = fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("it runs");
    let targets = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    targets.filter(|target| !target.to_string_lossy().contains("/log.")).count()
}

/// What happens to a server.
struct Faults<'a> {
    server: &'a ServerProcess,
    first: Client,
    random: &'a mut Random,
    visitors: Vec<Visitor>,
    /// Stops, signals, steps of the wall clock, and flushes.
    counts: [usize; 4],
}

impl Faults<'_> {
    fn inject(&mut self, control: &Control, wall: &WallClock, signals: &[Signal]) {
        let kind = match self.random.below(200) {
            0 => {
                let span = Duration::from_millis(20 + self.random.below_u64(300));
                control.while_stopped(self.server, || {
                    (0..20).for_each(|_| self.replace());
                    thread::sleep(span);
                });
                0
            }
            1..20 => {
                self.server.signal(self.random.pick(signals));
                1
            }
            20..25 => {
                wall.step(self.random.pick(&[wall_clock::HOUR, -wall_clock::HOUR, 0]));
                2
            }
            25 => {
                assert!(self.first.ask("flush-tube default\r\n").0.starts_with("FLUSHED"));
                3
            }
            26..60 => return self.replace(),
            _ => return self.visitors[self.random.below(VISITORS)].act(self.random),
        };
        self.counts[kind] += 1;
        thread::sleep(Duration::from_millis(1));
    }

    /// A visitor vanishes, and another one comes.
    fn replace(&mut self) {
        let mut visitor = Visitor::enter(self.server);
        visitor.act(self.random);
        std::mem::replace(&mut self.visitors[self.random.below(VISITORS)], visitor).vanish(self.random);
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
#[test]
fn signals_in_any_order_lose_nothing() {
    const JOBS: u64 = 100;
    let cases = driver::allowed("signals in any order").flat_map(|io| seeds(4).map(move |seed| (io, seed)));
    for (io, seed) in cases {
        let dir = Scratch::in_memory("stress-signals");
        let (mut server, mut client) = start(&dir.0, io, &["-f", "0"]);
        client.insert(1..=JOBS, |_| put(0, 0, "acknowledged"));
        client.send(&put(0, 0, "in flight").repeat(JOBS as usize));
        end(&mut server, &mut Random::new(seed));
        let replies = iter::from_fn(|| client.reply());
        let acknowledged = JOBS + replies.filter(|(line, _)| line.starts_with("INSERTED ")).count() as u64;
        drop(server);
        let (_server, mut client) = start(&dir.0, io, &["-f", "0"]);
        let found = client.stat("current-jobs-ready");
        // A job may be there whose reply was not sent.
        assert!((acknowledged..=2 * JOBS).contains(&found), "seed {seed}: {found} of {acknowledged} jobs");
    }
}

/// Producers that never stop, and a full memory, do not slow down consumers.
#[test]
fn consumers_are_as_fast_at_the_memory_limit() {
    // Other work on the machine makes any round slower, so the speed is judged alone on the machine only.
    let (rounds, share) = if seconds().is_some() { (4, 0.8) } else { (1, 0.0) };
    for io in driver::allowed("consumers at the memory limit") {
        let mut best = [0.0_f64; 2];
        for _ in 0..rounds {
            let found = [&[][..], &["--max-memory", "32m"]].map(|flags| consume(io, flags));
            best = [best[0].max(found[0]), best[1].max(found[1])];
        }
        let [free, limited] = best;
        println!("{}: {limited:.0} jobs per second at the limit, {free:.0} without one", io.name());
        assert!(limited > share * free, "{}: {limited:.0} jobs per second instead of {free:.0}", io.name());
    }
}

/// Returns the number of jobs per second that a consumer takes, once the server is full or has many jobs.
fn consume(io: Driver, flags: &[&str]) -> f64 {
    const MANY: u64 = 30_000;
    let (server, mut client) = serve_under(io, Transport::Tcp, flags);
    let (mut control, length) = (server.client(), Duration::from_millis(500));
    let mut take = || {
        let replies = client.ask_all(vec!["reserve-with-timeout 0\r\n".to_owned(); 32]);
        let ids = replies.iter().filter_map(|(line, _)| line.strip_prefix("RESERVED ")?.split(' ').next());
        let deletes: Vec<String> = ids.map(|id| format!("delete {id}\r\n")).collect();
        client.expect_all(deletes.clone(), "DELETED");
        deletes.len() as u64
    };
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let producer = scope.spawn(|| produce(server.client(), &is_over));
        let stop = wait::Stop(&is_over);
        let key = if flags.is_empty() { ("current-jobs-ready", MANY) } else { ("memory-refusals", 1) };
        control.await_stat(key.0, |count| count >= key.1);
        let before = control.stat("total-jobs");
        let (begun, mut taken) = (Instant::now(), 0);
        while begun.elapsed() < length {
            taken += take();
        }
        let speed = taken as f64 / begun.elapsed().as_secs_f64();
        assert!(control.stat("total-jobs") > before, "puts succeed when there is room");
        drop(stop);
        let inserted = producer.join().expect("the producer does not panic");
        taken += iter::repeat_with(&mut take).take_while(|&count| count > 0).sum::<u64>();
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
