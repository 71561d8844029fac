//! SIGSTOP of the leader, for less and for more than its lease.

use std::thread;
use std::time::Duration;

use beanring_testkit::process::REPLY_PATIENCE;
use beanring_testkit::random::Random;
use nix::sys::signal::Signal;

use super::clients::Plan;
use super::place::{Place, Use};
use super::run::{Setup, variable};
use crate::site::sessions;

/// The shortest stop.
const STOP_MIN_MS: f64 = 100.0;

/// A time between the shortest one and `max_ms`. Short ones are more frequent.
fn length(random: &mut Random, max_ms: f64) -> Duration {
    let share = random.below(1000) as f64 / 1000.0;
    Duration::from_micros((1000.0 * STOP_MIN_MS * (max_ms / STOP_MIN_MS).powf(share.powf(1.5))) as u64)
}

#[test]
fn a_leader_that_was_stopped_sends_nothing_false() {
    let setup = Setup {
        what: "SIGSTOP of the leader",
        rounds: ("STOPS", 4),
        plan: |plan| Plan { patience: Duration::from_secs(3), ..plan },
        ..Setup::default()
    };
    let Some(mut run) = setup.start() else { return };
    let max_ms = variable("STOP_MAX_MS", 3000) as f64;
    for round in 0..run.rounds {
        run.work(500..2000);
        let leader = run.leader();
        let stopped = run.clients.now();
        run.place.nodes[leader].signal(Signal::SIGSTOP);
        // The last round ends with a take-over, however slow the disk of the database is.
        let (least, most) = if round + 1 == run.rounds {
            (Duration::from_millis(2500), REPLY_PATIENCE)
        } else {
            let length = length(&mut run.random, max_ms);
            (length, length)
        };
        let is_taken_over = run.clients.wait_for_put(stopped, most);
        let took = run.clients.now() - stopped;
        thread::sleep(least.saturating_sub(Duration::from_micros(took)));
        run.place.nodes[leader].signal(Signal::SIGCONT);
        let continued = run.clients.now();
        run.expect_put(continued);
        let next = run.leader();
        if is_taken_over || next != leader {
            run.show_if_slow(took);
        }
        println!("stopped from {stopped} to {continued} us, leader {leader}, then {next}");
        if next != leader {
            run.moments.push(stopped);
        }
    }
    assert!(!run.moments.is_empty(), "no stop was long enough for a take-over");
    run.conclude(&format!(" of 0.1 to {:.1} s", max_ms / 1000.0));
}

/// Its transaction ends by itself, with its lock on the row of the epoch.
#[test]
fn a_server_that_is_stopped_within_its_claim_does_not_keep_another_from_leading() {
    let mut place = match Place::start(2, 1, Use::Shared) {
        Ok(place) => place,
        Err(reason) => return println!("skipped: a stop within a claim, because {reason}"),
    };
    let leader = place.leader(REPLY_PATIENCE);
    let standby = 1 - leader;
    let primary = &place.cluster.primary;
    let wait_for_claims_at_the_lock = |count: &str| {
        let claims = "usename = 'beanring' and query like '%epoch + 1%' and wait_event_type = 'Lock'";
        primary.wait_for(&sessions(claims), count);
    };
    let mut lock = primary.begin_sql("begin; select 1 from beanring_epoch for update");
    lock.finish().expect("the row is there");
    place.nodes[leader].kill();
    wait_for_claims_at_the_lock("1");
    place.nodes[standby].signal(Signal::SIGSTOP);
    lock.query("commit").expect("it is committed");
    // It has the lock now, and its transaction ends two seconds after that: perhaps before anybody can look.
    wait_for_claims_at_the_lock("0");
    place.nodes[leader].start();
    assert_eq!(place.leader(REPLY_PATIENCE), leader);
    place.nodes[standby].signal(Signal::SIGCONT);
}
