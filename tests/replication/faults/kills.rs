//! `kill -9` of the leader.

use std::thread;
use std::time::Duration;

use beanring_testkit::process::REPLY_PATIENCE;
use beanring_testkit::random::Random;

use super::clients::Clients;
use super::figures::Times;
use super::place::{Place, Settings, rounds, seed};
use super::preload;

#[test]
fn nothing_is_lost_when_leaders_are_killed() {
    let Some(mut place) = Place::start("kill -9 of the leader", Settings::default()) else { return };
    let (seed, rounds) = (seed(), rounds("KILLS", 4));
    let mut random = Random::new(seed);
    let jobs = preload::jobs();
    preload::put(&place, jobs);
    let clients = Clients::start(&place.plan(seed));
    let mut moments = Vec::new();
    for round in 0..rounds {
        thread::sleep(Duration::from_millis(300 + random.below(700) as u64));
        if jobs > 0 {
            preload::wait_until_warm(&place);
        }
        let leader = place.leader(REPLY_PATIENCE);
        let killed = clients.now();
        place.nodes[leader].kill();
        moments.push(killed);
        // It may come back before another server leads, or after that.
        thread::sleep(Duration::from_millis(random.below(300) as u64));
        place.nodes[leader].start();
        assert!(clients.wait_for_put(killed, REPLY_PATIENCE), "round {round}: no put\n{}", place.logs());
        place.show_if_slow(clients.now() - killed);
    }
    let events = place.conclude("kill -9 of the leader", clients, &[]);
    preload::check(&place, jobs);
    println!(
        "kill -9 of the leader: {rounds} rounds, to the first put: {}",
        Times::to_first_put(&moments, &events)
    );
}
