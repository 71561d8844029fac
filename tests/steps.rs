//! Large commands and moments are worked off in bounded steps, and others go on between them. Counts, not
//! clocks.

#[allow(dead_code)] // Each test program uses a part of it.
mod support;

use std::collections::HashMap;
use std::io::IoSlice;

use beanring::ids::{ClientKey, ConnId, JobId};
use beanring::limits::{BACKGROUND_STEPS, COMMAND_STEPS, NARROW_WATCH_MAX, RUN_STEPS};
use beanring::queue::{Engine, Kicked, NewJob, Notice, Reserved, State};
use beanring::server::{Effect, Event, Server, Service};
use beanring::time::{Span, Time};
use beanring::tube_name::TubeName;
use support::core::config;
use support::random::{Random, seeds};

const START: Time = Time::from_nanos(1_000_000_000_000);
/// Background work and timers have a budget each.
const MOVED_MAX: u32 = 2 * BACKGROUND_STEPS;
const URGENT: u32 = 0;
const USUAL: u32 = 5000;

struct Bench {
    engine: Engine,
    now: Time,
    conns: u32,
    /// A client on a tube of its own, and one on the tube where the work is.
    apart: ClientKey,
    amid: ClientKey,
}

impl Bench {
    fn new() -> Self {
        let mut engine = Engine::new(0);
        let mut connect = |slot| engine.connect(ConnId { slot, generation: 0 });
        let (apart, amid) = (connect(0), connect(1));
        let mut bench = Self { engine, now: START, conns: 2, apart, amid };
        let own = TubeName::new(b"apart").expect("a valid name");
        bench.engine.use_tube(apart, own);
        bench.engine.watch(apart, own);
        bench.engine.ignore(apart, TubeName::DEFAULT);
        bench
    }

    fn connect(&mut self) -> ClientKey {
        self.conns += 1;
        self.engine.connect(ConnId { slot: self.conns, generation: 0 })
    }

    fn put(&mut self, client: ClientKey, pri: u32, delay: u32) -> JobId {
        let id = self.engine.next_id();
        let body = self.engine.bodies_mut().allocate(2).expect("there is memory");
        self.engine.put(client, NewJob { id, pri, delay, ttr: 100, body }, self.now);
        id
    }

    fn put_many(&mut self, client: ClientKey, count: u32, delay: u32) {
        for _ in 0..count {
            self.put(client, USUAL, delay);
        }
    }

    fn reserve(&mut self, client: ClientKey) -> Reserved {
        self.engine.reserve(client, None, self.now)
    }

    fn id(&self, reserved: Reserved) -> JobId {
        let Reserved::Job(job) = reserved else { panic!("there is a job, not {reserved:?}") };
        self.engine.jobs().get(job).id
    }

    fn ready(&self) -> u32 {
        self.engine.queue_stats().census.in_state(State::Ready)
    }

    fn held(&self) -> u32 {
        self.engine.queue_stats().census.in_state(State::Reserved)
    }

    /// The full life of a job that is more urgent than all others.
    fn live_on(&mut self, client: ClientKey) {
        let id = self.put(client, URGENT, 0);
        let reserved = self.reserve(client);
        assert_eq!(self.id(reserved), id, "the most urgent job of the tube comes first");
        assert!(self.engine.delete(client, id, self.now));
    }

    /// Steps until nothing is due, while two clients go on; `progress` counts what has been moved.
    /// Returns how many steps it took.
    fn work_off(&mut self, progress: impl Fn(&Self) -> u32) -> u32 {
        let mut steps = 0;
        while self.engine.next_deadline().is_some_and(|at| at <= self.now) {
            let before = progress(self);
            self.engine.step(self.now);
            let moved = progress(self) - before;
            assert!(moved <= MOVED_MAX, "step {steps} moved {moved} jobs");
            self.live_on(self.apart);
            self.live_on(self.amid);
            steps += 1;
        }
        assert!(!self.engine.step(self.now), "nothing is left");
        steps
    }

    fn only_notice(&mut self) -> Option<Notice> {
        let notice = self.engine.next_notice();
        assert_eq!(self.engine.next_notice(), None);
        notice
    }
}

/// No more steps than the work is worth, and no fewer than the bound allows.
fn assert_steps(steps: u32, jobs: u32) {
    assert!(steps >= jobs / MOVED_MAX, "{steps} steps for {jobs} jobs");
    assert!(steps <= jobs / (BACKGROUND_STEPS / 2) + 2, "{steps} steps for {jobs} jobs");
}

#[test]
fn a_kick_of_a_million_delayed_jobs() {
    const JOBS: u32 = 1_000_000;
    let mut bench = Bench::new();
    let kicker = bench.connect();
    bench.put_many(kicker, JOBS, 1000);
    assert_eq!(bench.engine.kick(kicker, u32::MAX, bench.now), Kicked::Working);
    assert!(bench.ready() <= MOVED_MAX);
    let steps = bench.work_off(Bench::ready);
    assert_steps(steps, JOBS);
    assert_eq!(bench.ready(), JOBS);
    assert!(matches!(bench.only_notice(), Some(Notice::Kicked(_, JOBS))));
    bench.engine.check();
}

#[test]
fn a_kick_of_many_buried_jobs_leaves_those_buried_meanwhile() {
    const JOBS: u32 = 10_000;
    let mut bench = Bench::new();
    let kicker = bench.connect();
    bench.put_many(kicker, JOBS, 0);
    for _ in 0..JOBS {
        let reserved = bench.reserve(kicker);
        let id = bench.id(reserved);
        assert!(bench.engine.bury(kicker, id, USUAL, bench.now));
    }
    assert_eq!(bench.engine.kick(kicker, u32::MAX, bench.now), Kicked::Working);
    let id = bench.put(bench.amid, URGENT, 0);
    assert!(bench.engine.reserve_job(bench.amid, id, bench.now).is_some());
    assert!(bench.engine.bury(bench.amid, id, URGENT, bench.now));
    bench.work_off(Bench::ready);
    assert!(matches!(bench.only_notice(), Some(Notice::Kicked(_, JOBS))));
    let left = bench.engine.peek_buried(kicker).expect("one was buried after the command");
    assert_eq!(bench.engine.jobs().get(left).id, id);
    bench.engine.check();
}

#[test]
fn a_kick_whose_client_has_gone_goes_on_in_a_tube_that_nobody_uses() {
    const JOBS: u32 = 10_000;
    let mut bench = Bench::new();
    let kicker = bench.connect();
    bench.engine.use_tube(kicker, TubeName::new(b"abandoned").expect("a valid name"));
    let first = bench.put(kicker, USUAL, 1000);
    bench.put_many(kicker, JOBS - 1, 1000);
    assert_eq!(bench.engine.kick(kicker, u32::MAX, bench.now), Kicked::Working);
    bench.engine.disconnect(kicker, bench.now);
    for id in (first.0..).take(JOBS as usize) {
        assert!(bench.engine.delete(bench.amid, JobId(id), bench.now));
    }
    bench.work_off(|_| 0);
    assert_eq!(bench.engine.queue_stats().tubes, 2, "default and the one apart");
    bench.engine.check();
}

#[test]
fn a_hang_up_with_a_hundred_thousand_held_jobs() {
    const JOBS: u32 = 100_000;
    let mut bench = Bench::new();
    let holder = bench.connect();
    bench.put_many(holder, JOBS, 0);
    for _ in 0..JOBS {
        bench.reserve(holder);
    }
    bench.engine.disconnect(holder, bench.now);
    assert!(bench.ready() <= MOVED_MAX);
    let steps = bench.work_off(Bench::ready);
    assert_steps(steps, JOBS);
    assert_eq!((bench.ready(), bench.held()), (JOBS, 0));
    assert!(bench.engine.jobs().iter().all(|(key, _)| {
        bench.engine.jobs().activity(key).is_some_and(|activity| activity.counts.timeouts == 0)
    }));
    bench.engine.check();
}

#[test]
fn a_hang_up_that_watches_ten_thousand_tubes() {
    const TUBES: u32 = 10_000;
    let mut bench = Bench::new();
    let watcher = bench.connect();
    for tube in 0..TUBES {
        bench.engine.watch(watcher, TubeName::new(format!("tube-{tube}").as_bytes()).expect("a valid name"));
    }
    assert_eq!(bench.engine.queue_stats().tubes as u32, TUBES + 2);
    let gone = |bench: &Bench| TUBES + 2 - bench.engine.queue_stats().tubes as u32;
    bench.engine.disconnect(watcher, bench.now);
    let steps = bench.work_off(gone);
    assert_steps(steps, TUBES);
    assert_eq!(gone(&bench), TUBES);
    bench.engine.check();
}

#[test]
fn a_million_delays_that_end_together() {
    const JOBS: u32 = 1_000_000;
    let mut bench = Bench::new();
    bench.put_many(bench.amid, JOBS, 10);
    assert_eq!(bench.engine.next_deadline(), Some(START + Span::from_secs(10)));
    bench.now = START + Span::from_secs(10);
    let steps = bench.work_off(Bench::ready);
    assert_steps(steps, JOBS);
    assert_eq!(bench.ready(), JOBS);
    bench.engine.check();
}

#[test]
fn a_hundred_thousand_reservations_that_time_out_together() {
    const JOBS: u32 = 100_000;
    let mut bench = Bench::new();
    let holder = bench.connect();
    bench.put_many(holder, JOBS, 0);
    for _ in 0..JOBS {
        bench.reserve(holder);
    }
    bench.now = START + Span::from_secs(100);
    let steps = bench.work_off(Bench::ready);
    assert_steps(steps, JOBS);
    assert_eq!(bench.engine.queue_stats().census.timeouts, u64::from(JOBS));
    bench.engine.check();
}

/// Many jobs in a paused tube, and as many workers that wait for them.
fn many_workers_at_a_paused_tube(jobs: u32) -> (Bench, ClientKey) {
    let mut bench = Bench::new();
    let name = TubeName::new(b"paused").expect("a valid name");
    let boss = bench.connect();
    bench.engine.use_tube(boss, name);
    assert!(bench.engine.pause(name, Span::from_secs(10), bench.now));
    bench.put_many(boss, jobs, 0);
    for _ in 0..jobs {
        let worker = bench.connect();
        bench.engine.watch(worker, name);
        bench.engine.ignore(worker, TubeName::DEFAULT);
        assert_eq!(bench.reserve(worker), Reserved::Waiting);
    }
    bench.engine.check();
    (bench, boss)
}

#[test]
fn a_pause_that_ends_for_ten_thousand_workers() {
    const JOBS: u32 = 10_000;
    let (mut bench, _) = many_workers_at_a_paused_tube(JOBS);
    bench.now = START + Span::from_secs(10);
    let steps = bench.work_off(Bench::held);
    assert_steps(steps, JOBS);
    assert_eq!((bench.ready(), bench.held()), (0, JOBS));
    let served = std::iter::from_fn(|| bench.engine.next_notice());
    let slots: Vec<u32> = served
        .map(|notice| match notice {
            Notice::Reserved(conn, _) => conn.slot,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(slots.len() as u32, JOBS);
    assert!(slots.is_sorted(), "first come, first served");
    bench.engine.check();
}

#[test]
fn delays_that_end_with_the_pause_add_no_work_to_a_step() {
    const JOBS: u32 = 20_000;
    let (mut bench, boss) = many_workers_at_a_paused_tube(JOBS);
    bench.put_many(boss, JOBS, 10);
    bench.now = START + Span::from_secs(10);
    bench.work_off(Bench::held);
    assert_eq!((bench.ready(), bench.held()), (JOBS, JOBS));
    bench.engine.check();
}

#[test]
fn a_put_amid_a_hand_out_does_not_do_the_work_of_others() {
    const JOBS: u32 = 10_000;
    let (mut bench, boss) = many_workers_at_a_paused_tube(JOBS);
    let name = TubeName::new(b"paused").expect("a valid name");
    assert!(bench.engine.pause(name, Span::ZERO, bench.now));
    let held = bench.held();
    assert!(held <= MOVED_MAX);
    bench.put_many(boss, 10, 0);
    assert!(bench.held() <= held + 10, "ten puts handed out {} jobs", bench.held() - held);
    bench.work_off(Bench::held);
    assert_eq!((bench.ready(), bench.held()), (10, JOBS));
    bench.engine.check();
}

#[test]
fn a_newcomer_amid_a_hand_out_gets_in_line() {
    const JOBS: u32 = 1000;
    let (mut bench, boss) = many_workers_at_a_paused_tube(JOBS);
    let name = TubeName::new(b"paused").expect("a valid name");
    bench.put_many(boss, 2, 0);
    let (patient, hasty) = (bench.connect(), bench.connect());
    for newcomer in [patient, hasty] {
        bench.engine.watch(newcomer, name);
        bench.engine.ignore(newcomer, TubeName::DEFAULT);
    }
    assert!(bench.engine.pause(name, Span::ZERO, bench.now));
    assert_eq!(bench.reserve(patient), Reserved::Waiting);
    let at_once = bench.engine.reserve(hasty, Some(Span::ZERO), bench.now);
    assert!(matches!(at_once, Reserved::Job(_)), "there is a job for who cannot wait");
    bench.work_off(Bench::held);
    let last = std::iter::from_fn(|| bench.engine.next_notice()).last();
    let conn = bench.engine.clients().get(patient).conn;
    assert!(matches!(last, Some(Notice::Reserved(to, _)) if to == conn), "not {last:?}");
    bench.engine.check();
}

#[test]
fn the_pauses_of_many_tubes_end_together() {
    const TUBES: u32 = 100;
    const JOBS: u32 = 200;
    let mut bench = Bench::new();
    let boss = bench.connect();
    for tube in 0..TUBES {
        let name = format!("tube-{tube}");
        let name = TubeName::new(name.as_bytes()).expect("a valid name");
        bench.engine.use_tube(boss, name);
        assert!(bench.engine.pause(name, Span::from_secs(10), bench.now));
        bench.put_many(boss, JOBS, 0);
        for _ in 0..JOBS {
            let worker = bench.connect();
            bench.engine.watch(worker, name);
            bench.engine.ignore(worker, TubeName::DEFAULT);
            assert_eq!(bench.reserve(worker), Reserved::Waiting);
        }
    }
    bench.now = START + Span::from_secs(10);
    bench.work_off(Bench::held);
    assert_eq!((bench.ready(), bench.held()), (0, TUBES * JOBS));
    bench.engine.check();
}

// Clients that watch very many tubes.

/// Watched by each wide client.
const WATCHED: usize = NARROW_WATCH_MAX + 2;
/// As many are idle as wait.
const WIDE: u32 = 1500;
/// A call may overshoot its bound by the last thing that it does: a job moved and handed to a client.
const CALL_STEPS_MAX: u32 = BACKGROUND_STEPS + 2;

impl Bench {
    /// A client that watches `tube` and many more, which no other client watches that does not watch `tube` too.
    fn connect_wide(&mut self, tube: &str) -> ClientKey {
        let client = self.connect();
        for number in 0..WATCHED {
            let name = if number == 0 { tube.to_owned() } else { format!("{tube}-{number}") };
            self.engine.watch(client, TubeName::new(name.as_bytes()).expect("a valid name"));
        }
        self.engine.ignore(client, TubeName::DEFAULT);
        client
    }

    /// Wide clients that watch `tube` and do nothing, and as many that wait for jobs of other tubes.
    fn surround(&mut self, tube: &str) {
        for _ in 0..WIDE {
            self.connect_wide(tube);
        }
        for _ in 0..WIDE {
            let waiting = self.connect_wide("elsewhere");
            assert_eq!(self.reserve(waiting), Reserved::Waiting);
        }
    }

    fn connect_to(&mut self, tube: &str) -> ClientKey {
        let client = self.connect();
        let name = TubeName::new(tube.as_bytes()).expect("a valid name");
        self.engine.use_tube(client, name);
        self.engine.watch(client, name);
        self.engine.ignore(client, TubeName::DEFAULT);
        client
    }

    /// What the calls since the last look took.
    fn take_steps(&mut self, most: u32) -> u32 {
        let steps = self.engine.take_steps();
        assert!(steps <= most, "a call took {steps} steps, not {most} at most");
        steps
    }

    /// Steps until nothing is due. Returns what that took.
    fn finish(&mut self) -> u32 {
        let mut steps = 0;
        while self.engine.next_deadline().is_some_and(|at| at <= self.now) {
            self.engine.step(self.now);
            steps += self.take_steps(CALL_STEPS_MAX);
        }
        steps
    }

    fn reserved_by(&mut self) -> Vec<u32> {
        let notices = std::iter::from_fn(|| self.engine.next_notice());
        notices
            .map(|notice| match notice {
                Notice::Reserved(conn, _) => conn.slot,
                other => panic!("{other:?}"),
            })
            .collect()
    }
}

#[test]
fn a_kick_in_a_tube_of_many_wide_watchers() {
    const JOBS: u32 = 100_000;
    let mut bench = Bench::new();
    let kicker = bench.connect_to("busy");
    bench.put_many(kicker, JOBS, 1000);
    bench.surround("busy");
    bench.engine.take_steps();
    assert_eq!(bench.engine.kick(kicker, u32::MAX, bench.now), Kicked::Working);
    let begun = bench.take_steps(CALL_STEPS_MAX);
    let steps = begun + bench.finish();
    assert_eq!(bench.ready(), JOBS);
    assert!(steps <= JOBS + WIDE + 2, "each client is looked at once, not {steps} steps for {JOBS} jobs");
    bench.engine.check();
}

#[test]
fn puts_and_releases_in_a_tube_of_many_wide_watchers() {
    const JOBS: u32 = 10_000;
    let mut bench = Bench::new();
    let worker = bench.connect_to("busy");
    bench.surround("busy");
    bench.engine.take_steps();
    let mut steps = 0;
    for _ in 0..JOBS {
        bench.put(worker, USUAL, 0);
        steps += bench.take_steps(CALL_STEPS_MAX);
    }
    steps += bench.finish();
    assert!(steps <= 2 * WIDE, "each client is looked at once, not {steps} steps for {JOBS} puts");
    let held: Vec<JobId> = (0..JOBS)
        .map(|_| {
            let reserved = bench.reserve(worker);
            bench.id(reserved)
        })
        .collect();
    bench.engine.take_steps();
    let mut steps = 0;
    for id in held {
        assert!(bench.engine.release(worker, id, USUAL, 0, bench.now));
        steps += bench.take_steps(CALL_STEPS_MAX);
    }
    assert!(steps <= 2, "no client has begun to wait, but {JOBS} releases took {steps} steps");
    assert_eq!(bench.ready(), JOBS);
    bench.engine.check();
}

#[test]
fn a_search_for_a_wide_client_goes_on_where_it_stopped() {
    let mut bench = Bench::new();
    let producer = bench.connect_to("busy");
    bench.surround("busy");
    let wide: Vec<ClientKey> = (0..3).map(|_| bench.connect_wide("busy")).collect();
    let narrow = bench.connect_to("busy");
    let line = [wide[0], narrow, wide[1]];
    for client in line {
        assert_eq!(bench.reserve(client), Reserved::Waiting);
    }
    bench.engine.take_steps();
    for _ in 0..4 {
        bench.put(producer, USUAL, 0);
        bench.take_steps(CALL_STEPS_MAX);
    }
    assert_eq!(bench.held(), 0, "the search takes more steps than the puts may");
    bench.engine.check();
    assert_eq!(bench.reserve(wide[2]), Reserved::Waiting, "a newcomer gets in line");
    let steps = bench.finish();
    assert!(steps <= WIDE + 16, "each client is looked at once, not {steps} steps");
    let slots =
        [line[0], line[1], line[2], wide[2]].map(|client| bench.engine.clients().get(client).conn.slot);
    assert_eq!(bench.reserved_by(), slots, "first come, first served");
    bench.engine.check();
}

/// A wide client as a list of all would have it.
struct Naive {
    client: ClientKey,
    watched: Vec<usize>,
    is_waiting: bool,
}

/// Wide clients wait, give up, hang up and get jobs at random. Every job goes to the one that has waited longest.
#[test]
fn wide_clients_in_a_line_against_a_list() {
    const TUBES: usize = 120;
    const CLIENTS: usize = 700;
    for seed in seeds(4) {
        println!("BEANRING_SEED={seed}");
        let mut random = Random::new(seed);
        let mut bench = Bench::new();
        let name = |tube: usize| format!("tube-{tube}");
        let producers: Vec<ClientKey> = (0..TUBES).map(|tube| bench.connect_to(&name(tube))).collect();
        let mut clients: HashMap<u32, Naive> = HashMap::new();
        // By their connections, the longest waiting first.
        let mut line: Vec<u32> = Vec::new();
        for round in 0..6000 {
            if clients.len() < CLIENTS {
                let client = bench.connect();
                let first = random.below(TUBES);
                let watched: Vec<usize> = (0..WATCHED + 1).map(|step| (first + 5 * step) % TUBES).collect();
                for &tube in &watched {
                    bench.engine.watch(client, TubeName::new(name(tube).as_bytes()).expect("a valid name"));
                }
                bench.engine.ignore(client, TubeName::DEFAULT);
                clients.insert(bench.conns, Naive { client, watched, is_waiting: false });
            }
            // In an order that the seed decides: slots are given in order.
            let mut slots: Vec<u32> = clients.keys().copied().collect();
            slots.sort_unstable();
            let slot = slots[random.below(slots.len())];
            let naive = clients.get_mut(&slot).expect("it is there");
            match (random.below(16), naive.is_waiting) {
                (0, _) => {
                    bench.engine.disconnect(naive.client, bench.now);
                    line.retain(|&waiting| waiting != slot);
                    clients.remove(&slot);
                }
                (1..3, true) => {
                    bench.engine.end_wait(naive.client);
                    naive.is_waiting = false;
                    line.retain(|&waiting| waiting != slot);
                }
                (1..13, false) => {
                    assert_eq!(bench.reserve(naive.client), Reserved::Waiting, "no job is left over");
                    naive.is_waiting = true;
                    line.push(slot);
                }
                _ => {
                    let tube = random.below(TUBES);
                    bench.engine.take_steps();
                    let id = bench.put(producers[tube], USUAL, 0);
                    bench.take_steps(CALL_STEPS_MAX);
                    bench.finish();
                    let longest = line.iter().position(|slot| clients[slot].watched.contains(&tube));
                    let expected: Vec<u32> = longest.map(|at| line.remove(at)).into_iter().collect();
                    assert_eq!(bench.reserved_by(), expected, "round {round}");
                    let holder = expected.first().map(|slot| clients.get_mut(slot).expect("it is there"));
                    let holder = holder.map_or(bench.amid, |naive| {
                        naive.is_waiting = false;
                        naive.client
                    });
                    assert!(bench.engine.delete(holder, id, bench.now));
                }
            }
            bench.take_steps(CALL_STEPS_MAX);
            bench.finish();
            let key = bench.engine.tubes().find(TubeName::new(b"tube-7").expect("a valid name"));
            let waiting = line.iter().filter(|slot| clients[slot].watched.contains(&7)).count();
            assert_eq!(bench.engine.tube_waiting(key.expect("it is used")), waiting, "round {round}");
            if round % 200 == 0 {
                bench.engine.check();
            }
        }
        bench.engine.check();
    }
}

#[test]
fn many_holders_hang_up_in_one_moment() {
    const HOLDERS: u32 = 1000;
    const HELD: u32 = 80;
    let mut bench = Bench::new();
    let producer = bench.connect_to("busy");
    bench.put_many(producer, HOLDERS * HELD, 0);
    let holders: Vec<ClientKey> = (0..HOLDERS).map(|_| bench.connect_to("busy")).collect();
    for &holder in holders.iter().cycle().take((HOLDERS * HELD) as usize) {
        bench.reserve(holder);
    }
    bench.surround("busy");
    bench.engine.take_steps();
    for &holder in &holders {
        bench.engine.disconnect(holder, bench.now);
    }
    bench.take_steps(CALL_STEPS_MAX);
    assert!(bench.ready() <= BACKGROUND_STEPS + 1, "{} jobs went back at once", bench.ready());
    bench.engine.check();
    let steps = bench.finish();
    let most = HOLDERS * (HELD + 1) + WIDE;
    assert!(steps <= most, "each client is looked at once, not {steps} steps");
    assert_eq!((bench.ready(), bench.held()), (HOLDERS * HELD, 0));
    bench.engine.check();
}

#[test]
fn many_idle_clients_hang_up_in_one_moment() {
    const CLIENTS: u32 = 5000;
    let mut bench = Bench::new();
    let clients: Vec<ClientKey> = (0..CLIENTS).map(|_| bench.connect_wide("busy")).collect();
    let watches = |bench: &Bench| {
        let tubes = bench.engine.tubes().iter();
        tubes.map(|(key, _)| bench.engine.tube_stats(key, bench.now).watching).sum::<u32>()
    };
    let before = watches(&bench);
    for client in clients {
        bench.engine.disconnect(client, bench.now);
    }
    let gone = before - watches(&bench);
    assert!(gone <= BACKGROUND_STEPS, "{gone} watches were removed at once");
    bench.engine.check();
    let steps = bench.work_off(|bench| before - watches(bench));
    assert_steps(steps, CLIENTS * WATCHED as u32);
    assert_eq!(bench.engine.queue_stats().tubes, 2, "default and the one apart");
    bench.engine.check();
}

// Many events in one iteration of a driver's loop.

/// A server whose driver counts what was sent to each connection, in replies that begin like this.
struct Loop {
    server: Server,
    sent: HashMap<ConnId, Vec<u8>>,
}

impl Loop {
    fn new() -> Self {
        Self { server: Server::new(config(65_535)), sent: HashMap::new() }
    }

    fn connect(&mut self) -> ConnId {
        self.server.connect()
    }

    fn receive(&mut self, conn: ConnId, text: &str) {
        self.server.handle(START, Event::Received { conn, bytes: text.as_bytes() });
        self.carry_out();
    }

    /// Sends commands and waits until the server has nothing left to do.
    fn settle(&mut self, conn: ConnId, text: &str) {
        self.receive(conn, text);
        while self.is_busy() {
            self.turn();
        }
    }

    fn is_busy(&self) -> bool {
        self.server.next_deadline().is_some_and(|at| at <= START)
    }

    fn turn(&mut self) {
        self.server.turn(START);
        self.carry_out();
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.server.next_effect() {
            match effect {
                Effect::Send(conn) => self.send(conn),
                Effect::Close(conn) => self.server.handle(START, Event::Closed { conn }),
                Effect::Pause(_) | Effect::Resume(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn send(&mut self, conn: ConnId) {
        loop {
            let mut slices: Vec<IoSlice<'_>> = Vec::new();
            self.server.outgoing(conn, &mut slices);
            let bytes: usize = slices.iter().map(|slice| slice.len()).sum();
            if bytes == 0 {
                return;
            }
            let sent = self.sent.entry(conn).or_default();
            slices.iter().for_each(|slice| sent.extend_from_slice(slice));
            self.server.handle(START, Event::Sent { conn, bytes });
        }
    }

    /// How many replies that begin like this have been sent.
    fn replies(&self, begin: &str) -> usize {
        let count = |sent: &Vec<u8>| String::from_utf8_lossy(sent).matches(begin).count();
        self.sent.values().map(count).sum()
    }
}

fn wide_watches(tube: &str) -> String {
    (0..WATCHED).map(|number| format!("watch {tube}-{number}\r\n")).collect()
}

#[test]
fn pipelined_statistics_of_a_tube_of_many_wide_watchers() {
    const ASKED: usize = 1600;
    let mut bench = Loop::new();
    for _ in 0..WIDE {
        let waiting = bench.connect();
        bench.settle(waiting, &(wide_watches("busy") + "reserve\r\n"));
    }
    let curious = bench.connect();
    let other = bench.connect();
    let mut answered = 0;
    // As a driver does, which leaves the rest in the kernel.
    for _ in 0..ASKED / 100 {
        bench.receive(curious, &"stats-tube busy-0\r\n".repeat(100));
        loop {
            bench.turn();
            let replies = bench.replies("current-waiting: 1500\n");
            let looks = (replies - answered) * WIDE as usize;
            assert!(
                looks <= 2 * RUN_STEPS as usize + 2 * WIDE as usize,
                "an iteration looked at {looks} clients"
            );
            answered = replies;
            bench.receive(other, "list-tube-used\r\n");
            assert_eq!(bench.sent.remove(&other).as_deref(), Some(&b"USING default\r\n"[..]), "others go on");
            if !bench.is_busy() {
                break;
            }
        }
    }
    assert_eq!(answered, ASKED);
    bench.server.check();
}

#[test]
fn many_clients_that_pipeline_share_an_iteration() {
    const CLIENTS: usize = 500;
    const EACH: usize = 300;
    let mut bench = Loop::new();
    let clients: Vec<ConnId> = (0..CLIENTS).map(|_| bench.connect()).collect();
    for &client in &clients {
        bench.receive(client, &"list-tube-used\r\n".repeat(EACH));
    }
    assert_eq!(bench.sent.len(), CLIENTS, "each has its first reply at once");
    let most = (2 * RUN_STEPS / COMMAND_STEPS) as usize + CLIENTS;
    let mut answered = 0;
    loop {
        bench.turn();
        let replies = bench.replies("USING default\r\n");
        assert!(replies - answered <= most, "an iteration served {} commands", replies - answered);
        answered = replies;
        if !bench.is_busy() {
            break;
        }
    }
    assert_eq!(answered, CLIENTS * EACH);
    assert!(bench.sent.values().all(|sent| sent.len() == EACH * "USING default\r\n".len()));
    bench.server.check();
}

#[test]
fn holders_that_hang_up_in_one_iteration() {
    const HOLDERS: u32 = 300;
    const HELD: u32 = 80;
    let mut bench = Loop::new();
    let other = bench.connect();
    for _ in 0..HOLDERS * HELD / 100 {
        bench.settle(other, &"put 0 0 100 1\r\nx\r\n".repeat(100));
    }
    let holders: Vec<ConnId> = (0..HOLDERS).map(|_| bench.connect()).collect();
    for &holder in &holders {
        bench.settle(holder, &"reserve\r\n".repeat(HELD as usize));
    }
    let ready = |bench: &Loop| bench.server.engine().queue_stats().census.in_state(State::Ready);
    assert_eq!(ready(&bench), 0);
    for &conn in &holders {
        bench.server.handle(START, Event::InputEnded { conn });
        bench.carry_out();
    }
    let mut before = ready(&bench);
    assert!(before <= BACKGROUND_STEPS + 1, "{before} jobs went back at once");
    while bench.is_busy() {
        bench.turn();
        let moved = ready(&bench) - before;
        assert!(moved <= 2 * BACKGROUND_STEPS, "an iteration moved {moved} jobs");
        before = ready(&bench);
    }
    assert_eq!(before, HOLDERS * HELD);
    bench.server.check();
}
