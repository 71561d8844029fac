//! A tablespace that is full.

use std::thread;
use std::time::Duration;

use beanring_testkit::process::REPLY_PATIENCE;

use super::clients::{Clients, Plan};
use super::place::{Place, Use};
use super::record::{Event, Reply};
use super::run::Setup;
use crate::small_disk::SmallDisk;

/// The size of the tablespace at first.
const SMALL_MIB: usize = 12;

/// Moves the log to a tablespace on a small disk.
fn move_log(place: &Place) -> Result<SmallDisk, String> {
    let primary = &place.cluster.primary;
    primary.set("allow_in_place_tablespaces", "on");
    primary.set("autovacuum_naptime", "1s");
    // It cannot be made in a transaction with another statement.
    primary.sql("create tablespace small location ''");
    primary.sql("grant create on tablespace small to beanring");
    let id = primary.sql("select oid from pg_tablespace where spcname = 'small'");
    let disk = SmallDisk::mount(&primary.data().join("pg_tblspc").join(id), SMALL_MIB)?;
    primary.sql("alter table beanring_log set tablespace small");
    primary.sql("alter index beanring_log_pkey set tablespace small");
    Ok(disk)
}

#[test]
fn a_full_tablespace_loses_nothing() {
    let setup = Setup {
        what: "a full tablespace",
        rounds: ("FULL", 1),
        database: Use::Own,
        plan: |plan| Plan { body_bytes_max: 60_000, jobs_max: i64::MAX, workers: 4, ..plan },
        ..Setup::default()
    };
    let mut disk = None;
    let Some(mut run) = setup.start_after(|place| move_log(place).map(|mounted| disk = Some(mounted))) else {
        return;
    };
    // Unmounted before the server's directory is removed.
    let disk = disk.take().expect("it was mounted");
    let mut spent = Vec::new();
    for round in 0..run.rounds {
        let full = wait_until_full(&run.clients);
        // Nothing is acknowledged that the database does not have. A leader keeps its lease.
        thread::sleep(Duration::from_secs(2));
        spent.push(full..run.clients.now());
        disk.resize(SMALL_MIB * (2 + round));
        let grown = run.note_moment();
        run.expect_put(grown);
    }
    let events = run.conclude("");
    let during = |is: fn(&Reply) -> bool| {
        let is_during = |event: &&Event| spent.iter().any(|range| range.contains(&event.asked_at));
        events.iter().filter(is_during).filter(|event| is(&event.reply)).count()
    };
    println!(
        "while it was full: {} puts refused, {} accepted, {} jobs reserved, {} deleted",
        during(|reply| *reply == Reply::Refused),
        during(|reply| matches!(reply, Reply::Inserted(_))),
        during(|reply| matches!(reply, Reply::Reserved(..))),
        during(|reply| *reply == Reply::Deleted),
    );
}

/// Waits until no put is accepted for a while, because it waits or because it is refused. Returns since when.
fn wait_until_full(clients: &Clients) -> u64 {
    loop {
        let at = clients.now();
        if !clients.wait_for_put(at, Duration::from_millis(1500)) {
            return at;
        }
        assert!(at < 3 * REPLY_PATIENCE.as_micros() as u64, "never full");
        thread::sleep(Duration::from_millis(100));
    }
}
