//! `--max-memory` and `--max-connections`: which commands and connections are refused at the limit, which still work, and that
//! the server recovers below it.

use std::thread;
use std::time::Duration;

use beanring::io::driver::Driver;
use beanring::server::{Config, Entry, Event, Protocol, Server, Service};
use beanring::time::Time;
use beanring::values::ids::ConnId;
use beanring::values::limits::{JOB_BYTES_DEFAULT, RECEIVE_DIRECT_BYTES_MAX};
use beanring_testkit::client::{Client, put, serve_under, start};
use beanring_testkit::config::config;
use beanring_testkit::driver::under_each;
use beanring_testkit::in_memory::{Cut, InMemoryServer};
use beanring_testkit::peer::{Peer, Received};
use beanring_testkit::process::{ServerProcess, Transport};
use beanring_testkit::random::{Random, seeds};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::statistics::field;

const MIB: usize = 1024 * 1024;

/// Memory of the process that the server does not count: pieces that the allocator keeps.
const UNCOUNTED_BYTES: usize = 6 * MIB;

fn run(io: Driver, flags: &[&str]) -> (ServerProcess, Client) {
    serve_under(io, Transport::of_suite(), flags)
}

/// Repeats a `put` until it is refused. Returns the number of jobs.
fn fill(client: &mut Client, command: &str) -> u64 {
    for count in 0..1_000_000 {
        let (answer, _) = client.ask(command);
        if answer == "OUT_OF_MEMORY" {
            return count;
        }
        assert!(answer.starts_with("INSERTED "), "{answer}");
    }
    panic!("the server refuses no job");
}

#[test]
fn only_new_jobs_are_refused_at_the_memory_limit() {
    under_each("the memory limit", |io| {
        let (server, mut client) = run(io, &["--max-memory", "32m"]);
        let idle = client.stat("memory-used");
        let body = "b".repeat(60_000);
        let command = put(0, 0, &body);
        let count = fill(&mut client, &command);
        assert!((200..32 * MIB as u64 / 60_000).contains(&count), "{}: {count} jobs", io.name());
        assert_eq!(client.stat("max-memory"), 32 * MIB as u64);
        assert!(client.stat("memory-refusals") >= 1);
        let used = client.stat("memory-used");
        assert!((24 * MIB as u64..=32 * MIB as u64).contains(&used), "{used} bytes are used");
        let resident = server.anonymous_bytes();
        assert!(resident < 32 * MIB + UNCOUNTED_BYTES, "{}: {resident} bytes at the limit", io.name());

        for (text, reply) in [
            ("use other", "USING other"),
            ("watch third", "WATCHING 2"),
            ("ignore third", "WATCHING 1"),
            ("use default", "USING default"),
        ] {
            client.expect(&format!("{text}\r\n"), reply);
        }
        assert_eq!(client.ask("peek 1\r\n"), ("FOUND 1 60000".to_owned(), body.clone() + "\r\n"));
        for id in 1..=count {
            let reserved = client.ask("reserve-with-timeout 0\r\n");
            assert_eq!(reserved, (format!("RESERVED {id} 60000"), body.clone() + "\r\n"));
        }
        for (text, reply) in [
            ("touch 1", "TOUCHED"),
            ("release 1 0 0", "RELEASED"),
            ("bury 2 0", "BURIED"),
            ("kick 1", "KICKED 1"),
            ("release 3 0 10", "RELEASED"),
            ("kick-job 3", "KICKED"),
            ("pause-tube default 1", "PAUSED"),
            ("pause-tube default 0", "PAUSED"),
        ] {
            client.expect(&format!("{text}\r\n"), reply);
        }
        assert!(client.ask("stats-job 20\r\n").1.contains("state: reserved"));
        assert!(client.ask("stats-tube default\r\n").1.contains(&format!("total-jobs: {count}\n")));
        client.expect(&command, "OUT_OF_MEMORY");

        // The freed memory is used again, but no more: the commands above have taken some, and were not refused.
        for id in 4..14 {
            client.expect(&format!("delete {id}\r\n"), "DELETED");
        }
        let again = fill(&mut client, &command);
        assert!((1..=10).contains(&again), "{}: {again} jobs for 10", io.name());
        let last = client.ask("peek-ready\r\n").0;
        assert!(last.starts_with("FOUND "), "{last}");

        for id in 1..=count + 40 {
            client.send(&format!("delete {id}\r\n"));
        }
        (1..=count + 40).for_each(|_| drop(client.reply()));
        // The server keeps a sixteenth of the limit.
        client.await_stat("memory-used", |found| found <= idle + 3 * MIB as u64);
        assert!(server.resident_bytes() < idle as usize + 3 * MIB + UNCOUNTED_BYTES);
        let again = fill(&mut client, &command);
        assert!(again + 10 > count, "{}: {again} jobs after {count}", io.name());
    });
}

/// What many clients send in pieces, at the same time.
struct Input {
    clients: usize,
    head: &'static str,
    piece: String,
    pieces: usize,
    end: String,
    /// How a reply begins, unless it is OUT_OF_MEMORY.
    reply: &'static str,
}

impl Input {
    /// Sends it to a server with a limit of 32 MiB, and asserts that its memory stays below that. Returns the clients, and how many
    /// of them the server accepts.
    fn send(&self, io: Driver, server: &ServerProcess, control: &mut Client) -> (Vec<Client>, u64) {
        let mut clients: Vec<Client> = (0..self.clients).map(|_| server.client()).collect();
        clients.iter_mut().for_each(|client| client.send(self.head));
        control.put("small");
        for _ in 0..self.pieces {
            clients.iter_mut().for_each(|client| client.send(&self.piece));
            let resident = server.resident_bytes();
            assert!(resident < 40 * MIB, "{}: {resident} bytes", io.name());
        }
        let mut answers = [0, 0];
        for client in &mut clients {
            client.send(&self.end);
            let (answer, _) = client.reply().expect("the server runs");
            let is_refused = answer == "OUT_OF_MEMORY";
            assert!(is_refused || answer.starts_with(self.reply), "{answer}");
            answers[usize::from(is_refused)] += 1;
        }
        assert!(answers[0] >= 1 && answers[1] >= 10, "{}: {answers:?} accepted and refused", io.name());
        (clients, answers[0])
    }
}

/// A body is refused when its bytes arrive, not when it is announced.
#[test]
fn many_arriving_bodies_stay_below_the_memory_limit() {
    let bodies = Input {
        clients: 20,
        head: "put 0 0 60 4000000\r\n",
        piece: "p".repeat(500_000),
        pieces: 8,
        end: "\r\n".to_owned(),
        reply: "INSERTED ",
    };
    under_each("arriving bodies", |io| {
        let (server, mut control) = run(io, &["--max-memory", "32m", "-z", "100000000"]);
        let (clients, _) = bodies.send(io, &server, &mut control);
        clients.into_iter().for_each(|mut client| client.expect("use still\r\n", "USING still"));
    });
}

#[test]
fn unfinished_batches_stay_below_the_memory_limit() {
    let batches = Input {
        clients: 50,
        head: "put-batch 1000\r\n",
        piece: put(0, 0, &"p".repeat(1000)).repeat(90),
        pieces: 11,
        end: put(0, 0, "end").repeat(10),
        reply: "INSERTED_BATCH 1000",
    };
    under_each("unfinished batches", |io| {
        let (server, mut control) = run(io, &["--max-memory", "32m"]);
        let (_clients, accepted) = batches.send(io, &server, &mut control);
        assert_eq!(control.stat("total-jobs"), 1 + accepted * 1000);
        assert!(control.stat("memory-used") <= 32 * MIB as u64);
    });
}

/// The memory of refused bodies returns to the kernel in pieces. Bodies that arrive before that must not take more.
#[test]
fn bodies_that_arrive_in_one_iteration_do_not_take_the_place_of_refused_ones_twice() {
    const LIMIT: u64 = 32 * MIB as u64;
    let mut server = Server::new(Config { max_memory_bytes: Some(LIMIT), ..config(100_000_000) });
    let conns: Vec<ConnId> =
        (0..60).map(|_| server.accept(Time::ZERO, Protocol::Beanstalk, Entry::Plain(None))).collect();
    for &conn in &conns {
        let bytes = b"put 0 0 60 8000000\r\n";
        server.handle(Time::ZERO, Event::Received { conn, bytes });
    }
    let piece = vec![b'p'; RECEIVE_DIRECT_BYTES_MAX];
    let mut highest = 0;
    for _ in 0..8 {
        for &conn in &conns {
            server.handle(Time::ZERO, Event::Received { conn, bytes: &piece });
            while server.poll_effect().is_some() {}
            highest = highest.max(server.memory_bytes());
            if server.budget().is_full() {
                // As any driver does.
                server.turn(Time::ZERO);
            }
        }
    }
    server.check();
    assert!((LIMIT / 2..LIMIT + MIB as u64).contains(&highest), "{highest} bytes with a limit of {LIMIT}");
}

#[test]
fn a_job_log_larger_than_the_memory_limit_is_recovered() {
    let scratch = Scratch::new("memory_limit");
    let body = "b".repeat(60_000);
    let count = 400;
    {
        let (mut server, mut client) = start(&scratch.0, Driver::Epoll, &[]);
        (0..count).for_each(|_| _ = client.put(&body));
        server.stop();
    }
    let (_server, mut client) = start(&scratch.0, Driver::Epoll, &["--max-memory", "16m"]);
    client.expect(&put(0, 0, &body), "OUT_OF_MEMORY");
    for id in 1..=count {
        assert_eq!(client.ask("reserve\r\n").0, format!("RESERVED {id} 60000"));
        client.expect(&format!("delete {id}\r\n"), "DELETED");
    }
    client.await_stat("memory-used", |found| found <= 14 * MIB as u64);
    client.put(&body);
}

/// Without tags a body of the largest size fits into a segment of the job log. With tags it may fit into none.
#[test]
fn a_job_whose_tags_leave_no_room_in_a_segment_is_too_big() {
    let scratch = Scratch::new("tagged");
    let name = "t".repeat(200);
    let tagged =
        |bytes: usize| format!("put 0 0 60 {bytes} grp:{name} idp:{name}\r\n{}\r\n", "b".repeat(bytes));
    let batch = |each: usize| format!("put-batch 2\r\n{}", put(0, 0, &"b".repeat(each)).repeat(2));
    {
        let (mut server, mut client) = start(&scratch.0, Driver::Epoll, &["-s", "64k"]);
        let most = client.stat("max-job-size") as usize;
        client.expect(&format!("use {name}\r\n"), &format!("USING {name}"));
        client.put(&"b".repeat(most));
        client.expect(&tagged(most), "JOB_TOO_BIG");
        assert!(client.ask(&tagged(most - 500)).0.starts_with("INSERTED "));
        client.expect(&batch(most / 2), "JOB_TOO_BIG");
        client.expect(&batch(most / 2 - 500), "INSERTED_BATCH 2");
        for _ in 0..2 {
            assert!(client.line().expect("the server runs").starts_with("INSERTED "));
        }
        server.stop();
    }
    let (_server, mut client) = start(&scratch.0, Driver::Epoll, &["-s", "64k"]);
    assert_eq!(client.stat("current-jobs-ready"), 4);
}

#[test]
fn connections_above_the_limit_wait_in_the_backlog() {
    const MOST: usize = 5;
    under_each("the connection limit", |io| {
        // Clients in the backlog cannot shake hands.
        let (server, mut first) = serve_under(io, Transport::Tcp, &["--max-connections", "5"]);
        let mut clients: Vec<Client> = (1..MOST).map(|_| server.client()).collect();
        for client in &mut clients {
            client.expect("use a\r\n", "USING a");
        }
        let mut waiting: Vec<Client> = (0..3).map(|_| server.client()).collect();
        for client in &mut waiting {
            client.send("use b\r\n");
        }
        server.settle();
        assert_eq!(first.stat("current-connections"), MOST as u64);
        assert_eq!(first.stat("max-connections"), MOST as u64);
        assert_eq!(first.stat("io-accept-pauses"), 1, "{}", io.name());
        for client in &mut waiting {
            assert_eq!(client.stream.receive(Duration::from_millis(20)), Received::Silence);
        }
        // Each connection that closes makes room for the one that has waited longest.
        for (gone, client) in clients.into_iter().zip(&mut waiting) {
            gone.stream.close();
            assert_eq!(client.reply().expect("the client is served").0, "USING b");
            assert_eq!(first.stat("current-connections"), MOST as u64);
        }
        drop(waiting);
        first.await_stat("current-connections", |found| found <= 2);
        let mut late = server.client();
        late.expect("use c\r\n", "USING c");
    });
}

#[test]
fn the_connection_limit_can_be_one() {
    under_each("a single connection", |io| {
        let (server, mut client) = serve_under(io, Transport::Tcp, &["--max-connections", "1"]);
        for round in 0..20 {
            client.expect("use a\r\n", "USING a");
            let mut next = server.client();
            next.send("use a\r\n");
            if round % 2 == 0 {
                client.send("quit\r\n");
            }
            drop(client);
            assert_eq!(next.reply().expect("the client is served").0, "USING a", "{}", io.name());
            client = next;
        }
    });
}

/// Random commands on the bare core.
struct ProtocolState {
    core: InMemoryServer,
    random: Random,
    conns: Vec<usize>,
    held: Vec<(usize, u64)>,
}

const MEMORY_MAX: u64 = 6 * MIB as u64;

impl ProtocolState {
    fn start(seed: u64, cut: Cut) -> Self {
        let config = Config { max_memory_bytes: Some(MEMORY_MAX), ..config(2_000_000) };
        Self {
            core: InMemoryServer::with(config, cut),
            random: Random::new(seed),
            conns: Vec::new(),
            held: Vec::new(),
        }
    }

    /// Returns the first line of the reply.
    fn ask(&mut self, conn: usize, command: &str) -> String {
        let reply = self.core.ask(conn, command);
        reply.split("\r\n").next().filter(|line| !line.is_empty()).expect("a reply").to_owned()
    }

    fn step(&mut self) {
        if self.conns.len() < 3 || self.conns.len() < 30 && self.random.below(40) == 0 {
            self.conns.push(self.core.open());
        }
        let at = self.random.below(self.conns.len());
        let conn = self.conns[at];
        match self.random.below(12) {
            0..=5 => {
                let most = [70, 1_000, 9_000, 60_000, 300_000, 2_000_000][self.random.below(6)];
                let bytes = self.random.below(most);
                let delay = 1000 * self.random.below(2) as u32;
                let answer = self.ask(conn, &put(0, delay, &"x".repeat(bytes)));
                assert!(answer.starts_with("INSERTED ") || answer == "OUT_OF_MEMORY", "{answer}");
            }
            6..=8 => {
                let answer = self.ask(conn, "reserve-with-timeout 0\r\n");
                if let Some(rest) = answer.strip_prefix("RESERVED ") {
                    let id = rest.split(' ').next().and_then(|id| id.parse().ok()).expect("an id");
                    self.held.push((conn, id));
                }
            }
            9..=10 if !self.held.is_empty() => {
                let held = self.random.below(self.held.len());
                let (conn, id) = self.held.swap_remove(held);
                let verb = ["delete ID", "delete ID", "delete ID", "release ID 0 0", "bury ID 0"];
                let command = verb[self.random.below(5)].replace("ID", &id.to_string());
                self.ask(conn, &(command + "\r\n"));
            }
            11 if self.random.below(10) == 0 => {
                self.conns.swap_remove(at);
                self.held.retain(|&(holder, _)| holder != conn);
                self.core.close(conn);
            }
            _ => {
                let tube = self.random.below(30);
                self.ask(conn, &format!("watch tube-{tube}\r\n"));
            }
        }
    }
}

/// `InMemoryServer::check` recomputes every count after each step.
#[test]
fn counted_memory_stays_below_the_limit_and_is_given_back() {
    for seed in seeds(4) {
        println!("seed {seed}");
        let cut = if seed.is_multiple_of(2) { Cut::Whole } else { Cut::Random { seed } };
        let mut talk = ProtocolState::start(seed, cut);
        let start = talk.core.memory_bytes();
        let mut highest = 0;
        for _ in 0..400 {
            talk.step();
            highest = highest.max(talk.core.memory_bytes());
        }
        // Connections, tubes and replies may pass the limit.
        let beyond = MEMORY_MAX + MEMORY_MAX / 4;
        assert!((MEMORY_MAX / 2..beyond).contains(&highest), "the maximum is {highest} bytes");
        let conn = talk.core.open();
        for id in 1..=400_u64 {
            let holder = talk.held.iter().find(|(_, held)| *held == id).map_or(conn, |&(holder, _)| holder);
            talk.ask(holder, &format!("delete {id}\r\n"));
        }
        talk.conns.push(conn);
        talk.conns.clone().into_iter().for_each(|conn| talk.core.close(conn));
        let kept = talk.core.memory_bytes() - start;
        assert!(kept < 3 * MIB as u64, "{kept} bytes of {highest} are kept");
    }
}

/// A small job may grow by more than half when it is reserved.
#[test]
fn memory_for_reservations_is_reserved_with_the_put() {
    const MEMORY_MAX: u64 = 2 * MIB as u64;
    let config = Config { max_memory_bytes: Some(MEMORY_MAX), ..config(JOB_BYTES_DEFAULT) };
    let mut core = InMemoryServer::with(config, Cut::Whole);
    let (producer, worker) = (core.open(), core.open());
    let puts = put(0, 0, "0123456789").repeat(2000);
    while !core.ask(producer, &puts).contains("OUT_OF_MEMORY") {}
    let before = core.memory_bytes();
    let mut reserved = 0;
    loop {
        let jobs = core.ask(worker, &"reserve-with-timeout 0\r\n".repeat(2000)).matches("RESERVED").count();
        if jobs == 0 {
            break;
        }
        reserved += jobs;
    }
    let after = core.memory_bytes();
    assert!(reserved > 5_000 && after > before + before / 5, "{reserved} jobs took {before}, then {after}");
    assert!(after < MEMORY_MAX + MIB as u64 / 4, "{after} bytes with all jobs reserved");
}

#[test]
fn stats_show_absent_limits_as_zero() {
    let (_server, mut client) = run(Driver::Epoll, &[]);
    let stats = client.stats();
    let keys = ["max-memory", "memory-reserved", "memory-refusals", "max-connections", "io-accept-pauses"];
    for key in keys {
        assert_eq!(field(&stats, key), "0", "{key}");
    }
    let used = client.stat("memory-used");
    assert!((1 << 20..20 << 20).contains(&used), "{used}");
}

/// No matter what one client watches, three quarters of the memory remain for jobs.
#[test]
fn a_flood_of_watches_leaves_memory_to_producers() {
    under_each("a flood of watches", |io| {
        let (server, mut producer) = run(io, &["--max-memory", "64m"]);
        producer.expect("use work\r\n", "USING work");
        let mut flood = server.client();
        let mut refused = 0;
        for batch in 0..100 {
            let names = (0..450).map(|number| format!("watch {:0>200}\r\n", batch * 450 + number));
            flood.send(&names.collect::<String>());
            for _ in 0..450 {
                let (answer, _) = flood.reply().expect("the server runs");
                assert!(answer.starts_with("WATCHING ") || answer == "OUT_OF_MEMORY", "{answer}");
                refused += usize::from(answer == "OUT_OF_MEMORY");
            }
            producer.put("a job");
        }
        assert!((1000..44_000).contains(&refused), "{}: {refused} watches of 45000 are refused", io.name());
        let resident = server.resident_bytes();
        assert!(resident < 32 * MIB + UNCOUNTED_BYTES, "{}: {resident} bytes", io.name());
        // A tube with a short name and no watch may still fit.
        let mut others = Vec::new();
        loop {
            let mut other = server.client();
            let answer = other.ask(&format!("use {}\r\n", others.len())).0;
            others.push(other);
            assert!(others.len() < 100, "{}: every client gets a tube", io.name());
            if answer == "OUT_OF_MEMORY" {
                break;
            }
        }
        producer.expect("use other\r\n", "OUT_OF_MEMORY");
        producer.expect("list-tube-used\r\n", "USING work");
        assert_eq!(producer.stat("memory-refusals"), 0);
        drop((flood, others));
        producer.await_stat("current-tubes", |found| found <= 2);
        producer.expect("use other\r\n", "USING other");
    });
}

#[test]
fn a_job_log_with_more_tubes_than_allowed_is_recovered() {
    const TUBES: u64 = 50;
    let scratch = Scratch::new("tubes");
    {
        let (mut server, mut client) = start(&scratch.0, Driver::Epoll, &[]);
        for tube in 0..TUBES {
            client.expect(&format!("use t{tube}\r\n"), &format!("USING t{tube}"));
            client.put("a job");
        }
        server.stop();
    }
    let (_server, mut client) = start(&scratch.0, Driver::Epoll, &["--max-tubes", "10"]);
    assert_eq!(client.stat("current-tubes"), TUBES + 1);
    client.expect("use another\r\n", "OUT_OF_MEMORY");
    for tube in 0..TUBES {
        client.expect(&format!("use t{tube}\r\n"), &format!("USING t{tube}"));
        client.put("a job");
        client.expect(&format!("watch t{tube}\r\n"), "WATCHING 2");
        for _ in 0..2 {
            let answer = client.ask("reserve-with-timeout 0\r\n").0;
            let id = answer.split(' ').nth(1).expect("a job");
            client.expect(&format!("delete {id}\r\n"), "DELETED");
        }
        client.expect(&format!("ignore t{tube}\r\n"), "WATCHING 1");
    }
    client.expect("use another\r\n", "USING another");
}

/// A pause that is over may outlive its tube in the index of the job log.
#[test]
fn pauses_that_are_over_leave_no_memory() {
    const TUBES: usize = 3000;
    const ROUNDS: usize = 6;
    let scratch = Scratch::new("over_pauses");
    let (_server, mut client) = start(&scratch.0, Driver::Epoll, &["-F", "--sub-second"]);
    let mut used = Vec::new();
    for round in 0..ROUNDS {
        for command in ["watch NAME\r\n", "pause-tube NAME 0.1\r\n", "ignore NAME\r\n"] {
            if command.starts_with("ignore") {
                thread::sleep(Duration::from_millis(150));
            }
            let name = |number| command.replace("NAME", &format!("{round}-{number}"));
            client.send(&(0..TUBES).map(name).collect::<String>());
            (0..TUBES).for_each(|_| drop(client.line().expect("the server runs")));
        }
        assert_eq!(client.stat("current-tubes"), 1);
        used.push(client.stat("memory-used"));
    }
    assert!(used[ROUNDS - 1] < used[1] + 2 * MIB as u64, "after each round: {used:?}");
}
