//! States of a server that may make what one client does expensive for the others.

use std::time::{Duration, Instant};

use beanring_testkit::random::Random;

use crate::talk::{Talk, put, put_batch, rules};
use crate::world::{BATCH, TUBE, World};

pub struct Load {
    pub name: &'static str,
    /// What there is four times as much of at the larger size: for the short form, and for the long one, whose larger size is
    /// that of the documented limits.
    pub sizes: [usize; 2],
    pub build: fn(&mut World, usize),
}

const fn load(name: &'static str, sizes: [usize; 2], build: fn(&mut World, usize)) -> Load {
    Load { name, sizes, build }
}

/// Tubes in which each key has a lane.
const LANE_TUBES: usize = 256;

/// Its build reads lists for a minute, and no container grows there.
pub const LISTS: &str = "clients that have lists to read";

/// The load whose every end is measured: what opens its lanes does so once.
pub const LANES: &str = "full keys with a lane in each of 256 tubes";

/// What clients wait for at most, in seconds.
const LONG: u32 = 1_000_000;

pub const LOADS: &[Load] = &[
    load("nothing", [1, 1], |_, _| {}),
    load("ready tubes that the actor watches", [2000, 16_250], |world, n| ready_tubes(world, n, "default")),
    load("the same, weighted", [2000, 16_250], |world, n| ready_tubes(world, n, "weighted")),
    load("the same, weighted-fair", [2000, 16_250], |world, n| ready_tubes(world, n, "weighted-fair")),
    load("empty tubes that the actor watches", [2000, 16_250], |world, n| {
        watch_many(&mut world.actor, n);
    }),
    load("watches of 16 clients in reserve-batch", [500, 10_000], |world, n| wide(world, 16, n, "default")),
    load("watches of 16 clients in reserve-batch, fair", [500, 10_000], |world, n| {
        wide(world, 16, n, "weighted-fair");
    }),
    load("clients with 1,000 watches in reserve-batch", [8, 62], |world, n| wide(world, n, 1000, "default")),
    load("clients with 1,000 watches in reserve-batch, fair", [8, 62], |world, n| {
        wide(world, n, 1000, "weighted-fair");
    }),
    load("clients with 20 watches in reserve", [64, 500], |world, n| {
        waiting(world, n, "reserve\r\n", |client| watch_many(client, 20));
    }),
    load("clients in reserve", [64, 500], |world, n| waiting(world, n, "reserve\r\n", |_| {})),
    load("clients in reserve-batch", [64, 500], |world, n| {
        waiting(world, n, &format!("reserve-batch 10 {LONG}\r\n"), |_| {});
    }),
    load("clients of another tube in reserve-with-timeout", [64, 500], |world, n| {
        waiting(world, n, &format!("reserve-with-timeout {LONG}\r\n"), |client| {
            client.expect("watch far\r\n", "WATCHING");
            client.expect(&format!("ignore {TUBE}\r\n"), "WATCHING");
        });
    }),
    load("clients that wait for one job", [64, 500], |world, n| {
        world.jobs = world.put_many(1, 100_000);
        let command = format!("wait-job {} {LONG}\r\n", world.jobs[0]);
        waiting(world, n, &command, |_| {});
    }),
    load("idle clients", [64, 500], |world, n| {
        world.clients = (0..n).map(|_| world.connect()).collect();
    }),
    load("ready jobs", [10_000, 125_000], |world, n| world.jobs = world.put_many(n, 0)),
    load("ready jobs of random priorities", [10_000, 125_000], random_priorities),
    load("delayed jobs", [10_000, 125_000], |world, n| world.jobs = world.put_many(n, 100_000)),
    load("buried jobs", [10_000, 50_000], |world, n| {
        bury(world, n);
    }),
    load("jobs that the actor has reserved", [10_000, 50_000], |world, n| world.jobs = reserved(world, n)),
    load("clients that have reserved 80 jobs each", [16, 250], |world, n| {
        world.put_many(80 * n, 0);
        world.clients = (0..n).map(|_| world.worker()).collect();
        world
            .clients
            .iter_mut()
            .for_each(|client| drop(client.expect("reserve-batch 80\r\n", "RESERVED_BATCH 80")));
    }),
    load("jobs of one concurrency key", [10_000, 50_000], |world, n| {
        world.jobs = world.put_tagged(n, 0, |_| " con:k0:1".to_owned());
        world.jobs = world.actor.ask("reserve\r\n").1;
    }),
    load("concurrency keys in one tube", [10_000, 50_000], |world, n| {
        world.put_tagged(n, 0, |at| format!(" con:k{at}"));
    }),
    load("full concurrency keys in one tube", [5000, 25_000], |world, n| {
        world.put_tagged(n, 0, |at| format!(" con:k{at}"));
        world.jobs = reserve_all(world, n);
        world.put_tagged(n, 0, |at| format!(" con:k{at}"));
    }),
    load(LANES, [64, 250], full_lanes),
    load("open lanes of one key", [1000, 10_000], |world, n| {
        world.jobs = Vec::new();
        in_tubes(world, n, "lane", |_| put(0, " con:k0:1"));
    }),
    load("jobs that wait for a group of the actor's job", [10_000, 50_000], |world, n| {
        world.put_tagged(1, 0, |_| " grp:group".to_owned());
        world.jobs = world.actor.ask("reserve\r\n").1;
        world.put_tagged(n, 0, |_| " aft:group".to_owned());
    }),
    load("members of a group", [10_000, 50_000], |world, n| {
        world.jobs = world.put_tagged(n, 0, |_| " grp:group".to_owned());
        world.put_tagged(1, 0, |_| " aft:group".to_owned());
    }),
    load("groups with a member and a job that waits", [5000, 25_000], |world, n| {
        world.jobs = world.put_tagged(n, 0, |at| format!(" grp:g{at}"));
        world.put_tagged(n, 0, |at| format!(" aft:g{at}"));
    }),
    load("stages that wait for one another", [5000, 25_000], |world, n| {
        world.jobs = world.put_tagged(1, 0, |_| " grp:group".to_owned());
        world.put_tagged(n, 0, |at| format!(" grp:group aft:g{at}"));
        world.put_tagged(n, 0, |at| format!(" grp:g{at}"));
    }),
    load("reserved jobs with notes", [5000, 25_000], |world, n| {
        world.put_many(n, 0);
        world.jobs = reserve_all(world, n);
        let notes = |id| format!("job-note {id} 100\r\n{}\r\n", "n".repeat(100));
        world.actor.expect_all(world.jobs.iter().map(notes), "NOTED");
    }),
    load("kept idempotency keys", [10_000, 50_000], |world, n| {
        keep_keys(world, n, LONG);
    }),
    load("tubes with a job", [2000, 24_500], |world, n| in_tubes(world, n, "tube", |_| put(0, ""))),
    load("paused tubes", [2000, 24_500], |world, n| {
        in_tubes(world, n, "tube", |at| format!("pause-tube tube{at} {LONG}\r\n") + &put(0, ""));
    }),
    load("tubes with rules", [60, 240], |world, n| {
        in_tubes(world, n, "tube", |_| put(0, ""));
        for (key, value) in rules(9) {
            let rules = (0..n).map(|at| format!("tube-config tube{at} {key} {value}\r\n"));
            world.helper.expect_all(rules, "CONFIGURED");
        }
    }),
    load("schedules", [1000, 2500], |world, n| {
        put_schedules(world, n, |_| "0 3 * * * Europe/Berlin".to_owned())
    }),
    load(LISTS, [16, 64], |world, n| {
        in_tubes(world, 10_000, "tube", |_| put(0, ""));
        world.clients = (0..n).map(|_| world.connect()).collect();
        world.clients.iter_mut().for_each(|client| client.send(&"list-tubes\r\n".repeat(40)));
    }),
    load("clients within a put-batch", [64, 500], |world, n| {
        world.clients = (0..n).map(|_| world.connect()).collect();
        let part = format!("put-batch 1000\r\n{}", put(0, "").repeat(20));
        world.clients.iter_mut().for_each(|client| client.send(&part));
    }),
];

/// Loads that end by themselves.
pub const BOMBS: &[Load] = &[
    load("schedules run", [1000, 2500], |world, n| {
        let end = end_in(world, 2.0, n);
        put_schedules(world, n, |_| {
            let left = end.saturating_duration_since(Instant::now()).as_secs_f64();
            format!("every:{}", left.ceil().max(1.0))
        });
    }),
    load("delayed jobs become ready", [10_000, 50_000], |world, n| {
        let end = end_in(world, 1.0, n);
        for _ in (0..n).step_by(BATCH) {
            let delay = left(end);
            let puts = (0..BATCH).map(|_| put(0, "").replacen("put 0 0 ", &format!("put 0 {delay} "), 1));
            world.helper.expect(&put_batch(puts), "INSERTED_BATCH");
        }
    }),
    load("reservations of one client time out", [10_000, 50_000], reserve_until_the_end),
    load("delayed jobs of as many tubes become ready", [2000, 24_500], |world, n| {
        let end = end_in(world, 1.0, 2 * n);
        in_tubes(world, n, "tube", |_| format!("put 0 {} 60 1\r\nx\r\n", left(end)));
    }),
    load("pauses of tubes end", [2000, 24_500], |world, n| {
        in_tubes(world, n, "tube", |_| put(0, ""));
        let end = end_in(world, 1.0, n);
        let pauses = (0..n).map(|at| format!("pause-tube tube{at} {}\r\n", left(end)));
        world.helper.expect_all(pauses, "PAUSED");
    }),
    load("waits of clients end", [64, 500], |world, n| {
        let end = end_in(world, 1.0, n);
        let mut clients: Vec<Talk> = (0..n).map(|_| world.worker()).collect();
        clients.iter_mut().for_each(|client| client.send(&format!("reserve-with-timeout {}\r\n", left(end))));
        world.clients = clients;
    }),
    load("waits of clients with 1,000 watches end", [16, 64], |world, n| {
        let mut clients: Vec<Talk> = (0..n).map(|_| world.worker()).collect();
        clients.iter_mut().for_each(|client| watch_many(client, 1000));
        let end = end_in(world, 1.0, n);
        clients.iter_mut().for_each(|client| client.send(&format!("reserve-with-timeout {}\r\n", left(end))));
        world.clients = clients;
    }),
    load("waits for jobs end", [64, 500], |world, n| {
        let id = world.put_many(1, 100_000)[0];
        let end = end_in(world, 1.0, n);
        let mut clients: Vec<Talk> = (0..n).map(|_| world.worker()).collect();
        clients.iter_mut().for_each(|client| client.send(&format!("wait-job {id} {}\r\n", left(end))));
        world.clients = clients;
    }),
    load("kept idempotency keys end", [10_000, 50_000], |world, n| {
        world.ends_at = Some(Instant::now() + Duration::from_secs(2));
        keep_keys(world, n, 1);
    }),
    load("retention of buried jobs ends", [10_000, 50_000], |world, n| {
        bury(world, n);
        world.ends_at = Some(Instant::now() + Duration::from_millis(1200));
        world.helper.expect(&format!("tube-config {TUBE} retention 1\r\n"), "CONFIGURED");
    }),
    load("reservations end as dead letters", [10_000, 50_000], |world, n| {
        world.helper.expect(&format!("tube-config {TUBE} max-attempts 1\r\n"), "CONFIGURED");
        world.helper.expect(&format!("tube-config {TUBE} dead-letter dead\r\n"), "CONFIGURED");
        reserve_until_the_end(world, n);
    }),
    load("reservations end and are delayed by a rule", [10_000, 50_000], |world, n| {
        world.helper.expect(&format!("tube-config {TUBE} retry-delay 100000\r\n"), "CONFIGURED");
        reserve_until_the_end(world, n);
    }),
    load("rates of tubes bring tokens", [60, 250], |world, n| {
        in_tubes(world, n, "tube", |_| put(0, "").repeat(5));
        let rules = (0..n).map(|at| format!("tube-config tube{at} rate 1\r\n"));
        world.helper.expect_all(rules, "CONFIGURED");
        for at in 0..n {
            world.actor.expect(&format!("watch tube{at}\r\n"), "WATCHING");
        }
        world.actor.expect("reserve-batch 1000\r\n", "RESERVED_BATCH");
        world.actor.send(&format!("reserve-batch 1000 {LONG}\r\n"));
        world.ends_at = Some(Instant::now() + Duration::from_millis(1100));
    }),
];

/// Puts schedules, each for a job of one byte.
fn put_schedules(world: &mut World, n: usize, when: impl Fn(usize) -> String) {
    let puts = (0..n).map(|at| format!("schedule-put s{at} 0 0 60 1 {TUBE} {}\r\nx\r\n", when(at)));
    world.helper.expect_all(puts, "SCHEDULED");
}

/// Sets the end of a load of `n` parts some time after it is built, and returns it.
fn end_in(world: &mut World, seconds: f64, n: usize) -> Instant {
    let parts_per_second = if cfg!(debug_assertions) { 20_000.0 } else { 80_000.0 };
    let end = Instant::now() + Duration::from_secs_f64(seconds + n as f64 / parts_per_second);
    world.ends_at = Some(end);
    end
}

/// The time until then in seconds, as commands take it.
fn left(end: Instant) -> String {
    let left = end.saturating_duration_since(Instant::now());
    format!("{:.3}", left.as_secs_f64().max(0.01))
}

/// Has the actor reserve jobs, all of which time out at the end.
fn reserve_until_the_end(world: &mut World, count: usize) {
    let end = end_in(world, 2.0, count);
    for _ in (0..count).step_by(BATCH) {
        let puts = (0..BATCH).map(|_| format!("put 0 0 {} 1\r\nx\r\n", left(end)));
        world.helper.expect(&put_batch(puts), "INSERTED_BATCH");
        world.actor.expect("reserve-batch 1000\r\n", "RESERVED_BATCH 1000");
    }
}

/// Puts and deletes jobs whose idempotency keys are kept for some seconds.
fn keep_keys(world: &mut World, count: usize, seconds: u32) {
    for from in (0..count).step_by(BATCH) {
        let puts = (from..from + BATCH).map(|at| put(100_000, &format!(" idp:kept{at}:{seconds}")));
        let ids = world.helper.expect(&put_batch(puts), "INSERTED_BATCH");
        world.helper.expect_all(ids.iter().map(|id| format!("delete {id}\r\n")), "DELETED");
    }
}

/// Puts jobs, and has the actor bury them.
fn bury(world: &mut World, count: usize) {
    world.jobs = reserved(world, count);
    world.actor.expect_all(world.jobs.iter().map(|id| format!("bury {id} 0\r\n")), "BURIED");
}

fn watch_many(client: &mut Talk, count: usize) {
    client.expect_all((0..count).map(|at| format!("watch tube{at}\r\n")), "WATCHING");
}

/// Has the helper send commands in each of many tubes. Every command has a reply of one line.
pub fn in_tubes(world: &mut World, count: usize, name: &str, commands: impl Fn(usize) -> String) {
    let text = (0..count).flat_map(|at| {
        let commands = commands(at);
        // A body is a line too. Each command goes by itself, so that its reply is counted.
        let mut parts = vec![format!("use {name}{at}\r\n")];
        let mut lines = commands.split_inclusive("\r\n");
        while let Some(line) = lines.next() {
            let body = if line.starts_with("put ") { lines.next().expect("a body") } else { "" };
            parts.push(format!("{line}{body}"));
        }
        parts
    });
    world.helper.expect_all(text.collect::<Vec<_>>(), "");
    world.helper.expect(&format!("use {TUBE}\r\n"), "USING");
}

/// Puts jobs that arrive in no order, so that they fill the trees of a heap and not its run.
fn random_priorities(world: &mut World, count: usize) {
    let mut random = Random::new(0);
    for _ in (0..count).step_by(BATCH) {
        let puts =
            (0..BATCH).map(|_| put(0, "").replacen("put 0 ", &format!("put {} ", random.next() as u32), 1));
        world.jobs.extend(world.helper.expect(&put_batch(puts), "INSERTED_BATCH"));
    }
}

fn ready_tubes(world: &mut World, count: usize, mode: &str) {
    in_tubes(world, count, "tube", |_| put(0, ""));
    watch_many(&mut world.actor, count);
    world.actor.expect(&format!("reserve-mode {mode}\r\n"), "USING");
}

/// Clients that wait in a `reserve-batch` for the jobs of many tubes, while as many others have jobs.
fn wide(world: &mut World, clients: usize, watches: usize, mode: &str) {
    in_tubes(world, watches, "other", |_| put(0, ""));
    waiting(world, clients, &format!("reserve-batch 2 {LONG}\r\n"), |client| {
        watch_many(client, watches);
        client.expect(&format!("reserve-mode {mode}\r\n"), "USING");
    });
}

fn waiting(world: &mut World, clients: usize, command: &str, prepare: impl Fn(&mut Talk)) {
    for _ in 0..clients {
        let mut client = world.worker();
        prepare(&mut client);
        client.send(command);
        world.clients.push(client);
    }
    world.again = Some(command.to_owned());
}

/// Puts jobs, and has the actor reserve them.
fn reserved(world: &mut World, count: usize) -> Vec<u64> {
    world.put_many(count, 0);
    reserve_all(world, count)
}

fn reserve_all(world: &mut World, count: usize) -> Vec<u64> {
    let mut ids = Vec::new();
    while ids.len() < count {
        ids.extend(world.actor.expect("reserve-batch 1000\r\n", "RESERVED_BATCH"));
    }
    ids
}

/// Jobs of one batch.
const LANE_PART: usize = 250;

/// Keys that are full, because the actor holds a job of each, with a shut lane in each of many tubes.
fn full_lanes(world: &mut World, keys: usize) {
    world.put_tagged(keys, 0, |at| format!(" con:k{at}"));
    world.jobs = reserve_all(world, keys);
    let mut searcher = world.connect();
    for lane in 0..LANE_TUBES {
        world.helper.expect(&format!("use lane{lane}\r\n"), "USING");
        // In parts of one size, since a batch is stored in one iteration.
        for from in (0..keys).step_by(LANE_PART) {
            world.put_tagged(LANE_PART.min(keys - from), 0, |at| format!(" con:k{}", from + at));
        }
        searcher.expect(&format!("watch lane{lane}\r\n"), "WATCHING");
        // It finds no job, and shuts the lanes for that.
        searcher.expect("reserve-with-timeout 0\r\n", "TIMED_OUT");
    }
    world.helper.expect(&format!("use {TUBE}\r\n"), "USING");
}
