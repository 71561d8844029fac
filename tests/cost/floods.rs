//! Many connections that send without an end, and read what they get.

use std::thread;
use std::time::Duration;

use beanring::server::Protocol;
use beanring_testkit::measured::Iterations;

use crate::doors::Door;
use crate::loads::in_tubes;
use crate::peers::Peer;
use crate::senders::{Sender, Senders};
use crate::talk::put;
use crate::world::{TUBE, World};

/// What many connections do at the same time.
#[derive(Clone, Copy)]
pub struct Flood {
    pub name: &'static str,
    /// Connections, of which there are four times as many at the larger size: in the short form, and in the long one.
    pub sizes: [usize; 2],
    pub is_http: bool,
    pub shares: Shares,
    /// The server has a token, which the flood does not know.
    pub has_token: bool,
    /// Prepares the server. The number is a scale: 1 for the short form.
    pub build: Build,
    /// What the connection with this number sends.
    pub sends: Sends,
}

/// What the control client shares with the connections of a flood: with more of them, its reply takes longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shares {
    Nothing,
    /// The steps of unfinished changes. Each client with one has its turn, and so has a large `kick`.
    Changes,
    /// The turns of clients.
    Turns,
}

/// What a connection sends.
#[derive(Clone, Copy)]
pub enum Sends {
    /// These commands again and again. It reads the replies.
    Commands(fn(usize) -> String),
    /// Something that it does not finish.
    Unfinished(Peer),
}

/// How long a flood runs before something is measured beside it.
const WARM_UP: Duration = Duration::from_millis(30);

pub const HTTP: Flood = Flood {
    name: "",
    sizes: [15, 15],
    is_http: true,
    shares: Shares::Nothing,
    has_token: false,
    build: nothing,
    sends: Sends::Commands(|_| String::new()),
};

pub const CLIENTS: Flood = Flood { sizes: [50, 500], is_http: false, shares: Shares::Turns, ..HTTP };

/// Input that is never complete. The control client does not wait for it.
const ENDLESS: Flood = Flood { shares: Shares::Nothing, ..CLIENTS };

type Build = fn(&mut World, usize);

const fn http(name: &'static str, build: Build, text: fn(usize) -> String) -> Flood {
    Flood { name, build, sends: Sends::Commands(text), ..HTTP }
}

const fn clients(name: &'static str, build: Build, text: fn(usize) -> String) -> Flood {
    Flood { name, build, sends: Sends::Commands(text), ..CLIENTS }
}

const fn endless(name: &'static str, text: fn(usize) -> String) -> Flood {
    Flood { name, sends: Sends::Commands(text), ..ENDLESS }
}

const fn nothing(_: &mut World, _: usize) {}

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
    http("HEAD /metrics", many_tubes, |_| requests("HEAD /metrics")),
    http("GET /metrics", many_tubes, |_| requests("GET /metrics")),
    http("HEAD /healthz", nothing, |_| requests("HEAD /healthz")),
    http("GET /readyz", nothing, |_| requests("GET /readyz")),
    Flood {
        name: "unauthorized",
        has_token: true,
        sends: Sends::Commands(|_| requests("GET /api/v1/server")),
        ..HTTP
    },
    http("not found", nothing, |_| requests("GET /nothing")),
    http("GET /api/v1/server", nothing, |_| requests("GET /api/v1/server")),
    http("GET /api/v1/tubes, sorted", many_tubes, |_| {
        requests("GET /api/v1/tubes?sort=ready&order=desc&offset=900&limit=500")
    }),
    http("HEAD /api/v1/tubes, sorted", many_tubes, |_| {
        requests("HEAD /api/v1/tubes?sort=ready&offset=900&limit=500")
    }),
    http("GET /api/v1/tubes/TUBE/jobs", many_jobs, |_| requests("GET /api/v1/tubes/load/jobs?limit=500")),
    http("HEAD /api/v1/tubes/TUBE/jobs", many_jobs, |_| requests("HEAD /api/v1/tubes/load/jobs?limit=500")),
    http("GET a job", many_jobs, |_| requests("GET /api/v1/jobs/1")),
    Flood {
        name: "list-jobs",
        shares: Shares::Nothing,
        build: many_jobs,
        sends: Sends::Commands(|_| format!("list-jobs {TUBE} ready 0 10\r\n").repeat(20)),
        ..CLIENTS
    },
    clients("stats", nothing, |_| "stats\r\n".repeat(100)),
    clients("stats-tube", nothing, |_| format!("stats-tube {TUBE}\r\n").repeat(100)),
    clients("list-tubes", many_tubes, |_| "list-tubes\r\n".repeat(20)),
    clients("reserve-with-timeout 0", nothing, |_| "reserve-with-timeout 0\r\n".repeat(100)),
    clients("put and flush-tube", nothing, |at| {
        format!("use f{at}\r\n{}flush-tube f{at}\r\n", put(0, "").repeat(50))
    }),
    clients("watch and ignore", nothing, |at| format!("watch f{at}\r\nignore f{at}\r\n").repeat(50)),
    clients("reserve and cancel-reserve", nothing, |_| "reserve\r\ncancel-reserve\r\n".repeat(50)),
    Flood {
        name: "move-jobs to and fro",
        shares: Shares::Changes,
        build: many_jobs,
        sends: Sends::Commands(|at| {
            format!("move-jobs {TUBE} ready m{at} 300\r\nmove-jobs m{at} ready {TUBE} 300\r\n").repeat(10)
        }),
        ..CLIENTS
    },
    Flood {
        name: "reserve-batch and release",
        build: |world, scale| {
            in_tubes(world, 100 * scale, "tube", |_| put(0, ""));
        },
        sends: Sends::Commands(|at| {
            let watches: String = (0..200).map(|tube| format!("watch tube{}\r\n", at + tube)).collect();
            watches + &"reserve-mode weighted-fair\r\nreserve-batch 1000 0\r\n".repeat(20)
        }),
        ..CLIENTS
    },
    endless("a first line without an end", |_| "a".repeat(PIECE_BYTES)),
    endless("a line of LF without an end", |_| format!("a {}", "\n".repeat(PIECE_BYTES))),
    endless("a refused body without an end", |_| {
        format!("put 0 0 60 4294967295\r\n{}", "\n".repeat(PIECE_BYTES))
    }),
    http("a refused body over HTTP without an end", nothing, |_| {
        let head = "POST /api/nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000000000\r\n\r\n";
        head.to_owned() + &"\n".repeat(PIECE_BYTES)
    }),
];

/// What a control client asks beside a flood. Each reply needs few iterations of the event loop.
pub const PROBES: [&str; 3] = ["put 0 100000 60 1\r\nx\r\n", "reserve-with-timeout 0\r\n", "kick 2500\r\n"];

/// CPU time of the event loop after which a probe is given up.
const GIVEN_UP: Duration = Duration::from_secs(1);

/// The time from the first connection of a flood on.
const ARRIVAL: &str = "arrival";

impl Flood {
    /// Whether there is such a flood at a door.
    pub fn exists_at(&self, door: Door) -> bool {
        match self.sends {
            Sends::Commands(_) => door.carries(self.protocol()),
            Sends::Unfinished(peer) => peer.exists_at(door),
        }
    }

    /// Whether the time until a reply may not grow with the connections.
    pub fn judges(&self, measurement: &str) -> bool {
        match self.shares {
            Shares::Nothing => measurement != ARRIVAL,
            Shares::Changes => !["kick", ARRIVAL].contains(&measurement),
            Shares::Turns => false,
        }
    }

    const fn protocol(&self) -> Protocol {
        if self.is_http { Protocol::Http } else { Protocol::Beanstalk }
    }
}

/// The names of what [`measure`] returns.
pub fn measurements() -> impl Iterator<Item = &'static str> {
    [ARRIVAL].into_iter().chain(PROBES.iter().map(|probe| probe.split(' ').next().expect("a word")))
}

/// Measures the arrival of a flood, and then each probe beside it: how long the loop has run before the reply, and its longest
/// iteration.
pub fn measure(flood: &Flood, world: &mut World, connections: usize, scale: usize) -> Vec<Iterations> {
    (flood.build)(world, scale);
    world.put_many(5000, 100_000);
    world.server.await_idle();
    let protocol = flood.protocol();
    let start = world.server.reset();
    let senders = match flood.sends {
        Sends::Commands(text) => {
            let field = if flood.has_token { String::new() } else { world.door.field() };
            let text = |at| text(at).replace("Host: localhost\r\n", &format!("Host: localhost\r\n{field}"));
            Senders::start((0..connections).map(|at| Sender::connect(world, protocol, text(at))))
        }
        Sends::Unfinished(peer) => Senders::start((0..connections).map(|_| peer.begin(world))),
    };
    thread::sleep(WARM_UP);
    let arrival = world.server.since(&start);
    let mut costs = vec![arrival];
    costs.extend(PROBES.iter().map(|probe| cost_until_reply(world, probe)));
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
