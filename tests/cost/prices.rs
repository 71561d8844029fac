//! What the server charges for work beside what the work costs. The price of a step follows from the work and its cost, and must be
//! at most three times that of a step of a `put`.
//!
//! The steps are those that the server's budget has charged, arrivals included. The cost is what the thread of the event loop
//! takes, system calls included: instructions if the kernel counts them, or else CPU time. Many virtual machines count none.
//! Client and server share a CPU: on a virtual machine a lone `put` takes 8 us there, and 40 us where its reply wakes another CPU.

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::{Arc, PoisonError};

use beanring::io::driver::Driver;
use beanring::server::{CertificatePem, Protocol};
use beanring::transport::Identity;
use beanring_testkit::certificates::{Certificates, KeyKind};
use beanring_testkit::driver;
use beanring_testkit::measured::{Iterations, MeasuredServer, OnOneCpu};
use beanring_testkit::peer::Received;
use beanring_testkit::process::REPLY_PATIENCE;
use beanring_testkit::scratch::Scratch;
use beanring_testkit::stream::Stream;
use beanring_testkit::tls_stream::{TlsStream, client, client_config, sealed};
use rustls::ClientConfig;
use rustls::client::Resumption;

use crate::doors::Door;
use crate::loads::in_tubes;
use crate::scenarios::{Place, is_wanted};
use crate::senders::parts;
use crate::talk::put;
use crate::world::{World, server_config};
use crate::{ALONE, IS_SHORT};

/// The most that a step may cost, as a multiple of a step of a `put`. Without optimization, prices are those of another program.
const TIMES_MAX: f64 = if IS_SHORT { 6.0 } else { 3.0 };

/// What an event-loop iteration takes by itself, in steps: some 2 us for its system call. No budget has it, since every iteration does.
const ITERATION_STEPS: u64 = 20;

/// Commands that are sent at once.
const DEPTH: usize = 32;

/// A body, and a line.
const LARGE_BYTES: usize = 60_000;

/// The first message of a server in a handshake is smaller. What follows is made with it.
const HELLO_BYTES: usize = 200;

/// Protocols that a client may name in a message of 64 KiB, each in two bytes.
const PROTOCOLS: usize = 32_000;

/// Measurements of what is too expensive, and of a `put` beside each. The smallest results count.
const ATTEMPTS: usize = 5;

/// What a client does, this often.
struct Deed {
    name: &'static str,
    times: usize,
    exists_at: fn(Door) -> bool,
    run: fn(&mut World, usize),
}

const fn deed(name: &'static str, times: usize, run: fn(&mut World, usize)) -> Deed {
    Deed { name, times, exists_at: |_| true, run }
}

const DEEDS: &[Deed] = &[
    deed("put", 500, |world, times| {
        (0..times).for_each(|_| drop(world.actor.expect(&small_put(), "INSERTED")));
    }),
    deed("put, 32 at once", 100, |world, times| at_once(world, times, &small_put())),
    deed("put with new keys, 32 at once", 100, |world, times| {
        let lines: Vec<String> =
            (0..32 * times).map(|at| format!("put 0 0 60 1 con:c{at} grp:g{at}\r\nx\r\n")).collect();
        each_once(world, &lines);
    }),
    deed("use of new tubes, 32 at once", 100, |world, times| {
        let lines: Vec<String> = (0..32 * times).map(|at| format!("use new{at}\r\n")).collect();
        each_once(world, &lines);
    }),
    deed("job-note of 1,024 bytes, 32 at once", 50, |world, times| {
        world.actor.expect(&small_put(), "INSERTED");
        let id = world.actor.expect("reserve-with-timeout 0\r\n", "RESERVED")[0];
        at_once(world, times, &format!("job-note {id} 1024\r\n{}\r\n", "n".repeat(1024)));
        world.actor.expect(&format!("delete {id}\r\n"), "DELETED");
    }),
    deed("stats-job with notes, 32 at once", 20, |world, times| {
        world.actor.expect(&small_put(), "INSERTED");
        let id = world.actor.expect("reserve-with-timeout 0\r\n", "RESERVED")[0];
        for _ in 0..3 {
            world.actor.expect(&format!("job-note {id} 1024\r\n{}\r\n", "\u{1}".repeat(1024)), "NOTED");
        }
        at_once(world, times, &format!("stats-job {id}\r\n"));
        world.actor.expect(&format!("delete {id}\r\n"), "DELETED");
    }),
    deed("schedule-put, 32 at once", 20, |world, times| {
        at_once(world, times, &schedule_put("n", "0 3 * * 1-5 Europe/Berlin"));
    }),
    deed("schedule-put of an interval, 32 at once", 20, |world, times| {
        at_once(world, times, &schedule_put("n", "every:1d"));
    }),
    deed("schedule-put of times that never come, 32 at once", 5, |world, times| {
        at_once(world, times, &schedule_put("n", "0 0 31 4,6,9,11 * America/New_York"));
    }),
    deed("schedule-put of a rare time, 32 at once", 5, |world, times| {
        at_once(world, times, &schedule_put("n", "59 23 29 2 * Africa/Casablanca"));
    }),
    deed("schedule-run of 60,000 bytes", 200, |world, times| {
        let body = "b".repeat(LARGE_BYTES);
        let put = format!("schedule-put n 0 0 60 {LARGE_BYTES} load every:1d\r\n{body}\r\n");
        world.helper.expect(&put, "SCHEDULED");
        (0..times).for_each(|_| drop(world.actor.expect("schedule-run n\r\n", "INSERTED")));
    }),
    deed("list-schedules of 1,000", 5, |world, times| {
        for at in 0..1000 {
            world.helper.expect(&schedule_put(&format!("n{at}"), "every:1d"), "SCHEDULED");
        }
        (0..times).for_each(|_| drop(world.actor.expect("list-schedules 1000\r\n", "OK")));
    }),
    deed("put of 60,000 bytes", 200, |world, times| {
        let put = format!("put 0 0 60 {LARGE_BYTES}\r\n{}\r\n", "b".repeat(LARGE_BYTES));
        (0..times).for_each(|_| drop(world.actor.expect(&put, "INSERTED")));
    }),
    deed("put byte by byte", 5, |world, times| {
        let put = small_put();
        for _ in 0..times {
            (0..put.len()).for_each(|at| world.actor.send(&put[at..=at]));
            world.actor.reply();
        }
    }),
    deed("reserve and delete", 300, |world, times| {
        for _ in 0..times {
            let id = world.actor.expect("reserve-with-timeout 0\r\n", "RESERVED")[0];
            world.actor.expect(&format!("delete {id}\r\n"), "DELETED");
        }
    }),
    deed("peek of 60,000 bytes", 200, |world, times| {
        let put = format!("put 0 100000 60 {LARGE_BYTES}\r\n{}\r\n", "b".repeat(LARGE_BYTES));
        let id = world.helper.expect(&put, "INSERTED")[0];
        (0..times).for_each(|_| drop(world.actor.expect(&format!("peek {id}\r\n"), "FOUND")));
    }),
    deed("watch and ignore, 32 at once", 50, |world, times| {
        at_once(world, times / 2, "watch another\r\nignore another\r\n");
    }),
    deed("use, 32 at once", 50, |world, times| at_once(world, times / 2, "use another\r\nuse load\r\n")),
    deed("stats, 32 at once", 20, |world, times| at_once(world, times, "stats\r\n")),
    deed("stats-tube, 32 at once", 20, |world, times| at_once(world, times, "stats-tube load\r\n")),
    deed("list-tubes", 20, |world, times| {
        (0..times).for_each(|_| drop(world.actor.expect("list-tubes\r\n", "OK")));
    }),
    deed("no command, 32 at once", 100, |world, times| at_once(world, times, "nothing\r\n")),
    deed("a line of 60,000 LF", 50, |world, times| {
        let line = format!("a{}\r\n", "\n".repeat(LARGE_BYTES));
        (0..times).for_each(|_| drop(world.actor.ask(&line)));
    }),
    deed("a refused body of 60,000 bytes", 50, |world, times| {
        let put = format!("put 0 -1 60 {LARGE_BYTES}\r\n{}\r\n", "b".repeat(LARGE_BYTES));
        (0..times).for_each(|_| drop(world.actor.ask(&put)));
    }),
    deed("connect, come in and leave", 100, |world, times| (0..times).for_each(|_| drop(world.connect()))),
    deed("connect and leave", 200, |world, times| {
        let entrance = world.door.entrance(&world.server, Protocol::Beanstalk);
        for _ in 0..times {
            Stream::Tcp(entrance.reach().expect("the server accepts")).reset();
        }
    }),
    Deed {
        exists_at: |door| door == Door::Users,
        ..deed("auth, 32 at once", 50, |world, times| {
            let command = world.door.greeting().expect("the server has users");
            at_once(world, times, &command);
        })
    },
    Deed {
        exists_at: has_tls,
        ..deed("records of one byte", 5, |world, times| {
            let records = "list-tube-used\r\n".repeat(DEPTH);
            for _ in 0..times {
                seal_each(world, records.as_bytes(), |_| {});
            }
        })
    },
    Deed {
        exists_at: has_tls,
        ..deed("changes of keys", 5, |world, times| {
            for _ in 0..times {
                seal_each(world, "list-tube-used\r\n".repeat(DEPTH).as_bytes(), |tls| {
                    tls.refresh_traffic_keys().expect("the handshake is over");
                });
            }
        })
    },
    Deed {
        exists_at: has_tls,
        ..deed("the begin of a handshake", 50, |world, times| hello(world, times, usize::MAX))
    },
    Deed {
        exists_at: has_tls,
        ..deed("the begin of a handshake, byte by byte", 2, |world, times| hello(world, times, 1))
    },
    Deed {
        exists_at: |door| door == Door::Proxied,
        ..deed("a header, byte by byte", 50, |world, times| {
            let entrance = world.door.entrance(&world.server, Protocol::Beanstalk);
            for _ in 0..times {
                let mut tcp = entrance.reach().expect("the server accepts");
                let header = [&entrance.preamble[..], b"list-tube-used\r\n"].concat();
                header.iter().for_each(|&byte| tcp.write_all(&[byte]).expect("the server receives"));
                receive(&mut Stream::Tcp(tcp), 1);
            }
        })
    },
    over_http("GET /healthz", |world, times| requests(world, times, "GET /healthz")),
    over_http("GET /metrics", |world, times| requests(world, times, "GET /metrics")),
    over_http("GET the server", |world, times| requests(world, times, "GET /api/v1/server")),
    over_http("GET tubes", |world, times| requests(world, times, "GET /api/v1/tubes?limit=500")),
    over_http("not found", |world, times| requests(world, times, "GET /nothing")),
];

const fn over_http(name: &'static str, run: fn(&mut World, usize)) -> Deed {
    Deed { exists_at: |door| door.carries(Protocol::Http), ..deed(name, 20, run) }
}

fn has_tls(door: Door) -> bool {
    matches!(door, Door::Tls | Door::Forwarded)
}

fn small_put() -> String {
    format!("put 0 0 60 64\r\n{}\r\n", "b".repeat(64))
}

fn schedule_put(name: &str, when: &str) -> String {
    format!("schedule-put {name} 0 0 60 1 load {when}\r\nx\r\n")
}

/// Sends commands together, and reads all replies, again and again.
fn at_once(world: &mut World, times: usize, commands: &str) {
    let (text, replies) = (commands.repeat(DEPTH), DEPTH * replies_to(commands));
    for _ in 0..times {
        world.actor.send(&text);
        (0..replies).for_each(|_| drop(world.actor.reply()));
    }
}

/// Sends commands together that differ, each with one reply.
fn each_once(world: &mut World, commands: &[String]) {
    for some in commands.chunks(DEPTH) {
        world.actor.send(&some.concat());
        some.iter().for_each(|_| drop(world.actor.reply()));
    }
}

/// Counts commands. A `put`, a `job-note` and a `schedule-put` have two lines.
fn replies_to(commands: &str) -> usize {
    if ["put ", "job-note ", "schedule-put "].iter().any(|word| commands.starts_with(word)) {
        1
    } else {
        commands.matches("\r\n").count()
    }
}

/// Sends requests together on one connection, and reads all responses.
fn requests(world: &World, times: usize, request: &str) {
    let mut stream = world.door.enter(&world.server, Protocol::Http);
    let head = format!("{request} HTTP/1.1\r\nHost: localhost\r\n{}", world.door.field());
    let text = format!("{head}\r\n").repeat(times - 1) + &head + "Connection: close\r\n\r\n";
    stream.send(text.as_bytes());
    while let Received::Bytes(_) = stream.receive(REPLY_PATIENCE) {}
}

/// Sends each byte in a record of its own, all of them at once, and waits for a reply.
fn seal_each(world: &World, bytes: &[u8], mut before: impl FnMut(&mut rustls::ClientConnection)) {
    let (tcp, tls) = parts(world.door.enter(&world.server, Protocol::Beanstalk));
    let mut tls = tls.expect("the door has TLS");
    let mut records = Vec::new();
    for &byte in bytes {
        before(&mut tls);
        records.extend(sealed(&mut tls, &[byte]));
    }
    tcp.set_nonblocking(false).expect("a TCP socket");
    let mut stream = TlsStream { tcp, tls };
    stream.tcp.write_all(&records).expect("the server receives");
    let mut replies = 0;
    while replies < DEPTH {
        let Ok(Received::Bytes(bytes)) = stream.receive(REPLY_PATIENCE) else { panic!("the server replies") };
        replies += bytes.iter().filter(|&&byte| byte == b'\n').count();
    }
}

/// Begins handshakes with pieces of this size, and waits for the answer.
fn hello(world: &World, times: usize, piece_bytes: usize) {
    let entrance = world.door.entrance(&world.server, Protocol::Beanstalk);
    for _ in 0..times {
        let mut tls = client(&without_resumption(entrance.tls.as_ref().expect("the door has TLS")));
        let mut hello = Vec::new();
        tls.write_tls(&mut hello).expect("a vector grows");
        let mut tcp = entrance.reach().expect("the server accepts");
        hello.chunks(piece_bytes).for_each(|piece| tcp.write_all(piece).expect("the server receives"));
        let mut stream = Stream::Tcp(tcp);
        receive(&mut stream, HELLO_BYTES);
        stream.reset();
    }
}

fn receive(stream: &mut Stream, bytes_min: usize) {
    let mut bytes = 0;
    while bytes < bytes_min {
        match stream.receive(REPLY_PATIENCE) {
            Received::Bytes(more) => bytes += more.len(),
            end => panic!("{bytes} bytes, and then {end:?}"),
        }
    }
}

fn without_resumption(config: &Arc<ClientConfig>) -> Arc<ClientConfig> {
    let mut config = (**config).clone();
    config.resumption = Resumption::disabled();
    config.into()
}

/// The cost of a step: instructions if they are counted, or else nanoseconds.
fn per_step(cost: Iterations) -> f64 {
    let amount = if cost.instructions > 0 { cost.instructions as f64 } else { cost.total.as_nanos() as f64 };
    amount / (cost.steps + ITERATION_STEPS * cost.count).max(1) as f64
}

const fn unit(cost: Iterations) -> &'static str {
    if cost.instructions > 0 { "instructions" } else { "ns of CPU time" }
}

/// Puts to compare with, measured beside what is compared.
struct Puts(World);

impl Puts {
    fn new(io: Driver) -> Self {
        let mut puts = Self(world(io, Door::Clear));
        // The first ones fill caches.
        puts.measure();
        puts
    }

    fn measure(&mut self) -> f64 {
        per_step(self.0.measure(|world| (DEEDS[0].run)(world, DEEDS[0].times)))
    }

    /// Measures a deed, and prints its price. If its steps are too expensive, it is measured again. Returns whether they are.
    fn is_too_expensive(
        &mut self,
        name: &str,
        door: Door,
        times: usize,
        mut once: impl FnMut() -> Iterations,
    ) -> bool {
        let (mut put, mut best) = (self.measure(), once());
        for _ in 1..ATTEMPTS {
            if per_step(best) <= TIMES_MAX * put {
                break;
            }
            put = put.min(self.measure());
            let again = once();
            best = if per_step(again) < per_step(best) { again } else { best };
        }
        let ratio = per_step(best) / put;
        let is_red = ratio > TIMES_MAX;
        println!(
            "{:<4} {:<10} {name:<52} {:>9.0} steps and {:>9.1} us of CPU time each, {ratio:>6.2} of a put ({put:.1} {} a step)",
            if is_red { "RED" } else { "" },
            door.name(),
            best.steps as f64 / times as f64,
            best.total.as_secs_f64() * 1e6 / times as f64,
            unit(best),
        );
        is_red
    }
}

fn place(io: Driver, door: Door) -> Place {
    Place { io, door, is_first: true }
}

/// A world with what the deeds need.
fn world(io: Driver, door: Door) -> World {
    let mut world = World::new(place(io, door));
    in_tubes(&mut world, 1000, "tube", |_| put(0, ""));
    world.put_many(1000, 0);
    world
}

#[test]
fn a_step_costs_at_most_three_times_that_of_a_put_by_every_door() {
    let _alone = (ALONE.lock().unwrap_or_else(PoisonError::into_inner), OnOneCpu::begin());
    let Some(io) = driver::allowed("prices").next() else { return };
    let (mut puts, mut red) = (Puts::new(io), 0);
    for door in Door::ALL {
        let mut world = world(io, door);
        for deed in DEEDS.iter().filter(|deed| (deed.exists_at)(door) && is_wanted(deed.name)) {
            let once = || world.measure(|world| (deed.run)(world, deed.times));
            red += usize::from(puts.is_too_expensive(deed.name, door, deed.times, once));
        }
    }
    assert_eq!(red, 0, "steps cost too much");
}

/// docs/SECURITY.md has the table that this prints.
#[test]
fn a_handshake_has_the_price_of_its_keys() {
    let _alone = (ALONE.lock().unwrap_or_else(PoisonError::into_inner), OnOneCpu::begin());
    let Some(io) = driver::allowed("prices of handshakes").next() else { return };
    let mut puts = Puts::new(io);
    let dir = Scratch::new("cost-keys");
    let certificates = Certificates::new(&dir.0);
    let clients = [None].into_iter().chain(KeyKind::ALL.map(Some));
    let mut red = 0;
    for (own, shown) in clients.flat_map(|shown| KeyKind::ALL.map(|own| (own, shown))) {
        // Each kind of the server without a client, and each kind of a client with one kind of the server.
        if shown.is_some() && own != KeyKind::EcdsaP256 {
            continue;
        }
        let server = handshakes_with(io, &certificates, own, shown);
        let config = config_of(&certificates, shown);
        let times = if own == KeyKind::Rsa4096 { 10 } else { 40 };
        let with = shown.map_or_else(String::new, |kind| format!(", client with {}", kind.name()));
        let name = format!("handshake, {}{with}", own.name());
        let once = || shake_hands(&server, &config, times);
        red += usize::from(puts.is_too_expensive(&name, Door::Tls, times, once));
    }
    assert_eq!(red, 0, "handshakes cost too much");
}

fn handshakes_with(
    io: Driver,
    certificates: &Certificates,
    own: KeyKind,
    shown: Option<KeyKind>,
) -> MeasuredServer {
    let pair = certificates.for_server_with("keys-server", own);
    let read = |path| fs::read(path).expect("the file exists");
    let client_ca = shown.map(|_| read(&certificates.ca));
    let files = CertificatePem { chain: read(&pair.certificate), key: read(&pair.key), client_ca };
    let identity = Identity::read(&files).expect("the certificate can be used");
    Door::Tls.serve(io, server_config(None), Some(identity))
}

fn config_of(certificates: &Certificates, shown: Option<KeyKind>) -> Arc<ClientConfig> {
    let pair = shown.map(|kind| certificates.for_client_with("keys-client", kind));
    without_resumption(&client_config(&certificates.ca, pair.as_ref()))
}

/// Has clients shake hands one after the other, and leave.
fn shake_hands(server: &MeasuredServer, config: &Arc<ClientConfig>, times: usize) -> Iterations {
    let once = || {
        let tcp = TcpStream::connect(server.address_of(Door::Tls.kind(Protocol::Beanstalk)));
        let mut stream =
            TlsStream::over(tcp.expect("the server accepts"), config).expect("the server is trusted");
        stream.send(b"list-tube-used\r\n").expect("the connection is open");
        receive(&mut Stream::Tls(stream), 1);
    };
    once();
    server.await_idle();
    let start = server.reset();
    (0..times).for_each(|_| once());
    server.await_idle();
    server.since(&start)
}

/// A client may name 32,000 protocols in its first message, and rustls reads them in one go. What these add to a handshake counts.
#[test]
fn a_long_hello_has_its_price() {
    let _alone = (ALONE.lock().unwrap_or_else(PoisonError::into_inner), OnOneCpu::begin());
    let Some(io) = driver::allowed("the price of a long hello").next() else { return };
    let mut puts = Puts::new(io);
    let dir = Scratch::new("cost-hello");
    let certificates = Certificates::new(&dir.0);
    let server = handshakes_with(io, &certificates, KeyKind::EcdsaP256, None);
    let short = config_of(&certificates, None);
    let mut long = (*short).clone();
    long.alpn_protocols = vec![b"x".to_vec(); PROTOCOLS];
    let long = Arc::new(long);
    let times = 20;
    let added = || {
        let [long, short] = [&long, &short].map(|config| shake_hands(&server, config, times));
        Iterations {
            total: long.total.saturating_sub(short.total),
            steps: long.steps.saturating_sub(short.steps),
            instructions: long.instructions.saturating_sub(short.instructions),
            count: long.count.saturating_sub(short.count),
            ..long
        }
    };
    assert!(
        !puts.is_too_expensive("32,000 protocols in a hello", Door::Tls, times, added),
        "they cost too much"
    );
}
