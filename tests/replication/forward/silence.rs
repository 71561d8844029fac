//! A leader whose machine is gone: no packet tells a standby so.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use beanring::io::forward::Settings;
use beanring::time::Span;
use beanring_testkit::namespaces::Machines;

use super::place::{PlayedLeader, Standby, pass, rest, settings};

/// The machines of the leader and of the standby.
const LEADER: usize = 0;
const STANDBY: usize = 1;

#[test]
fn clients_of_a_leader_whose_machine_is_gone_are_closed() {
    let what = "a leader over a network whose machine is gone";
    let machines = match Machines::lay(2) {
        Ok(machines) => machines,
        Err(error) => return println!("skipped: {what}, because {error}"),
    };
    println!("tested: {what}");
    let address = (machines.address(LEADER), 0);
    let leader =
        PlayedLeader::on(machines.on(LEADER, || TcpListener::bind(address)).expect("a port is free"));
    machines.on(STANDBY, || {
        let gone_after = Span::from_secs(2);
        let standby = Standby::new(Settings { gone_after, ..settings() });
        standby.lead_to(leader.address);
        let [mut idle, mut busy] = [(); 2].map(|()| standby.client());
        let mut ends = [&idle, &busy].map(|client| leader.end_of(client));
        leader.await_watch();
        assert_eq!(standby.counts().open.get(), 2);
        machines.cut(&[(LEADER, STANDBY)], true);
        let begun = Instant::now();
        busy.write_all(b"put 0 0 60 1\r\nx\r\n").expect("it is open");
        assert_eq!(rest(&mut idle), b"");
        assert_eq!(rest(&mut busy), b"");
        let elapsed = begun.elapsed();
        println!("closed after {elapsed:?}");
        assert!((Duration::from_secs(1)..Duration::from_secs(6)).contains(&elapsed), "{elapsed:?}");
        standby.wait_for("the count", |counts| counts.closed_by_silence.get() == 2);

        // The machine was only cut off.
        machines.cut(&[(LEADER, STANDBY)], false);
        let (mut client, mut end) = standby.forwarded_to(&leader);
        pass(&mut client, &mut end, b"ping");
        // What the standby had to send to it would be sent again by now: the pauses of TCP double.
        let pause = begun.elapsed() + Duration::from_millis(500);
        ends[1].set_read_timeout(Some(pause)).expect("a socket option");
        let mut bytes = Vec::new();
        // There is a time-out or a reset, as the kernel likes.
        let _ = ends[1].read_to_end(&mut bytes);
        assert!(bytes.is_empty(), "what was not sent in time is dropped: {bytes:?}");
    });
}
