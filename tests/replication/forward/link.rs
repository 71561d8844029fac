//! What the wire between a standby and its leader shows, and to whom a standby talks.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use beanring::values::link_secret::LinkSecret;

use super::place::{PlayedLeader, SECRET, Standby, pass, rest, settings};

/// Passes one connection after another on to the leader. Returns its address, and every byte that passes.
fn wire(leader: &PlayedLeader) -> (String, Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let at = listener.local_addr().expect("it is bound").to_string();
    let (leader, (seen, bytes)) = (leader.address, channel());
    thread::spawn(move || {
        for standby in listener.incoming().flatten() {
            let leader = TcpStream::connect(leader).expect("it listens");
            let clone = |stream: &TcpStream| stream.try_clone().expect("a descriptor is free");
            for (mut from, mut to) in [(clone(&standby), clone(&leader)), (leader, standby)] {
                let seen = seen.clone();
                thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    while let Ok(count @ 1..) = from.read(&mut buffer) {
                        let _ = seen.send(buffer[..count].to_vec());
                        let _ = to.write_all(&buffer[..count]);
                    }
                });
            }
        }
    });
    (at, bytes)
}

#[test]
fn the_wire_shows_no_secret_and_no_byte_of_a_client() {
    let (standby, leader) = (Standby::new(settings()), PlayedLeader::new());
    let (at, bytes) = wire(&leader);
    standby.lead_to(at);
    let (mut client, mut end) = standby.forwarded_to(&leader);
    pass(&mut client, &mut end, b"a body of a client");
    pass(&mut end, &mut client, b"a reply of the leader");
    let mut all: Vec<u8> = Vec::new();
    while let Ok(more) = bytes.recv_timeout(Duration::from_millis(200)) {
        all.extend(more);
    }
    assert!(all.len() > 500, "the wire was used: {} bytes", all.len());
    let numbers = [SECRET.shown, SECRET.token];
    let hidden =
        numbers.iter().flat_map(|number| [number.to_be_bytes(), number.to_le_bytes()]).map(Vec::from);
    for text in hidden.chain([b"a body".to_vec(), b"a reply".to_vec(), b"QUIT".to_vec()]) {
        assert!(!all.windows(text.len()).any(|window| window == text), "{}", text.escape_ascii());
    }
}

#[test]
fn a_standby_shows_nothing_to_a_server_with_another_key() {
    let listener = || TcpListener::bind("127.0.0.1:0").expect("a port is free");
    for wrong in [LinkSecret { token: 1, ..SECRET }, LinkSecret { shown: 1, ..SECRET }] {
        let (standby, other) = (Standby::new(settings()), PlayedLeader::with(listener(), wrong));
        standby.lead_to(other.address);
        let mut client = standby.client();
        client.write_all(b"secret").expect("it is open");
        standby.wait_for("a failure", |counts| counts.failed_connects.get() > 1);
        assert!(!other.has(&client));
        assert_eq!((standby.counts().total.get(), standby.counts().to_leader.get()), (0, 0));
        // It waits for the right one.
        let leader = PlayedLeader::new();
        standby.lead_to(leader.address);
        let mut end = leader.end_of(&client);
        let mut word = [0; 6];
        end.read_exact(&mut word).expect("it is passed on");
        assert_eq!(&word, b"secret");
    }
}

/// A leader that is killed ends its connections without an announcement. What it has sent by then may be half of a reply.
#[test]
fn an_end_that_the_leader_does_not_announce_closes_the_client() {
    let (standby, leader) = Standby::led(settings());
    let (mut client, end) = standby.forwarded_to(&leader);
    end.cut_off();
    assert_eq!(rest(&mut client), b"");
    standby.wait_for("the end", |counts| counts.open.get() == 0);
}
