//! `kill -9` of the leader.

use super::run::Setup;

#[test]
fn nothing_is_lost_when_leaders_are_killed() {
    let rounds = ("KILLS", 4);
    let setup = Setup { what: "kill -9 of the leader", rounds, preloads: true, ..Setup::default() };
    let Some(mut run) = setup.start() else { return };
    for _ in 0..run.rounds {
        run.work(1000..3000);
        let leader = run.leader();
        let killed = run.note_moment();
        run.place.nodes[leader].kill();
        // It may come back before another server leads, or after that.
        run.pause(0..300);
        run.place.nodes[leader].start();
        run.expect_put(killed);
    }
    run.conclude("");
}
