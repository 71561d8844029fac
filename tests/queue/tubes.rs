//! Limits on tubes and watches, and long lists that clients read slowly or never.

use std::collections::BTreeSet;
use std::io::IoSlice;

use beanring::queue::NARROW_WATCH_MAX;
use beanring::server::{Config, Effect, Event, Protocol, Server, Service};
use beanring::time::Time;
use beanring::values::ids::ConnId;
use beanring::values::limits::{JOB_BYTES_DEFAULT, WIDE_BATCH_WATCHES};
use beanring_testkit::config::config;
use beanring_testkit::random::{Random, seeds};
use beanring_testkit::statistics;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// A server, and clients that read only on demand.
struct Bench {
    server: Server,
    ends: Vec<End>,
}

struct End {
    conn: ConnId,
    wants_send: bool,
    received: Vec<u8>,
}

impl Bench {
    fn new(config: Config) -> Self {
        Self { server: Server::new(config), ends: Vec::new() }
    }

    fn open(&mut self) -> usize {
        let conn = self.server.accept(Protocol::Beanstalk);
        self.ends.push(End { conn, wants_send: false, received: Vec::new() });
        self.ends.len() - 1
    }

    /// Sends `text` as a client, and runs the server until it can do nothing without a read.
    fn send(&mut self, client: usize, text: &str) {
        let conn = self.ends[client].conn;
        self.server.handle(Time::ZERO, Event::Received { conn, bytes: text.as_bytes() });
        self.settle();
    }

    /// Reads up to `most` bytes as a client. Returns false if there is nothing to read.
    fn read(&mut self, client: usize, most: usize) -> bool {
        let End { conn, wants_send, received } = &mut self.ends[client];
        if !*wants_send {
            return false;
        }
        let mut slices: Vec<IoSlice<'_>> = Vec::new();
        self.server.outgoing(*conn, &mut slices);
        let offered = slices.iter().flat_map(|slice| slice.iter().copied());
        let before = received.len();
        received.extend(offered.take(most));
        let bytes = received.len() - before;
        if bytes == 0 {
            *wants_send = false;
            return false;
        }
        self.server.handle(Time::ZERO, Event::Sent { conn: *conn, bytes });
        self.settle();
        true
    }

    fn read_all(&mut self, client: usize) -> Vec<u8> {
        while self.read(client, usize::MAX) {}
        std::mem::take(&mut self.ends[client].received)
    }

    fn request(&mut self, client: usize, text: &str) -> String {
        self.send(client, text);
        String::from_utf8(self.read_all(client)).expect("replies are ASCII")
    }

    fn hang_up(&mut self, client: usize) {
        let conn = self.ends[client].conn;
        self.ends[client].wants_send = false;
        self.server.handle(Time::ZERO, Event::HungUp { conn });
        self.settle();
    }

    fn stat(&mut self, client: usize, key: &str) -> usize {
        statistics::number(&self.request(client, "stats\r\n"), key) as usize
    }

    fn settle(&mut self) {
        loop {
            while let Some(effect) = self.server.next_effect() {
                match effect {
                    Effect::Send(conn) => self.end(conn).wants_send = true,
                    Effect::Close(conn) => self.server.handle(Time::ZERO, Event::Closed { conn }),
                    Effect::Pause(_) | Effect::Resume(_) | Effect::LogClient(..) => {}
                    Effect::Disk | Effect::Fail => panic!("there is no log"),
                }
            }
            if self.server.next_deadline() != Some(Time::ZERO) {
                return;
            }
            self.server.turn(Time::ZERO);
        }
    }

    fn end(&mut self, conn: ConnId) -> &mut End {
        self.ends.iter_mut().find(|end| end.conn == conn).expect("the connection is open")
    }
}

/// Returns a name of 200 bytes.
fn long_name(number: usize) -> String {
    format!("{number:0>200}")
}

/// Takes the first reply with data off the front of `received`, if it is complete.
fn take_list(received: &mut Vec<u8>) -> Option<Vec<String>> {
    let end = received.windows(2).position(|pair| pair == b"\r\n")?;
    let line = std::str::from_utf8(&received[..end]).expect("a reply is ASCII");
    let bytes: usize = line.strip_prefix("OK ").expect("the reply has data").parse().expect("a length");
    let data = received.get(end + 2..end + 2 + bytes + 2)?;
    let text = std::str::from_utf8(data).expect("names are ASCII");
    let names =
        text.strip_suffix("\r\n").and_then(|text| text.strip_prefix("---\n")).expect("the data is a list");
    let names = names.lines().map(|line| line.strip_prefix("- ").expect("an entry").to_owned()).collect();
    received.drain(..end + 2 + bytes + 2);
    Some(names)
}

fn names_of(list: &[String]) -> BTreeSet<String> {
    let names: BTreeSet<String> = list.iter().cloned().collect();
    assert_eq!(names.len(), list.len(), "a list shows each tube once");
    names
}

#[test]
fn a_long_list_that_is_not_read_takes_the_memory_of_a_piece() {
    const TUBES: usize = 10_000;
    const CLIENTS: usize = 1_000;
    for command in ["list-tubes\r\n", "list-tubes-watched\r\n"] {
        let mut bench = Bench::new(config(JOB_BYTES_DEFAULT));
        let holder = bench.open();
        for number in 0..TUBES {
            bench.send(holder, &format!("watch {}\r\n", long_name(number)));
        }
        bench.read_all(holder);
        let changer = bench.open();
        let before = bench.server.memory_bytes() as usize;
        let clients: Vec<usize> = (0..CLIENTS).map(|_| bench.open()).collect();
        for (number, &client) in clients.iter().enumerate() {
            // The tubes change before each list, so that no two lists have the same text.
            bench.send(changer, &format!("use {}\r\n", long_name(TUBES + number)));
            bench.read_all(changer);
            let watches = if command.contains("watched") && number < 3 { TUBES } else { 0 };
            (0..watches).for_each(|tube| bench.send(client, &format!("watch {}\r\n", long_name(tube))));
            bench.read_all(client);
            bench.send(client, &command.repeat(10));
        }
        let grown = bench.server.memory_bytes() as usize - before;
        assert!(grown < CLIENTS * 64 * KIB, "{command:?}: {grown} bytes for {CLIENTS} clients");
        // A client that reads late gets the tubes of the moment when its list began.
        for (number, &client) in clients.iter().enumerate().take(3) {
            let mut received = bench.read_all(client);
            for list in 0..10 {
                let names = names_of(&take_list(&mut received).expect("the reply is complete"));
                let is_first = command.contains("list-tubes\r") && list == 0;
                assert!(!is_first || names.contains(&long_name(TUBES + number)));
                assert!((0..TUBES).all(|tube| names.contains(&long_name(tube))));
            }
            assert_eq!(received, b"");
        }
        (0..CLIENTS).for_each(|number| bench.hang_up(clients[number]));
        bench.server.check();
        assert_eq!(
            bench.stat(holder, "current-tubes"),
            TUBES + 2,
            "default and the tube of the changing client remain"
        );
    }
}

/// What a client that reads lists expects.
struct Lister {
    client: usize,
    /// The tubes that the current list must show.
    expected: Option<BTreeSet<String>>,
}

#[test]
fn a_list_shows_the_tubes_of_its_beginning_while_tubes_come_and_go() {
    for seed in seeds(8) {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let mut bench = Bench::new(config(JOB_BYTES_DEFAULT));
        let worker = bench.open();
        let mut listers: Vec<Lister> =
            (0..4).map(|_| Lister { client: bench.open(), expected: None }).collect();
        // A tube exists as long as its job.
        let mut jobs: Vec<(String, String)> = Vec::new();
        let mut made = 0;
        for _ in 0..1500 {
            match random.below(10) {
                0..3 => {
                    made += 1;
                    let name = long_name(made);
                    bench.request(worker, &format!("use {name}\r\n"));
                    let id = bench.request(worker, "put 0 0 60 1\r\nx\r\n").replace("INSERTED", "delete");
                    bench.request(worker, "use default\r\n");
                    jobs.push((name, id));
                }
                3..5 if jobs.len() > 100 => {
                    let (_, delete) = jobs.swap_remove(random.below(jobs.len()));
                    assert_eq!(bench.request(worker, &delete), "DELETED\r\n");
                }
                5 if random.below(20) == 0 => {
                    let lister = &mut listers[random.below(4)];
                    bench.hang_up(lister.client);
                    *lister = Lister { client: bench.open(), expected: None };
                }
                _ => {
                    let lister = &mut listers[random.below(4)];
                    if lister.expected.is_none() {
                        let names = jobs.iter().map(|(name, _)| name.clone());
                        lister.expected = Some(names.chain(["default".to_owned()]).collect());
                        bench.send(lister.client, "list-tubes\r\nlist-tube-used\r\n");
                    }
                    bench.read(lister.client, 1 + random.below(12_000));
                    let received = &mut bench.ends[lister.client].received;
                    if let Some(names) = take_list(received) {
                        assert_eq!(Some(names_of(&names)), lister.expected.take());
                        let rest = bench.read_all(lister.client);
                        assert_eq!(rest, b"USING default\r\n", "replies come in the order of the commands");
                    }
                }
            }
            bench.server.check();
        }
        listers.iter().for_each(|lister| bench.hang_up(lister.client));
        bench.server.check();
        let last = bench.open();
        let mut text = bench.request(last, "list-tubes\r\n").into_bytes();
        assert_eq!(take_list(&mut text).map(|list| list.len()), Some(jobs.len() + 1));
    }
}

#[test]
fn a_list_that_is_not_read_keeps_only_its_own_tubes() {
    let mut bench = Bench::new(config(JOB_BYTES_DEFAULT));
    let (stuck, other) = (bench.open(), bench.open());
    for number in 0..1000 {
        bench.send(other, &format!("watch {}\r\n", long_name(number)));
    }
    bench.read_all(other);
    bench.send(stuck, "list-tubes\r\n");
    let churn = |bench: &mut Bench, from: usize| {
        for number in from..from + 3000 {
            bench.request(other, &format!("use {}\r\n", long_name(number)));
        }
        bench.stat(other, "memory-tubes")
    };
    let first = churn(&mut bench, 1000);
    let second = churn(&mut bench, 4000);
    assert_eq!(first, second, "the list keeps no name of a later tube");
    let mut list = bench.read_all(stuck);
    assert_eq!(take_list(&mut list).map(|list| list.len()), Some(1001));
}

#[test]
fn only_new_tubes_and_watches_are_refused_at_a_limit() {
    let config = Config { max_tubes: Some(4), max_watches: Some(3), ..config(JOB_BYTES_DEFAULT) };
    let mut bench = Bench::new(config);
    let (one, two) = (bench.open(), bench.open());
    let mut check = |client, command: &str, answer: &str| {
        assert_eq!(bench.request(client, &format!("{command}\r\n")), format!("{answer}\r\n"), "{command}");
        bench.server.check();
    };
    check(one, "use a", "USING a");
    check(one, "watch b", "WATCHING 2");
    check(one, "watch c", "WATCHING 3");
    check(one, "watch default", "WATCHING 3");
    check(one, "watch a", "OUT_OF_MEMORY");
    check(two, "watch d", "OUT_OF_MEMORY");
    check(two, "use d", "OUT_OF_MEMORY");
    check(two, "list-tube-used", "USING default");
    check(two, "list-tubes-watched", "OK 14\r\n---\n- default\n");
    check(two, "watch a", "WATCHING 2");
    check(two, "use b", "USING b");
    check(two, "put 0 0 60 1\r\nx", "INSERTED 1");
    check(one, "reserve", "RESERVED 1 1\r\nx");
    check(one, "delete 1", "DELETED");
    check(one, "ignore c", "WATCHING 2");
    check(two, "watch d", "WATCHING 3");
    check(two, "watch e", "OUT_OF_MEMORY");
    assert_eq!(["max-tubes", "max-watches", "tube-refusals"].map(|key| bench.stat(one, key)), [4, 3, 4]);
}

/// Each job of a batch may be in a tube of its own, which the CPU has not in its cache.
#[test]
fn a_batch_of_a_client_with_very_many_watches_is_smaller() {
    for mode in ["default", "weighted"] {
        let mut bench = Bench::new(config(JOB_BYTES_DEFAULT));
        let client = bench.open();
        let count = |bench: &mut Bench| {
            let reply = bench.request(client, "reserve-batch 1000\r\n");
            reply.lines().next().map(str::to_owned)
        };
        bench.request(client, &format!("reserve-mode {mode}\r\n"));
        for tube in 1..WIDE_BATCH_WATCHES {
            bench.request(client, &format!("use t{tube}\r\n"));
            bench.request(client, &format!("watch t{tube}\r\n"));
            bench.request(client, "put 0 0 60 1\r\nx\r\n");
        }
        assert_eq!(count(&mut bench).as_deref(), Some("RESERVED_BATCH 999"), "{mode}");
        (1000..2000).for_each(|_| drop(bench.request(client, "put 0 0 60 1\r\nx\r\n")));
        bench.request(client, "watch one-more\r\n");
        assert_eq!(count(&mut bench).as_deref(), Some("RESERVED_BATCH 250"), "{mode}");
        bench.request(client, "ignore one-more\r\n");
        assert_eq!(count(&mut bench).as_deref(), Some("RESERVED_BATCH 750"), "{mode}");
    }
}

/// Several clients use up the share of tubes and watches. Producers can still put, and the share is free once the clients have
/// left.
#[test]
fn tubes_and_watches_take_at_most_a_quarter_of_the_memory() {
    const MEMORY_MAX: usize = 16 * MIB;
    /// A client also watches the tube `default`.
    const WATCHES_FREE: usize = NARROW_WATCH_MAX;
    for name in [|number: usize| format!("t{number}"), long_name] {
        let config = Config { max_memory_bytes: Some(MEMORY_MAX as u64), ..config(JOB_BYTES_DEFAULT) };
        let mut bench = Bench::new(config);
        let producer = bench.open();
        assert_eq!(bench.request(producer, "use work\r\n"), "USING work\r\n");
        let flood = |bench: &mut Bench| {
            let client = bench.open();
            let is_taken = |number: &usize| {
                bench.request(client, &format!("watch {}\r\n", name(*number))) != "OUT_OF_MEMORY\r\n"
            };
            (client, (0..20_000).take_while(is_taken).count())
        };
        let (first, tubes) = flood(&mut bench);
        assert!((4_000..20_000).contains(&tubes), "{tubes} tubes");
        // Watches of existing tubes take memory too.
        let mut others = Vec::new();
        while let (client, WATCHES_FREE..) = flood(&mut bench) {
            others.push(client);
        }
        let used = bench.stat(producer, "memory-tubes");
        // The watches that connections begin with are not refused: of the producer, the first client, the others, and the
        // last one, which gets no more.
        let connections = others.len() + 3;
        let most = MEMORY_MAX / 4 + connections * WATCHES_FREE * 100;
        assert!((MEMORY_MAX / 5..=most).contains(&used), "{used} bytes with {connections} connections");
        for _ in 0..50 {
            assert!(
                bench
                    .request(producer, &format!("put 0 0 60 1000\r\n{:1000}\r\n", ""))
                    .starts_with("INSERTED ")
            );
        }
        assert_eq!(bench.request(producer, "use other\r\n"), "OUT_OF_MEMORY\r\n");
        assert_eq!(
            bench.request(producer, "watch other\r\nlist-tube-used\r\n"),
            "OUT_OF_MEMORY\r\nUSING work\r\n"
        );
        assert_eq!(bench.request(producer, "watch default\r\n"), "WATCHING 1\r\n");
        let worker = bench.open();
        assert_eq!(bench.request(worker, "watch work\r\n"), "WATCHING 2\r\n");
        assert!(
            bench.request(worker, "ignore default\r\nreserve\r\n").starts_with("WATCHING 1\r\nRESERVED ")
        );
        // A reserve is never refused, no matter how much memory the latencies of the tube would take.
        assert!(
            bench
                .request(first, "watch work\r\nreserve-with-timeout 0\r\n")
                .starts_with("OUT_OF_MEMORY\r\nTIMED_OUT")
        );
        assert!(bench.request(first, &format!("ignore {}\r\n", name(1))).starts_with("WATCHING"));
        assert_eq!(bench.request(first, &format!("watch {}\r\n", name(2))), format!("WATCHING {tubes}\r\n"));
        bench.server.check();
        bench.hang_up(first);
        others.into_iter().for_each(|client| bench.hang_up(client));
        let left = bench.stat(producer, "memory-tubes");
        assert!(left < MEMORY_MAX / 8, "{left} bytes are kept");
        assert_eq!(bench.request(producer, "use other\r\n"), "USING other\r\n");
        let (_, again) = flood(&mut bench);
        assert!(again + 100 > tubes, "{again} tubes after {tubes}");
        bench.server.check();
    }
}
