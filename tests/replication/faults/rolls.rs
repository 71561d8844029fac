//! A rolling update: each server is ended by SIGTERM and started again.

use super::run::Setup;

#[test]
fn a_rolling_update_loses_nothing() {
    let rounds = ("ROLLS", 3);
    let setup = Setup { what: "a rolling update", rounds, preloads: true, ..Setup::default() };
    let Some(mut run) = setup.start() else { return };
    for round in 0..run.rounds {
        run.work(1000..2500);
        let leader = run.leader();
        let begun = run.note_moment();
        assert_eq!(run.place.nodes[leader].terminate(), Some(0), "round {round}");
        run.place.nodes[leader].start();
        run.expect_put(begun);
    }
    run.conclude("");
}
