//! Pages that are read, and trims.

use beanring::wal::replica::{Epoch, Member, Position};
use beanring_testkit::postgres::Postgres;
use beanring_testkit::wait;

use super::store::{Store, chunks, led, member};
use crate::site::{sessions, site};

/// Inserts chunks without a store, for logs that are long.
fn fill(server: &Postgres, first: u64, last: u64, bytes: u64) {
    server.sql(&format!(
        "insert into beanring_log select 1, p, 1, convert_to(repeat('x', {bytes}), 'UTF8') from generate_series({first}, {last}) p"
    ));
}

#[test]
fn a_page_names_the_leader() {
    let Some(site) = site("pages") else { return };
    let mut store = Store::new(&site.primary);
    let empty = store.read(1);
    assert_eq!((empty.epoch, empty.begin, empty.beat), (Epoch(0), Position(1), 0));
    assert_eq!(empty.leader, Member::default());
    assert!(empty.chunks.is_empty() && empty.is_end() && empty.log_id != 0);
    assert_eq!(store.claim(0, 1, 7), Ok(()));
    let before = store.read(1);
    assert_eq!(before.leader, member(7));
    assert_eq!(store.renew(1, 7), Ok(()));
    let after = store.read(2);
    assert_ne!(before.beat, after.beat);
    assert_eq!((after.epoch, after.log_id), (Epoch(1), before.log_id));
    assert!(after.chunks.is_empty() && after.is_end());
}

#[test]
fn pages_are_bounded_in_chunks_and_bytes() {
    let Some((site, mut store)) = led("long logs") else { return };
    fill(&site.primary, 2, 1000, 10);
    let page = store.read(1);
    assert_eq!((page.chunks.len(), page.is_end()), (1000, true));
    fill(&site.primary, 1001, 1001, 10);
    let page = store.read(1);
    assert_eq!((page.chunks.len(), page.is_end()), (1000, false));
    let page = store.read(1001);
    assert_eq!((page.chunks.len(), page.is_end()), (1, true));
    fill(&site.primary, 1002, 1020, 512 * 1024);
    let mut next = 1002;
    for expected in [8, 8, 3] {
        let page = store.read(next);
        assert_eq!((page.chunks.len(), page.is_end()), (expected, expected == 3));
        assert!(page.chunks.iter().all(|(_, chunk)| chunk.len() == 512 * 1024));
        next += expected as u64;
    }
    // A gap is shown as it is.
    site.primary.sql("delete from beanring_log where pos = 4");
    let page = store.read(3);
    assert_eq!(page.chunks[..2].iter().map(|(position, _)| position.0).collect::<Vec<_>>(), [3, 5]);
}

#[test]
fn a_trim_deletes_in_steps_what_no_reader_sees() {
    let Some((site, mut store)) = led("trims") else { return };
    fill(&site.primary, 2, 2000, 10);
    assert_eq!(store.trim(1, 1990), Ok(()));
    assert_eq!(site.primary.sql("select min(pos), max(pos), count(*) from beanring_log"), "1990|2000|11");
    let page = store.read(1);
    assert_eq!((page.begin, chunks(&page)[0].0), (Position(1990), 1990));
    // The begin never goes back.
    assert_eq!(store.trim(1, 5), Ok(()));
    assert_eq!(store.read(1).begin, Position(1990));
    // Rows before it, which a crash has brought back, are not read.
    fill(&site.primary, 100, 101, 10);
    assert_eq!(chunks(&store.read(1))[0].0, 1990);
    assert_eq!(store.trim(1, 1991), Ok(()));
    assert_eq!(site.primary.sql("select min(pos) from beanring_log"), "1991");
}

#[test]
fn the_space_of_trimmed_chunks_is_used_again() {
    let Some((site, mut store)) = led("vacuums after trims") else { return };
    let server = &site.primary;
    let size = || server.sql("select pg_total_relation_size('beanring_log')").parse::<u64>().expect("a size");
    let vacuums = |what: &str| {
        format!("select vacuum_count{what} from pg_stat_user_tables where relname = 'beanring_log'")
    };
    let mut sizes = Vec::new();
    for round in 0..8 {
        let (first, before) = (2 + 2000 * round, server.sql(&vacuums("")));
        fill(server, first, first + 1999, 1000);
        sizes.push(size());
        assert_eq!(store.trim(1, first + 2000), Ok(()));
        server.wait_for(&vacuums(&format!(" > {before}")), "t");
    }
    // A vacuum leaves the rows that a session still sees to the next one.
    assert!(sizes[7] < sizes[0] * 3, "the table grows: {sizes:?}");
}

#[test]
fn a_read_and_a_claim_touch_few_rows_of_a_long_log() {
    let Some((site, mut store)) = led("the cost of reads") else { return };
    let server = &site.primary;
    let touched = || {
        let count = server.sql(
            "select coalesce(sum(seq_tup_read), 0) + (select coalesce(sum(idx_tup_read), 0) from pg_stat_user_indexes
                where relname = 'beanring_log')
            from pg_stat_user_tables where relname = 'beanring_log'",
        );
        count.parse::<u64>().expect("a number")
    };
    // The session keeps a plan that is made while the table is small, and known to be small.
    server.sql("vacuum beanring_log");
    for _ in 0..10 {
        store.read(1);
    }
    fill(server, 2, 20_000, 100);
    let filled = touched();
    for at in 19_900..20_000 {
        assert_eq!(store.read(at).chunks.len(), 20_001 - at as usize);
    }
    assert_eq!(store.claim(1, 20_001, 8), Ok(()));
    drop(store);
    // A session counts when it ends.
    server.wait_for(&sessions("application_name like 'beanring%'"), "0");
    let mut count = 0;
    // Another process counts in older versions, a moment later.
    wait::until("the session has counted", || {
        count = touched() - filled;
        count > 5_000
    });
    assert!(count < 20_000, "{count} rows of a log of 20,000");
}
