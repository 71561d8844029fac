//! Clients that watch very many tubes, and disconnects.

use std::collections::HashMap;

use beanring::queue::{BACKGROUND_STEPS, Begun, NARROW_WATCH_MAX, Released, Reserved};
use beanring::time::Seconds;
use beanring::values::ids::{ClientKey, JobId};
use beanring::values::tube_name::TubeName;

use super::bench::{Bench, USUAL, named};
use beanring_testkit::random::{Random, seeds};

/// Number of tubes that each wide client watches.
pub const WATCHED: usize = NARROW_WATCH_MAX + 2;
/// Number of idle wide clients, and of waiting ones.
pub const WIDE: u32 = 1500;
/// A call may exceed its limit by its last steps: a job that is moved and assigned to a client.
const CALL_STEPS_MAX: u32 = BACKGROUND_STEPS + 2;

impl Bench {
    /// Adds a client that watches `tube` and many more. Only clients that watch `tube` watch those.
    fn connect_wide(&mut self, tube: &str) -> ClientKey {
        let client = self.connect();
        for number in 0..WATCHED {
            let name = if number == 0 { tube.to_owned() } else { format!("{tube}-{number}") };
            self.engine.watch(client, named(&name));
        }
        self.engine.ignore(client, TubeName::DEFAULT);
        client
    }

    /// Adds wide clients that watch `tube` and are idle, and as many that wait for jobs of other tubes.
    fn surround(&mut self, tube: &str) {
        for _ in 0..WIDE {
            self.connect_wide(tube);
        }
        for _ in 0..WIDE {
            let waiting = self.connect_wide("elsewhere");
            assert_eq!(self.reserve(waiting), Reserved::Waiting);
        }
    }
}

#[test]
fn a_kick_in_a_tube_of_many_wide_watchers() {
    const JOBS: u32 = 100_000;
    let mut bench = Bench::new();
    let kicker = bench.connect_to("busy");
    bench.put_many(kicker, JOBS, 1000);
    bench.surround("busy");
    bench.spent();
    assert_eq!(bench.engine.kick(kicker, u32::MAX, bench.now), Begun::Working);
    let begun = bench.take_steps(CALL_STEPS_MAX);
    let steps = begun + bench.finish(CALL_STEPS_MAX).1;
    assert_eq!(bench.ready(), JOBS);
    assert!(steps <= JOBS + WIDE + 2, "each client is checked once, not {steps} steps for {JOBS} jobs");
}

#[test]
fn puts_and_releases_in_a_tube_of_many_wide_watchers() {
    const JOBS: u32 = 10_000;
    let mut bench = Bench::new();
    let worker = bench.connect_to("busy");
    bench.surround("busy");
    bench.spent();
    let mut steps = 0;
    for _ in 0..JOBS {
        bench.put(worker, USUAL, 0);
        steps += bench.take_steps(CALL_STEPS_MAX);
    }
    steps += bench.finish(CALL_STEPS_MAX).1;
    assert!(steps <= 2 * WIDE, "each client is checked once, not {steps} steps for {JOBS} puts");
    let held: Vec<JobId> = (0..JOBS).map(|_| bench.reserve_id(worker)).collect();
    bench.spent();
    let mut steps = 0;
    for id in held {
        assert_eq!(bench.engine.release(worker, id, USUAL, Seconds::ZERO, bench.now), Released::Done);
        steps += bench.take_steps(CALL_STEPS_MAX);
    }
    assert!(steps <= 2, "no client has begun to wait, but {JOBS} releases took {steps} steps");
    assert_eq!(bench.ready(), JOBS);
}

#[test]
fn a_search_for_a_wide_client_resumes_where_it_stopped() {
    let mut bench = Bench::new();
    let producer = bench.connect_to("busy");
    bench.surround("busy");
    let wide: Vec<ClientKey> = (0..3).map(|_| bench.connect_wide("busy")).collect();
    let narrow = bench.connect_to("busy");
    let line = [wide[0], narrow, wide[1]];
    for client in line {
        assert_eq!(bench.reserve(client), Reserved::Waiting);
    }
    bench.spent();
    for _ in 0..4 {
        bench.put(producer, USUAL, 0);
        bench.take_steps(CALL_STEPS_MAX);
    }
    assert_eq!(bench.reserved(), 0, "the search takes more steps than the puts may");
    bench.engine.check();
    assert_eq!(bench.reserve(wide[2]), Reserved::Waiting, "a new client waits behind the others");
    let steps = bench.finish(CALL_STEPS_MAX).1;
    assert!(steps <= WIDE + 16, "each client is checked once, not {steps} steps");
    let slots = [line[0], line[1], line[2], wide[2]].map(|client| bench.slot(client));
    assert_eq!(bench.reserved_by(), slots, "the longest wait ends first");
}

/// Clients whose list of watches is looked at in one go: as many as one piece of background work has steps.
#[test]
fn a_search_that_takes_all_steps_of_a_piece_serves_the_client_that_it_finds() {
    const WATCHING: usize = BACKGROUND_STEPS as usize / 4;
    const PUTS: usize = 20;
    let mut bench = Bench::new();
    let producer = bench.connect();
    bench.engine.use_tube(producer, named("busy"));
    let names = (0..2 * WATCHING).map(|at| if at < WATCHING { "busy" } else { "elsewhere" });
    let wide: Vec<ClientKey> = names.map(|tube| bench.connect_wide(tube)).collect();
    for &client in &wide {
        assert_eq!(bench.reserve(client), Reserved::Waiting);
    }
    bench.put_many(producer, PUTS as u32, 0);
    (0..PUTS).for_each(|_| _ = bench.step());
    assert!(!bench.step(), "the work comes to an end");
    let slots: Vec<u32> = wide[..PUTS].iter().map(|&client| bench.slot(client)).collect();
    assert_eq!(bench.reserved_by(), slots, "the longest wait ends first");
}

/// Wide clients wait, stop waiting, disconnect and get jobs at random. Every job goes to the client that has waited longest.
#[test]
fn wide_waiters_match_a_naive_list() {
    const TUBES: usize = 120;
    const CLIENTS: usize = 700;
    for seed in seeds(4) {
        println!("BEANRING_TEST_SEED={seed}");
        let mut random = Random::new(seed);
        let mut bench = Bench::new();
        let name = |tube: usize| format!("tube-{tube}");
        let producers: Vec<ClientKey> = (0..TUBES).map(|tube| bench.connect_to(&name(tube))).collect();
        bench.spent();
        // The wide clients by connection, each with the tubes that it watches.
        let mut clients: HashMap<u32, (ClientKey, Vec<usize>)> = HashMap::new();
        // By connection, the longest wait first.
        let mut line: Vec<u32> = Vec::new();
        for round in 0..6000 {
            if clients.len() < CLIENTS {
                let client = bench.connect();
                let first = random.below(TUBES);
                let watched: Vec<usize> = (0..WATCHED + 1).map(|step| (first + 5 * step) % TUBES).collect();
                for &tube in &watched {
                    bench.engine.watch(client, named(&name(tube)));
                }
                bench.engine.ignore(client, TubeName::DEFAULT);
                clients.insert(bench.conns, (client, watched));
            }
            // In random order, because slots are assigned in order.
            let mut slots: Vec<u32> = clients.keys().copied().collect();
            slots.sort_unstable();
            let slot = slots[random.below(slots.len())];
            let client = clients[&slot].0;
            match (random.below(16), line.iter().position(|&waiting| waiting == slot)) {
                (0, place) => {
                    bench.engine.disconnect(client, bench.now);
                    place.map(|place| line.remove(place));
                    clients.remove(&slot);
                }
                (1..3, Some(place)) => {
                    bench.engine.end_wait(client);
                    line.remove(place);
                }
                (1..13, None) => {
                    assert_eq!(bench.reserve(client), Reserved::Waiting, "no job is left over");
                    line.push(slot);
                }
                _ => {
                    let tube = random.below(TUBES);
                    bench.spent();
                    let id = bench.put(producers[tube], USUAL, 0);
                    bench.take_steps(CALL_STEPS_MAX);
                    bench.finish(CALL_STEPS_MAX);
                    let longest = line.iter().position(|slot| clients[slot].1.contains(&tube));
                    let expected: Vec<u32> = longest.map(|at| line.remove(at)).into_iter().collect();
                    assert_eq!(bench.reserved_by(), expected, "round {round}");
                    let holder = expected.first().map_or(bench.amid, |slot| clients[slot].0);
                    assert!(bench.engine.delete(holder, id, bench.now));
                }
            }
            bench.take_steps(CALL_STEPS_MAX);
            bench.finish(CALL_STEPS_MAX);
            let key = bench.engine.tubes().find(named("tube-7")).expect("a client uses the tube");
            let waiting = line.iter().filter(|slot| clients[slot].1.contains(&7)).count();
            assert_eq!(bench.engine.tube_waiting(key), waiting, "round {round}");
            if round % 200 == 0 {
                bench.engine.check();
            }
        }
    }
}

#[test]
fn many_holders_disconnect_at_once() {
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
    bench.spent();
    for &holder in &holders {
        bench.engine.disconnect(holder, bench.now);
    }
    bench.take_steps(CALL_STEPS_MAX);
    assert!(bench.ready() <= BACKGROUND_STEPS + 1, "{} jobs went back at once", bench.ready());
    bench.engine.check();
    let steps = bench.finish(CALL_STEPS_MAX).1;
    let most = HOLDERS * (HELD + 1) + WIDE;
    assert!(steps <= most, "each client is checked once, not {steps} steps");
    assert_eq!((bench.ready(), bench.reserved()), (HOLDERS * HELD, 0));
}

#[test]
fn many_idle_clients_disconnect_at_once() {
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
    bench.run_in_steps(CLIENTS * WATCHED as u32, |bench| before - watches(bench));
    assert_eq!(bench.engine.tubes().len(), 2, "only default and the separate tube are left");
}
