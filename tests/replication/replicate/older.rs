//! Databases that lack what a leader was acknowledged: an old primary, and a standby that was promoted too early.

use std::time::{Duration, Instant};

use beanring_testkit::client::put;
use beanring_testkit::postgres::{End, Postgres};
use beanring_testkit::wait;

use crate::node::Node;
use crate::site::{own_site, site, start, terminate_sessions};

#[test]
fn a_leader_keeps_its_jobs_as_long_as_the_database_is_older() {
    let Some(site) = site("an older database") else { return };
    let (leader, mut client) = start(&site.url(), &["--no-forward"]);
    client.expect(&put(0, 0, "one"), "INSERTED 1");
    site.primary.sql("update beanring_epoch set epoch = 0");
    client.send(&put(0, 0, "two"));
    leader.wait_for("has epoch 0, and this server leads epoch 1");
    leader.wait_for_readiness("the lease is over\n");
    site.primary.sql("update beanring_epoch set epoch = 1");
    client.expect("peek 1\r\n", "INSERTED 2");
    assert_eq!(client.line().as_deref(), Some("FOUND 1 3"));
    leader.wait_for("is the right one again");
    assert_eq!(leader.log_text().matches("ERROR").count(), 1, "{}", leader.log_text());
}

#[test]
fn a_leader_leaves_an_old_primary_that_is_the_first_host_of_the_url() {
    let Some(mut site) = own_site("an old primary") else { return };
    // It has the tables, and nothing of the leader.
    site.primary
        .wait_for("select count(*) from pg_stat_replication where replay_lsn = pg_current_wal_lsn()", "2");
    site.standbys[0].stop(End::Fast);
    let hosts = format!("{},{}", site.standbys[0].host(), site.primary.host());
    let (leader, mut client) = start(&site.primary.url_with(&hosts), &["--no-forward"]);
    client.expect(&put(0, 0, "one"), "INSERTED 1");
    // Not a standby, it reads no more from the primary.
    std::fs::remove_file(site.standbys[0].data().join("standby.signal")).expect("it is there");
    site.standbys[0].start();
    terminate_sessions(&site.primary);
    client.expect(&put(0, 0, "two"), "INSERTED 2");
    leader.wait_for("has epoch 0, and this server leads epoch 1");
    leader.wait_for("is the right one again");
    client.expect("peek 1\r\n", "FOUND 1 3");
}

/// After a fail-over of the database the old primary comes back as one, with the epoch of the leader and without what came later. It is
/// the first host of the URL, and servers lose their sessions with the new one.
#[test]
fn servers_leave_an_old_primary_of_their_epoch() {
    let Some(mut site) = own_site("an old primary of the same epoch") else { return };
    let hosts = [&site.primary].into_iter().chain(&site.standbys).map(Postgres::host);
    let url = site.primary.url_with(&hosts.collect::<Vec<_>>().join(","));
    let (mut leader, mut client) = start(&url, &[]);
    client.expect(&put(0, 0, "first"), "INSERTED 1");
    let (mut standby, _) = start(&url, &[]);
    standby.serves("peek 1\r\n", "FOUND 1 5");
    site.fail_over();
    let old = site.standbys.iter().position(|server| !server.runs()).expect("the old primary has ended");
    // More than what may be in flight.
    for _ in 0..20 {
        insert(&mut leader);
    }
    let follows = |lag: f64| lag < 0.2;
    wait::until("the standby follows the new primary", || {
        standby.metric("replication_lag_seconds").is_some_and(follows)
    });
    site.standbys[old].start();
    for round in 0..20 {
        let (began, terms) = (Instant::now(), terms(&[&leader, &standby]));
        terminate_sessions(&site.primary);
        insert(&mut leader);
        insert(&mut standby);
        // A leader that a busy machine keeps waiting for longer than its lease, 1 s, is superseded, and a take-over takes its time.
        let is_superseded = terms < self::terms(&[&leader, &standby]);
        let took = began.elapsed();
        assert!(took < Duration::from_secs(3) || is_superseded, "round {round}: {took:?}");
    }
    // By its end, or by its epoch if the other server was the first one to reach the new primary, and leads since.
    for server in [&leader, &standby] {
        let log = server.log_text();
        let mut names = [" was acknowledged", "has epoch 1, and this server leads epoch 2"].into_iter();
        assert!(
            names.any(|name| log.contains(&format!("{name}: it is an old primary"))),
            "it names the old primary: {}",
            server.last_lines()
        );
    }
}

/// How often these servers have begun to lead.
fn terms(servers: &[&Node]) -> usize {
    servers.iter().map(|server| server.log_text().matches("this server leads").count()).sum()
}

/// Puts a job, by another connection if there is another leader.
fn insert(server: &mut Node) {
    let mut client = server.client();
    wait::until("a job is put", || {
        client.send(&put(0, 0, "later"));
        let Some((line, _)) = client.reply() else {
            client = server.client();
            return false;
        };
        assert!(line.starts_with("INSERTED "), "{line}");
        true
    });
}
