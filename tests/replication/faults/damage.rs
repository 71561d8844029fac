//! A byte of a chunk is flipped.

use beanring_testkit::random::Random;
use beanring_testkit::wait;

use super::clients::Plan;
use super::place::Place;
use super::run::{ALARM, Setup};
use crate::node::Node;

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
    let setup = Setup {
        what: "a flipped byte",
        rounds: ("FLIPS", 4),
        plan: |plan| Plan { producers: 8, workers: 8, ..plan },
        ..Setup::default()
    };
    let Some(mut run) = setup.start() else { return };
    run.is_damaged = true;
    // Each kill of a standby closes connections to the leader, which goes on.
    run.closing.push(0..u64::MAX);
    let leader = run.leader();
    let (mut refused, mut trimmed) = (0, 0);
    run.place.cluster.primary.wait_for("select max(pos) - min(pos) > 200 from beanring_log", "t");
    while refused < run.rounds {
        let standby = (leader + 1 + run.random.below(2)) % run.place.nodes.len();
        run.place.nodes[standby].kill();
        let Some(flipped) = flip(&run.place, &mut run.random) else {
            run.place.nodes[standby].start();
            run.work(200..201);
            continue;
        };
        run.place.nodes[standby].empty_log();
        run.place.nodes[standby].start();
        let at = run.clients.now();
        let node = &run.place.nodes[standby];
        // A chunk that is trimmed need not be followed.
        wait::until("a refusal", || is_damaged(node) || !has(&run.place, flipped.0));
        run.expect_put(at);
        if has(&run.place, flipped.0) {
            assert!(run.place.puts_through(standby), "its clients are forwarded");
        }
        let is_there = change(&run.place, flipped);
        if !is_there {
            trimmed += 1;
            continue;
        }
        refused += 1;
        // A thread writes the log.
        node.wait_for(ALARM);
        if run.random.one_in(4) || refused == run.rounds {
            // This takes five seconds.
            run.clients.set_calm(true);
            wait::until("the repair", || follows(node));
            run.clients.set_calm(false);
        }
    }
    assert_eq!(run.leader(), leader, "the leader goes on");
    run.conclude(&format!(", {trimmed} more chunks trimmed before they were read"));
}
