//! Appends: fenced, taken, repeated, and never acknowledged before they are replicated.

use std::time::{Duration, Instant};

use beanring::wal::replica::{APPENDS_MAX, Failure, Position, Reply, Request};
use beanring_testkit::postgres::{Cluster, End};

use super::site::{Store, append, chunks, repeated, result_of, site, term};

/// Longer than a commit takes that waits for nothing.
const WAIT: Duration = Duration::from_millis(500);

/// The sessions of the store that wait for a standby.
const WAITING: &str = "from pg_stat_activity where wait_event = 'SyncRep' and application_name = 'beanring'";

fn stop_standbys(cluster: &mut Cluster) {
    for standby in &mut cluster.standbys {
        standby.stop(End::Fast);
    }
}

fn start_standbys(cluster: &mut Cluster) {
    for standby in &mut cluster.standbys {
        standby.start();
    }
}

#[test]
fn appends_are_fenced_and_taken() {
    let Some(cluster) = site("appends") else { return };
    let mut store = Store::new(&cluster.primary);
    assert_eq!(store.append(0, 1, "too early"), Err(Failure::Fenced));
    assert_eq!(store.claim(0, 1, 7), Ok(()));
    assert_eq!(store.append(1, 2, "two"), Ok(()));
    assert_eq!(store.append(1, 2, "other"), Err(Failure::Taken));
    assert_eq!(store.append(1, 2, "two"), Ok(()), "it is there, and replicated");
    assert_eq!(store.append_again(1, 2, "two"), Ok(()));
    assert_eq!(store.append_again(1, 2, "other"), Err(Failure::Taken));
    assert_eq!(store.append_again(1, 3, "three"), Ok(()), "it was not there");
    for (change, failure) in [
        ("epoch = 2", Failure::Fenced),
        // After the loss of this term another process has begun one with the same number.
        ("epoch = 1, token = 8", Failure::Fenced),
        // An old primary says nothing about this term.
        ("epoch = 0, token = 6", Failure::Unknown),
    ] {
        cluster.primary.sql(&format!("update beanring_epoch set {change}"));
        assert_eq!(store.append(1, 4, "four"), Err(failure), "{change}");
        assert_eq!(store.append_again(1, 3, "three"), Err(failure), "{change}");
        assert_eq!(store.renew(1, 7), Err(failure), "{change}");
        assert_eq!(store.trim(1, 2), Err(failure), "{change}");
    }
    cluster.primary.sql("update beanring_epoch set epoch = 1, token = 7");
    assert_eq!(store.renew(1, 7), Ok(()));
    let page = store.read(1);
    let expected = [(1, "epoch of 7"), (2, "two"), (3, "three")];
    assert_eq!(chunks(&page), expected.map(|(position, text)| (position, text.to_owned())));
}

#[test]
fn as_many_appends_as_allowed_are_in_flight() {
    let Some(cluster) = site("appends in flight") else { return };
    let mut store = Store::new(&cluster.primary);
    assert_eq!(store.claim(0, 1, 7), Ok(()));
    let mut next = 2;
    for _ in 0..APPENDS_MAX {
        store.begin(append(1, next, &"x".repeat(100_000)));
        next += 1;
    }
    let mut positions = Vec::new();
    for _ in 0..500 {
        let Reply::Appended { position, result: Ok(()) } = store.reply() else {
            panic!("it is not acknowledged")
        };
        positions.push(position.0);
        store.begin(append(1, next, "more"));
        next += 1;
    }
    positions.sort_unstable();
    positions.dedup();
    assert_eq!(positions.len(), 500);
    let sessions =
        "select count(*) from pg_stat_activity where query like '%insert into beanring_log%key share%'
                    and application_name = 'beanring'";
    assert_eq!(cluster.primary.sql(sessions), APPENDS_MAX.to_string());
}

#[test]
fn an_append_waits_while_both_standbys_are_gone() {
    let Some(mut cluster) = site("an append without standbys") else { return };
    let mut store = Store::new(&cluster.primary);
    assert_eq!(store.claim(0, 1, 7), Ok(()));
    stop_standbys(&mut cluster);
    store.begin(append(1, 2, "two"));
    assert_eq!(store.reply_within(WAIT), None);
    start_standbys(&mut cluster);
    assert_eq!(result_of(store.reply()), Ok(()));
}

#[test]
fn a_cancelled_or_terminated_wait_is_never_an_acknowledgement() {
    let Some(mut cluster) = site("cancelled waits") else { return };
    let mut store = Store::new(&cluster.primary);
    assert_eq!(store.claim(0, 1, 7), Ok(()));
    stop_standbys(&mut cluster);
    for (position, end) in [(2, "pg_cancel_backend"), (3, "pg_terminate_backend")] {
        store.begin(append(1, position, "lost?"));
        cluster.primary.wait_for(&format!("select count(*) {WAITING}"), |text| text == "1");
        cluster.primary.sql(&format!("select {end}(pid) {WAITING}"));
        assert_eq!(result_of(store.reply()), Err(Failure::Unknown), "{end}");
        // The row is there for every reader, and may be lost with this server.
        assert_eq!(chunks(&store.read(position)).len(), 1, "{end}");
        for request in [repeated(1, position, "lost?"), append(1, position, "lost?")] {
            store.begin(request);
            assert_eq!(store.reply_within(WAIT), None, "{end}: the row is not replicated");
            cluster.primary.sql(&format!("select pg_cancel_backend(pid) {WAITING}"));
            assert_eq!(result_of(store.reply()), Err(Failure::Unknown), "{end}");
        }
    }
    let (term, before) = (term(1), Position(2));
    let cancel = |store: &mut Store, request: Request| {
        let waits = format!("{request:?}");
        store.begin(request);
        assert_eq!(store.reply_within(WAIT), None, "{waits}");
        cluster.primary.sql(&format!("select pg_cancel_backend(pid) {WAITING}"));
        assert_eq!(result_of(store.reply()), Err(Failure::Unknown), "{waits}");
    };
    cancel(&mut store, Request::Renew(term));
    cancel(&mut store, Request::Trim { term, before });
    // It is renewed, though nobody knows whether that is replicated.
    let claim = store.claim_of(1, 4, 7);
    cancel(&mut store, claim);
    start_standbys(&mut cluster);
    assert_eq!(store.settle(&repeated(2, 5, "five")), Ok(()), "the claim has happened");
}

#[test]
fn a_role_that_hides_warnings_hides_no_cancelled_wait() {
    let Some(mut cluster) = site("settings of the role") else { return };
    let settings =
        "client_min_messages = error; synchronous_commit = off; statement_timeout = 200; lock_timeout = 100;
                    default_transaction_isolation = serializable";
    for setting in settings.split(';') {
        cluster.primary.sql(&format!("alter role beanring set {setting}"));
    }
    let mut store = Store::new(&cluster.primary);
    assert_eq!(store.claim(0, 1, 7), Ok(()));
    stop_standbys(&mut cluster);
    store.begin(append(1, 2, "two"));
    assert_eq!(store.reply_within(WAIT), None);
    cluster.primary.sql(&format!("select pg_cancel_backend(pid) {WAITING}"));
    assert_eq!(result_of(store.reply()), Err(Failure::Unknown));
}

#[test]
fn a_full_disk_is_told_from_other_failures() {
    let Some(cluster) = site("a full disk") else { return };
    let mut store = Store::new(&cluster.primary);
    assert_eq!(store.claim(0, 1, 7), Ok(()));
    let refuse = |state: &str| {
        cluster.primary.sql(&format!(
            "create or replace function refuse() returns trigger language plpgsql as
                $$ begin raise exception using errcode = '{state}'; end $$;
             drop trigger if exists refuse on beanring_log;
             create trigger refuse before insert on beanring_log for each row execute function refuse()"
        ));
    };
    for (state, failure) in [("53100", Failure::Full), ("58030", Failure::Full), ("57014", Failure::Unknown)]
    {
        refuse(state);
        assert_eq!(store.append(1, 2, "two"), Err(failure), "{state}");
        assert_eq!(store.append_again(1, 2, "two"), Err(failure), "{state}");
        assert_eq!(store.claim(1, 2, 8), Err(failure), "{state}");
        assert_eq!(store.renew(1, 7), Ok(()), "{state}");
    }
    cluster.primary.sql("drop trigger refuse on beanring_log");
    assert_eq!(store.append(1, 2, "two"), Ok(()));
}

#[test]
fn a_terminated_session_is_opened_again() {
    let Some(cluster) = site("terminated sessions") else { return };
    let mut store = Store::new(&cluster.primary);
    assert_eq!(store.claim(0, 1, 7), Ok(()));
    for position in 2..22 {
        let terminate = "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = 'beanring'";
        cluster.primary.sql(terminate);
        let started = Instant::now();
        assert_eq!(store.settle(&repeated(1, position, "x")), Ok(()));
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    }
}
