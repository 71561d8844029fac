//! A server behind TLS and headers of the PROXY protocol, and a driver without a kernel. It does one thing at a time, as an input
//! directs. After each iteration it checks the server and what the iteration has cost, and at the end what is left.

use std::rc::Rc;

use beanring::server::{
    ClientAct, Config, Effect, Entry, Event, Peer, PeerKind, Protocol, Server, Service, TlsCounts, Update,
    handle,
};
use beanring::time::{Span, Time};
use beanring::transport::{Identity, Transport};
use beanring::values::account::Held;
use beanring::values::limits::RECEIVE_BYTES_MAX;
use beanring::values::link_secret::LinkSecret;

use super::super::connection::{Connection, ConnectionState};

/// The secret that a standby must show.
pub const SECRET: LinkSecret = LinkSecret { token: 7, shown: 0x0123_4567_89ab_cdef };

/// What an iteration may cost: its events until a driver keeps further ones (8,192 steps), the last of them, which may end a
/// handshake, and the turns of connections in two phases.
const ITERATION_STEPS_MAX: u64 = 4 * 8192;

/// Every wait for a peer that has a limit is over after this time.
const EVERY_DEADLINE: Span = Span::from_secs(150);

/// What the server may keep for the next connection, by kind: spare buffers, and the capacity of tables and queues.
const KEPT_BYTES_MAX: usize = 512 * 1024;

/// Iterations until nothing is left to do.
const ROUNDS_MAX: usize = 20_000;

/// A server with its connections.
pub struct Door {
    transport: Transport<Server>,
    pub counts: Rc<TlsCounts>,
    now: Time,
    pub gates: Vec<Gate>,
    /// The position of the budget at which the iteration has begun.
    iteration: u64,
}

/// One connection.
pub struct Gate {
    link: Connection,
    /// What its peer has received.
    pub received: Vec<u8>,
    /// Its peer has reset it.
    is_broken: bool,
    /// What the server has told about it.
    pub acts: Vec<ClientAct>,
}

impl Gate {
    /// Whether the driver may still receive and send.
    pub fn is_usable(&self) -> bool {
        self.link.is_open() && !self.is_broken
    }

    /// Whether the peer has sent everything that it sends.
    pub fn has_ended_input(&self) -> bool {
        self.link.is_half_closed || self.is_broken
    }
}

impl Door {
    pub fn new(config: Config, identity: Identity) -> Self {
        let counts = Rc::new(TlsCounts::default());
        let mut server = Server::new(config);
        server.show_tls(counts.clone());
        let mut transport = Transport::new(server, Some(identity), counts.clone());
        let now = Time::from_nanos(1_000_000_000);
        transport.update(now, Update::LinkSecret(Some(SECRET)));
        Self { transport, counts, now, gates: Vec::new(), iteration: 0 }
    }

    pub fn server(&self) -> &Server {
        self.transport.server()
    }

    /// Opens a connection to a listener without TLS and headers. Returns its place among the gates.
    pub fn open(&mut self, protocol: Protocol) -> usize {
        self.accept(protocol, Entry::Plain((protocol == Protocol::Http).then(local)))
    }

    /// Opens a connection to a listener with TLS.
    pub fn open_tls(&mut self, protocol: Protocol) -> usize {
        self.accept(protocol, Entry::Tls(local()))
    }

    /// Opens a connection to a listener for load balancers.
    pub fn open_proxied(&mut self, protocol: Protocol, has_tls: bool) -> usize {
        self.accept(protocol, Entry::Proxied { has_tls, balancer: local() })
    }

    /// Opens a connection to the listener for standbys. The TLS of the link is not here.
    pub fn open_forwarded(&mut self) -> usize {
        self.accept(Protocol::Beanstalk, Entry::Forwarded(local().origin))
    }

    fn accept(&mut self, protocol: Protocol, entry: Entry) -> usize {
        let link = Connection::new(self.transport.accept(self.now, protocol, entry));
        self.gates.push(Gate { link, received: Vec::new(), is_broken: false, acts: Vec::new() });
        self.carry_out();
        self.gates.len() - 1
    }

    /// The peer sends bytes.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let gate = &mut self.gates[at];
        if gate.is_usable() && !gate.link.is_half_closed {
            gate.link.unreceived.extend_from_slice(bytes);
        }
    }

    /// The peer sends nothing more.
    pub fn half_close(&mut self, at: usize) {
        self.gates[at].link.is_half_closed = true;
        self.report_end(at);
    }

    /// The peer resets the connection.
    pub fn hang_up(&mut self, at: usize) {
        let gate = &mut self.gates[at];
        if gate.link.state != ConnectionState::Closed && !std::mem::replace(&mut gate.is_broken, true) {
            let conn = gate.link.conn;
            self.handle(Event::HungUp { conn });
        }
    }

    /// Has the server receive up to `bytes`. Returns whether there was something.
    pub fn receive(&mut self, at: usize, bytes: usize) -> bool {
        self.make_room();
        let Self { transport, gates, now, .. } = self;
        let gate = &mut gates[at];
        if !gate.is_usable() || gate.link.is_paused || gate.link.unreceived.is_empty() {
            return self.report_end(at);
        }
        gate.link.receive(bytes.clamp(1, RECEIVE_BYTES_MAX), bytes & 1 == 0, transport, *now);
        self.carry_out();
        self.report_end(at);
        true
    }

    fn report_end(&mut self, at: usize) -> bool {
        let gate = &mut self.gates[at];
        let Some(event) = gate.is_usable().then(|| gate.link.end_of_input()).flatten() else { return false };
        self.handle(event);
        true
    }

    /// Begins to send what the server shows, unless a send is in flight.
    pub fn begin_send(&mut self, at: usize) -> bool {
        let Self { transport, gates, .. } = self;
        let gate = &mut gates[at];
        if !gate.link.wants_send || gate.link.is_sending() || !gate.is_usable() {
            return false;
        }
        gate.link.begin_send(transport);
        gate.link.is_sending()
    }

    /// Ends the send in flight after at most `bytes`.
    pub fn end_send(&mut self, at: usize, bytes: usize) -> bool {
        self.make_room();
        let Self { transport, gates, .. } = self;
        let gate = &mut gates[at];
        if !gate.link.is_sending() {
            return false;
        }
        let sent = gate.link.end_send(bytes, transport);
        gate.received.extend_from_slice(&sent);
        let conn = gate.link.conn;
        self.handle(Event::Sent { conn, bytes: sent.len() });
        true
    }

    /// Sends up to `bytes`.
    pub fn transmit(&mut self, at: usize, bytes: usize) -> bool {
        self.begin_send(at) | self.end_send(at, bytes)
    }

    fn close(&mut self, at: usize) -> bool {
        let Self { transport, gates, now, .. } = self;
        let link = &mut gates[at].link;
        if link.state != ConnectionState::Closing {
            return false;
        }
        if link.is_sending() {
            link.end_send(usize::MAX, transport);
        }
        link.close(transport, *now);
        self.carry_out();
        true
    }

    /// Lets time pass, and makes an iteration.
    pub fn pass(&mut self, span: Span) {
        self.now = self.now + span;
        self.turn();
    }

    /// Ends an event-loop iteration.
    pub fn turn(&mut self) {
        self.transport.turn(self.now);
        self.carry_out();
        let spent = self.transport.budget().spent();
        let steps = spent - std::mem::replace(&mut self.iteration, spent);
        assert!(steps <= ITERATION_STEPS_MAX, "an iteration has cost {steps} steps");
        self.server().check();
    }

    /// Ends the iteration if a driver would keep further events.
    fn make_room(&mut self) {
        if self.transport.budget().is_full() {
            self.turn();
        }
    }

    /// Delivers and sends everything until nothing is left to do now.
    pub fn settle(&mut self) {
        let mut idle_rounds = 0;
        for _ in 0..ROUNDS_MAX {
            let mut is_busy = false;
            for at in 0..self.gates.len() {
                is_busy |= self.receive(at, usize::MAX) | self.transmit(at, usize::MAX) | self.close(at);
            }
            self.turn();
            is_busy |= self.transport.next_deadline().is_some_and(|deadline| deadline <= self.now);
            // Effects of the last iteration show in the next round.
            idle_rounds = if is_busy { 0 } else { idle_rounds + 1 };
            if idle_rounds == 2 {
                return;
            }
        }
        panic!("there is always something to do");
    }

    /// Asserts that another client is served.
    pub fn expect_service(&mut self) {
        let at = self.open(Protocol::Beanstalk);
        self.write(at, b"list-tube-used\r\nquit\r\n");
        self.settle();
        let gate = &self.gates[at];
        assert_eq!(gate.received, b"USING default\r\n", "{}", gate.received.escape_ascii());
        assert_eq!(gate.link.state, ConnectionState::Closed);
    }

    /// Ends all connections, some of them by the deadlines of the server, and asserts that nothing is left of them.
    pub fn finish(mut self) {
        self.settle();
        self.expect_service();
        for _ in 0..3 {
            self.pass(EVERY_DEADLINE);
            self.settle();
        }
        for at in 0..self.gates.len() {
            self.hang_up(at);
        }
        self.settle();
        assert!(self.gates.iter().all(|gate| gate.link.state == ConnectionState::Closed));
        let unfinished = self.counts.unfinished_handshakes.get();
        assert_eq!((self.counts.connections.get(), unfinished), (0, 0));
        self.delete_jobs();
        let account = self.transport.account();
        let left = Held::ALL.map(|kind| (account.of(kind), kind));
        for (bytes, kind) in left {
            let max = match kind {
                Held::Lines | Held::Lists | Held::TlsOutput | Held::Forwarded => 0,
                _ => KEPT_BYTES_MAX,
            };
            assert!(bytes <= max, "{bytes} bytes are left of {kind:?}");
        }
    }

    fn delete_jobs(&mut self) {
        let ids: Vec<u64> = self.server().engine().jobs().iter().map(|(_, job)| job.id.0).collect();
        let at = self.open(Protocol::Beanstalk);
        for id in ids {
            self.write(at, format!("delete {id}\r\n").as_bytes());
        }
        self.settle();
        self.hang_up(at);
        self.settle();
        assert_eq!(self.server().engine().body_count(), 0, "every body is given back");
    }

    fn handle(&mut self, event: Event<'_>) {
        handle(&mut self.transport, self.now, event);
        self.carry_out();
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.transport.poll_effect() {
            match effect {
                Effect::Send(conn) | Effect::Pause(conn) | Effect::Resume(conn) | Effect::Close(conn) => {
                    let gate = self.gates.iter_mut().find(|gate| gate.link.conn == conn);
                    gate.expect("it was opened").link.apply(&effect);
                }
                Effect::LogClient(conn, act) => {
                    let gate = self.gates.iter_mut().find(|gate| gate.link.conn == conn);
                    gate.expect("it was opened").acts.push(act);
                }
                Effect::Log | Effect::Fail => panic!("there is no disk"),
            }
        }
    }
}

fn local() -> Peer {
    Peer::new(PeerKind::Loopback, "loopback")
}
