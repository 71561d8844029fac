//! Ends of database servers.

use std::time::{Duration, Instant};

use beanring::wal::replica::{DatabaseReply, Failure, Request};
use beanring_testkit::postgres::End;
use nix::sys::signal::Signal;

use super::appends::WAITING;
use super::store::{Store, append, chunks, own_led, read, repeated, term};
use crate::site::{own_empty, own_site, parse};

#[test]
fn a_primary_that_restarts_loses_nothing_that_was_acknowledged() {
    let Some((mut site, mut store)) = own_led("a restart of the primary") else { return };
    for (position, end) in [(2, End::Immediate), (3, End::Fast), (4, End::Immediate)] {
        assert_eq!(store.append(1, position, "x"), Ok(()));
        site.primary.stop(end);
        assert_eq!(store.append(1, position + 1, "x"), Err(Failure::Unknown), "it is down");
        assert_eq!(store.renew(1, 7), Err(Failure::Unknown));
        site.primary.start();
        assert_eq!(store.settle(&repeated(1, position, "x")), Ok(()));
    }
    assert_eq!(store.settle(&read(1)), Ok(()));
    assert_eq!(chunks(&store.read(1)).len(), 4);
}

#[test]
fn a_row_that_no_standby_has_is_shown_but_not_acknowledged() {
    let Some((mut site, mut store)) = own_led("a primary that restarts alone") else { return };
    site.stop_standbys();
    store.begin_waiting(append(1, 2, "two"), &site.primary, WAITING);
    site.primary.stop(End::Immediate);
    assert_eq!(store.result(), Err(Failure::Unknown));
    site.primary.start();
    assert_eq!(store.settle(&read(1)), Ok(()));
    assert_eq!(chunks(&store.read(2)).len(), 1, "PostgreSQL shows it");
    store.begin_waiting(repeated(1, 2, "two"), &site.primary, WAITING);
    site.start_standbys();
    assert_eq!(store.result(), Ok(()));
}

#[test]
fn a_promoted_standby_goes_on() {
    let Some(mut site) = own_site("a promoted standby") else { return };
    let hosts = format!("{},{}", site.primary.host(), site.standbys[0].host());
    let mut store = Store::open(parse(&site.primary.url_with(&hosts)));
    assert_eq!(store.claim(0, 1, 7), Ok(()));
    site.primary.set("synchronous_standby_names", "s1");
    assert_eq!(store.append(1, 2, "two"), Ok(()));
    let term = term(1);
    store.begin(Request::Watch(term));
    store.watches_on(&site.primary, "it leads");
    site.primary.stop(End::Immediate);
    assert_eq!(store.reply(), DatabaseReply::Watched { term, result: Err(Failure::Unknown) });
    site.standbys[0].promote();
    assert_eq!(store.settle(&append(1, 3, "three")), Ok(()));
    assert_eq!(store.settle(&read(1)), Ok(()));
    assert_eq!(chunks(&store.read(1)).len(), 3);
    store.begin(Request::Watch(term));
    store.watches_on(&site.standbys[0], "it has its lock again before the end of the grace");
}

#[test]
fn a_store_ends_while_the_database_does_not_answer() {
    let Some(site) = own_empty("a database that does not answer", 0) else { return };
    let mut store = Store::new(&site.primary);
    site.primary.signal(Signal::SIGSTOP);
    store.begin(append(1, 2, "two"));
    assert_eq!(store.reply_within(Duration::from_millis(200)), None);
    let started = Instant::now();
    drop(store);
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
}
