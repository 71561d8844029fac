//! Limits on tubes and watches, and long lists that clients read slowly or never.

use std::collections::BTreeSet;

use beanring::queue::NARROW_WATCH_MAX;
use beanring::server::Config;
use beanring::values::limits::{JOB_BYTES_DEFAULT, WIDE_BATCH_WATCHES};
use beanring_testkit::config::config;
use beanring_testkit::in_memory::{Cut, InMemoryServer};
use beanring_testkit::peer::Peer;
use beanring_testkit::random::{Random, seeds};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

fn server(cut: Cut) -> InMemoryServer {
    InMemoryServer::with(config(JOB_BYTES_DEFAULT), cut).unchecked()
}

/// Returns a name of 200 bytes.
fn long_name(number: usize) -> String {
    format!("{number:0>200}")
}

/// Watches this many tubes.
fn watches(tubes: usize) -> String {
    (0..tubes).map(|number| format!("watch {}\r\n", long_name(number))).collect()
}

/// Takes the first reply with data off the front of `received`, if it is complete.
fn take_list(received: &mut String) -> Option<Vec<String>> {
    let (line, data) = received.split_once("\r\n")?;
    let bytes: usize = line.strip_prefix("OK ").expect("the reply has data").parse().expect("a length");
    let text = data.get(..bytes + 2)?.strip_suffix("\r\n").and_then(|text| text.strip_prefix("---\n"));
    let names = text.expect("the data is a list").lines();
    let names = names.map(|line| line.strip_prefix("- ").expect("an entry").to_owned()).collect();
    received.drain(..line.len() + 2 + bytes + 2);
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
        let mut bench = server(Cut::Whole);
        let holder = bench.open();
        bench.ask(holder, &watches(TUBES));
        let changer = bench.open();
        let before = bench.memory_bytes();
        let clients: Vec<usize> = (0..CLIENTS).map(|_| bench.open()).collect();
        for (number, &client) in clients.iter().enumerate() {
            // The tubes change before each list, so that no two lists have the same text.
            bench.ask(changer, &format!("use {}\r\n", long_name(TUBES + number)));
            if command.contains("watched") && number < 3 {
                bench.ask(client, &watches(TUBES));
            }
            bench.block(client, true);
            bench.send(client, command.repeat(10).as_bytes());
        }
        let grown = bench.memory_bytes() - before;
        assert!(grown < CLIENTS as u64 * 64 * KIB, "{command:?}: {grown} bytes for {CLIENTS} clients");
        // A client that reads late gets the tubes of the moment when its list began.
        for (number, &client) in clients.iter().enumerate().take(3) {
            bench.block(client, false);
            let mut received = bench.take(client);
            for list in 0..10 {
                let names = names_of(&take_list(&mut received).expect("the reply is complete"));
                let is_first = command.contains("list-tubes\r") && list == 0;
                assert!(!is_first || names.contains(&long_name(TUBES + number)));
                assert!((0..TUBES).all(|tube| names.contains(&long_name(tube))));
            }
            assert_eq!(received, "");
        }
        clients.iter().for_each(|&client| bench.close(client));
        bench.check();
        let tubes = bench.stat(holder, "current-tubes");
        assert_eq!(tubes, TUBES as u64 + 2, "default and the tube of the changing client remain");
    }
}

/// What a client that reads lists expects.
struct Lister {
    client: usize,
    received: String,
    /// The tubes that the current list must show.
    expected: Option<BTreeSet<String>>,
}

impl Lister {
    fn open(server: &mut InMemoryServer) -> Self {
        let client = server.open();
        server.block(client, true);
        Self { client, received: String::new(), expected: None }
    }
}

#[test]
fn a_list_shows_the_tubes_of_its_beginning_while_tubes_come_and_go() {
    for seed in seeds(8) {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let mut bench = server(Cut::Random { seed });
        let worker = bench.open();
        let mut listers: Vec<Lister> = (0..4).map(|_| Lister::open(&mut bench)).collect();
        // A tube exists as long as its job.
        let mut jobs: Vec<(String, String)> = Vec::new();
        let mut made = 0;
        for _ in 0..1500 {
            match random.below(10) {
                0..3 => {
                    made += 1;
                    let name = long_name(made);
                    bench.ask(worker, &format!("use {name}\r\n"));
                    let id = bench.ask(worker, "put 0 0 60 1\r\nx\r\n").replace("INSERTED", "delete");
                    bench.ask(worker, "use default\r\n");
                    jobs.push((name, id));
                }
                3..5 if jobs.len() > 100 => {
                    let (_, delete) = jobs.swap_remove(random.below(jobs.len()));
                    assert_eq!(bench.ask(worker, &delete), "DELETED\r\n");
                }
                5 if random.below(20) == 0 => {
                    let lister = &mut listers[random.below(4)];
                    bench.close(lister.client);
                    *lister = Lister::open(&mut bench);
                }
                _ => {
                    let lister = &mut listers[random.below(4)];
                    if lister.expected.is_none() {
                        let names = jobs.iter().map(|(name, _)| name.clone());
                        lister.expected = Some(names.chain(["default".to_owned()]).collect());
                        bench.send(lister.client, b"list-tubes\r\nlist-tube-used\r\n");
                    }
                    bench.send_pieces(lister.client, 1);
                    lister.received.push_str(&bench.take(lister.client));
                    if let Some(names) = take_list(&mut lister.received) {
                        assert_eq!(Some(names_of(&names)), lister.expected.take());
                        bench.block(lister.client, false);
                        lister.received.push_str(&bench.take(lister.client));
                        let rest = std::mem::take(&mut lister.received);
                        assert_eq!(rest, "USING default\r\n", "replies come in the order of the commands");
                        bench.block(lister.client, true);
                    }
                }
            }
            bench.check();
        }
        listers.iter().for_each(|lister| bench.close(lister.client));
        bench.check();
        let last = bench.open();
        let mut text = bench.ask(last, "list-tubes\r\n");
        assert_eq!(take_list(&mut text).map(|list| list.len()), Some(jobs.len() + 1));
    }
}

#[test]
fn a_list_that_is_not_read_keeps_only_its_own_tubes() {
    let mut bench = server(Cut::Whole);
    let (stuck, other) = (bench.open(), bench.open());
    bench.ask(other, &watches(1000));
    bench.block(stuck, true);
    bench.send(stuck, b"list-tubes\r\n");
    let churn = |bench: &mut InMemoryServer, from: usize| {
        for number in from..from + 3000 {
            bench.ask(other, &format!("use {}\r\n", long_name(number)));
        }
        bench.stat(other, "memory-tubes")
    };
    let first = churn(&mut bench, 1000);
    let second = churn(&mut bench, 4000);
    assert_eq!(first, second, "the list keeps no name of a later tube");
    bench.block(stuck, false);
    assert_eq!(take_list(&mut bench.take(stuck)).map(|list| list.len()), Some(1001));
}

#[test]
fn only_new_tubes_and_watches_are_refused_at_a_limit() {
    let config = Config { max_tubes: Some(4), max_watches: Some(3), ..config(JOB_BYTES_DEFAULT) };
    let mut bench = InMemoryServer::with(config, Cut::Whole);
    let (one, two) = (bench.open(), bench.open());
    let mut check = |client, command: &str, answer: &str| {
        assert_eq!(bench.ask(client, &format!("{command}\r\n")), format!("{answer}\r\n"), "{command}");
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
        let mut bench = server(Cut::Whole);
        let client = bench.open();
        let count = |bench: &mut InMemoryServer| {
            let reply = bench.ask(client, "reserve-batch 1000\r\n");
            reply.lines().next().map(str::to_owned)
        };
        bench.ask(client, &format!("reserve-mode {mode}\r\n"));
        for tube in 1..WIDE_BATCH_WATCHES {
            bench.ask(client, &format!("use t{tube}\r\nwatch t{tube}\r\nput 0 0 60 1\r\nx\r\n"));
        }
        assert_eq!(count(&mut bench).as_deref(), Some("RESERVED_BATCH 999"), "{mode}");
        bench.ask(client, &"put 0 0 60 1\r\nx\r\n".repeat(1000));
        bench.ask(client, "watch one-more\r\n");
        assert_eq!(count(&mut bench).as_deref(), Some("RESERVED_BATCH 250"), "{mode}");
        bench.ask(client, "ignore one-more\r\n");
        assert_eq!(count(&mut bench).as_deref(), Some("RESERVED_BATCH 750"), "{mode}");
    }
}

/// Several clients use up the share of tubes and watches. Producers can still put, and the share is free once the clients have
/// left.
#[test]
fn tubes_and_watches_take_at_most_a_quarter_of_the_memory() {
    const MEMORY_MAX: u64 = 16 * MIB;
    /// A client also watches the tube `default`.
    const WATCHES_FREE: usize = NARROW_WATCH_MAX;
    for name in [|number: usize| format!("t{number}"), long_name] {
        let config = Config { max_memory_bytes: Some(MEMORY_MAX), ..config(JOB_BYTES_DEFAULT) };
        let mut bench = InMemoryServer::with(config, Cut::Whole).unchecked();
        let producer = bench.open();
        assert_eq!(bench.ask(producer, "use work\r\n"), "USING work\r\n");
        let flood = |bench: &mut InMemoryServer| {
            let client = bench.open();
            let is_taken = |number: &usize| {
                bench.ask(client, &format!("watch {}\r\n", name(*number))) != "OUT_OF_MEMORY\r\n"
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
        let connections = others.len() as u64 + 3;
        let most = MEMORY_MAX / 4 + connections * WATCHES_FREE as u64 * 100;
        assert!((MEMORY_MAX / 5..=most).contains(&used), "{used} bytes with {connections} connections");
        for _ in 0..50 {
            let reply = bench.ask(producer, &format!("put 0 0 60 1000\r\n{:1000}\r\n", ""));
            assert!(reply.starts_with("INSERTED "), "{reply}");
        }
        // A reserve is never refused, no matter how much memory the latencies of the tube would take.
        let worker = bench.open();
        for (client, commands, replies) in [
            (producer, "use other\r\n", "OUT_OF_MEMORY\r\n".to_owned()),
            (producer, "watch other\r\nlist-tube-used\r\n", "OUT_OF_MEMORY\r\nUSING work\r\n".to_owned()),
            (producer, "watch default\r\n", "WATCHING 1\r\n".to_owned()),
            (worker, "watch work\r\n", "WATCHING 2\r\n".to_owned()),
            (worker, "ignore default\r\nreserve\r\n", "WATCHING 1\r\nRESERVED ".to_owned()),
            (first, "watch work\r\nreserve-with-timeout 0\r\n", "OUT_OF_MEMORY\r\nTIMED_OUT\r\n".to_owned()),
            (first, &format!("ignore {}\r\n", name(1)), "WATCHING ".to_owned()),
            (first, &format!("watch {}\r\n", name(2)), format!("WATCHING {tubes}\r\n")),
        ] {
            let reply = bench.ask(client, commands);
            assert!(reply.starts_with(&replies), "{commands:?}: {reply:?}");
        }
        bench.check();
        bench.close(first);
        others.into_iter().for_each(|client| bench.close(client));
        let left = bench.stat(producer, "memory-tubes");
        assert!(left < MEMORY_MAX / 8, "{left} bytes are kept");
        assert_eq!(bench.ask(producer, "use other\r\n"), "USING other\r\n");
        let (_, again) = flood(&mut bench);
        assert!(again + 100 > tubes, "{again} tubes after {tubes}");
        bench.check();
    }
}
