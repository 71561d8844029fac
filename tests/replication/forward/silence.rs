//! A leader whose machine is gone: no packet tells a standby so.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use beanring::io::forward::Settings;
use beanring::time::Span;
use beanring_testkit::namespaces::{CLIENT, Network};

use super::place::{PlayedLeader, Standby, rest, settings};

#[test]
fn clients_of_a_leader_whose_machine_is_gone_are_closed() {
    let what = "a leader over a network whose machine is gone";
    let network = match Network::lay() {
        Ok(network) => network,
        Err(error) => return println!("skipped: {what}, because {error}"),
    };
    println!("tested: {what}");
    let mut listener = None;
    network.on_client(|| listener = Some(TcpListener::bind((CLIENT, 0)).expect("a port is free")));
    let leader = PlayedLeader::on(listener.expect("it was bound"));
    network.at_server(|| {
        let gone_after = Span::from_secs(2);
        let standby = Standby::new(Settings { gone_after, ..settings() });
        standby.lead_to(leader.address);
        let [mut idle, mut busy] = [(); 2].map(|()| standby.client());
        let mut ends = [&idle, &busy].map(|client| leader.end_of(client));
        // The watching connection is made by then.
        thread::sleep(Duration::from_millis(300));
        assert_eq!(standby.counts().open.get(), 2);
        network.plug(false);
        let begun = Instant::now();
        busy.write_all(b"put 0 0 60 1\r\nx\r\n").expect("it is open");
        assert_eq!(rest(&mut idle), b"");
        assert_eq!(rest(&mut busy), b"");
        let elapsed = begun.elapsed();
        println!("closed after {elapsed:?}");
        assert!((Duration::from_secs(1)..Duration::from_secs(6)).contains(&elapsed), "{elapsed:?}");
        standby.wait_for("the count", |counts| counts.closed_by_silence.get() == 2);

        // The machine was only cut off. By now its neighbour has dropped the packets that waited for its address.
        thread::sleep(Duration::from_secs(4));
        network.plug(true);
        let mut client = standby.client();
        let mut end = leader.end_of(&client);
        client.write_all(b"ping").expect("it is open");
        end.read_exact(&mut [0; 4]).expect("it is passed on");
        let mut bytes = Vec::new();
        ends[1].set_read_timeout(Some(Duration::from_secs(4))).expect("a socket option");
        // There is a time-out or a reset, as the kernel likes.
        let _ = ends[1].read_to_end(&mut bytes);
        assert!(bytes.is_empty(), "what was not sent in time is dropped: {bytes:?}");
    });
}
