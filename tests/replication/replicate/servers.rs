//! Servers whose job log is in the database: how they stop, restart in place, and write a damaged log again.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use beanring_testkit::certificates::Certificates;
use beanring_testkit::client::put;
use beanring_testkit::postgres::End;
use beanring_testkit::scratch::{Scratch, secret};
use beanring_testkit::wait;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::node::Node;
use crate::site::{own_empty, own_site, replicate, run, site, start, with_tables};
use crate::small_disk::SmallDisk;

#[test]
fn a_stop_ends_though_the_database_does_not_answer() {
    // Each takes five seconds.
    thread::scope(|scope| {
        for is_down in [true, false] {
            scope.spawn(move || stop_unanswered(is_down));
        }
    });
}

fn stop_unanswered(is_down: bool) {
    let Some(mut site) = own_site("stops without a database") else { return };
    let (mut server, mut client) = start(&site.url(), &["--no-forward"]);
    client.expect(&put(0, 0, "kept"), "INSERTED 1");
    let mut waiting = server.client();
    if is_down {
        site.primary.stop(End::Immediate);
    } else {
        site.stop_standbys();
    }
    waiting.send(&put(1, 0, "no reply"));
    wait::until("an append waits", || server.metric("replication_appends_in_flight") == Some(1.0));
    let started = Instant::now();
    assert_eq!(server.terminate(), Some(1), "{}", server.log_text());
    assert!(started.elapsed() >= Duration::from_secs(5), "{:?}", started.elapsed());
    server.wait_for(
        "stopped without the database, which has acknowledged nothing for 5 s: 1 client waits for replies",
    );
    assert_eq!(waiting.line(), None, "there is no reply");
    if is_down {
        site.primary.start();
    } else {
        site.start_standbys();
    }
    let (mut server, mut client) = start(&site.url(), &["--no-forward"]);
    client.expect("peek 1\r\n", "FOUND 1 4");
    drop(client);
    assert_eq!(server.terminate(), Some(0), "{}", server.log_text());
}

#[test]
fn a_database_without_synchronous_standbys_is_named_within_ten_seconds() {
    let Some(site) = own_site("an emptied list of standbys") else { return };
    let names = site.primary.sql("show synchronous_standby_names");
    let (leader, mut client) = start(&site.url(), &["--no-forward"]);
    client.expect(&put(0, 0, "one"), "INSERTED 1");
    let began = Instant::now();
    site.primary.set("synchronous_standby_names", "");
    leader.wait_for("synchronous_standby_names is empty");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(leader.metric("replication_unreplicated"), Some(1.0));
    site.primary.set("synchronous_standby_names", &names);
    leader.wait_for("a standby of the database has each change again");
    assert_eq!(leader.metric("replication_unreplicated"), Some(0.0));
    drop((leader, client));
    // Where that is as it should be.
    site.primary.set("synchronous_standby_names", "");
    let (trusting, mut client) = start(&site.url(), &["--no-forward", "--replicate-trust-storage"]);
    client.expect("peek 1\r\n", "FOUND 1 3");
    assert_eq!(trusting.metric("replication_unreplicated"), Some(0.0));
}

#[test]
fn a_role_that_became_read_only_is_named_within_ten_seconds() {
    let Some(site) = own_site("a role that became read-only") else { return };
    let (leader, mut client) = start(&site.url(), &["--no-forward"]);
    client.expect(&put(0, 0, "one"), "INSERTED 1");
    // This takes a renewal, whose session is open from now on.
    client.expect("peek 1\r\n", "FOUND 1 3");
    let set = |what: &str| _ = site.primary.sql(&format!("alter {what}"));
    for (begin, end) in [
        (
            "role beanring set default_transaction_read_only = on",
            "role beanring reset default_transaction_read_only",
        ),
        // That of the role precedes that of the database.
        (
            "database DATABASE set default_transaction_read_only = yes",
            "role beanring set default_transaction_read_only = off",
        ),
    ] {
        let database = site.primary.sql("select current_database()");
        let began = Instant::now();
        set(&begin.replace("DATABASE", &database));
        wait::until("the metric tells", || leader.metric("replication_read_only_role") == Some(1.0));
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        client.expect("peek 1\r\n", "FOUND 1 3");
        set(end);
        wait::until("the metric tells", || leader.metric("replication_read_only_role") == Some(0.0));
    }
    leader.wait_for("default_transaction_read_only is set for the role of this server");
    leader.wait_for("is not set for the role of this server any more");
}

#[test]
fn a_restart_in_place_hands_over() {
    let Some(mut site) = own_site("restarts in place") else { return };
    let (mut alone, mut client) = start(&site.url(), &[]);
    client.expect(&put(0, 0, "one"), "INSERTED 1");
    let token = || site.primary.sql("select token from beanring_epoch");
    let before = token();
    client.expect("reserve\r\n", "RESERVED 1 3");
    client.expect(&put(5, 0, "two"), "INSERTED 2");
    alone.signal(Signal::SIGUSR2);
    assert_eq!(client.line(), None, "the connection is closed");
    let (mut client, took) = alone.serves("peek 2\r\n", "FOUND 2 3");
    println!("a restart in place of the only server: {took:?} without a leader");
    assert_ne!(token(), before, "what the leader before has sent must not pass for its own");
    assert!(took < Duration::from_secs(3), "{took:?}");
    client.expect("delete 1\r\n", "DELETED");
    alone.wait_for("the last leader had the address of this server");
    let log = alone.log_text();
    // A busy machine may be slower than the lease.
    let is_other = |line: &&str| line.contains("WARN") && !line.contains("acknowledged nothing for 1 s");
    assert_eq!(log.lines().find(is_other), None, "it does not connect to itself: {log}");

    let (mut standby, _) = start(&site.url(), &[]);
    standby.wait_for("this server is a standby of");
    alone.signal(Signal::SIGUSR2);
    assert_eq!(client.line(), None, "the connection is closed");
    let (mut client, took) = alone.serves("peek 2\r\n", "FOUND 2 3");
    println!("a restart in place beside a standby: {took:?} without a leader");
    assert!(took < Duration::from_secs(3), "{took:?}");
    // Both may claim, and the new program may be the faster one.
    for _ in 0..20 {
        if standby.log_text().contains("this server leads") {
            break;
        }
        alone.signal(Signal::SIGUSR2);
        assert_eq!(client.line(), None, "the connection is closed");
        (client, _) = alone.serves("peek 2\r\n", "FOUND 2 3");
    }
    standby.wait_for("this server leads");
    // The standby restarts, and the leader goes on.
    let (mut direct, _) = standby.serves("peek 2\r\n", "FOUND 2 3");
    alone.signal(Signal::SIGUSR2);
    assert_eq!(client.line(), None, "the connection is closed");
    direct.expect("peek 2\r\n", "FOUND 2 3");
    alone.serves("peek 2\r\n", "FOUND 2 3");

    site.primary.stop(End::Fast);
    standby.signal(Signal::SIGUSR2);
    standby.wait_for("no restart: the preflight check of");
    assert!(standby.log_text().contains("cannot connect to the database"), "{}", standby.log_text());
    site.primary.start();
    standby.serves("peek 2\r\n", "FOUND 2 3");
}

/// A restart reads the files of the URL again. One that blocks refuses it, and the server goes on.
#[test]
fn a_file_of_the_database_that_blocks_refuses_a_restart() {
    let Some(site) = site("a file of the database that blocks") else { return };
    let scratch = Scratch::new("replicate-blocks");
    let ca = Certificates::new(&scratch.0).ca;
    let url = site.url();
    let mark = if url.contains('?') { '&' } else { '?' };
    let (server, mut client) = start(&format!("{url}{mark}sslmode=prefer&sslrootcert={}", ca.display()), &[]);
    client.expect(&put(0, 0, "one"), "INSERTED 1");
    fs::remove_file(&ca).expect("it exists");
    mkfifo(&ca, Mode::S_IRUSR | Mode::S_IWUSR).expect("it is new");
    server.signal(Signal::SIGUSR2);
    server.wait_for("no restart: the preflight check of");
    let log = server.log_text();
    assert!(log.contains("in the URL of the database: it is a FIFO, not a regular file"), "{log}");
    client.expect("peek 1\r\n", "FOUND 1 3");
}

/// Each server reads its own file of users. What a user may name is what the file of the present leader says.
#[test]
fn keys_of_users_are_those_of_the_file_of_the_leader() {
    let Some(site) = site("users of two servers") else { return };
    let scratch = Scratch::new("replicate-users");
    let user = "[users.one]\ntoken = \"one-one-one-one-one\"\nproduce = [\"default\"]\n";
    let with_keys = format!("{user}keys = [\"shared\"]\n");
    let [first, second] = ["first.toml", "second.toml"].map(|name| scratch.join(name));
    secret(&first, &with_keys);
    secret(&second, user);
    let flags = |file: &Path| ["--auth".to_owned(), file.display().to_string()];
    let auth = "auth one-one-one-one-one\r\n";
    let with_key = "put 0 0 60 1 con:shared\r\nx\r\n";
    let (mut leader, mut client) = start(&site.url(), &flags(&first).each_ref().map(String::as_str));
    client.expect(auth, "AUTHENTICATED");
    client.expect(with_key, "INSERTED 1");
    let (mut standby, mut forwarded) = start(&site.url(), &flags(&second).each_ref().map(String::as_str));
    // The leader decides for clients of the standby.
    forwarded.expect(auth, "AUTHENTICATED");
    forwarded.expect(with_key, "INSERTED 2");

    leader.kill();
    let (mut client, _) = standby.serves(auth, "AUTHENTICATED");
    client.expect(with_key, "FORBIDDEN");
    client.expect(&put(0, 0, "x"), "INSERTED 3");
    secret(&second, &with_keys);
    standby.signal(Signal::SIGWINCH);
    wait::until("the file is read", || client.ask(with_key).0 != "FORBIDDEN");
}

/// Two servers of one machine cannot listen at the same address, so the row of the epoch names that of the standby.
#[test]
fn a_leader_with_the_address_of_its_standby_is_reported() {
    let Some(site) = site("servers with the same --advertise") else { return };
    let (leader, mut client) = start(&site.url(), &[]);
    client.expect(&put(0, 0, "one"), "INSERTED 1");
    // Without TLS for clients, too: the port for standbys expects headers.
    assert_eq!(client.stat("proxy-header-failures"), 0);
    let mut standby = Node::new(&site.url(), &["--lease", "1"], None);
    let be_at = |address: &str| {
        site.primary.sql(&format!("update beanring_epoch set address = '{address}'"));
    };
    be_at(&standby.advertised);

    let began = Instant::now();
    standby.start();
    let mut waiting = standby.client();
    standby.wait_for("the last leader had the address of this server");
    standby.wait_for_readiness("no leader\n");
    standby.wait_for(&format!("another server leads with the address of this one, {}: ", standby.advertised));
    assert!(began.elapsed() >= Duration::from_secs(1), "an earlier run has this time to end");
    standby.wait_for("give each server an --advertise of its own");
    standby.wait_for_readiness("the leader has the address of this server\n");
    waiting.send("peek 1\r\n");
    assert_eq!(waiting.line(), None, "a client waits, and is closed");

    be_at(&leader.advertised);
    standby.wait_for_readiness("ready\n");
    standby.serves("peek 1\r\n", "FOUND 1 3");
    assert_eq!(standby.log_text().matches("WARN").count(), 1, "{}", standby.log_text());
}

#[test]
fn a_standby_of_a_leader_that_accepts_no_forwarded_connections_is_not_ready() {
    let Some(site) = site("a leader with --no-forward") else { return };
    let (_leader, mut client) = start(&site.url(), &["--no-forward"]);
    client.expect(&put(0, 0, "one"), "INSERTED 1");
    let (standby, _) = start(&site.url(), &[]);
    standby.wait_for("this server is a standby of a leader that accepts no forwarded connections");
    standby.wait_for_readiness("the leader has --no-forward\n");
}

#[test]
fn a_taken_port_of_advertise_is_named() {
    let Some(site) = site("a port that is taken") else { return };
    let taken = TcpListener::bind(("0.0.0.0", 0)).expect("there are ports");
    let address = format!("127.0.0.1:{}", taken.local_addr().expect("it is bound").port());
    let (code, _, error) = run(&["-l", "127.0.0.1", "-p", "0", "--advertise", &address], &site.url());
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("--advertise: cannot listen on 127.0.0.1:"), "{error}");
}

#[test]
fn a_database_that_does_not_acknowledge_is_reported() {
    let Some(site) = own_site("a database that does not acknowledge") else { return };
    let primary = &site.primary;
    let (leader, mut client) = start(&site.url(), &[]);
    client.expect(&put(0, 0, "one"), "INSERTED 1");
    leader.wait_for_readiness("ready\n");
    primary.signal_senders(Signal::SIGSTOP);
    leader.wait_for("the database has acknowledged nothing for 1 s");
    leader.wait_for_readiness("the lease is over\n");
    primary.signal_senders(Signal::SIGCONT);
    leader.wait_for("the database acknowledges again");
    leader.wait_for_readiness("ready\n");
    client.expect("peek 1\r\n", "FOUND 1 3");

    let (mut standby, _waiting) = start(&site.url(), &[]);
    standby.wait_for_readiness("ready\n");
    primary.signal_senders(Signal::SIGSTOP);
    standby.wait_for_readiness("no leader\n");
    primary.signal_senders(Signal::SIGCONT);
    standby.serves("peek 1\r\n", "FOUND 1 3");
}

#[test]
fn a_leader_writes_a_damaged_log_again() {
    let Some(site) = site("a damaged log that is written again") else { return };
    let (code, _, error) = replicate(&["rewrite"], &site.url());
    assert!(code == 1 && error.contains("no server leads log 1"), "{error}");
    let flags = ["--no-forward", "-s", "65536"];
    let (mut leader, mut client) = start(&site.url(), &flags);
    let body = "x".repeat(1000);
    for id in 1..=400 {
        client.expect(&put(id, 0, &body), &format!("INSERTED {id}"));
    }
    for id in (1..=100).step_by(3) {
        client.expect(&format!("delete {id}\r\n"), "DELETED");
    }
    client.expect("reserve\r\n", "RESERVED 2 1000");
    client.expect("bury 2 7\r\n", "BURIED");
    client.expect("tube-config mail rate 5\r\n", "CONFIGURED");
    // A byte of a chunk that is still needed, and one in the last segment.
    let damage = "update beanring_log set chunk = set_byte(chunk, 300, get_byte(chunk, 300) # 255)
        where pos in (select pos from beanring_log where octet_length(chunk) > 400 order by pos desc limit 1 offset";
    for offset in ["100)", "3)"] {
        site.primary.sql(&format!("{damage} {offset}"));
    }
    let (standby, mut later) = start(&site.url(), &flags);
    standby.wait_for("cannot follow the job log in the database: the chunk at position");
    let (code, _, error) = replicate(&["export", "/nowhere/none"], &site.url());
    assert!(code == 1 && error.contains("beanring replicate rewrite"), "{error}");

    let stop = AtomicBool::new(false);
    let mut last = 400;
    let (code, out, error) = thread::scope(|scope| {
        let rewrite = scope.spawn(|| {
            let result = replicate(&["rewrite"], &site.url());
            stop.store(true, Ordering::Relaxed);
            result
        });
        // Changes go on in the meantime.
        while !stop.load(Ordering::Relaxed) {
            last += 1;
            client.expect(&put(9, 0, &body), &format!("INSERTED {last}"));
        }
        rewrite.join().expect("it ends")
    });
    assert_eq!((code, &*error), (0, ""));
    assert!(out.starts_with("the leader has written log 1 again; it begins at position "), "{out}");
    println!("{} jobs were put in the meantime", last - 400);
    client.expect(&put(9, 0, "last"), &format!("INSERTED {}", last + 1));
    standby.wait_for("this server follows the job log again");
    leader.kill();
    for id in 3..=last {
        let reply = later.ask(&format!("peek {id}\r\n")).0;
        let is_deleted = id <= 100 && id % 3 == 1;
        let expected = if is_deleted { "NOT_FOUND".to_owned() } else { format!("FOUND {id} 1000") };
        assert_eq!(reply, expected);
    }
    later.expect(&format!("peek {}\r\n", last + 1), &format!("FOUND {} 4", last + 1));
    let (_, stats) = later.ask("stats-job 2\r\n");
    assert!(stats.contains("state: buried\n"), "{stats}");
    assert!(later.ask("tube-config mail\r\n").1.contains("rate: 5\n"));
    standby.wait_for("this server leads");
}

#[test]
fn deletions_go_on_while_the_database_is_full() {
    // A standby would need the tablespace at the same path.
    let Some(site) = own_empty("a full tablespace", 0) else { return };
    let scratch = Scratch::new("small-disk");
    let (own, place) = (fs::metadata(site.primary.data()).expect("it is there"), scratch.dir("disk"));
    chown(&place, Some(own.uid()), Some(own.gid())).expect("it is new");
    let _disk = match SmallDisk::mount(&place, 96) {
        Ok(disk) => disk,
        Err(reason) => return println!("skipped: a full tablespace, because {reason}"),
    };
    let site = with_tables(site);
    site.primary.sql(&format!("create tablespace small location '{}'", place.display()));
    for change in ["table beanring_log", "index beanring_log_pkey", "table beanring_reserve"] {
        site.primary.sql(&format!("alter {change} set tablespace small"));
    }
    let flags = ["--no-forward", "--replicate-trust-storage", "-s", "4194304"];
    let (mut server, mut client) = start(&site.url(), &flags);
    site.primary.wait_for("select pg_relation_size('beanring_reserve') >= 32 * 1024 * 1024", "t");
    let body = "x".repeat(60_000);
    let mut jobs = 0;
    loop {
        match client.ask(&put(7, 0, &body)).0 {
            reply if reply.starts_with("INSERTED ") => jobs += 1,
            reply => break assert_eq!(reply, "OUT_OF_MEMORY"),
        }
    }
    println!("{jobs} jobs of 60 kB were put");
    assert!(jobs > 500, "{jobs}");
    // Deletions go on, and further puts are refused.
    client.expect("reserve\r\n", "RESERVED 1 60000");
    client.expect("delete 1\r\n", "DELETED");
    let began = Instant::now();
    for id in 2..=jobs {
        if id % 4 != 0 {
            client.expect(&format!("delete {id}\r\n"), "DELETED");
        }
    }
    println!("{} deletions took {:?}", jobs * 3 / 4, began.elapsed());
    wait::until("puts are accepted again", || client.ask(&put(8, 0, &body)).0 != "OUT_OF_MEMORY");
    server.wait_for("the database of the job log has space again");
    let left = client.stat("current-jobs-ready");
    drop(client);
    server.kill();
    let (_server, mut client) = start(&site.url(), &flags);
    for id in 1..=jobs {
        let expected = if id % 4 == 0 { format!("FOUND {id} 60000") } else { "NOT_FOUND".to_owned() };
        client.expect(&format!("peek {id}\r\n"), &expected);
    }
    assert_eq!(client.stat("current-jobs-ready"), left);
}
