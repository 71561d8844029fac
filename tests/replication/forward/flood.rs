//! Many commands through a standby, in a leader without a kernel: what its event-loop iterations cost, and how long a client of its own
//! waits.

use std::collections::VecDeque;
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use beanring::server::{Entry, Event, Peer, Protocol, Server, Service, Update, handle};
use beanring::time::Time;
use beanring::transport::Transport;
use beanring::transport::forwarded::{ClientAddress, Inbound, header};
use beanring::transport::link::{Link, standby_config};
use beanring::values::ids::ConnId;
use beanring_testkit::config::config;
use beanring_testkit::connection::outgoing;
use beanring_testkit::measured::thread_cpu_time;
use beanring_testkit::tls_stream::{client, sealed};
use rustls::{ClientConfig, ClientConnection};

use super::place::SECRET;

const NOW: Time = Time::from_nanos(1_000_000_000);

/// CPU time of an event-loop iteration. A build without optimization takes some times as long.
const ITERATION_MAX: Duration = Duration::from_millis(if cfg!(debug_assertions) { 10 } else { 2 });

/// The leader.
struct Leader(Link<Server>);

impl Leader {
    fn new() -> Self {
        let mut link = Link::new(Transport::new(Server::new(config(65_535)), None, Rc::default()));
        link.update(NOW, Update::LinkSecret(Some(SECRET)));
        Self(link)
    }

    fn receive(&mut self, conn: ConnId, bytes: &[u8]) {
        handle(&mut self.0, NOW, Event::Received { conn, bytes });
        while self.0.poll_effect().is_some() {}
    }

    fn is_busy(&self) -> bool {
        self.0.next_deadline().is_some_and(|at| at <= NOW)
    }

    /// Ends an event-loop iteration. Returns what was sent to each connection.
    fn turn(&mut self, conns: &[ConnId]) -> Vec<Vec<u8>> {
        let mut all: Vec<Vec<u8>> = vec![Vec::new(); conns.len()];
        self.0.turn(NOW);
        loop {
            while self.0.poll_effect().is_some() {}
            let mut has_sent = false;
            for (&conn, sent) in conns.iter().zip(&mut all) {
                let bytes = outgoing(&mut self.0, conn);
                if !bytes.is_empty() {
                    handle(&mut self.0, NOW, Event::Sent { conn, bytes: bytes.len() });
                    sent.extend(bytes);
                    has_sent = true;
                }
            }
            if !has_sent {
                return all;
            }
        }
    }

    /// Connects as a standby does, and shakes hands.
    fn forwarded(&mut self, config: &Arc<ClientConfig>) -> (ConnId, ClientConnection) {
        let entry = Entry::Forwarded(Peer::unknown().origin);
        let conn = self.0.accept(NOW, Protocol::Beanstalk, entry);
        let mut tls = client(config);
        while tls.is_handshaking() || tls.wants_write() {
            let bytes = sealed(&mut tls, b"");
            if !bytes.is_empty() {
                self.receive(conn, &bytes);
            }
            let sent = self.turn(&[conn]).concat();
            tls.read_tls(&mut &sent[..]).expect("memory can be read");
            tls.process_new_packets().expect("the leader has the key");
        }
        (conn, tls)
    }
}

#[test]
fn a_flood_through_a_standby_leaves_iterations_short_and_others_served() {
    const CLIENTS: usize = 32;
    const COMMANDS: usize = 6_000;
    /// What a receive brings.
    const RECEIVE_BYTES: usize = 16 * 1024;
    let mut leader = Leader::new();
    let config = standby_config(SECRET);
    let [client, standby] =
        ["192.0.2.7:5555", "10.0.0.1:11300"].map(|text| text.parse().expect("an address"));
    let header = header(ClientAddress::Tcp(client, standby), Inbound::default(), SECRET.shown);
    let commands = b"delete 1\r\n".repeat(COMMANDS);
    let (mut conns, mut floods) = (Vec::new(), Vec::new());
    for _ in 0..CLIENTS {
        let (conn, mut tls) = leader.forwarded(&config);
        tls.writer().write_all(&[&header[..], &commands].concat()).expect("memory takes all");
        conns.push(conn);
        floods.push(sealed(&mut tls, b""));
    }
    // In turns, as the kernel brings them.
    let mut input = VecDeque::new();
    for piece in 0..floods[0].len().div_ceil(RECEIVE_BYTES) {
        let pieces = floods.iter().map(|flood| flood.chunks(RECEIVE_BYTES).nth(piece).unwrap_or_default());
        input.extend(conns.iter().copied().zip(pieces));
    }
    let direct = leader.0.accept(NOW, Protocol::Beanstalk, Entry::Plain(None));
    conns.push(direct);
    let (mut longest, mut iterations, mut waited, mut waited_most, mut replies) =
        (Duration::ZERO, 0, None, 0, 0);
    let mut flooded_bytes = 0;
    while !input.is_empty() || leader.is_busy() {
        let begun = thread_cpu_time();
        while !leader.0.budget().is_full()
            && let Some((conn, bytes)) = input.pop_front()
        {
            leader.receive(conn, bytes);
        }
        let waits = *waited.get_or_insert_with(|| {
            leader.receive(direct, b"list-tube-used\r\n");
            0
        });
        let sent = leader.turn(&conns);
        longest = longest.max(thread_cpu_time() - begun);
        iterations += 1;
        flooded_bytes += sent[..CLIENTS].concat().len();
        if sent[CLIENTS].is_empty() {
            waited = Some(waits + 1);
        } else {
            (waited, waited_most, replies) = (None, waited_most.max(waits), replies + 1);
        }
        assert!(iterations < 100_000, "the input is read");
    }
    println!(
        "{iterations} iterations, the longest {longest:?}; {replies} direct replies, after {waited_most} more at most"
    );
    assert!(longest <= ITERATION_MAX, "an iteration takes {longest:?}");
    assert!(waited_most <= 1 && replies > 0, "a direct client waits {waited_most} iterations");
    assert!(flooded_bytes >= CLIENTS * COMMANDS * "NOT_FOUND\r\n".len(), "all commands are served");
}
