//! Connections that send something and vanish at any point: the server keeps nothing of them.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use beanring::io::driver::Driver;
use beanring_testkit::driver;
use beanring_testkit::peer::Received;
use beanring_testkit::process::{REPLY_PATIENCE, ServerProcess, Transport, is_over_tls, program};
use beanring_testkit::random::{Random, seeds};
use beanring_testkit::stream::Stream;
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};

/// Connections in all.
const CONNECTIONS: usize = 2_000;

/// Connections at the same time.
const AT_ONCE: usize = 40;

/// The most that one client sends. A server that has paused a connection learns of its end only if the socket holds everything
/// before it.
const CLIENT_BYTES_MAX: usize = 50_000;

/// Short connections in each wave. A driver may still know of those of the last seconds.
#[cfg(feature = "uring")]
const WAVE: usize = 5_000;

/// The waves after the first.
#[cfg(feature = "uring")]
const WAVES: usize = 3;

/// What further waves may add to the counted memory: more connections at the same time, if the server is late.
#[cfg(feature = "uring")]
const COUNTED_GROWTH_MAX: usize = 64 * 1024;

/// The same for the memory that the process has from the kernel.
#[cfg(feature = "uring")]
const PROVIDED_GROWTH_MAX: usize = 256 * 1024;

/// A page of each receive buffer of an I/O thread. It is counted, but not resident before its first use.
#[cfg(feature = "uring")]
const BUFFER_PAGES_BYTES: usize = 256 * 4096;

/// A client, and the number of bytes that it has sent.
struct Client {
    stream: Stream,
    sent: usize,
}

#[test]
fn epoll_keeps_nothing() {
    churn(Driver::Epoll);
}

#[cfg(feature = "tokio-uring")]
#[test]
fn tokio_uring_keeps_nothing() {
    churn(Driver::TokioUring);
}

#[cfg(feature = "uring")]
#[test]
fn uring_keeps_nothing() {
    churn(Driver::Uring);
}

#[cfg(feature = "uring")]
#[test]
fn short_connections_leave_no_memory() {
    if !driver::is_allowed(Driver::Uring, "short connections") {
        return;
    }
    for threads in [0, 1, 3] {
        let flags = ["--io", "uring", "--io-threads", &threads.to_string()].map(str::to_owned);
        let (server, mut control) = ServerProcess::start(Path::new(program()), Transport::of_suite(), &flags);
        let mut wave = || {
            let mut clients = Vec::new();
            for _ in 0..WAVE {
                let mut client = server.connect();
                ask(&mut client, "list-tubes\r\n", "");
                if clients.len() == AT_ONCE {
                    reset(clients.remove(0));
                }
                clients.push(client);
            }
            clients.into_iter().for_each(reset);
            let stats = settled(&mut control);
            let counted = stats.lines().find_map(|line| line.strip_prefix("memory-used: "));
            [counted.expect("a line of stats").parse().expect("a number"), server.anonymous_bytes()]
        };
        let first = wave();
        for number in 1..=WAVES {
            let memory = wave();
            println!("{threads} I/O threads, wave {number}: {memory:?} bytes after {first:?}");
            let growth = [COUNTED_GROWTH_MAX, PROVIDED_GROWTH_MAX + threads * BUFFER_PAGES_BYTES];
            let is_bounded = (0..2).all(|at| memory[at] <= first[at] + growth[at]);
            assert!(is_bounded, "{threads} I/O threads: {memory:?} after {first:?}");
        }
    }
}

/// Returns the statistics once the server knows that no other client is connected.
#[cfg(feature = "uring")]
fn settled(control: &mut Stream) -> String {
    let started = Instant::now();
    loop {
        let stats = ask(control, "stats\r\n", "");
        if stats.lines().any(|line| line == "current-connections: 1") {
            return stats;
        }
        assert!(started.elapsed() < REPLY_PATIENCE, "{stats}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Closes a connection with a RST, so that its port is free at once.
fn reset(stream: Stream) {
    if !matches!(stream, Stream::Unix(_)) {
        let at_once = linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&stream, sockopt::Linger, &at_once).expect("the socket option is set");
    }
}

fn churn(io: Driver) {
    if !driver::is_allowed(io, "churn") {
        return;
    }
    let transports = [Transport::of_suite(), Transport::Unix];
    // There is no TLS over UNIX sockets.
    for transport in transports.into_iter().take(if is_over_tls() { 1 } else { 2 }) {
        for seed in seeds(1) {
            println!("{} over {transport:?}, seed {seed}", io.name());
            churn_once(io, transport, seed);
        }
    }
}

fn churn_once(io: Driver, transport: Transport, seed: u64) {
    let mut random = Random::new(seed);
    let program = Path::new(program());
    let (server, mut control) = ServerProcess::start(program, transport, &driver::flags(io));
    ask(&mut control, "put 0 0 60 5000\r\n", &"p".repeat(5000));
    let before = server.descriptors();

    let mut clients: Vec<Client> = Vec::new();
    for _ in 0..CONNECTIONS {
        while clients.len() >= AT_ONCE {
            clients.swap_remove(random.below(clients.len())).vanish(&mut random);
        }
        clients.push(Client { stream: server.connect(), sent: 0 });
        for _ in 0..3 {
            let index = random.below(clients.len());
            clients[index].act(&mut random);
        }
    }
    for client in clients {
        client.vanish(&mut random);
    }

    let started = Instant::now();
    loop {
        let stats = ask(&mut control, "stats\r\n", "");
        let kept: Vec<&str> = ["current-connections: 1", "current-waiting: 0", "current-jobs-reserved: 0"]
            .into_iter()
            .filter(|line| !stats.lines().any(|found| found == *line))
            .collect();
        let descriptors = server.descriptors();
        if kept.is_empty() && descriptors == before {
            return;
        }
        let is_late = started.elapsed() > REPLY_PATIENCE;
        assert!(!is_late, "not {kept:?}, {descriptors} descriptors after {before}:\n{stats}");
        thread::sleep(Duration::from_millis(20));
    }
}

impl Client {
    /// Sends a command, or a part of one.
    fn act(&mut self, random: &mut Random) {
        let bytes = [10, 300, 9_000, 40_000][random.below(4)];
        let put = format!("put 0 0 60 {bytes}\r\n{}\r\n", "b".repeat(bytes));
        match random.below(9) {
            0 | 1 => self.send(put.as_bytes()),
            2 => self.send(&put.as_bytes()[..random.below(put.len())]),
            3 => self.send(b"reserve\r\n"),
            4 => self.send(b"watch empty\r\nignore default\r\nreserve-with-timeout 1000\r\n"),
            // More than the inbox of a client that waits or does not read.
            5 => self.send(&b"peek 1\r\n".repeat(3_000)),
            6 => self.stream.half_close(),
            7 => self.send(b"quit\r\n"),
            _ => {
                self.stream.receive(Duration::from_millis(1));
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.sent += bytes.len();
        if self.sent <= CLIENT_BYTES_MAX {
            self.stream.send(bytes);
        }
    }

    /// Closes the connection with a FIN or with a RST.
    fn vanish(self, random: &mut Random) {
        if random.below(3) == 0 {
            reset(self.stream);
        }
    }
}

/// Sends a command with its body and waits for the reply, whose data ends with an empty line.
fn ask(stream: &mut Stream, command: &str, body: &str) -> String {
    stream.send(command.as_bytes());
    if !body.is_empty() {
        stream.send(format!("{body}\r\n").as_bytes());
    }
    let mut reply = Vec::new();
    let end: &[u8] = if body.is_empty() { b"\n\r\n" } else { b"\r\n" };
    while !reply.ends_with(end) {
        match stream.receive(REPLY_PATIENCE) {
            Received::Bytes(bytes) => reply.extend_from_slice(&bytes),
            other => panic!("{other:?}"),
        }
    }
    String::from_utf8_lossy(&reply).into_owned()
}
