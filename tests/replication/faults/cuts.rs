//! Cuts in the network: between a server and the database, between a server and its clients, and around a machine.

use std::time::Duration;

use super::clients::Plan;
use super::figures::Times;
use super::place::{CLIENTS, DATABASE, SERVERS, Use};
use super::run::{Setup, variable};

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
    let machine = |server: usize| SERVERS + server % servers;
    match cut {
        Cut::LeaderFromDatabase => vec![(machine(leader), DATABASE)],
        Cut::StandbyFromDatabase => vec![(machine(leader + 1), DATABASE)],
        Cut::LeaderFromClients => vec![(machine(leader), CLIENTS)],
        Cut::LeaderFromAll => {
            let all = (0..SERVERS + servers).filter(|&other| other != machine(leader));
            all.map(|other| (machine(leader), other)).collect()
        }
    }
}

#[test]
fn cuts_in_the_network_lose_nothing() {
    let lease_s = variable("LEASE", 1);
    let setup = Setup {
        what: "cuts over a network",
        rounds: ("CUTS", 4),
        lease_s,
        database: Use::OverNetwork,
        preloads: true,
        plan: |plan| Plan { patience: Duration::from_secs(3), ..plan },
    };
    let Some(mut run) = setup.start() else { return };
    let max_ms = variable("CUT_MAX_MS", 3000);
    let mut moments: Vec<(Cut, u64)> = Vec::new();
    let mut goes_on_since = None;
    for round in 0..run.rounds {
        run.work(1000..2500);
        let cut = CUTS[round % CUTS.len()];
        let leader = run.leader();
        let pairs = pairs(cut, leader, run.place.nodes.len());
        // Servers close connections to a leader whose machine is silent, which may go on after the cut.
        run.closing.extend(goes_on_since.take().map(|since| since..run.clients.now()));
        run.place.cut(&pairs, true);
        let at = run.clients.now();
        // From less than the lease to more than the time of a take-over.
        let least = if round < CUTS.len() { 2000 * lease_s } else { 100 };
        run.pause(least..least + 1);
        run.clients.set_calm(true);
        run.pause(0..max_ms);
        run.clients.set_calm(false);
        if round == 0 {
            // Another server leads before this cut ends, however slow the disk of the database is.
            run.expect_put(run.clients.now());
        }
        run.place.cut(&pairs, false);
        let healed = run.clients.now();
        run.expect_put(healed);
        let next = run.leader();
        println!("{cut:?} from {at} to {healed} us, leader {leader}, then {next}");
        if next != leader {
            moments.push((cut, at));
        }
        // Before a take-over too: the leader may append once more that their jobs are ready.
        goes_on_since = (next == leader || cut == Cut::LeaderFromAll).then_some(at);
    }
    run.closing.extend(goes_on_since.map(|since| since..u64::MAX));
    assert!(!moments.is_empty(), "no cut was long enough for a take-over");
    let events = run.conclude(&format!(" of up to {:.1} s", max_ms as f64 / 1000.0));
    for cut in CUTS {
        let of_kind: Vec<u64> = moments.iter().filter(|(kind, _)| *kind == cut).map(|&(_, at)| at).collect();
        println!("  {cut:?}: to the first put after a take-over: {}", Times::to_first_put(&of_kind, &events));
    }
}
