//! More connections with input at the same moment than any queue or pool of a driver holds.

use std::path::Path;

use beanring::io::descriptors;
use beanring::io::driver::Driver;
use beanring::values::limits::{RECEIVE_BUFFERS, REQUESTS_QUEUED_MAX};
use beanring_testkit::driver;
use beanring_testkit::peer::Received;
use beanring_testkit::process::{REPLY_PATIENCE, ServerProcess, Transport, program};
use beanring_testkit::stream::Stream;
use nix::sys::signal::Signal;

/// More than the receive buffers, and more than the requests that one call submits.
const CROWD: usize = 1500;

const _: () = assert!(CROWD > RECEIVE_BUFFERS as usize && CROWD > REQUESTS_QUEUED_MAX as usize);

#[test]
fn epoll_serves_a_crowd() {
    serve_a_crowd(Driver::Epoll);
}

#[cfg(feature = "uring")]
#[test]
fn uring_serves_a_crowd() {
    serve_a_crowd(Driver::Uring);
}

#[cfg(feature = "tokio-uring")]
#[test]
fn tokio_uring_serves_a_crowd() {
    serve_a_crowd(Driver::TokioUring);
}

/// All clients send a reserve at once. All replies come at once, from puts that one client pipelines.
fn serve_a_crowd(io: Driver) {
    if !driver::is_allowed(io, "crowd") {
        return;
    }
    descriptors::raise_limit().expect("a process may raise its soft limit");
    let transports = [
        Transport::Tcp,
        Transport::Unix,
        #[cfg(feature = "tls")]
        Transport::Tls,
    ];
    for transport in transports {
        let program = Path::new(program());
        let (server, mut giver) = ServerProcess::start(program, transport, &driver::flags(io));
        let mut crowd: Vec<Stream> = (0..CROWD).map(|_| server.connect()).collect();
        // The server has accepted all connections before the input of the crowd comes at once.
        ask(crowd.last_mut().expect("the crowd is not empty"), "list-tube-used\r\n", "USING default\r\n");
        server.signal(Signal::SIGSTOP);
        crowd.iter_mut().for_each(|client| client.send(b"watch nothing\r\nreserve\r\n"));
        server.signal(Signal::SIGCONT);
        for client in &mut crowd {
            expect(client, "WATCHING 2\r\n");
        }
        giver.send("put 0 0 60 5\r\nhello\r\n".repeat(CROWD).as_bytes());
        let mut ids: Vec<u64> = crowd.iter_mut().map(receive_job).collect();
        ids.sort_unstable();
        assert!(ids.iter().copied().eq(1..=CROWD as u64), "each client gets one job");
    }
}

fn ask(client: &mut Stream, command: &str, reply: &str) {
    client.send(command.as_bytes());
    expect(client, reply);
}

fn expect(client: &mut Stream, reply: &str) {
    assert_eq!(receive(client, reply.len()), reply);
}

/// Receives a job and returns its id.
fn receive_job(client: &mut Stream) -> u64 {
    let mut text = String::new();
    while !text.ends_with("\r\nhello\r\n") {
        text += &receive(client, 1);
    }
    let id = text.strip_prefix("RESERVED ").and_then(|rest| rest.strip_suffix(" 5\r\nhello\r\n"));
    id.and_then(|id| id.parse().ok()).unwrap_or_else(|| panic!("not a job: {text:?}"))
}

/// Receives at least `len` bytes.
fn receive(client: &mut Stream, len: usize) -> String {
    let mut all = Vec::new();
    while all.len() < len {
        match client.receive(REPLY_PATIENCE) {
            Received::Bytes(bytes) => all.extend(bytes),
            other => panic!("{other:?} after {:?}", String::from_utf8_lossy(&all)),
        }
    }
    String::from_utf8(all).expect("UTF-8")
}
