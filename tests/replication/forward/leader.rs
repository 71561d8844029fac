//! The leader's listener for standbys, on a server in this process.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::thread;

use beanring::io::driver::Driver;
use beanring::io::forward::{LeaderTarget, Settings};
use beanring::io::socket::{Address, Listener, ListenerKind};
use beanring::server::{
    ClientAct, Effect, Entry, Event, Origin, Protocol, Server, Service, TlsCounts, Update,
};
use beanring::time::{Span, Time};
use beanring::transport::Transport;
use beanring::transport::forwarded::{ClientAddress, Inbound, header};
use beanring::transport::link::{Link, standby_config};
use beanring::values::link_secret::LinkSecret;
use beanring_testkit::client::{Client, put};
use beanring_testkit::config::config;
use beanring_testkit::driver::under_each;
use beanring_testkit::measured::run;
use beanring_testkit::peer::Received;
use beanring_testkit::process::REPLY_PATIENCE;
use beanring_testkit::stream::Stream;
use beanring_testkit::tls_stream::TlsStream;
use beanring_testkit::tunnel::identity;
use rustls::ClientConfig;

use super::place::{SECRET, Standby, rest, settings};

/// A server that runs until the test program ends.
struct Leader {
    clients: SocketAddr,
    standbys: SocketAddr,
    trusting: Arc<ClientConfig>,
}

impl Leader {
    fn start(io: Driver, secret: Option<LinkSecret>, has_certificate: bool) -> Self {
        Self::with(io, secret, has_certificate, true)
    }

    fn with(io: Driver, secret: Option<LinkSecret>, has_certificate: bool, takes_clear: bool) -> Self {
        let address = || Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 };
        let [clients, mut standbys] = [(); 2].map(|()| Listener::open(&address()).expect("a port is free"));
        standbys.set_kind(ListenerKind::FORWARDED);
        let [clients_at, standbys_at] =
            [&clients, &standbys].map(|listener| listener.local_name().parse().expect("a TCP address"));
        let (_, trusting) = identity();
        thread::spawn(move || {
            let identity = has_certificate.then(|| identity().0);
            let counts = Rc::new(TlsCounts::default());
            let mut server = Server::new(config(65_535));
            server.show_tls(counts.clone());
            let mut transport = Transport::new(server, identity, counts);
            if !takes_clear {
                transport.refuse_clear_clients();
            }
            let mut link = Link::new(transport);
            link.update(Time::ZERO, Update::LinkSecret(secret));
            run(io, vec![clients, standbys], link);
        });
        Self { clients: clients_at, standbys: standbys_at, trusting }
    }

    fn control(&self) -> Client {
        Client::new(Stream::Tcp(TcpStream::connect(self.clients).expect("it listens")))
    }

    /// A connection to the listener for standbys.
    fn standby(&self) -> TcpStream {
        let tcp = TcpStream::connect(self.standbys).expect("it listens");
        tcp.set_read_timeout(Some(REPLY_PATIENCE)).expect("a socket option");
        tcp.set_nodelay(true).expect("a socket option");
        tcp
    }

    /// The same after the handshake.
    fn greeted_standby(&self) -> TlsStream {
        TlsStream::over(self.standby(), &standby_config(SECRET)).expect("the leader has the key")
    }
}

fn client_of(standby: &Standby) -> Client {
    Client::new(Stream::Tcp(standby.client()))
}

#[test]
fn forwarded_clients_work_with_the_queue() {
    under_each("a listener for standbys", |io| {
        let (leader, standby) = (Leader::start(io, Some(SECRET), true), Standby::new(settings()));
        standby.lead_to(leader.standbys);
        let mut producer = client_of(&standby);
        producer.expect(&put(0, 0, "by way of a standby"), "INSERTED 1");
        let mut worker = client_of(&standby);
        let (reply, body) = worker.ask("reserve\r\n");
        assert_eq!((&*reply, &*body), ("RESERVED 1 19", "by way of a standby\r\n"));
        worker.expect("delete 1\r\n", "DELETED");

        // TLS passes through the standby.
        let tls = standby.client_with(Inbound { has_tls: true, ..Inbound::default() });
        let tls = TlsStream::over(tls, &leader.trusting).expect("the handshake follows the header");
        let mut tls = Client::new(Stream::Tls(tls));
        tls.expect(&put(0, 0, "secret"), "INSERTED 2");
        assert_eq!(leader.control().stat("proxy-header-failures"), 0);

        // So does the header of a load balancer before the standby.
        let mut balanced = standby.client_with(Inbound { is_proxied: true, ..Inbound::default() });
        let mut balancer = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
        balancer.extend([192, 0, 2, 7, 10, 0, 0, 1, 0x15, 0xb3, 0x2c, 0x24]);
        balanced.write_all(&balancer).expect("the server reads");
        Client::new(Stream::Tcp(balanced)).expect("peek-ready\r\n", "FOUND 2 6");
    });
}

#[test]
fn a_wrong_secret_reaches_nothing_and_is_counted() {
    under_each("a wrong secret of a standby", |io| {
        let leader = Leader::start(io, Some(SECRET), false);
        let mut control = leader.control();
        let addresses = ["192.0.2.7:5555", "10.0.0.1:11300"].map(|text| text.parse().expect("an address"));
        let from = ClientAddress::Tcp(addresses[0], addresses[1]);
        let tls = Inbound { has_tls: true, ..Inbound::default() };
        for (number, wrong) in [
            header(from, Inbound::default(), SECRET.shown ^ 1),
            header(ClientAddress::Unix, Inbound::default(), 0),
            // The server has no certificate.
            header(from, tls, SECRET.shown),
            // The header of a load balancer.
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x7f\0\0\x01\x7f\0\0\x01\0\x01\0\x02".to_vec(),
            b"put 0 0 60 1\r\nx\r\n".to_vec(),
        ]
        .into_iter()
        .enumerate()
        {
            let mut tls = leader.greeted_standby();
            // The server may close before the command is written.
            let _ = tls.send(&[&wrong[..], b"put 0 0 60 1\r\nx\r\n"].concat());
            let received = tls.receive(REPLY_PATIENCE);
            assert!(
                !matches!(received, Ok(Received::Bytes(_) | Received::Silence)),
                "{wrong:?}: {received:?}"
            );
            assert_eq!(control.stat("proxy-header-failures"), number as u64 + 1);
        }
        assert_eq!(control.stat("total-jobs"), 0);
        // The right one, in single bytes.
        let mut tls = leader.greeted_standby();
        for byte in header(from, Inbound::default(), SECRET.shown) {
            tls.send(&[byte]).expect("the server reads");
        }
        Client::new(Stream::Tls(tls)).expect(&put(0, 0, "x"), "INSERTED 1");

        // Without TLS not even the right one counts.
        let mut tcp = leader.standby();
        let _ = tcp.write_all(&header(from, Inbound::default(), SECRET.shown));
        let _ = tcp.write_all(b"put 0 0 60 1\r\nx\r\n");
        let answer = rest(&mut tcp);
        assert!(answer.is_empty() || answer.starts_with(b"\x15\x03"), "an alert at most: {answer:?}");

        // A standby that follows an earlier leader.
        let standby = Standby::new(settings());
        standby.forwarder.lead_to(Some(LeaderTarget {
            address: leader.standbys.to_string(),
            secret: LinkSecret { shown: 7, ..SECRET },
        }));
        let mut client = standby.client();
        client.write_all(b"put 0 0 60 1\r\nx\r\n").expect("it is open");
        standby.wait_for("a failure", |counts| counts.failed_connects.get() > 0);
        assert_eq!(control.stat("total-jobs"), 1);
        // It waits, and none of its bytes has been read.
        standby.lead_to(leader.standbys);
        Client::new(Stream::Tcp(client)).expect("", "INSERTED 2");
    });
}

#[test]
fn a_server_that_does_not_lead_lets_no_standby_pass() {
    let leader = Leader::start(Driver::Epoll, None, false);
    let standby = Standby::new(settings());
    standby.lead_to(leader.standbys);
    let _client = standby.client();
    standby.wait_for("a failure", |counts| counts.failed_connects.get() > 0);
    assert_eq!(standby.counts().total.get(), 0);
    assert!(leader.control().stat("proxy-header-failures") > 0);
}

#[test]
fn after_a_take_over_hundreds_of_clients_come_at_once() {
    under_each("many clients of a standby at once", |io| {
        let (leader, standby) = (Leader::start(io, Some(SECRET), false), Standby::new(settings()));
        let mut clients: Vec<Client> = (0..700).map(|_| client_of(&standby)).collect();
        standby.lead_to(leader.standbys);
        for client in &mut clients {
            let (reply, _) = client.ask(&put(0, 0, "x"));
            assert!(reply.starts_with("INSERTED "), "{reply}");
        }
        let failures = leader.control().stat("proxy-header-failures");
        assert_eq!(failures, 0, "{:?}", standby.counts());
    });
}

/// The thread that forwards is busy with handshakes, so it sees late that a connection is made.
#[test]
fn a_connection_that_is_made_is_not_given_up() {
    let leader = Leader::start(Driver::Epoll, Some(SECRET), false);
    let standby = Standby::new(Settings { connect: Span::from_millis(1), ..settings() });
    let mut clients: Vec<Client> = (0..200).map(|_| client_of(&standby)).collect();
    standby.lead_to(leader.standbys);
    for client in &mut clients {
        let (reply, _) = client.ask(&put(0, 0, "x"));
        assert!(reply.starts_with("INSERTED "), "{reply}");
    }
    assert_eq!(standby.counts().failed_connects.get(), 0);
}

#[test]
fn a_leader_without_a_plaintext_listener_takes_only_clients_with_tls() {
    under_each("a leader with TLS alone behind a standby", |io| {
        let leader = Leader::with(io, Some(SECRET), true, false);
        let standby = Standby::new(settings());
        standby.lead_to(leader.standbys);
        for inbound in [Inbound::default(), Inbound { is_proxied: true, ..Inbound::default() }] {
            let mut client = standby.client_with(inbound);
            client.write_all(b"put 0 0 60 1\r\nx\r\n").expect("it is open");
            assert_eq!(rest(&mut client), b"", "{inbound:?}");
        }
        let tls = standby.client_with(Inbound { has_tls: true, ..Inbound::default() });
        let tls = TlsStream::over(tls, &leader.trusting).expect("the handshake follows the header");
        let mut tls = Client::new(Stream::Tls(tls));
        tls.expect(&put(0, 0, "x"), "INSERTED 1");
        // A connection that watches runs no command.
        let watch = Inbound { is_watch: true, ..Inbound::default() };
        let mut watch_of_others = leader.greeted_standby();
        watch_of_others.send(&header(ClientAddress::Unix, watch, SECRET.shown)).expect("the server reads");
        let _ = watch_of_others.send(b"put 0 0 60 1\r\nx\r\n");
        let received = watch_of_others.receive(REPLY_PATIENCE);
        assert!(!matches!(received, Ok(Received::Bytes(_) | Received::Silence)), "{received:?}");
        assert_eq!(tls.stat("total-jobs"), 1);
    });
}

#[test]
fn a_client_of_the_wrong_kind_is_told_from_a_wrong_secret() {
    for (has_tls, takes_clear, shown, expected) in [
        (false, false, SECRET.shown, ClientAct::WrongForwardKind { has_tls: false }),
        (true, true, SECRET.shown, ClientAct::WrongForwardKind { has_tls: true }),
        (false, true, 7, ClientAct::WrongForwardSecret),
    ] {
        let mut transport = Transport::new(Server::new(config(65_535)), None, Rc::default());
        if !takes_clear {
            transport.refuse_clear_clients();
        }
        transport.update(Time::ZERO, Update::LinkSecret(Some(SECRET)));
        let entry = Entry::Forwarded(Origin { network: 0, is_local: false });
        let conn = transport.accept(Time::ZERO, Protocol::Beanstalk, entry);
        let inbound = Inbound { has_tls, ..Inbound::default() };
        let bytes = header(ClientAddress::Unix, inbound, shown);
        transport.handle(Time::ZERO, Event::Received { conn, bytes: &bytes });
        let effects = std::iter::from_fn(|| transport.poll_effect());
        let acts = effects.filter_map(|effect| match effect {
            Effect::LogClient(_, act) => Some(act),
            _ => None,
        });
        assert_eq!(acts.collect::<Vec<_>>(), [expected]);
    }
}
