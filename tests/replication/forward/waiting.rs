//! Clients that wait: for a leader, and for one that answers.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, iter, thread};

use beanring::io::forward::Settings;
use beanring::time::Span;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::socket::{Backlog, listen};

use super::place::{PlayedLeader, Standby, pass, rest, settings};

fn expect_service(client: &mut TcpStream, leader: &PlayedLeader) {
    let mut end = leader.end_of(client);
    pass(client, &mut end, b"ping");
    pass(&mut end, client, b"pong");
}

#[test]
fn clients_wait_for_a_leader_in_bounded_number_and_time() {
    let standby = Standby::new(Settings { waiting_max: 3, wait: Span::from_millis(700), ..settings() });
    let begun = Instant::now();
    let mut waiting: Vec<TcpStream> = (0..3).map(|_| standby.client()).collect();
    assert_eq!(rest(&mut standby.client()), b"", "one too many");
    assert!(begun.elapsed() < Duration::from_millis(600), "{:?}", begun.elapsed());
    standby.wait_for("the others", |counts| counts.waiting.get() == 3 && counts.open.get() == 3);
    for client in &mut waiting {
        assert_eq!(rest(client), b"");
    }
    assert!(begun.elapsed() >= Duration::from_millis(650), "{:?}", begun.elapsed());
    standby.wait_for("the counts", |counts| counts.refused.get() == 4 && counts.open.get() == 0);

    // What a client sends in time is passed on.
    let mut client = standby.client();
    client.write_all(b"early").expect("it is open");
    let leader = PlayedLeader::new();
    standby.lead_to(leader.address);
    let mut end = leader.end_of(&client);
    let mut word = [0; 5];
    end.read_exact(&mut word).expect("it is passed on");
    assert_eq!(&word, b"early");
    standby.wait_for("no one", |counts| counts.waiting.get() == 0);
}

#[test]
fn the_number_of_clients_is_bounded() {
    let standby = Standby::new(Settings { connections_max: 2, ..settings() });
    let leader = PlayedLeader::new();
    standby.lead_to(leader.address);
    let mut clients = [standby.client(), standby.client()];
    assert!(standby.forwarder.is_full());
    assert_eq!(rest(&mut standby.client()), b"");
    assert_eq!(standby.counts().refused.get(), 1);
    for client in &mut clients {
        expect_service(client, &leader);
    }
    drop(clients);
    standby.wait_for("the ends", |counts| counts.open.get() == 0);
    expect_service(&mut standby.client(), &leader);
}

#[test]
fn a_leader_that_listens_late_gets_the_clients_that_wait() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    drop(listener);
    let standby = Standby::new(settings());
    standby.lead_to(address);
    let mut clients: Vec<TcpStream> = (0..10).map(|_| standby.client()).collect();
    standby.wait_for("a failure", |counts| counts.failed_connects.get() > 1);
    let leader = PlayedLeader::on(TcpListener::bind(address).expect("the port is still free"));
    for client in &mut clients {
        expect_service(client, &leader);
    }
}

/// Returns a listener that no connection reaches, since its backlog is full, with what fills it.
fn silent_listener() -> (TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listen(&listener, Backlog::new(0).expect("a size")).expect("it is bound");
    let address = listener.local_addr().expect("it is bound");
    let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(20)).ok();
    (listener, iter::from_fn(connect).collect())
}

#[test]
fn a_leader_that_never_answers_costs_a_client_its_wait_only() {
    let (listener, _clients) = silent_listener();
    let wait = Span::from_millis(1500);
    let standby = Standby::new(Settings { wait, connect: Span::from_millis(200), ..settings() });
    standby.lead_to(listener.local_addr().expect("it is bound"));
    let begun = Instant::now();
    let mut clients: Vec<TcpStream> = (0..5).map(|_| standby.client()).collect();
    for client in &mut clients {
        assert_eq!(rest(client), b"");
    }
    let elapsed = begun.elapsed();
    assert!((1400..6000).contains(&elapsed.as_millis()), "{elapsed:?}");
    assert!(standby.counts().failed_connects.get() > 0);
    standby.wait_for("the count", |counts| counts.refused.get() == 5);

    // Another leader is not affected.
    let leader = PlayedLeader::new();
    standby.lead_to(leader.address);
    expect_service(&mut standby.client(), &leader);
}

#[test]
fn leaders_have_addresses_of_ipv6_and_names() {
    let standby = Standby::new(settings());
    match TcpListener::bind("[::1]:0") {
        Ok(listener) => {
            let leader = PlayedLeader::on(listener);
            standby.lead_to(leader.address);
            expect_service(&mut standby.client(), &leader);
            println!("tested: a leader over IPv6");
        }
        Err(error) => println!("skipped: a leader over IPv6, because {error}"),
    }
    // The name has an address of IPv6 too on many machines, where nothing listens: each address is tried.
    let leader = PlayedLeader::new();
    standby.lead_to(format!("localhost:{}", leader.address.port()));
    expect_service(&mut standby.client(), &leader);

    standby.lead_to("no-such-host.invalid:11300");
    let mut client = standby.client();
    standby.wait_for("a failure", |counts| counts.failed_connects.get() > 0);
    standby.lead_to(leader.address);
    expect_service(&mut client, &leader);
}

/// Runs in a process of its own, whose limit of descriptors it lowers.
#[test]
fn clients_wait_while_there_is_no_descriptor() {
    const CHILD: &str = "BEANRING_TEST_FEW_DESCRIPTORS";
    if env::var_os(CHILD).is_none() {
        let program = env::current_exe().expect("the test program has a path");
        let only = ["--exact", "forward::waiting::clients_wait_while_there_is_no_descriptor"];
        let output = Command::new(program).args(only).env(CHILD, "1").output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout);
        return assert!(output.status.success() && text.contains(" 1 passed"), "{text}");
    }
    setrlimit(Resource::RLIMIT_NOFILE, 100, 100).expect("a limit can be lowered");
    let (standby, leader) = (Standby::new(settings()), PlayedLeader::new());
    let mut clients: Vec<TcpStream> = (0..12).map(|_| standby.client()).collect();
    standby.wait_for("the clients", |counts| counts.waiting.get() == 12);
    let taken: Vec<File> = iter::from_fn(|| File::open("/dev/null").ok()).collect();
    assert!(taken.len() > 30, "{}", taken.len());
    standby.lead_to(leader.address);
    thread::sleep(Duration::from_millis(700));
    let counts = standby.counts();
    assert_eq!((counts.open.get(), counts.total.get(), counts.refused.get()), (12, 0, 0));
    drop(taken);
    for client in &mut clients {
        expect_service(client, &leader);
    }
}
