//! Servers whose job log is in the database: how they stop, restart in place, and write a damaged log again.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use beanring::io::driver::Driver;
use beanring::io::replica::init;
use beanring_testkit::client::{Client, put};
use beanring_testkit::driver;
use beanring_testkit::postgres::{Cluster, End};
use beanring_testkit::process::{Address, REPLY_PATIENCE, ServerProcess, Transport, program};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::unused_address::ReservedPort;
use nix::sys::signal::Signal;
use nix::unistd::User;

use super::site::{cluster, replicate, run, settings, site};

/// A server, and its log lines.
pub struct Server {
    process: ServerProcess,
    log: PathBuf,
}

impl Server {
    /// Starts a server, and returns it with its first client. One that does not serve yet has the client wait.
    fn start(cluster: &Cluster, scratch: &Scratch, name: &str, flags: &[&str]) -> (Self, Client) {
        Self::start_at(&cluster.primary.url("beanring"), scratch, name, flags)
    }

    /// The same with this URL.
    pub fn start_at(url: &str, scratch: &Scratch, name: &str, flags: &[&str]) -> (Self, Client) {
        let log = scratch.join(name);
        let mut command = Command::new(program());
        command.stderr(File::create(&log).expect("there is space"));
        let mut all = driver::flags(Driver::Epoll);
        all.extend(["--log-level", "info", "--lease", "1", "--replicate", url].map(str::to_owned));
        all.extend(flags.iter().map(|&flag| flag.to_owned()));
        let (process, stream) = ServerProcess::launch(command, Address::fresh(Transport::Tcp), &all);
        (Self { process, log }, Client::new(stream))
    }

    fn client(&self) -> Client {
        Client::new(self.process.connect())
    }

    /// Asks until a connection is not closed. Returns it, and how long that took.
    fn serves(&self, command: &str, expected: &str) -> (Client, Duration) {
        let began = Instant::now();
        loop {
            let mut client = self.client();
            client.send(command);
            if let Some((reply, _)) = client.reply() {
                assert_eq!(reply, expected);
                return (client, began.elapsed());
            }
            assert!(began.elapsed() < REPLY_PATIENCE, "{}", self.log_text());
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn log_text(&self) -> String {
        fs::read_to_string(&self.log).expect("it was created")
    }

    /// Asks over HTTP until the response has this text.
    pub fn wait_for_readiness(&self, port: u16, expected: &str) {
        let started = Instant::now();
        loop {
            let mut response = String::new();
            let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server accepts");
            stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").expect("the server reads");
            stream.read_to_string(&mut response).expect("the server responds");
            if response.ends_with(expected) {
                let status = if expected == "ready\n" { "200" } else { "503" };
                assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{response}");
                return;
            }
            assert!(started.elapsed() < REPLY_PATIENCE, "{response}\n{}", self.log_text());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until a log line has this text.
    pub fn wait_for(&self, text: &str) {
        let started = Instant::now();
        while !self.log_text().contains(text) {
            assert!(started.elapsed() < REPLY_PATIENCE, "no {text:?} in {}", self.log_text());
            thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_stop_ends_though_the_database_does_not_answer() {
    let Some(mut cluster) = site("stops without a database") else { return };
    let scratch = Scratch::new("replicate-stop");
    for is_down in [true, false] {
        let (mut server, mut client) = Server::start(&cluster, &scratch, "log", &["--no-forward"]);
        client.expect(&put(0, 0, "kept"), "INSERTED 1");
        let mut waiting = server.client();
        if is_down {
            cluster.primary.stop(End::Immediate);
        } else {
            cluster.standbys.iter_mut().for_each(|standby| standby.stop(End::Fast));
        }
        waiting.send(&put(1, 0, "no reply"));
        thread::sleep(Duration::from_millis(200));
        let started = Instant::now();
        server.process.signal(Signal::SIGTERM);
        assert_eq!(server.process.wait(), Some(1), "{}", server.log_text());
        assert!(started.elapsed() >= Duration::from_secs(5), "{:?}", started.elapsed());
        server.wait_for(
            "stopped without the database, which has acknowledged nothing for 5 s: 1 client waits for replies",
        );
        assert_eq!(waiting.line(), None, "there is no reply");
        if is_down {
            cluster.primary.start();
        } else {
            cluster.standbys.iter_mut().for_each(|standby| standby.start());
        }
        let (mut server, mut client) = Server::start(&cluster, &scratch, "after", &["--no-forward"]);
        client.expect("peek 1\r\n", "FOUND 1 4");
        drop(client);
        server.process.signal(Signal::SIGTERM);
        assert_eq!(server.process.wait(), Some(0), "{}", server.log_text());
        cluster
            .primary
            .sql("delete from beanring_log; update beanring_epoch set epoch = 0, begin = 1, beat = 0");
    }
}

#[test]
fn a_restart_in_place_hands_over() {
    let Some(mut cluster) = site("restarts in place") else { return };
    let scratch = Scratch::new("replicate-restart");
    let ports = [ReservedPort::take(), ReservedPort::take()];
    let addresses = ports.each_ref().map(|port| format!("localhost:{}", port.get()));
    let (alone, mut client) = Server::start(&cluster, &scratch, "a", &["--advertise", &addresses[0]]);
    client.expect(&put(0, 0, "one"), "INSERTED 1");
    let token = || cluster.primary.sql("select token from beanring_epoch");
    let before = token();
    client.expect("reserve\r\n", "RESERVED 1 3");
    client.expect(&put(5, 0, "two"), "INSERTED 2");
    alone.process.signal(Signal::SIGUSR2);
    assert_eq!(client.line(), None, "the connection is closed");
    let (mut client, took) = alone.serves("peek 2\r\n", "FOUND 2 3");
    println!("a restart in place of the only server: {took:?} without a leader");
    assert_ne!(token(), before, "what the leader before has sent must not pass for its own");
    assert!(took < Duration::from_secs(3), "{took:?}");
    client.expect("delete 1\r\n", "DELETED");
    alone.wait_for("the last leader had the address of this server");
    let log = alone.log_text();
    assert!(!log.contains("WARN"), "it does not connect to itself: {log}");

    let (standby, _) = Server::start(&cluster, &scratch, "b", &["--advertise", &addresses[1]]);
    standby.wait_for("this server is a standby of");
    alone.process.signal(Signal::SIGUSR2);
    assert_eq!(client.line(), None, "the connection is closed");
    let (mut client, took) = alone.serves("peek 2\r\n", "FOUND 2 3");
    println!("a restart in place beside a standby: {took:?} without a leader");
    assert!(took < Duration::from_secs(3), "{took:?}");
    // Both may claim, and the new program may be the faster one.
    for _ in 0..20 {
        if standby.log_text().contains("this server leads") {
            break;
        }
        alone.process.signal(Signal::SIGUSR2);
        assert_eq!(client.line(), None, "the connection is closed");
        (client, _) = alone.serves("peek 2\r\n", "FOUND 2 3");
    }
    standby.wait_for("this server leads");
    // The standby restarts, and the leader goes on.
    let (mut direct, _) = standby.serves("peek 2\r\n", "FOUND 2 3");
    alone.process.signal(Signal::SIGUSR2);
    assert_eq!(client.line(), None, "the connection is closed");
    direct.expect("peek 2\r\n", "FOUND 2 3");
    alone.serves("peek 2\r\n", "FOUND 2 3");

    cluster.primary.stop(End::Fast);
    standby.process.signal(Signal::SIGUSR2);
    standby.wait_for("no restart: the preflight check of");
    assert!(standby.log_text().contains("cannot connect to the database"), "{}", standby.log_text());
    cluster.primary.start();
    standby.serves("peek 2\r\n", "FOUND 2 3");
}

/// Two servers of one machine cannot listen at the same address, so the row of the epoch names that of the standby.
#[test]
fn a_leader_with_the_address_of_its_standby_is_reported() {
    let Some(cluster) = site("servers with the same --advertise") else { return };
    let scratch = Scratch::new("replicate-same-address");
    let ports = [ReservedPort::take(), ReservedPort::take(), ReservedPort::take()];
    let [first, second, http] = ports.each_ref().map(ReservedPort::get);
    let [first, second] = [first, second].map(|port| format!("localhost:{port}"));
    let (_leader, mut client) = Server::start(&cluster, &scratch, "a", &["--advertise", &first]);
    client.expect(&put(0, 0, "one"), "INSERTED 1");
    cluster.primary.sql(&format!("update beanring_epoch set address = '{second}'"));

    let began = Instant::now();
    let flags = ["--advertise", second.as_str(), "--http", &format!("127.0.0.1:{http}")];
    let (standby, mut waiting) = Server::start(&cluster, &scratch, "b", &flags);
    standby.wait_for("the last leader had the address of this server");
    standby.wait_for_readiness(http, "no leader\n");
    let warning = format!("another server leads with the address of this one, {second}: ");
    standby.wait_for(&warning);
    assert!(began.elapsed() >= Duration::from_secs(1), "an earlier run has this time to end");
    standby.wait_for("give each server an --advertise of its own");
    standby.wait_for_readiness(http, "the leader has the address of this server\n");
    waiting.send("peek 1\r\n");
    assert_eq!(waiting.line(), None, "a client waits, and is closed");

    cluster.primary.sql(&format!("update beanring_epoch set address = '{first}'"));
    standby.wait_for_readiness(http, "ready\n");
    standby.serves("peek 1\r\n", "FOUND 1 3");
    assert_eq!(standby.log_text().matches("WARN").count(), 1, "{}", standby.log_text());
}

#[test]
fn a_standby_of_a_leader_that_accepts_no_forwarded_connections_is_not_ready() {
    let Some(cluster) = site("a leader with --no-forward") else { return };
    let scratch = Scratch::new("replicate-no-forward");
    let ports = [ReservedPort::take(), ReservedPort::take()];
    let [forward, http] = ports.each_ref().map(|port| format!("127.0.0.1:{}", port.get()));
    let (_leader, mut client) = Server::start(&cluster, &scratch, "a", &["--no-forward"]);
    client.expect(&put(0, 0, "one"), "INSERTED 1");
    let (standby, _) = Server::start(&cluster, &scratch, "b", &["--advertise", &forward, "--http", &http]);
    standby.wait_for("this server is a standby of a leader that accepts no forwarded connections");
    standby.wait_for_readiness(ports[1].get(), "the leader has --no-forward\n");
}

#[test]
fn a_taken_port_of_advertise_is_named() {
    let Some(cluster) = site("a port that is taken") else { return };
    let taken = TcpListener::bind(("0.0.0.0", 0)).expect("there are ports");
    let address = format!("127.0.0.1:{}", taken.local_addr().expect("it is bound").port());
    let (code, _, error) =
        run(&["-l", "127.0.0.1", "-p", "0", "--advertise", &address], &cluster.primary.url("beanring"));
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("--advertise: cannot listen on 0.0.0.0:"), "{error}");
}

#[test]
fn a_database_that_does_not_acknowledge_is_reported() {
    let Some(cluster) = site("a database that does not acknowledge") else { return };
    let scratch = Scratch::new("replicate-silence");
    let ports = [(); 4].map(|()| ReservedPort::take());
    let [first, second, ..] = ports.each_ref().map(ReservedPort::get);
    let places = ports.each_ref().map(|port| format!("127.0.0.1:{}", port.get()));
    let flags = ["--http", &places[0], "--advertise", &places[2]];
    let (leader, mut client) = Server::start(&cluster, &scratch, "a", &flags);
    client.expect(&put(0, 0, "one"), "INSERTED 1");
    leader.wait_for_readiness(first, "ready\n");
    cluster.primary.signal_senders(Signal::SIGSTOP);
    leader.wait_for("the database has acknowledged nothing for 1 s");
    leader.wait_for_readiness(first, "the lease is over\n");
    cluster.primary.signal_senders(Signal::SIGCONT);
    leader.wait_for("the database acknowledges again");
    leader.wait_for_readiness(first, "ready\n");
    client.expect("peek 1\r\n", "FOUND 1 3");

    let flags = ["--http", &places[1], "--advertise", &places[3]];
    let (standby, _waiting) = Server::start(&cluster, &scratch, "b", &flags);
    standby.wait_for_readiness(second, "ready\n");
    cluster.primary.signal_senders(Signal::SIGSTOP);
    standby.wait_for_readiness(second, "no leader\n");
    cluster.primary.signal_senders(Signal::SIGCONT);
    standby.serves("peek 1\r\n", "FOUND 1 3");
}

#[test]
fn a_leader_writes_a_damaged_log_again() {
    let Some(cluster) = site("a damaged log that is written again") else { return };
    let url = cluster.primary.url("beanring");
    let scratch = Scratch::new("replicate-rewrite");
    let (code, _, error) = replicate(&["rewrite"], &url);
    assert!(code == 1 && error.contains("no server leads log 1"), "{error}");
    let (leader, mut client) = Server::start(&cluster, &scratch, "leader", &["--no-forward", "-s", "65536"]);
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
        cluster.primary.sql(&format!("{damage} {offset}"));
    }
    let (standby, mut later) = Server::start(&cluster, &scratch, "standby", &["--no-forward", "-s", "65536"]);
    standby.wait_for("cannot follow the job log in the database: the chunk at position");
    let (code, _, error) = replicate(&["export", scratch.join("none").to_str().expect("UTF-8")], &url);
    assert!(code == 1 && error.contains("beanring replicate rewrite"), "{error}");

    let stop = std::sync::atomic::AtomicBool::new(false);
    let mut last = 400;
    let (code, out, error) = thread::scope(|scope| {
        let rewrite = scope.spawn(|| {
            let result = replicate(&["rewrite"], &url);
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            result
        });
        // Changes go on in the meantime.
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
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
    leader.process.signal(Signal::SIGKILL);
    drop(leader);
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

/// A file system of its own for a tablespace, with some MiB. It is unmounted with the value.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one for the user of PostgreSQL, which only root can.
    fn mount(path: PathBuf, mib: u32) -> Option<Self> {
        let user =
            ["postgres", "nobody"].into_iter().find_map(|name| User::from_name(name).ok().flatten())?;
        fs::create_dir(&path).expect("there is space");
        let mut command = Command::new("mount");
        command
            .args(["-t", "tmpfs", "-o", &format!("size={mib}m,mode=0700,uid={}", user.uid), "tmpfs"])
            .arg(&path);
        let output = command.output().expect("it is installed");
        output.status.success().then_some(Self(path))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn deletions_go_on_while_the_database_is_full() {
    // A standby would need the tablespace at the same path.
    let Some(cluster) = cluster("a full tablespace", 0) else { return };
    let scratch = Scratch::new("replicate-full");
    let Some(disk) = SmallDisk::mount(scratch.join("disk"), 96) else {
        return println!("skipped: a full tablespace, because this user cannot mount one");
    };
    init(&settings(&cluster.primary)).expect("the user owns the database");
    cluster.primary.sql(&format!("create tablespace small location '{}'", disk.0.display()));
    for change in ["table beanring_log", "index beanring_log_pkey", "table beanring_reserve"] {
        cluster.primary.sql(&format!("alter {change} set tablespace small"));
    }
    let flags = ["--no-forward", "--replicate-trust-storage", "-s", "4194304"];
    let (mut server, mut client) = Server::start(&cluster, &scratch, "log", &flags);
    let reserve = "select pg_relation_size('beanring_reserve') >= 32 * 1024 * 1024";
    let began = Instant::now();
    while cluster.primary.sql(reserve) != "t" {
        assert!(began.elapsed() < REPLY_PATIENCE, "no reserve");
        thread::sleep(Duration::from_millis(20));
    }
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
    let began = Instant::now();
    while client.ask(&put(8, 0, &body)).0 == "OUT_OF_MEMORY" {
        assert!(began.elapsed() < REPLY_PATIENCE, "{}", server.log_text());
        thread::sleep(Duration::from_millis(50));
    }
    println!("puts were accepted again after {:?}", began.elapsed());
    server.wait_for("the database of the job log has space again");
    let left = client.stat("current-jobs-ready");
    drop(client);
    server.process.signal(Signal::SIGKILL);
    server.process.wait();
    let (_server, mut client) = Server::start(&cluster, &scratch, "again", &flags);
    for id in 1..=jobs {
        let expected = if id % 4 == 0 { format!("FOUND {id} 60000") } else { "NOT_FOUND".to_owned() };
        client.expect(&format!("peek {id}\r\n"), &expected);
    }
    assert_eq!(client.stat("current-jobs-ready"), left);
}
