//! A rolling update: each server is ended by SIGTERM and started again.

use std::thread;
use std::time::Duration;

use beanring_testkit::process::REPLY_PATIENCE;
use beanring_testkit::random::Random;

use super::clients::Clients;
use super::figures::Times;
use super::place::{Place, Settings, rounds, seed};
use super::preload;

#[test]
fn a_rolling_update_loses_nothing() {
    let Some(mut place) = Place::start("a rolling update", Settings::default()) else { return };
    let (seed, rounds) = (seed(), rounds("ROLLS", 3));
    let mut random = Random::new(seed);
    let jobs = preload::jobs();
    preload::put(&place, jobs);
    let clients = Clients::start(&place.plan(seed));
    let mut moments = Vec::new();
    for round in 0..rounds {
        thread::sleep(Duration::from_millis(300 + random.below(500) as u64));
        if jobs > 0 {
            preload::wait_until_warm(&place);
        }
        let leader = place.leader(REPLY_PATIENCE);
        moments.push(clients.now());
        let code = place.nodes[leader].terminate();
        assert_eq!(code, Some(0), "round {round}\n{}", place.logs());
        place.nodes[leader].start();
        let begun = *moments.last().expect("it was pushed");
        assert!(clients.wait_for_put(begun, REPLY_PATIENCE), "round {round}: no put\n{}", place.logs());
        place.show_if_slow(clients.now() - begun);
    }
    let events = place.conclude("a rolling update", clients, &[]);
    preload::check(&place, jobs);
    println!(
        "a rolling update: {rounds} leaders, to the first put: {}",
        Times::to_first_put(&moments, &events)
    );
}
