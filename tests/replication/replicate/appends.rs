//! Appends: fenced, taken, repeated, and never acknowledged before they are replicated.

use std::time::{Duration, Instant};

use beanring::io::replica::check;
use beanring::wal::replica::{APPENDS_MAX, DatabaseReply, Failure, Position, Request};
use beanring_testkit::postgres::Postgres;

use super::store::{Store, append, chunks, led, own_led, repeated, term};
use crate::site::{own_site, sessions, settings, site, terminate_sessions};

/// A session of the store that waits for a standby.
pub const WAITING: &str = "wait_event = 'SyncRep' and application_name = 'beanring'";

/// Begins a request, which waits for a standby, and ends its wait. That is no acknowledgement.
fn end_wait(store: &mut Store, server: &Postgres, request: Request, end: &str) {
    let waits = format!("{end}: {request:?}");
    store.begin_waiting(request, server, WAITING);
    server.sql(&format!("select {end}(pid) from pg_stat_activity where {WAITING}"));
    assert_eq!(store.result(), Err(Failure::Unknown), "{waits}");
}

#[test]
fn appends_are_fenced_and_taken() {
    let Some(site) = site("appends") else { return };
    let mut store = Store::new(&site.primary);
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
        site.primary.sql(&format!("update beanring_epoch set {change}"));
        assert_eq!(store.append(1, 4, "four"), Err(failure), "{change}");
        assert_eq!(store.append_again(1, 3, "three"), Err(failure), "{change}");
        assert_eq!(store.renew(1, 7), Err(failure), "{change}");
        assert_eq!(store.trim(1, 2), Err(failure), "{change}");
    }
    site.primary.sql("update beanring_epoch set epoch = 1, token = 7");
    assert_eq!(store.renew(1, 7), Ok(()));
    let page = store.read(1);
    let expected = [(1, "epoch of 7"), (2, "two"), (3, "three")];
    assert_eq!(chunks(&page), expected.map(|(position, text)| (position, text.to_owned())));
}

#[test]
fn as_many_appends_as_allowed_are_in_flight() {
    let Some((site, mut store)) = led("appends in flight") else { return };
    let mut next = 2;
    for _ in 0..APPENDS_MAX {
        store.begin(append(1, next, &"x".repeat(100_000)));
        next += 1;
    }
    let mut positions = Vec::new();
    for _ in 0..500 {
        let DatabaseReply::Appended { position, result: Ok(()) } = store.reply() else {
            panic!("it is not acknowledged")
        };
        positions.push(position.0);
        store.begin(append(1, next, "more"));
        next += 1;
    }
    positions.sort_unstable();
    positions.dedup();
    assert_eq!(positions.len(), 500);
    let inserting = "query like '%insert into beanring_log%key share%' and application_name = 'beanring'";
    assert_eq!(site.primary.sql(&sessions(inserting)), APPENDS_MAX.to_string());
}

#[test]
fn a_cancelled_or_terminated_wait_is_never_an_acknowledgement() {
    let Some((mut site, mut store)) = own_led("cancelled waits") else { return };
    site.stop_standbys();
    let server = &site.primary;
    for (position, end) in [(2, "pg_cancel_backend"), (3, "pg_terminate_backend")] {
        end_wait(&mut store, server, append(1, position, "lost?"), end);
        // The row is there for every reader, and may be lost with this server.
        assert_eq!(chunks(&store.read(position)).len(), 1, "{end}");
        for again in [repeated(1, position, "lost?"), append(1, position, "lost?")] {
            end_wait(&mut store, server, again, "pg_cancel_backend");
        }
    }
    let (term, before) = (term(1), Position(2));
    end_wait(&mut store, server, Request::Renew(term), "pg_cancel_backend");
    end_wait(&mut store, server, Request::Trim { term, before }, "pg_cancel_backend");
    // It is renewed, though nobody knows whether that is replicated.
    let claim = store.claim_of(1, 4, 7);
    end_wait(&mut store, server, claim, "pg_cancel_backend");
    site.start_standbys();
    assert_eq!(store.settle(&repeated(2, 5, "five")), Ok(()), "the claim has happened");
}

#[test]
fn a_role_that_hides_warnings_hides_no_cancelled_wait() {
    let Some(mut site) = own_site("settings of the role") else { return };
    // The time limits are shorter than the wait.
    for setting in [
        "client_min_messages = error",
        "synchronous_commit = off",
        "statement_timeout = 50",
        "lock_timeout = 50",
        "default_transaction_isolation = serializable",
    ] {
        site.primary.sql(&format!("alter role beanring set {setting}"));
    }
    check(&settings(&site.primary), false).expect("each session sets what it needs");
    let mut store = Store::new(&site.primary);
    assert_eq!(store.claim(0, 1, 7), Ok(()));
    site.stop_standbys();
    end_wait(&mut store, &site.primary, append(1, 2, "two"), "pg_cancel_backend");
}

#[test]
fn a_full_disk_is_told_from_other_failures() {
    let Some((site, mut store)) = led("a full disk") else { return };
    let refuse = |state: &str| {
        site.primary.sql(&format!(
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
    site.primary.sql("drop trigger refuse on beanring_log");
    assert_eq!(store.append(1, 2, "two"), Ok(()));
}

#[test]
fn a_terminated_session_is_opened_again() {
    let Some((site, mut store)) = led("terminated sessions") else { return };
    for position in 2..22 {
        terminate_sessions(&site.primary);
        let started = Instant::now();
        assert_eq!(store.settle(&repeated(1, position, "x")), Ok(()));
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    }
}
