//! Connections that send something and vanish at any point: the server keeps nothing of them.

use std::time::Duration;

use beanring::io::driver::Driver;
use beanring_testkit::client::{Client, put, serve_under};
#[cfg(feature = "uring")]
use beanring_testkit::driver;
use beanring_testkit::process::{ServerProcess, Transport, is_over_tls};
use beanring_testkit::random::{Random, seeds};
use beanring_testkit::statistics::number;
use beanring_testkit::stream::Stream;
use beanring_testkit::{tests_of_drivers, wait};

/// Connections in all.
const CONNECTIONS: usize = 2_000;

/// Connections at the same time.
const AT_ONCE: usize = 40;

/// The most that one client sends. A server that has paused a connection learns of its end only if the socket holds everything
/// before it.
const CLIENT_BYTES_MAX: usize = 50_000;

tests_of_drivers!("churn", churn: epoll_keeps_nothing, uring_keeps_nothing, tokio_uring_keeps_nothing);

fn churn(io: Driver) {
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
    let (server, mut control) = serve_under(io, transport, &[]);
    control.put(&"p".repeat(5000));
    let before = server.descriptors();

    let mut visitors: Vec<Visitor> = Vec::new();
    for _ in 0..CONNECTIONS {
        while visitors.len() >= AT_ONCE {
            visitors.swap_remove(random.below(visitors.len())).vanish(&mut random);
        }
        visitors.push(Visitor::enter(&server));
        for _ in 0..3 {
            let index = random.below(visitors.len());
            visitors[index].act(&mut random);
        }
    }
    visitors.into_iter().for_each(|visitor| visitor.vanish(&mut random));

    await_nothing_left(&mut control, || server.descriptors(), before);
}

/// Waits until only this client is left, which has put a job, and as many descriptors as before the others came.
pub fn await_nothing_left(control: &mut Client, descriptors: impl Fn() -> usize, before: usize) {
    const LEFT: [(&str, u64); 5] = [
        ("current-connections", 1),
        ("current-producers", 1),
        ("current-workers", 0),
        ("current-waiting", 0),
        ("current-jobs-reserved", 0),
    ];
    wait::until_ok(|| {
        let stats = control.stats();
        let descriptors = descriptors();
        let is_empty = LEFT.iter().all(|&(key, count)| number(&stats, key) == count) && descriptors == before;
        if is_empty { Ok(()) } else { Err(format!("{descriptors} descriptors after {before}, {stats}")) }
    });
}

/// A client, and the number of bytes that it has sent.
pub struct Visitor {
    stream: Stream,
    sent: usize,
}

impl Visitor {
    pub fn enter(server: &ServerProcess) -> Self {
        Self { stream: server.connect(), sent: 0 }
    }

    /// Sends a command, or a part of one.
    pub fn act(&mut self, random: &mut Random) {
        let put = put(0, 0, &"b".repeat([10, 300, 9_000, 40_000][random.below(4)]));
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
    pub fn vanish(self, random: &mut Random) {
        if random.below(3) == 0 {
            self.stream.reset();
        }
    }
}

#[cfg(feature = "uring")]
#[test]
fn short_connections_leave_no_memory() {
    /// Short connections in each wave. A driver may still know of those of the last seconds.
    const WAVE: usize = 5_000;
    /// The waves after the first.
    const WAVES: usize = 3;
    /// What further waves may add to the counted memory: more connections at the same time, if the server is late.
    const COUNTED_GROWTH_MAX: usize = 64 * 1024;
    /// The same for the memory that the process has from the kernel.
    const PROVIDED_GROWTH_MAX: usize = 256 * 1024;

    if !driver::is_allowed(Driver::Uring, "short connections") {
        return;
    }
    let (server, mut control) = serve_under(Driver::Uring, Transport::of_suite(), &[]);
    let mut wave = || {
        let mut clients: Vec<Client> = Vec::new();
        for _ in 0..WAVE {
            let mut client = server.client();
            client.ask("list-tubes\r\n");
            if clients.len() == AT_ONCE {
                clients.remove(0).stream.reset();
            }
            clients.push(client);
        }
        clients.into_iter().for_each(|client| client.stream.reset());
        control.await_stat("current-connections", |count| count == 1);
        [control.stat("memory-used") as usize, server.anonymous_bytes()]
    };
    let first = wave();
    for number in 1..=WAVES {
        let memory = wave();
        println!("wave {number}: {memory:?} bytes after {first:?}");
        let growth = [COUNTED_GROWTH_MAX, PROVIDED_GROWTH_MAX];
        let is_bounded = (0..2).all(|at| memory[at] <= first[at] + growth[at]);
        assert!(is_bounded, "{memory:?} after {first:?}");
    }
}
