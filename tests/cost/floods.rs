//! Many connections that send without an end, and read what they get.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use beanring_testkit::measured::Iterations;

use crate::loads::in_tubes;
use crate::talk::put;
use crate::world::{TUBE, World};

/// What a connection of a flood sends again and again.
pub struct Flood {
    pub name: &'static str,
    /// Connections, of which there are four times as many at the larger size: in the short form, and in the long one.
    pub sizes: [usize; 2],
    pub is_http: bool,
    /// The control client waits for its turn among the connections of the flood, so its reply takes longer with more of them.
    pub shares_turns: bool,
    /// The server has a token, which the flood does not know.
    pub has_token: bool,
    /// Prepares the server. The number is a scale: 1 for the short form.
    pub build: fn(&mut World, usize),
    /// The commands of the connection with this number, for a while.
    pub text: fn(usize) -> String,
}

/// How long a flood runs before something is measured beside it.
const WARM_UP: Duration = Duration::from_millis(30);

const HTTP: Flood = Flood {
    name: "",
    sizes: [15, 15],
    is_http: true,
    shares_turns: false,
    has_token: false,
    build: |_, _| {},
    text: |_| String::new(),
};

const CLIENTS: Flood = Flood { sizes: [50, 500], is_http: false, shares_turns: true, ..HTTP };

/// Input that is never complete. The control client does not wait for it.
const ENDLESS: Flood = Flood { shares_turns: false, ..CLIENTS };

/// The size of its pieces.
const PIECE_BYTES: usize = 60_000;

fn requests(head: &str) -> String {
    format!("{head} HTTP/1.1\r\nHost: localhost\r\n\r\n").repeat(20)
}

fn many_tubes(world: &mut World, scale: usize) {
    in_tubes(world, 1000 * scale, "tube", |_| put(0, ""));
}

fn many_jobs(world: &mut World, scale: usize) {
    world.put_many(25_000 * scale, 0);
}

pub const FLOODS: &[Flood] = &[
    Flood { name: "HEAD /metrics", build: many_tubes, text: |_| requests("HEAD /metrics"), ..HTTP },
    Flood { name: "GET /metrics", build: many_tubes, text: |_| requests("GET /metrics"), ..HTTP },
    Flood { name: "HEAD /healthz", text: |_| requests("HEAD /healthz"), ..HTTP },
    Flood { name: "GET /readyz", text: |_| requests("GET /readyz"), ..HTTP },
    Flood { name: "unauthorized", has_token: true, text: |_| requests("GET /api/v1/server"), ..HTTP },
    Flood { name: "not found", text: |_| requests("GET /nothing"), ..HTTP },
    Flood { name: "GET /api/v1/server", text: |_| requests("GET /api/v1/server"), ..HTTP },
    Flood {
        name: "GET /api/v1/tubes, sorted",
        build: many_tubes,
        text: |_| requests("GET /api/v1/tubes?sort=ready&order=desc&offset=900&limit=500"),
        ..HTTP
    },
    Flood {
        name: "HEAD /api/v1/tubes, sorted",
        build: many_tubes,
        text: |_| requests("HEAD /api/v1/tubes?sort=ready&offset=900&limit=500"),
        ..HTTP
    },
    Flood {
        name: "GET /api/v1/tubes/TUBE/jobs",
        build: many_jobs,
        text: |_| requests("GET /api/v1/tubes/load/jobs?limit=500"),
        ..HTTP
    },
    Flood {
        name: "HEAD /api/v1/tubes/TUBE/jobs",
        build: many_jobs,
        text: |_| requests("HEAD /api/v1/tubes/load/jobs?limit=500"),
        ..HTTP
    },
    Flood { name: "GET a job", build: many_jobs, text: |_| requests("GET /api/v1/jobs/1"), ..HTTP },
    Flood {
        name: "list-jobs",
        shares_turns: false,
        build: many_jobs,
        text: |_| format!("list-jobs {TUBE} ready 0 10\r\n").repeat(20),
        ..CLIENTS
    },
    Flood { name: "stats", text: |_| "stats\r\n".repeat(100), ..CLIENTS },
    Flood { name: "stats-tube", text: |_| format!("stats-tube {TUBE}\r\n").repeat(100), ..CLIENTS },
    Flood { name: "list-tubes", build: many_tubes, text: |_| "list-tubes\r\n".repeat(20), ..CLIENTS },
    Flood { name: "reserve-with-timeout 0", text: |_| "reserve-with-timeout 0\r\n".repeat(100), ..CLIENTS },
    Flood {
        name: "put and flush-tube",
        text: |at| format!("use f{at}\r\n{}flush-tube f{at}\r\n", put(0, "").repeat(50)),
        ..CLIENTS
    },
    Flood {
        name: "watch and ignore",
        text: |at| format!("watch f{at}\r\nignore f{at}\r\n").repeat(50),
        ..CLIENTS
    },
    Flood {
        name: "reserve and cancel-reserve",
        text: |_| "reserve\r\ncancel-reserve\r\n".repeat(50),
        ..CLIENTS
    },
    Flood {
        name: "move-jobs to and fro",
        shares_turns: false,
        build: many_jobs,
        text: |at| {
            format!("move-jobs {TUBE} ready m{at} 300\r\nmove-jobs m{at} ready {TUBE} 300\r\n").repeat(10)
        },
        ..CLIENTS
    },
    Flood {
        name: "reserve-batch and release",
        build: |world, scale| {
            in_tubes(world, 100 * scale, "tube", |_| put(0, ""));
        },
        text: |at| {
            let watches: String = (0..200).map(|tube| format!("watch tube{}\r\n", at + tube)).collect();
            watches + &"reserve-mode weighted-fair\r\nreserve-batch 1000 0\r\n".repeat(20)
        },
        ..CLIENTS
    },
    Flood { name: "a first line without an end", text: |_| "a".repeat(PIECE_BYTES), ..ENDLESS },
    Flood {
        name: "a line of LF without an end",
        text: |_| format!("a {}", "\n".repeat(PIECE_BYTES)),
        ..ENDLESS
    },
    Flood {
        name: "a refused body without an end",
        text: |_| format!("put 0 0 60 4294967295\r\n{}", "\n".repeat(PIECE_BYTES)),
        ..ENDLESS
    },
    Flood {
        name: "a refused body over HTTP without an end",
        text: |_| {
            let head =
                "POST /api/nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000000000\r\n\r\n";
            head.to_owned() + &"\n".repeat(PIECE_BYTES)
        },
        ..HTTP
    },
];

/// What a control client asks beside a flood. Each reply needs few iterations of the event loop.
pub const PROBES: [&str; 3] = ["put 0 100000 60 1\r\nx\r\n", "reserve-with-timeout 0\r\n", "kick 5000\r\n"];

/// CPU time of the event loop after which a probe is given up.
const GIVEN_UP: Duration = Duration::from_secs(1);

/// Measures each probe beside a flood: how long the loop has run before the reply, and its longest iteration.
pub fn measure(flood: &Flood, world: &mut World, connections: usize, scale: usize) -> Vec<Iterations> {
    (flood.build)(world, scale);
    world.put_many(5000, 100_000);
    let address = if flood.is_http { world.server.http } else { world.server.address };
    let senders = Senders::start(flood, address, connections);
    thread::sleep(WARM_UP);
    let costs = PROBES.iter().map(|probe| cost_until_reply(world, probe)).collect();
    drop(senders);
    costs
}

fn cost_until_reply(world: &mut World, command: &str) -> Iterations {
    let start = world.server.reset();
    world.actor.send(command);
    loop {
        let has_reply = world.actor.await_reply(Duration::from_millis(20));
        let cost = world.server.since(&start);
        if has_reply {
            world.actor.reply();
        }
        if has_reply || cost.total > GIVEN_UP {
            return cost;
        }
    }
}

/// A thread that sends for all connections of a flood.
struct Senders {
    stops: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Senders {
    fn start(flood: &Flood, address: SocketAddr, connections: usize) -> Self {
        let stops = Arc::new(AtomicBool::new(false));
        let mut senders: Vec<Sender> =
            (0..connections).map(|at| Sender::connect(address, (flood.text)(at))).collect();
        let is_over = Arc::clone(&stops);
        let run = move || {
            let mut buffer = vec![0; 256 * 1024];
            while !is_over.load(Ordering::SeqCst) {
                senders.iter_mut().for_each(|sender| sender.step(&mut buffer));
            }
        };
        Self { stops, thread: Some(thread::spawn(run)) }
    }
}

impl Drop for Senders {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::SeqCst);
        self.thread.take().map(JoinHandle::join).expect("it is joined once").expect("it does not panic");
    }
}

struct Sender {
    stream: TcpStream,
    text: String,
    /// How much of the text is sent.
    at: usize,
}

impl Sender {
    fn connect(address: SocketAddr, text: String) -> Self {
        let stream = TcpStream::connect(address).expect("the server accepts");
        stream.set_nodelay(true).expect("a TCP socket");
        stream.set_nonblocking(true).expect("a TCP socket");
        Self { stream, text, at: 0 }
    }

    /// Reads what has arrived, and sends as much as fits.
    fn step(&mut self, buffer: &mut [u8]) {
        match self.stream.read(buffer) {
            Ok(0) => panic!("the server closed the connection"),
            Err(error) if error.kind() != ErrorKind::WouldBlock => panic!("{error}"),
            _ => {}
        }
        match self.stream.write(&self.text.as_bytes()[self.at..]) {
            Ok(bytes) => self.at = (self.at + bytes) % self.text.len(),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
    }
}
