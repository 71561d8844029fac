//! SIGSTOP of the leader, for less and for more than its lease.

use std::thread;
use std::time::Duration;

use beanring_testkit::process::REPLY_PATIENCE;
use beanring_testkit::random::Random;
use nix::sys::signal::Signal;

use super::clients::{Clients, Plan};
use super::figures::Times;
use super::place::{Place, Settings, rounds, seed};

/// The shortest stop.
const STOP_MIN_MS: f64 = 100.0;

/// A time between the shortest one and `max_ms`. Short ones are more frequent.
fn length(random: &mut Random, max_ms: f64) -> Duration {
    let share = random.below(1000) as f64 / 1000.0;
    Duration::from_micros((1000.0 * STOP_MIN_MS * (max_ms / STOP_MIN_MS).powf(share.powf(1.5))) as u64)
}

#[test]
fn a_leader_that_was_stopped_sends_nothing_false() {
    let Some(place) = Place::start("SIGSTOP of the leader", Settings::default()) else { return };
    let mut place = place;
    let (seed, rounds, max_ms) = (seed(), rounds("STOPS", 4), rounds("STOP_MAX_MS", 3000) as f64);
    let mut random = Random::new(seed);
    let patience = Duration::from_secs(3);
    let clients = Clients::start(&Plan { patience, ..place.plan(seed) });
    let mut moments = Vec::new();
    for round in 0..rounds {
        thread::sleep(Duration::from_millis(200 + random.below(500) as u64));
        let leader = place.leader(REPLY_PATIENCE);
        let stopped = clients.now();
        place.nodes[leader].signal(Signal::SIGSTOP);
        // The last round ends with a take-over, however slow the disk of the database is.
        let (least, most) = if round + 1 == rounds {
            (Duration::from_millis(2500), REPLY_PATIENCE)
        } else {
            let length = length(&mut random, max_ms);
            (length, length)
        };
        let is_taken_over = clients.wait_for_put(stopped, most);
        let took = clients.now() - stopped;
        thread::sleep(least.saturating_sub(Duration::from_micros(took)));
        place.nodes[leader].signal(Signal::SIGCONT);
        let continued = clients.now();
        assert!(clients.wait_for_put(continued, REPLY_PATIENCE), "round {round}: no put\n{}", place.logs());
        let next = place.leader(REPLY_PATIENCE);
        if is_taken_over || next != leader {
            place.show_if_slow(took);
        }
        println!("stopped from {stopped} to {continued} us, leader {leader}, then {next}");
        if next != leader {
            moments.push(stopped);
        }
    }
    let events = place.conclude("SIGSTOP of the leader", clients, &[]);
    let times = Times::to_first_put(&moments, &events);
    println!(
        "SIGSTOP of the leader: {rounds} rounds of 0.1 to {:.1} s, to the first put after a take-over: {times}",
        max_ms / 1000.0
    );
    assert!(!moments.is_empty(), "no stop was long enough for a take-over");
}

/// Its transaction ends by itself, with its lock on the row of the epoch.
#[test]
fn a_server_that_is_stopped_within_its_claim_does_not_keep_another_from_leading() {
    let settings = Settings { servers: 2, ..Settings::default() };
    let Some(mut place) = Place::start("a stop within a claim", settings) else { return };
    let leader = place.leader(REPLY_PATIENCE);
    let standby = 1 - leader;
    let waiting = |what: &str| {
        format!(
            "select count(*) from pg_stat_activity where usename = 'beanring' and query like '%epoch + 1%' and {what}"
        )
    };
    let primary = &place.cluster.primary;
    let mut lock =
        primary.begin_sql("begin; select 1 from beanring_epoch for update; select pg_sleep(2); commit");
    primary.wait_for(
        "select count(*) from pg_stat_activity where query like '%pg_sleep(2)%' and wait_event = 'PgSleep'",
        |text| text == "1",
    );
    place.nodes[leader].kill();
    place.cluster.primary.wait_for(&waiting("wait_event_type = 'Lock'"), |text| text == "1");
    place.nodes[standby].signal(Signal::SIGSTOP);
    lock.wait().expect("it is a child");
    place.cluster.primary.wait_for(&waiting("state = 'idle in transaction'"), |text| text == "1");
    place.nodes[leader].start();
    assert_eq!(place.leader(REPLY_PATIENCE), leader);
    place.nodes[standby].signal(Signal::SIGCONT);
}
