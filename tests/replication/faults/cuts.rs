//! Cuts in the network: between a server and the database, between a server and its clients, and around a machine.

use std::ops::Range;
use std::thread;
use std::time::Duration;

use beanring_testkit::process::REPLY_PATIENCE;
use beanring_testkit::random::Random;

use super::clients::{Clients, Plan};
use super::figures::Times;
use super::place::{CLIENTS, DATABASE, Place, Settings, rounds, seed};
use super::preload;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cut {
    LeaderFromDatabase,
    StandbyFromDatabase,
    LeaderFromClients,
    /// The leader's machine is gone.
    LeaderFromAll,
}

const CUTS: [Cut; 4] =
    [Cut::LeaderFromAll, Cut::LeaderFromDatabase, Cut::StandbyFromDatabase, Cut::LeaderFromClients];

/// The pairs of machines that a cut separates.
fn pairs(cut: Cut, leader: usize, servers: usize) -> Vec<(usize, usize)> {
    let machine = |server: usize| 2 + server % servers;
    match cut {
        Cut::LeaderFromDatabase => vec![(machine(leader), DATABASE)],
        Cut::StandbyFromDatabase => vec![(machine(leader + 1), DATABASE)],
        Cut::LeaderFromClients => vec![(machine(leader), CLIENTS)],
        Cut::LeaderFromAll => {
            let all = (0..2 + servers).filter(|&other| other != machine(leader));
            all.map(|other| (machine(leader), other)).collect()
        }
    }
}

#[test]
fn cuts_in_the_network_lose_nothing() {
    let settings = Settings { over_network: true, lease_s: rounds("LEASE", 1) as u32, ..Settings::default() };
    let Some(mut place) = Place::start("cuts over a network", settings) else { return };
    let (seed, rounds, max_ms) = (seed(), rounds("CUTS", 4), rounds("CUT_MAX_MS", 3000));
    let mut random = Random::new(seed);
    let jobs = preload::jobs();
    preload::put(&place, jobs);
    let patience = Duration::from_secs(3);
    let clients = Clients::start(&Plan { patience, ..place.plan(seed) });
    let mut moments: Vec<(Cut, u64)> = Vec::new();
    let mut closing: Vec<Range<u64>> = Vec::new();
    let mut goes_on_since = None;
    for round in 0..rounds {
        thread::sleep(Duration::from_millis(300 + random.below(500) as u64));
        let cut = CUTS[round % CUTS.len()];
        if jobs > 0 {
            preload::wait_until_warm(&place);
        }
        let leader = place.leader(REPLY_PATIENCE);
        let pairs = pairs(cut, leader, place.nodes.len());
        let switch = |is_cut| {
            let machines = place.machines.as_ref().expect("they are there");
            machines.cut(&pairs, is_cut);
        };
        // Servers close connections to a leader whose machine is silent, which may go on after the cut.
        closing.extend(goes_on_since.take().map(|since| since..clients.now()));
        switch(true);
        let at = clients.now();
        // From less than the lease to more than the time of a take-over.
        let least = if round < CUTS.len() { 2000 * settings.lease_s as usize } else { 100 };
        thread::sleep(Duration::from_millis((least + random.below(max_ms)) as u64));
        if round == 0 {
            // Another server leads before this cut ends, however slow the disk of the database is.
            assert!(clients.wait_for_put(clients.now(), REPLY_PATIENCE), "{cut:?}: no put\n{}", place.logs());
        }
        switch(false);
        let healed = clients.now();
        assert!(clients.wait_for_put(healed, REPLY_PATIENCE), "{cut:?}: no put\n{}", place.logs());
        let next = place.leader(REPLY_PATIENCE);
        println!("{cut:?} from {at} to {healed} us, leader {leader}, then {next}");
        if next != leader {
            moments.push((cut, at));
        }
        // Before a take-over too: the leader may append once more that their jobs are ready.
        goes_on_since = (next == leader || cut == Cut::LeaderFromAll).then_some(at);
    }
    closing.extend(goes_on_since.map(|since| since..u64::MAX));
    let events = place.conclude("cuts over a network", clients, &closing);
    preload::check(&place, jobs);
    println!("cuts over a network: {rounds}, of up to {:.1} s", max_ms as f64 / 1000.0);
    for cut in CUTS {
        let of_kind: Vec<u64> = moments.iter().filter(|(kind, _)| *kind == cut).map(|&(_, at)| at).collect();
        println!("  {cut:?}: to the first put after a take-over: {}", Times::to_first_put(&of_kind, &events));
    }
    assert!(!moments.is_empty(), "no cut was long enough for a take-over");
}
