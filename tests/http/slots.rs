//! Which connection is closed when there are too many.

use std::mem;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use beanring::server::{Origin, Peer, PeerKind};
use beanring::time::Time;
use beanring_testkit::config::config;
use beanring_testkit::driver;
use beanring_testkit::http_client::page;
use beanring_testkit::process::Address;
use beanring_testkit::stepped::Stepped;
use beanring_testkit::stream::connect_from;

use super::live::Live;

/// The connections that may be open at once.
const CROWD: usize = 64;

const LOOPBACK: Origin = Origin { network: 1, is_local: true };

/// Opens a connection from this origin at this tenth of a second: none waits for long enough to be closed for that.
fn open(server: &mut Stepped, tenth: u64, origin: Origin) -> usize {
    server.now = Time::from_nanos(tenth * 100_000_000);
    server.open_http_from(Peer { origin, ..Peer::new(PeerKind::Network, "peer") })
}

/// Sends a request over a new connection. Returns the connection, and those that were closed for it.
fn request(server: &mut Stepped, second: u64, request: &[u8]) -> (usize, Vec<usize>) {
    let http = open(server, second, LOOPBACK);
    if !request.is_empty() {
        server.send(http, request);
    }
    (http, server.run())
}

/// A server with as many connections as may be open, each with a request of its own second.
fn crowded(request_of_all: &[u8], reads: bool) -> (Stepped, Vec<usize>) {
    let mut server = Stepped::new(config(65_535));
    server.piece_bytes = if reads { usize::MAX } else { 0 };
    let all = (1..=CROWD as u64).map(|second| request(&mut server, second, request_of_all).0).collect();
    (server, all)
}

#[test]
fn the_connection_that_was_quiet_for_longest_makes_room() {
    let (mut server, known) = crowded(&page("/healthz"), true);
    assert_eq!(request(&mut server, 100, b"").1, [known[0]]);
    // The newest connection stays, although it has sent no request yet.
    assert_eq!(request(&mut server, 100, b"").1, [known[1]]);
}

#[test]
fn stalled_readers_make_room_for_new_connections() {
    for stalled in [&page("/metrics")[..], b"GET /metrics HTTP/1.0\r\n\r\n"] {
        let (mut server, known) = crowded(stalled, false);
        for before in known {
            assert_eq!(request(&mut server, 100, stalled).1, [before], "{}", stalled.escape_ascii());
        }
        // Two connections that are open before either sends a request both stay.
        let probes = [(); 2].map(|()| open(&mut server, 140, LOOPBACK));
        let closed = server.run();
        assert!(closed.len() == 2 && probes.iter().all(|probe| !closed.contains(probe)), "{closed:?}");
    }
}

/// A proxy that has more requests at once than there may be connections.
#[test]
fn a_response_that_has_begun_is_finished() {
    let mut server = Stepped::new(config(65_535));
    server.piece_bytes = 0;
    let asked: Vec<usize> = (0..CROWD).map(|_| request(&mut server, 1, &page("/metrics")).0).collect();
    for _ in 0..CROWD {
        let (late, closed) = request(&mut server, 2, b"");
        assert_eq!(closed, [late]);
    }
    server.piece_bytes = usize::MAX;
    for http in &asked {
        while server.send_some(*http) {}
    }
    assert_eq!(server.run(), [0; 0]);
    for http in asked {
        assert_eq!(server.response(http).map(|response| response.status), Some(200), "it is complete");
    }
}

#[test]
fn a_probe_in_two_packets_is_answered_beside_a_flood_from_another_address() {
    let flood = Origin { network: 2, is_local: false };
    for origin in [LOOPBACK, Origin { network: 3, is_local: false }] {
        let mut server = Stepped::new(config(65_535));
        for second in 1..200 {
            let probe = open(&mut server, second, origin);
            for part in ["GET /healthz HTTP/1.1\r\n", "Host: a\r\nConnection: close\r\n\r\n"] {
                for _ in 0..CROWD {
                    open(&mut server, second, flood);
                    assert!(!server.run().contains(&probe), "{origin:?}: probe {second} was closed");
                }
                server.send(probe, part.as_bytes());
            }
            assert_eq!(server.run(), [probe], "it is closed after its answer");
        }
    }
}

#[test]
fn a_flood_of_connections_keeps_no_probe_out() {
    const PROBES: usize = 20;
    for io in driver::allowed("HTTP") {
        let at = Address::fresh_tcp();
        let live = Live::at(at, io, &[]);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut open = Vec::new();
                // Ports are few: no more connections than a test may leave in TIME_WAIT.
                for number in 0..10_000 {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    open.extend(connect_from(Ipv4Addr::new(127, 0, 0, 2), at));
                    if number % 200 == 199 {
                        drop(mem::take(&mut open));
                    }
                }
            });
            let probe = || {
                let mut client = live.connect();
                client.stream.send(b"GET /healthz HTTP/1.1\r\n");
                thread::sleep(Duration::from_millis(20));
                client.stream.send(b"Host: localhost\r\nConnection: close\r\n\r\n");
                client.rest()
            };
            let answers: Vec<String> = (0..PROBES).map(|_| probe()).collect();
            is_over.store(true, Ordering::Relaxed);
            let is_ok = |answer: &&String| answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("ok\n");
            assert_eq!(answers.iter().filter(is_ok).count(), PROBES, "{answers:?}");
        });
    }
}
