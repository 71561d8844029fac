//! The longest time of single calls of the engine, and of event-loop iterations without a kernel. Each scenario makes
//! the same calls in several runs. Noise of the machine affects other calls in each run. So the results are those of
//! the last run, the smallest of the maxima, and the longest time that one and the same call took in every run.
//!
//! `cargo bench --bench worst_step -- [runs] [part of a scenario's name]...`

use std::time::{Duration, Instant};

use beanring::queue::{Begun, JobState, NARROW_WATCH_MAX, NewJob, Reserved};
use beanring::server::{Effect, Event, Protocol, Server, Service};
use beanring::time::{Span, Time};
use beanring::values::ids::{ClientKey, ConnId};
use beanring::values::limits::{JOB_BYTES_DEFAULT, RECEIVE_BYTES_MAX};
use beanring::values::tube_name::TubeName;
use beanring_testkit::bench::engine::Rig;
use beanring_testkit::config::config;
use beanring_testkit::random::Random;

const MILLION: u32 = 1_000_000;
const RUNS_DEFAULT: usize = 5;

type Scenario = (&'static str, fn(&mut Recorder));

const SCENARIOS: [Scenario; 13] = [
    ("puts in id order", |recorder| drain(recorder, |_| 5000)),
    ("puts in reverse order", |recorder| drain(recorder, |n| u32::MAX - n)),
    ("puts at random", |recorder| drain(recorder, |n| Random::new(n.into()).next() as u32)),
    ("kick of 1,000,000", kick),
    ("flush of 1,000,000", flush),
    ("move of 1,000,000", move_all),
    ("hang-up with 100,000", hang_up),
    ("1,000,000 delays end", delays_end),
    ("kick, wide watchers", kick_beside_wide),
    ("1,000 hang up", hang_ups),
    ("1,000 hang up, wide", hang_ups_beside_wide),
    ("stats-tube, wide", statistics),
    ("1,000 pipeline", pipelines),
];

fn main() {
    let args = || std::env::args().skip(1).filter(|arg| !arg.starts_with('-'));
    let runs = args().find_map(|arg| arg.parse().ok()).unwrap_or(RUNS_DEFAULT);
    let wanted: Vec<String> = args().filter(|arg| arg.parse::<usize>().is_err()).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|part| name.contains(part));
    print!("{:<24}{:<10}{:>9}{:>9}{:>9}", "us", "call", "p50", "p99", "p99.9");
    println!("{:>10}{:>12}{:>10}", "max", "least max", "in each");
    for (name, scenario) in SCENARIOS.into_iter().filter(|(name, _)| is_wanted(name)) {
        let results: Vec<_> = (0..runs.max(1))
            .map(|_| {
                let mut recorder = Recorder::default();
                scenario(&mut recorder);
                recorder
            })
            .collect();
        for (at, (call, last)) in results.last().expect("there is a run").calls.iter().enumerate() {
            let max = |run: &Recorder| run.calls[at].1.iter().max().copied().expect("there is a call");
            let least_max = results.iter().map(max).min().expect("there is a run");
            let least = |n: usize| results.iter().map(|run| run.calls[at].1[n]).min();
            let in_each = (0..last.len()).filter_map(least).max().expect("there is a call");
            let mut sorted = last.clone();
            sorted.sort_unstable();
            let share = |share: f64| sorted[((sorted.len() - 1) as f64 * share) as usize];
            let figures = [share(0.5), share(0.99), share(0.999), share(1.0), least_max, in_each];
            let [p50, p99, p999, max, least_max, in_each] =
                figures.map(|time| time.as_nanos() as f64 / 1000.0);
            print!("{name:<24}{call:<10}{p50:>9.2}{p99:>9.2}{p999:>9.2}");
            println!("{max:>10.1}{least_max:>12.1}{in_each:>10.1}");
        }
    }
}

/// Puts a million jobs, then reserves and deletes all of them.
fn drain(recorder: &mut Recorder, pri: fn(u32) -> u32) {
    let mut rig = Rig::new();
    for n in 0..MILLION {
        put(&mut rig, recorder, pri(n));
    }
    for _ in 0..MILLION {
        reserve_and_delete(&mut rig, recorder);
    }
    assert!(rig.engine.jobs().is_empty());
}

fn kick(recorder: &mut Recorder) {
    let mut rig = Rig::new();
    let kicker = rig.connect();
    for _ in 0..MILLION {
        rig.put(kicker, 5000, 100_000);
    }
    let answer = recorder.time("kick", || rig.engine.kick(kicker, u32::MAX, rig.now));
    assert_eq!(answer, Begun::Working);
    work_off(&mut rig, recorder);
}

fn flush(recorder: &mut Recorder) {
    let mut rig = Rig::new();
    let producer = fill(&mut rig, "full");
    let answer = recorder.time("flush", || rig.engine.flush(producer, name("full"), rig.now));
    assert_eq!(answer, Begun::Working);
    work_off(&mut rig, recorder);
    assert!(rig.engine.jobs().is_empty());
}

fn move_all(recorder: &mut Recorder) {
    let mut rig = Rig::new();
    let producer = fill(&mut rig, "from");
    let tubes = [name("from"), name("to")];
    let ready = JobState::Ready;
    let answer = recorder.time("move", || rig.engine.move_jobs(producer, tubes, ready, u32::MAX, rig.now));
    assert_eq!(answer, Begun::Working);
    work_off(&mut rig, recorder);
    assert_eq!(rig.engine.jobs().len(), MILLION as usize);
}

/// Puts a million ready jobs of random priorities into a tube. Returns their producer.
fn fill(rig: &mut Rig, tube: &str) -> ClientKey {
    let producer = rig.connect_to(tube);
    let mut random = Random::new(0);
    for _ in 0..MILLION {
        rig.put(producer, random.next() as u32, 0);
    }
    producer
}

fn name(text: &str) -> TubeName<'_> {
    TubeName::new(text.as_bytes()).expect("a valid name")
}

fn hang_up(recorder: &mut Recorder) {
    let mut rig = Rig::new();
    let holder = rig.connect();
    for _ in 0..100_000 {
        rig.put(holder, 5000, 0);
        rig.reserve(holder);
    }
    recorder.time("hang-up", || rig.engine.disconnect(holder, rig.now));
    work_off(&mut rig, recorder);
}

fn delays_end(recorder: &mut Recorder) {
    let mut rig = Rig::new();
    for _ in 0..MILLION {
        rig.now = rig.now + Span::from_nanos(100);
        rig.put(rig.client, 5000, 100);
    }
    rig.now = rig.now + Span::from_secs(100);
    work_off(&mut rig, recorder);
}

/// Number of idle clients with many tubes, and of as many that wait.
const WIDE: usize = 1500;
/// Tubes that each of them watches.
const WATCHED: usize = NARROW_WATCH_MAX + 2;

/// Connects a client that watches `tube` and many more.
fn connect_wide(rig: &mut Rig, tube: &str) -> ClientKey {
    let client = rig.connect_to(tube);
    for number in 1..WATCHED {
        rig.engine.watch(client, name(&format!("{tube}-{number}")));
    }
    client
}

/// Connects idle clients that watch `busy` and many other tubes, and clients that wait for jobs of other tubes.
fn surround(rig: &mut Rig) {
    for _ in 0..WIDE {
        connect_wide(rig, "busy");
    }
    for _ in 0..WIDE {
        let waiting = connect_wide(rig, "elsewhere");
        assert_eq!(rig.engine.reserve(waiting, None, rig.now), Reserved::Waiting);
    }
}

fn kick_beside_wide(recorder: &mut Recorder) {
    let mut rig = Rig::new();
    let client = rig.client;
    rig.move_to(client, "busy");
    surround(&mut rig);
    for _ in 0..100_000 {
        rig.put(client, 5000, 100_000);
    }
    let answer = recorder.time("kick", || rig.engine.kick(client, u32::MAX, rig.now));
    assert_eq!(answer, Begun::Working);
    work_off(&mut rig, recorder);
}

fn hang_ups(recorder: &mut Recorder) {
    hang_up_together(Rig::new(), recorder);
}

fn hang_ups_beside_wide(recorder: &mut Recorder) {
    let mut rig = Rig::new();
    surround(&mut rig);
    hang_up_together(rig, recorder);
}

/// A thousand clients with 80 jobs each disconnect in one iteration.
fn hang_up_together(mut rig: Rig, recorder: &mut Recorder) {
    let client = rig.client;
    rig.move_to(client, "busy");
    let holders: Vec<ClientKey> = (0..1000).map(|_| rig.connect_to("busy")).collect();
    for &holder in holders.iter().cycle().take(80 * holders.len()) {
        rig.put(client, 5000, 0);
        rig.reserve(holder);
    }
    recorder.time("hang-ups", || holders.iter().for_each(|&holder| rig.engine.disconnect(holder, rig.now)));
    work_off(&mut rig, recorder);
}

/// Bytes that clients have sent before the last iteration.
type Batch = Vec<(ConnId, Vec<u8>)>;

/// One client sends requests for a tube that wide clients wait for, as fast as they are received.
fn statistics(recorder: &mut Recorder) {
    let mut server = Server::new(config(JOB_BYTES_DEFAULT));
    let watches: String = (0..WATCHED).map(|number| format!("watch busy-{number}\r\n")).collect();
    for _ in 0..WIDE {
        let conn = server.accept(Protocol::Beanstalk);
        iterate(&mut server, vec![(conn, format!("{watches}reserve\r\n").into_bytes())]);
    }
    let conn = server.accept(Protocol::Beanstalk);
    let question = "stats-tube busy-0\r\n";
    let piece = question.repeat(RECEIVE_BYTES_MAX / question.len()).into_bytes();
    for _ in 0..2 {
        let mut batch = vec![(conn, piece.clone())];
        while !batch.is_empty() || server.next_deadline() == Some(Time::ZERO) {
            recorder.time("iteration", || iterate(&mut server, std::mem::take(&mut batch)));
        }
    }
}

/// A full receive from each of a thousand clients in one iteration.
fn pipelines(recorder: &mut Recorder) {
    let mut server = Server::new(config(JOB_BYTES_DEFAULT));
    let command = "list-tube-used\r\n";
    let piece = command.repeat(RECEIVE_BYTES_MAX / command.len()).into_bytes();
    let mut batch: Batch = (0..1000).map(|_| (server.accept(Protocol::Beanstalk), piece.clone())).collect();
    while !batch.is_empty() || server.next_deadline() == Some(Time::ZERO) {
        recorder.time("iteration", || iterate(&mut server, std::mem::take(&mut batch)));
    }
}

/// Does what a driver does between two waits, apart from system calls.
fn iterate(server: &mut Server, batch: Batch) {
    for (conn, bytes) in &batch {
        server.handle(Time::ZERO, Event::Received { conn: *conn, bytes });
        carry_out(server);
    }
    server.turn(Time::ZERO);
    carry_out(server);
}

fn carry_out(server: &mut Server) {
    while let Some(effect) = server.next_effect() {
        let Effect::Send(conn) = effect else { continue };
        loop {
            let mut slices = Vec::new();
            server.outgoing(conn, &mut slices);
            let bytes = slices.iter().map(|slice| slice.len()).sum();
            if bytes == 0 {
                break;
            }
            server.handle(Time::ZERO, Event::Sent { conn, bytes });
        }
    }
}

/// Steps until nothing is due. Another client works between the steps.
fn work_off(rig: &mut Rig, recorder: &mut Recorder) {
    loop {
        let more = recorder.time("step", || rig.engine.step(rig.now));
        put(rig, recorder, 0);
        reserve_and_delete(rig, recorder);
        if !more {
            return;
        }
    }
}

fn put(rig: &mut Rig, recorder: &mut Recorder, pri: u32) {
    let new: NewJob = rig.new_job(pri, 0);
    recorder.time("put", || rig.engine.put(rig.client, new, rig.now));
}

fn reserve_and_delete(rig: &mut Rig, recorder: &mut Recorder) {
    let client = rig.client;
    let id = recorder.time("reserve", || rig.reserve(client));
    recorder.time("delete", || rig.engine.delete(client, id, rig.now));
}

/// Durations by call.
#[derive(Default)]
struct Recorder {
    calls: Vec<(&'static str, Vec<Duration>)>,
}

impl Recorder {
    fn time<R>(&mut self, call: &'static str, work: impl FnOnce() -> R) -> R {
        // Outside the measurement, since it may allocate.
        let durations = self.durations(call);
        let start = Instant::now();
        let result = work();
        durations.push(start.elapsed());
        result
    }

    fn durations(&mut self, call: &'static str) -> &mut Vec<Duration> {
        let known = self.calls.iter().position(|&(name, _)| name == call);
        let at = known.unwrap_or_else(|| {
            self.calls.push((call, Vec::with_capacity(MILLION as usize + 1)));
            self.calls.len() - 1
        });
        &mut self.calls[at].1
    }
}
