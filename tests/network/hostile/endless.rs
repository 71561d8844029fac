//! Clients that send without an end what the server discards. Others are served beside them.
//!
//! Waits are judged by the CPU time of the server, since the senders take the other CPUs.

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use beanring::io::driver::Driver;
use beanring_testkit::client::{Client, serve_under};
use beanring_testkit::process::{Address, ServerProcess, Transport};
use beanring_testkit::{tests_of_drivers, wait};

const SENDERS: usize = 64;
const CLIENTS: usize = 64;
const ROUNDS: usize = 4;

/// CPU time of the server until it replies to a client.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// CPU time of the server before the first command beside the senders.
const WARM_UP: Duration = Duration::from_millis(200);

/// What a sender begins with, and what it repeats.
const KINDS: [(&[u8], &[u8]); 4] =
    [(b"", b"a"), (b"a ", b"\n"), (b"put 0 0 60 4000000000\r\n", b"\n"), (b"\r\n", b"a\n")];

tests_of_drivers!(
    "endless senders", no_client_waits_for_endless_senders:
    epoll_serves_others_beside_endless_senders,
    uring_serves_others_beside_endless_senders,
    tokio_uring_serves_others_beside_endless_senders
);

fn no_client_waits_for_endless_senders(io: Driver) {
    let (mut server, mut control) = serve_under(io, Transport::Tcp, &[]);
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| server.client()).collect();
    let is_over = AtomicBool::new(false);
    let waits: Vec<Duration> = thread::scope(|scope| {
        for (number, kind) in KINDS.iter().enumerate() {
            let senders: Vec<TcpStream> = (0..SENDERS / KINDS.len()).map(|_| tcp(&server)).collect();
            let is_over = &is_over;
            let named = thread::Builder::new().name(format!("senders {number}"));
            named.spawn_scoped(scope, move || send_until(is_over, senders, *kind)).expect("a thread starts");
        }
        wait::until("the senders keep the server busy", || server.cpu_time() > WARM_UP);
        let waits = (0..ROUNDS).flat_map(|_| wait_for_each(&server, &mut clients)).collect();
        is_over.store(true, Ordering::Relaxed);
        waits
    });
    let longest = waits.iter().max().expect("there are clients");
    let late = waits.iter().filter(|&&wait| wait > WAIT_MAX).count();
    println!("{}: {late} of {} replies were late, the longest wait {longest:?}", io.name(), waits.len());
    assert_eq!(late, 0, "{}: a client waits {longest:?}", io.name());
    if io.name() == "uring" {
        assert_eq!(control.stat("io-self-check-repairs"), 0, "the driver knows of all input");
    }
    server.stop();
}

fn tcp(server: &ServerProcess) -> TcpStream {
    let Address::Tcp(at) = server.address() else { unreachable!("the server listens on TCP") };
    let stream = TcpStream::connect::<SocketAddr>(*at).expect("the server accepts connections");
    stream.set_nonblocking(true).expect("the stream is open");
    stream
}

fn send_until(is_over: &AtomicBool, mut senders: Vec<TcpStream>, (begin, repeated): (&[u8], &[u8])) {
    let piece = repeated.repeat(64 * 1024 / repeated.len());
    senders.iter_mut().for_each(|sender| sender.write_all(begin).expect("there is room"));
    while !is_over.load(Ordering::Relaxed) {
        for sender in &mut senders {
            match sender.write(&piece) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("the server keeps the connection: {error}"),
            }
        }
        thread::yield_now();
    }
}

/// Has all clients send a command, and returns how long each waits for its reply.
fn wait_for_each(server: &ServerProcess, clients: &mut [Client]) -> Vec<Duration> {
    let begun: Vec<Duration> = clients
        .iter_mut()
        .map(|client| {
            let begun = server.cpu_time();
            client.send("list-tube-used\r\n");
            begun
        })
        .collect();
    let mut waits = Vec::new();
    for (client, begun) in clients.iter_mut().zip(begun) {
        client.expect_bytes("USING default\r\n");
        waits.push(server.cpu_time() - begun);
    }
    waits
}
