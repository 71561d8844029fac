//! What a standby takes for its clients and for the job log that it follows: descriptors and memory.

use std::ops::Range;

use beanring_testkit::client::{Client, put};
use beanring_testkit::driver;
use beanring_testkit::process::anonymous_bytes;
use beanring_testkit::wait;
use nix::sys::signal::Signal;

use crate::node::Node;
use crate::site::{site, start, terminate_sessions};

#[test]
fn a_full_standby_accepts_clients_when_others_have_left() {
    let Some(site) = site("a full standby") else { return };
    let (leader, mut client) = start(&site.url(), &[]);
    client.expect(&put(0, 0, "one"), "INSERTED 1");
    for io in driver::allowed("a full standby") {
        let flags = ["--max-connections", "3", "--io", io.name()];
        let mut standby = Node::new(&site.url(), &flags, None);
        standby.start();
        standby.wait_for_readiness("ready\n");
        let crowd: Vec<_> = (0..6).map(|_| standby.client()).collect();
        wait::until("it is full", || standby.metric("replication_forwarded_connections") == Some(3.0));
        drop(crowd);
        let (client, _) = standby.serves("peek 1\r\n", "FOUND 1 3");
        standby.signal(Signal::SIGUSR1);
        standby.wait_for("not draining: this server is a standby");
        standby.wait_for_readiness("ready\n");
        drop(client);
        assert_eq!(standby.terminate(), Some(0), "{}", standby.log_text());
    }
    drop(leader);
}

#[test]
fn clients_leave_descriptors_for_probes_and_the_database() {
    const DESCRIPTORS: u32 = 150;
    const CROWD: usize = 130;
    const WAITING: usize = 70;
    let Some(site) = site("few descriptors") else { return };
    for io in driver::allowed("few descriptors") {
        let flags = ["--io", io.name()];
        let mut leader = Node::new(&site.url(), &flags, None);
        leader.start_with_descriptors(DESCRIPTORS);
        let (mut client, _) = leader.serves("use crowd\r\n", "USING crowd");
        let (id, _) = client.ask(&put(0, 0, "one"));
        let peek = (id.replace("INSERTED", "peek") + "\r\n", id.replace("INSERTED", "FOUND") + " 3");
        let crowd: Vec<_> = (0..CROWD).map(|_| leader.client()).collect();
        wait::until("the leader is full", || leader.metric("accept_paused") == Some(1.0));
        terminate_sessions(&site.primary);
        client.expect(&put(0, 0, "two"), &format!("INSERTED {}", next(&id)));
        drop(crowd);

        let mut standby = Node::new(&site.url(), &flags, None);
        standby.start_with_descriptors(DESCRIPTORS);
        standby.wait_for_readiness("ready\n");
        let crowd: Vec<_> = (0..CROWD).map(|_| standby.client()).collect();
        standby.wait_for("this standby forwards 42 clients, and has descriptors for no more; raise the limit of open files");
        standby.wait_for_readiness("ready\n");
        let paused = || standby.metric("accept_paused");
        wait::until("the standby shows that it is full", || paused() == Some(1.0));
        // Clients that come before there is a leader take one descriptor each when this server leads.
        leader.kill();
        drop(crowd);
        let mut waiting: Vec<_> = (0..WAITING).map(|_| standby.client()).collect();
        waiting.iter_mut().for_each(|client| client.send(&peek.0));
        let served = waiting.iter_mut().filter_map(|client| client.reply()).filter(|reply| reply.0 == peek.1);
        // Those that had come before the standby noticed are closed.
        let served = served.count();
        assert!(served >= WAITING / 2, "{served} of {WAITING}\n{}", standby.log_text());
        standby.wait_for("this server leads");
        let mut others: Vec<_> = (0..WAITING - served).map(|_| standby.client()).collect();
        others.iter_mut().for_each(|client| client.expect(&peek.0, &peek.1));
        assert_eq!(standby.metric("accept_paused"), Some(0.0));
        drop((waiting, others));
        assert_eq!(standby.terminate(), Some(0), "{}", standby.log_text());
    }
}

/// The id after that of `INSERTED ID`.
fn next(inserted: &str) -> u64 {
    inserted.trim_start_matches("INSERTED ").parse::<u64>().expect("it is the id of a job") + 1
}

#[test]
fn a_standby_forgets_what_its_leader_has_forgotten() {
    const SOME: u64 = 4_000;
    const GROWTH_MAX: usize = 4 << 20;
    let Some(site) = site("a standby that follows for long") else { return };
    let flags = ["-s", "131072"];
    let (leader, mut client) = start(&site.url(), &flags);
    let (standby, forwarded) = start(&site.url(), &flags);
    drop(forwarded);
    standby.wait_for_readiness("ready\n");
    let mut after = |tubes: Range<u64>| {
        tubes.for_each(|tube| live_once(&mut client, tube));
        wait::until("the standby has read this", || standby.metric("replication_lag_positions") == Some(0.0));
        anonymous_bytes(standby.pid().expect("it runs"))
    };
    let before = after(0..SOME);
    let grown = after(SOME..5 * SOME).saturating_sub(before);
    println!("{before} bytes after {SOME} tubes, {grown} more after {}", 4 * SOME);
    assert!(grown < GROWTH_MAX, "{grown} bytes");
    drop(leader);
}

/// Puts three jobs into a tube that is paused, one with an idempotency key and one that waits for a group, and deletes them.
fn live_once(client: &mut Client, tube: u64) {
    let first = 3 * tube + 1;
    let put = |tags: String| format!("put 0 0 60 1 {tags}\r\nx\r\n");
    let replies = client.ask_all([
        format!("use tube-{tube}\r\n"),
        put(format!("idp:key-{tube}:1")),
        put(format!("grp:group-{tube}")),
        put(format!("aft:group-{tube}")),
        format!("pause-tube tube-{tube} 1\r\n"),
        format!("delete {first}\r\n"),
        format!("delete {}\r\n", first + 2),
        format!("delete {}\r\n", first + 1),
    ]);
    let lines: Vec<&str> = replies.iter().map(|(line, _)| &**line).collect();
    let words = ["USING ", "INSERTED ", "INSERTED ", "INSERTED ", "PAUSED", "DELETED", "DELETED", "DELETED"];
    let is_expected = lines.iter().zip(words).all(|(line, word)| line.starts_with(word));
    assert!(is_expected, "{lines:?}");
}
