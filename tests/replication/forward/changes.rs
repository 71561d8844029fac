//! Changes of leader: every forwarded connection closes, and nothing is replayed.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use beanring_testkit::process::REPLY_PATIENCE;

use super::end::TlsEnd;
use super::place::{PlayedLeader, Standby, TLS_BYTES, pass, rest, settings};

#[test]
fn a_change_of_leader_closes_all_and_replays_nothing() {
    let (standby, first, second) = (Standby::new(settings()), PlayedLeader::new(), PlayedLeader::new());
    standby.lead_to(first.address);
    let mut clients: Vec<TcpStream> = (0..20).map(|_| standby.client()).collect();
    let mut ends: Vec<TlsEnd> = clients.iter().map(|client| first.end_of(client)).collect();
    for (client, end) in clients.iter_mut().zip(&mut ends) {
        pass(client, end, b"put 0 0 60 1\r\nx\r\n");
    }
    // Half of a reply is on its way.
    pass(&mut ends[0], &mut clients[0], b"RESERVED 1 1000\r\nhalf");

    standby.lead_to(second.address);
    let begun = Instant::now();
    for (client, end) in clients.iter_mut().zip(&mut ends) {
        assert_eq!(rest(end), b"");
        // The rest of the reply comes too late.
        let _ = end.write_all(b"the other half");
        assert_eq!(rest(client), b"");
    }
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    standby.wait_for("the counts", |counts| counts.open.get() == 0 && counts.closed_by_change.get() == 20);
    assert!(clients.iter().all(|client| !second.has(client)), "nothing is replayed");

    // The same leader once more is no change, and none is one.
    let (mut client, mut end) = standby.forwarded_to(&second);
    standby.lead_to(second.address);
    pass(&mut client, &mut end, b"stats\r\n");
    standby.forwarder.lead_to(None);
    assert_eq!(rest(&mut client), b"");
    standby.wait_for("the count", |counts| counts.closed_by_change.get() == 21);
}

#[test]
fn what_a_client_does_not_read_is_dropped_at_a_change() {
    let (standby, leader) = Standby::led(settings());
    let (mut client, mut end) = standby.forwarded_to(&leader);
    end.set_write_timeout(Some(Duration::from_millis(300))).expect("a socket option");
    let mut written = 0;
    while let Ok(bytes) = end.write(&[7; 50_000]) {
        written += bytes as u64;
    }
    assert!(standby.counts().memory.get() > TLS_BYTES);
    let passed = standby.counts().to_clients.get();
    standby.forwarder.lead_to(None);
    standby.wait_for("the change", |counts| counts.closed_by_change.get() == 1);
    let received = rest(&mut client).len() as u64;
    // The kernel may have brought all that was passed on to the client's side.
    assert!((1..=passed).contains(&received) && received < written, "{received} of {passed}, {written} sent");
}

#[test]
fn the_end_of_the_thread_closes_all() {
    let (standby, leader) = Standby::led(settings());
    let (mut client, mut end) = standby.forwarded_to(&leader);
    standby.forwarder.lead_to(None);
    let mut waiting = standby.client();
    drop(standby.forwarder);
    for stream in [&mut client, &mut waiting] {
        assert_eq!(rest(stream), b"");
    }
    assert_eq!(rest(&mut end), b"");
}

#[test]
fn changes_under_load_mix_no_connections() {
    let leaders = [PlayedLeader::new(), PlayedLeader::new()];
    let standby = Standby::new(settings());
    let begun = Instant::now();
    for round in 0..60 {
        let leader = &leaders[round % 2];
        standby.lead_to(leader.address);
        let mut client = standby.client();
        client.write_all(format!("round {round:>4}").as_bytes()).expect("it is open");
        let mut end = leader.end_of(&client);
        let mut word = [0; 10];
        end.read_exact(&mut word).expect("it is passed on");
        assert_eq!(word, format!("round {round:>4}").as_bytes());
        // Some are closed by the next change while they send.
        thread::spawn(move || while client.write(&[round as u8; 1000]).is_ok() {});
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = end.read_to_end(&mut bytes);
            assert!(bytes.iter().all(|&byte| byte == round as u8));
        });
    }
    standby.forwarder.lead_to(None);
    standby.wait_for("all ends", |counts| counts.open.get() == 0);
    assert_eq!(standby.counts().total.get(), 60);
    assert!(begun.elapsed() < REPLY_PATIENCE, "{:?}", begun.elapsed());
}
