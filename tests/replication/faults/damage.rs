//! A byte of a chunk is flipped.

use std::thread;
use std::time::{Duration, Instant};

use beanring_testkit::process::REPLY_PATIENCE;
use beanring_testkit::random::Random;

use super::clients::{Clients, Plan};
use super::place::{ALARM, Node, Place, Settings, rounds, seed};

/// Flips one bit. The newest chunks stay: servers that follow read them again. Old ones may be trimmed at any time.
fn flip(place: &Place, random: &mut Random) -> Option<(u64, usize, u8)> {
    let primary = &place.cluster.primary;
    let chosen = primary.sql(
        "select pos, length(chunk) from beanring_log where log = 1
         and pos between (select (min(pos) + max(pos)) / 2 from beanring_log where log = 1)
         and (select max(pos) - 30 from beanring_log where log = 1) order by random() limit 1",
    );
    let (position, length) = chosen.split_once('|')?;
    let length: usize = length.parse().expect("a number");
    let (at, mask) = (random.below(length), 1 << random.below(8));
    let flipped = (position.parse().expect("a number"), at, mask);
    change(place, flipped).then_some(flipped)
}

fn change(place: &Place, (position, at, mask): (u64, usize, u8)) -> bool {
    let changed = place.cluster.primary.sql(&format!(
        "update beanring_log set chunk = set_byte(chunk, {at}, get_byte(chunk, {at}) # {mask})
         where log = 1 and pos = {position} returning 1"
    ));
    changed == "1"
}

fn has(place: &Place, position: u64) -> bool {
    place.cluster.primary.sql(&format!("select 1 from beanring_log where log = 1 and pos = {position}"))
        == "1"
}

fn wait_for(what: &str, place: &Place, node: usize, is_met: impl Fn(&Node) -> bool) {
    let started = Instant::now();
    while !is_met(&place.nodes[node]) {
        assert!(started.elapsed() < REPLY_PATIENCE, "{what}: never\n{}", place.logs());
        thread::sleep(Duration::from_millis(5));
    }
}

fn is_damaged(node: &Node) -> bool {
    node.metric("replication_damaged") == Some(1.0)
}

fn follows(node: &Node) -> bool {
    node.metric("replication_damaged") == Some(0.0)
        && node.metric("replication_lag_seconds").is_some_and(|lag| lag < 1.0)
        && node.metric("replication_epoch").is_some_and(|epoch| epoch > 0.0)
}

#[test]
fn a_standby_refuses_a_flipped_byte_and_the_leader_goes_on() {
    let Some(mut place) = Place::start("a flipped byte", Settings::default()) else { return };
    let (seed, rounds) = (seed(), rounds("FLIPS", 4));
    let mut random = Random::new(seed);
    let clients = Clients::start(&Plan { producers: 8, workers: 8, ..place.plan(seed) });
    let leader = place.leader(REPLY_PATIENCE);
    place.is_damaged = true;
    let (mut refused, mut trimmed) = (0, 0);
    thread::sleep(Duration::from_secs(1));
    while refused < rounds {
        let standby = (leader + 1 + random.below(2)) % place.nodes.len();
        place.nodes[standby].kill();
        let Some(flipped) = flip(&place, &mut random) else {
            place.nodes[standby].start();
            thread::sleep(Duration::from_millis(200));
            continue;
        };
        place.nodes[standby].empty_log();
        place.nodes[standby].start();
        let at = clients.now();
        // A chunk that is trimmed need not be followed.
        wait_for("a refusal", &place, standby, |node| is_damaged(node) || !has(&place, flipped.0));
        assert!(clients.wait_for_put(at, REPLY_PATIENCE), "the leader goes on\n{}", place.logs());
        if has(&place, flipped.0) {
            assert!(place.puts_through(standby), "its clients are forwarded\n{}", place.logs());
        }
        let is_there = change(&place, flipped);
        if !is_there {
            trimmed += 1;
            continue;
        }
        refused += 1;
        assert!(place.nodes[standby].log_text().contains(ALARM), "it alarms");
        if random.one_in(4) || refused == rounds {
            wait_for("the repair", &place, standby, follows);
        }
    }
    assert_eq!(place.leader(REPLY_PATIENCE), leader, "the leader goes on");
    // Each kill of a standby closes connections to the leader, which goes on.
    let all = 0..u64::MAX;
    place.conclude("a flipped byte", clients, &[all]);
    println!("a flipped byte: {refused} chunks refused, {trimmed} more trimmed before they were read");
}
