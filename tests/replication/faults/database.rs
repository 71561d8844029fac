//! Faults of the database: a primary that is gone, one that restarts alone, and waits that are cancelled.

use std::time::Duration;

use beanring_testkit::postgres::{End, Postgres};
use nix::sys::signal::Signal;

use super::place::Use;
use super::run::Setup;
use crate::site::sessions;

/// For how long nothing may be acknowledged after the first commit that is known to wait.
const QUIET: Duration = Duration::from_millis(300);

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
    let rounds = ("PROMOTES", 2);
    let setup = Setup { what: "a promoted standby", rounds, database: Use::Own, ..Setup::default() };
    let Some(mut run) = setup.start() else { return };
    run.place.cluster.primary.sql(CANCEL);
    let mut cancelled = 0;
    for round in 0..run.rounds {
        run.work(1500..3000);
        if round % 2 == 1 {
            // Rows that are shown, and that no standby has.
            run.place.cluster.primary.signal_senders(Signal::SIGSTOP);
            cancelled += cancel(&run.place.cluster.primary, 10, round % 4 == 3);
        }
        run.note_moment();
        run.place.cluster.fail_over();
        run.expect_put(run.clients.now());
        run.place.cluster.rejoin();
    }
    run.conclude(&format!(", {cancelled} waits cancelled before"));
}

#[test]
fn a_primary_alone_acknowledges_nothing() {
    let rounds = ("ALONE", 2);
    let setup =
        Setup { what: "a primary that restarts alone", rounds, database: Use::Own, ..Setup::default() };
    let Some(mut run) = setup.start() else { return };
    for round in 0..run.rounds {
        run.work(1000..2500);
        run.place.cluster.stop_standbys();
        let alone = run.clients.now();
        // Appends wait by then, maybe more than four of them.
        run.pause(0..1500);
        let primary = &mut run.place.cluster.primary;
        primary.stop(if round % 2 == 0 { End::Killed } else { End::Immediate });
        primary.start();
        primary.wait_for(&sessions("wait_event = 'SyncRep'").replace("(*)", "(*) > 0"), "t");
        let is_acknowledged = run.clients.wait_for_change(alone, QUIET);
        assert!(!is_acknowledged, "round {round}: acknowledged without a standby");
        run.note_moment();
        run.place.cluster.start_standbys();
        run.expect_put(run.clients.now());
    }
    run.conclude("");
}

#[test]
fn a_cancelled_wait_is_no_acknowledgement() {
    let rounds = ("CANCELS", 60);
    let setup = Setup { what: "cancelled waits", rounds, database: Use::Own, ..Setup::default() };
    let Some(mut run) = setup.start() else { return };
    run.place.cluster.primary.sql(CANCEL);
    let mut cancelled = 0;
    while cancelled < run.rounds {
        run.work(300..1200);
        let primary = &run.place.cluster.primary;
        primary.signal_senders(Signal::SIGSTOP);
        let frozen = run.clients.now();
        // The lease ends in some rounds.
        cancelled += cancel(primary, 10 + run.random.below(100), run.random.chance(50));
        let is_acknowledged = run.clients.wait_for_change(frozen, Duration::ZERO);
        assert!(!is_acknowledged, "acknowledged without a standby");
        run.note_moment();
        run.place.cluster.primary.signal_senders(Signal::SIGCONT);
        run.expect_put(run.clients.now());
    }
    run.rounds = run.moments.len();
    run.conclude(&format!(", {cancelled} waits cancelled"));
}
