//! Which connection is closed when there are too many.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{mem, thread};

use beanring::server::{Event, Origin, Server, Service};
use beanring::time::Time;
use beanring::values::ids::ConnId;
use beanring_testkit::config::config;
use beanring_testkit::driver;
use beanring_testkit::process::{Address, REPLY_PATIENCE, ServerProcess, Transport, program};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};

use super::{CROWD, LOOPBACK, accept_from, drivers, request_at, run_until_idle};

fn second(number: u64) -> Time {
    Time::from_nanos(number * 1_000_000_000)
}

#[test]
fn the_connection_that_was_quiet_for_longest_makes_room() {
    let mut server = Server::new(config(65_535));
    let health = "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";
    let known: Vec<ConnId> =
        (1..=CROWD as u64).map(|at| request_at(&mut server, second(at), health, true).0).collect();
    assert_eq!(request_at(&mut server, second(100), "", true).1, [known[0]]);
    // The newest connection stays, although it has sent no request yet.
    assert_eq!(request_at(&mut server, second(100), "", true).1, [known[1]]);
}

#[test]
fn stalled_readers_make_room_for_new_connections() {
    for request in ["GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", "GET /metrics HTTP/1.0\r\n\r\n"] {
        let mut server = Server::new(config(65_535));
        let known: Vec<ConnId> =
            (1..=CROWD as u64).map(|at| request_at(&mut server, second(at), request, false).0).collect();
        for before in &known {
            let (_, closed) = request_at(&mut server, second(100), request, false);
            assert_eq!(closed, [*before], "{request:?}");
        }
        // Two connections that are open before either sends a request both stay.
        let probes = [accept_from(&mut server, LOOPBACK), accept_from(&mut server, LOOPBACK)];
        let closed = run_until_idle(&mut server, second(101), false);
        assert!(closed.len() == 2 && probes.iter().all(|probe| !closed.contains(probe)), "{request:?}");
    }
}

#[test]
fn a_probe_in_two_packets_is_answered_beside_a_flood_from_another_address() {
    let flood = Origin { network: 2, is_local: false };
    for origin in [LOOPBACK, Origin { network: 3, is_local: false }] {
        let mut server = Server::new(config(65_535));
        for number in 1..200 {
            let now = second(number);
            let probe = accept_from(&mut server, origin);
            let mut closed = Vec::new();
            for part in ["GET /healthz HTTP/1.1\r\n", "Host: a\r\nConnection: close\r\n\r\n"] {
                for _ in 0..CROWD {
                    accept_from(&mut server, flood);
                    closed.extend(run_until_idle(&mut server, now, true));
                }
                assert!(!closed.contains(&probe), "{origin:?}: probe {number} was closed");
                server.handle(now, Event::Received { conn: probe, bytes: part.as_bytes() });
            }
            assert_eq!(run_until_idle(&mut server, now, true), [probe], "it is closed after its answer");
        }
    }
}

/// Connects from this address.
fn connect_from(from: Ipv4Addr, to: std::net::SocketAddr) -> std::io::Result<TcpStream> {
    let std::net::SocketAddr::V4(to) = to else { panic!("it is an IPv4 address") };
    let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let [a, b, c, d] = from.octets();
    bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &SockaddrIn::new(a, b, c, d, 0))?;
    connect(std::os::fd::AsRawFd::as_raw_fd(&fd), &SockaddrIn::from(to))?;
    Ok(TcpStream::from(fd))
}

#[test]
fn a_flood_of_connections_keeps_no_probe_out() {
    const PROBES: usize = 20;
    for io in drivers() {
        let Address::Tcp(address) = Address::fresh(Transport::Tcp) else { panic!("it is TCP") };
        let http = std::net::SocketAddr::new(address.ip(), address.port() + 1);
        let flags = [driver::flags(io), vec!["--http".to_owned(), http.to_string()]].concat();
        let (_server, _client) =
            ServerProcess::launch(Command::new(program()), Address::Tcp(address), &flags);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut open = Vec::new();
                // Ports are few: no more connections than a test may leave in TIME_WAIT.
                for number in 0..10_000 {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    open.extend(connect_from(Ipv4Addr::new(127, 0, 0, 2), http));
                    if number % 200 == 199 {
                        drop(mem::take(&mut open));
                    }
                }
            });
            let probe = || -> std::io::Result<String> {
                let mut stream = TcpStream::connect(http)?;
                stream.set_read_timeout(Some(REPLY_PATIENCE))?;
                stream.write_all(b"GET /healthz HTTP/1.1\r\n")?;
                thread::sleep(Duration::from_millis(20));
                stream.write_all(b"Host: localhost\r\nConnection: close\r\n\r\n")?;
                let mut answer = String::new();
                stream.read_to_string(&mut answer)?;
                Ok(answer)
            };
            let answers: Vec<_> = (0..PROBES).map(|_| probe()).collect();
            is_over.store(true, Ordering::Relaxed);
            let failed = answers.iter().filter(|answer| {
                !answer
                    .as_ref()
                    .is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("ok\n"))
            });
            let failed: Vec<_> = failed.collect();
            assert!(failed.is_empty(), "{} of {PROBES} probes failed: {:?}", failed.len(), failed[0]);
        });
    }
}
