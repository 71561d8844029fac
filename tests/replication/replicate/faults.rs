//! Ends of database servers.

use std::time::Duration;

use beanring::wal::replica::{Epoch, Failure, Reply, Request, Term};
use beanring_testkit::postgres::End;
use nix::sys::signal::Signal;

use super::site::{Store, append, chunks, repeated, result_of, site};

/// The leader that the tests watch.
const TERM: Term = Term { epoch: Epoch(1), token: 7 };

#[test]
fn a_primary_that_restarts_loses_nothing_that_was_acknowledged() {
    let Some(mut cluster) = site("a restart of the primary") else { return };
    let mut store = Store::new(&cluster.primary);
    assert_eq!(store.claim(0, 1, 7), Ok(()));
    for (position, end) in [(2, End::Immediate), (3, End::Fast), (4, End::Immediate)] {
        assert_eq!(store.append(1, position, "x"), Ok(()));
        cluster.primary.stop(end);
        assert_eq!(store.append(1, position + 1, "x"), Err(Failure::Unknown), "it is down");
        assert_eq!(store.renew(1, 7), Err(Failure::Unknown));
        cluster.primary.start();
        assert_eq!(store.settle(&repeated(1, position, "x")), Ok(()));
    }
    assert_eq!(store.settle(&Request::Read { from: beanring::wal::replica::Position(1) }), Ok(()));
    assert_eq!(chunks(&store.read(1)).len(), 4);
}

#[test]
fn a_row_that_no_standby_has_is_shown_but_not_acknowledged() {
    let Some(mut cluster) = site("a primary that restarts alone") else { return };
    let mut store = Store::new(&cluster.primary);
    assert_eq!(store.claim(0, 1, 7), Ok(()));
    for standby in &mut cluster.standbys {
        standby.stop(End::Fast);
    }
    store.begin(append(1, 2, "two"));
    cluster
        .primary
        .wait_for("select count(*) from pg_stat_activity where wait_event = 'SyncRep'", |text| text == "1");
    cluster.primary.stop(End::Immediate);
    assert_eq!(result_of(store.reply()), Err(Failure::Unknown));
    cluster.primary.start();
    assert_eq!(store.settle(&Request::Read { from: beanring::wal::replica::Position(1) }), Ok(()));
    assert_eq!(chunks(&store.read(2)).len(), 1, "PostgreSQL shows it");
    store.begin(repeated(1, 2, "two"));
    assert_eq!(store.reply_within(Duration::from_millis(500)), None);
    for standby in &mut cluster.standbys {
        standby.start();
    }
    assert_eq!(result_of(store.reply()), Ok(()));
}

#[test]
fn a_promoted_standby_goes_on() {
    let Some(mut cluster) = site("a promoted standby") else { return };
    let both = format!(
        "postgres://beanring:secret@127.0.0.1:{},127.0.0.1:{}/queue",
        cluster.primary.port(),
        cluster.standbys[0].port()
    );
    let settings = beanring::io::replica::Settings::parse(&both, Default::default()).expect("it is valid");
    let mut store = Store(beanring::io::replica::PostgresStore::new(settings).expect("there are threads"));
    assert_eq!(store.claim(0, 1, 7), Ok(()));
    cluster.primary.set("synchronous_standby_names", "s1");
    assert_eq!(store.append(1, 2, "two"), Ok(()));
    cluster.standbys[0].set("synchronous_standby_names", "");
    store.begin(Request::Watch(TERM));
    assert_eq!(store.reply_within(Duration::from_millis(200)), None);
    cluster.primary.stop(End::Immediate);
    let reply = store.reply();
    assert_eq!(reply, Reply::Watched { term: TERM, result: Err(Failure::Unknown) });
    cluster.standbys[0].promote();
    assert_eq!(store.settle(&append(1, 3, "three")), Ok(()));
    assert_eq!(store.settle(&Request::Read { from: beanring::wal::replica::Position(1) }), Ok(()));
    assert_eq!(chunks(&store.read(1)).len(), 3);
    // The leader has its lock again before the end of the grace.
    store.begin(Request::Watch(TERM));
    assert_eq!(store.reply_within(Duration::from_secs(2)), None);
}

#[test]
fn a_store_ends_while_the_database_does_not_answer() {
    let Some(cluster) = site("a database that does not answer") else { return };
    let mut store = Store::new(&cluster.primary);
    cluster.primary.signal(Signal::SIGSTOP);
    store.begin(append(1, 2, "two"));
    assert_eq!(store.reply_within(Duration::from_millis(200)), None);
    let started = std::time::Instant::now();
    drop(store);
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
}
