//! Take-overs and the lock of the epoch.

use std::time::Instant;

use beanring::wal::replica::{DatabaseReply, Epoch, Failure, Request, Term};
use beanring_testkit::wait;
use nix::sys::signal::Signal;

use super::appends::WAITING;
use super::store::{Store, append, chunks, led, own_led, result_of, term};
use crate::site::{site, start};

#[test]
fn a_claim_continues_the_log_behind_a_hole() {
    let Some((site, mut old)) = led("claims") else { return };
    let mut new = Store::new(&site.primary);
    assert_eq!(old.append(1, 2, "two"), Ok(()));
    // 3 is lost, 4 and 5 were in flight.
    assert_eq!(old.append(1, 4, "four"), Ok(()));
    assert_eq!(old.append(1, 5, "five"), Ok(()));
    assert_eq!(new.claim(1, 2, 8), Err(Failure::Taken));
    assert_eq!(new.claim(0, 3, 8), Err(Failure::Fenced));
    assert_eq!(new.claim(2, 3, 8), Err(Failure::Fenced));
    assert_eq!(old.append(1, 6, "six"), Ok(()), "refused claims change nothing");
    assert_eq!(new.claim(1, 3, 8), Ok(()));
    assert_eq!(old.append(1, 4, "four"), Err(Failure::Fenced));
    assert_eq!(old.append_again(1, 2, "two"), Err(Failure::Fenced));
    let page = new.read(1);
    let expected = [(1, "epoch of 7"), (2, "two"), (3, "epoch of 8")];
    assert_eq!(chunks(&page), expected.map(|(position, text)| (position, text.to_owned())));
    assert_eq!((page.epoch, page.leader.token), (Epoch(2), 8));
}

#[test]
fn of_two_claims_one_wins() {
    let Some(site) = site("races of claims") else { return };
    let (mut one, mut two) = (Store::new(&site.primary), Store::new(&site.primary));
    for seen in 0..50 {
        let claims = [1, 2].map(|token| one.claim_of(seen, seen + 1, token));
        let [first, second] = claims;
        one.begin(first);
        two.begin(second);
        let results = [one.result(), two.result()];
        let winner = 1 + u64::from(results[1].is_ok());
        assert!(results.contains(&Ok(())) && results.contains(&Err(Failure::Fenced)), "{results:?}");
        assert_eq!(one.read(seen + 1).leader.token, winner);
        assert_eq!(two.read(seen + 1).leader.token, winner);
    }
}

#[test]
fn a_claim_waits_for_appends_that_are_being_committed() {
    let Some((mut site, mut old)) = own_led("a claim and an append") else { return };
    let mut new = Store::new(&site.primary);
    site.stop_standbys();
    old.begin_waiting(append(1, 2, "two"), &site.primary, WAITING);
    let claim = new.claim_of(1, 2, 8);
    new.begin_waiting(claim, &site.primary, "wait_event_type = 'Lock'");
    site.start_standbys();
    assert_eq!(old.result(), Ok(()));
    assert_eq!(new.result(), Err(Failure::Taken));
}

#[test]
fn a_watch_ends_when_the_leader_is_killed() {
    let Some(site) = site("watches") else { return };
    let mut store = Store::new(&site.primary);
    let nobody = Term { epoch: Epoch(0), token: 0 };
    assert_eq!(result_of(store.ask(Request::Watch(nobody))), Ok(()), "epoch 0 has no leader");
    let (mut leader, _) = start(&site.url(), &["--no-forward"]);
    let mut times = Vec::new();
    for epoch in 1..=5 {
        wait::until("it leads", || store.read(1).epoch.0 == epoch);
        let term = Term { epoch: Epoch(epoch), token: store.read(1).leader.token };
        store.begin(Request::Watch(term));
        store.watches_on(&site.primary, "it leads");
        let killed = Instant::now();
        leader.signal(Signal::SIGKILL);
        assert_eq!(store.reply(), DatabaseReply::Watched { term, result: Ok(()) });
        times.push(killed.elapsed());
        leader.ended();
        leader.start();
    }
    times.sort_unstable();
    println!("the end of a leader is seen within {times:?}");
}

#[test]
fn a_watch_is_replaced_by_another_one() {
    let Some((site, leader)) = led("replaced watches") else { return };
    let mut store = Store::new(&site.primary);
    store.begin(Request::Watch(term(1)));
    store.watches_on(&site.primary, "it leads");
    // After a fail-over only the token tells leaders apart.
    for other in [Term { epoch: Epoch(9), token: 7 }, Term { epoch: Epoch(1), token: 8 }] {
        store.begin(Request::Watch(other));
        store.watches_on(&site.primary, "the log has another leader");
    }
    drop(leader);
    store.watches_on(&site.primary, "the first one gets no reply");
    let term = term(1);
    assert_eq!(store.ask(Request::Watch(term)), DatabaseReply::Watched { term, result: Ok(()) });
}

#[test]
fn a_leader_takes_its_lock_again() {
    let Some((site, mut leader)) = led("a lost lock") else { return };
    let server = &site.primary;
    let mut store = Store::new(server);
    store.begin(Request::Watch(term(1)));
    store.watches_on(server, "it leads");
    let holders = "from pg_locks where locktype = 'advisory' and granted and mode = 'ExclusiveLock'
        and database = (select oid from pg_database where datname = current_database())";
    for _ in 0..5 {
        server.sql(&format!("select pg_terminate_backend(pid) {holders}"));
        server.wait_for(&format!("select count(*) {holders}"), "1");
    }
    assert_eq!(leader.renew(1, 7), Ok(()));
    // Another leader frees the lock of the one before, once that has read so.
    let mut other = Store::new(server);
    assert_eq!(other.claim(1, 2, 8), Ok(()));
    assert_eq!(leader.read(1).epoch, Epoch(2));
    server.wait_for(&format!("select count(*) {holders}"), "1");
}
