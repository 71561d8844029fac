//! Faults of the database: a primary that is gone, one that restarts alone, and waits that are cancelled.

use std::thread;
use std::time::Duration;

use beanring_testkit::postgres::{End, Postgres};
use beanring_testkit::process::REPLY_PATIENCE;
use beanring_testkit::random::Random;
use nix::sys::signal::Signal;

use super::clients::Clients;
use super::figures::Times;
use super::place::{Place, Settings, rounds, seed};

/// Cancels the waits of commits, or terminates their sessions, again and again for some time. Returns how many.
const CANCEL: &str = "
    create function cancel_waits(times int, terminates bool) returns int language plpgsql as $$
    declare
        total int := 0;
        found int;
    begin
        for i in 1..times loop
            perform pg_stat_clear_snapshot();
            select count(*) filter (where case when terminates then pg_terminate_backend(pid) else pg_cancel_backend(pid) end)
                into found from pg_stat_activity where wait_event = 'SyncRep';
            total := total + found;
            perform pg_sleep(0.01);
        end loop;
        return total;
    end $$";

fn cancel(primary: &Postgres, times: usize, terminates: bool) -> usize {
    primary.sql(&format!("select cancel_waits({times}, {terminates})")).parse().expect("a number")
}

#[test]
fn a_promoted_standby_of_the_database_has_all_that_was_acknowledged() {
    let Some(mut place) = Place::start("a promoted standby", Settings::default()) else { return };
    let (seed, rounds) = (seed(), rounds("PROMOTES", 2));
    let mut random = Random::new(seed);
    place.cluster.primary.sql(CANCEL);
    let clients = Clients::start(&place.plan(seed));
    let (mut moments, mut cancelled) = (Vec::new(), 0);
    for round in 0..rounds {
        thread::sleep(Duration::from_millis(500 + random.below(500) as u64));
        if round % 2 == 1 {
            // Rows that are shown, and that no standby has.
            place.cluster.primary.signal_senders(Signal::SIGSTOP);
            cancelled += cancel(&place.cluster.primary, 10, round % 4 == 3);
        }
        moments.push(clients.now());
        place.cluster.fail_over();
        let promoted = clients.now();
        assert!(clients.wait_for_put(promoted, REPLY_PATIENCE), "round {round}: no put\n{}", place.logs());
        place.cluster.rejoin();
    }
    let events = place.conclude("a promoted standby", clients, &[]);
    let times = Times::to_first_put(&moments, &events);
    println!(
        "a promoted standby: {rounds} rounds, {cancelled} waits cancelled before, from the end of the primary to the first put: {times}"
    );
}

#[test]
fn a_primary_alone_acknowledges_nothing() {
    let Some(mut place) = Place::start("a primary that restarts alone", Settings::default()) else { return };
    let (seed, rounds) = (seed(), rounds("ALONE", 2));
    let mut random = Random::new(seed);
    let clients = Clients::start(&place.plan(seed));
    let mut moments = Vec::new();
    for round in 0..rounds {
        thread::sleep(Duration::from_millis(300 + random.below(500) as u64));
        let cluster = &mut place.cluster;
        cluster.standbys.iter_mut().for_each(|standby| standby.stop(End::Fast));
        let alone = clients.now();
        // Appends wait by then, maybe more than four of them.
        thread::sleep(Duration::from_millis(random.below(1500) as u64));
        cluster.primary.stop(if round % 2 == 0 { End::Killed } else { End::Immediate });
        cluster.primary.start();
        let is_acknowledged = clients.wait_for_change(alone, Duration::from_millis(1500));
        assert!(!is_acknowledged, "round {round}: acknowledged without a standby\n{}", place.logs());
        moments.push(clients.now());
        place.cluster.standbys.iter_mut().for_each(Postgres::start);
        let back = clients.now();
        assert!(clients.wait_for_put(back, REPLY_PATIENCE), "round {round}: no put\n{}", place.logs());
    }
    let events = place.conclude("a primary that restarts alone", clients, &[]);
    let times = Times::to_first_put(&moments, &events);
    println!(
        "a primary that restarts alone: {rounds} rounds, from the start of its standbys to the first put: {times}"
    );
}

#[test]
fn a_cancelled_wait_is_no_acknowledgement() {
    let Some(mut place) = Place::start("cancelled waits", Settings::default()) else { return };
    let (seed, wanted) = (seed(), rounds("CANCELS", 60));
    let mut random = Random::new(seed);
    place.cluster.primary.sql(CANCEL);
    let clients = Clients::start(&place.plan(seed));
    let (mut moments, mut cancelled) = (Vec::new(), 0);
    while cancelled < wanted {
        thread::sleep(Duration::from_millis(100 + random.below(300) as u64));
        let primary = &place.cluster.primary;
        primary.signal_senders(Signal::SIGSTOP);
        let frozen = clients.now();
        // The lease ends in some rounds.
        cancelled += cancel(primary, 10 + random.below(100), random.chance(50));
        let is_acknowledged = clients.wait_for_change(frozen, Duration::ZERO);
        assert!(!is_acknowledged, "acknowledged without a standby\n{}", place.logs());
        moments.push(clients.now());
        primary.signal_senders(Signal::SIGCONT);
        let resumed = clients.now();
        assert!(clients.wait_for_put(resumed, REPLY_PATIENCE), "no put\n{}", place.logs());
    }
    let events = place.conclude("cancelled waits", clients, &[]);
    let times = Times::to_first_put(&moments, &events);
    println!(
        "cancelled waits: {cancelled} in {} rounds, from their end to the first put: {times}",
        moments.len()
    );
}
