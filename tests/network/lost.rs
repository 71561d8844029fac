//! Clients whose machines are gone, across a network: their places in line and their jobs are free again (`--tcp-keepalive`).
//! Clients that are only idle, or do not read, stay.

use std::env;
use std::thread;
use std::time::{Duration, Instant};

use beanring::io::driver::Driver;
use beanring_testkit::client::{Client, serve_by};
use beanring_testkit::driver::{flags, under_each};
use beanring_testkit::namespaces::{Network, try_run};
use beanring_testkit::process::{Address, ServerProcess, Transport, program};

use crate::sockets::{BODY_BYTES, connect_narrowly, connect_with, put};

/// `--tcp-keepalive`, in seconds. `BEANRING_TEST_KEEPALIVE` sets it: 60 is what servers have without the flag.
const KEEPALIVE_S: u32 = 6;

/// Seconds within which a lost machine must be noticed, for each minute of `--tcp-keepalive`.
const NOTICED_S_PER_MINUTE: u64 = 100;

/// Beside other tests, threads may wait this long for the CPU.
const SLACK: Duration = Duration::from_secs(4);

fn keepalive_s() -> u32 {
    env::var("BEANRING_TEST_KEEPALIVE").map_or(KEEPALIVE_S, |text| text.parse().expect("a number of seconds"))
}

/// Runs `test` under each driver on the client's side of a network, with a control connection from the machine of the server.
fn over_networks(what: &str, test: impl Fn(Driver, &Network, &ServerProcess, &mut Client) + Sync) {
    under_each(what, |io| {
        let network = Network::lay().and_then(|network| {
            try_run(&mut network.on_server(&["true"]))?;
            Ok(network)
        });
        let network = match network {
            Ok(network) => network,
            Err(error) => return println!("skipped: {what}, because {error}"),
        };
        let seconds = keepalive_s().to_string();
        let flags = [&flags(io)[..], &["--tcp-keepalive", &seconds]].concat();
        let address = Address::at(network.address().into(), Transport::of_suite());
        let (server, mut control) =
            network.beside_server(|| serve_by(network.on_server(&[program()]), address, &flags));
        network.on_client(|| test(io, &network, &server, &mut control));
    });
}

fn client(network: &Network, server: &ServerProcess, watches: &str) -> Client {
    let mut client = connect_narrowly(network, server);
    client.expect(&format!("watch {watches}\r\n"), "WATCHING 2");
    client.expect("ignore default\r\n", "WATCHING 1");
    client
}

#[test]
fn a_lost_machine_frees_its_jobs_and_places_in_line() {
    over_networks("lost clients over a network", |io, network, server, control| {
        put(control, 1..5);
        let mut holds = connect_narrowly(network, server);
        holds.send("reserve-job 1\r\n");
        holds.expect_bytes("RESERVED 1 ");
        // The window closes before the job is there.
        let mut unread = connect_narrowly(network, server);
        unread.send("reserve-job 2\r\nreserve-job 3\r\nreserve-job 4\r\n");
        let mut waits = client(network, server, "never");
        waits.send("reserve\r\n");
        let mut gets = client(network, server, "late");
        gets.send("reserve\r\n");
        let _idle = client(network, server, "never");
        control.await_stat("current-waiting", |count| count == 2);
        control.await_stat("current-jobs-reserved", |count| count >= 2);
        let reserved = control.stat("current-jobs-reserved");

        network.cut(true);
        let began = Instant::now();
        // Its reply is never acknowledged.
        control.expect("use late\r\n", "USING late");
        control.expect("put 0 0 3600 1\r\nx\r\n", "INSERTED 5");
        control.await_stat("current-jobs-reserved", |count| count > reserved);
        let limit = Duration::from_secs(u64::from(keepalive_s())) * NOTICED_S_PER_MINUTE as u32 / 60 + SLACK;
        let mut stats = control.stats();
        while !stats.contains("\ncurrent-connections: 1\n") {
            assert!(began.elapsed() < limit, "{io:?}: {:?}, {stats}", began.elapsed());
            thread::sleep(Duration::from_millis(100));
            stats = control.stats();
        }
        println!("{io:?}: all are gone after {:?}", began.elapsed());
        assert_eq!(control.stat("current-jobs-reserved"), 0);
        assert_eq!(control.stat("current-jobs-ready"), 5);
        assert_eq!(control.stat("current-waiting"), 0);
        assert_eq!(control.stat("io-lost-peers"), 5);
    });
}

#[test]
fn clients_that_live_stay() {
    over_networks("idle clients over a network", |_, network, server, control| {
        put(control, 1..4);
        let mut unread = connect_narrowly(network, server);
        unread.send("reserve-job 1\r\nreserve-job 2\r\nreserve-job 3\r\n");
        let mut waits = client(network, server, "never");
        waits.send("reserve\r\n");
        control.await_stat("current-jobs-reserved", |count| count >= 1);
        // With so little space one byte stays in flight, which the kernel repeats at growing intervals.
        let _tiny = [2304, 4096].map(|bytes| {
            let mut tiny = connect_with(network, server, bytes);
            tiny.send("peek 1\r\npeek 2\r\n");
            tiny
        });
        thread::sleep(Duration::from_secs(u64::from(keepalive_s()) * 5));

        assert_eq!(control.stat("io-lost-peers"), 0);
        for id in 1..4 {
            unread.expect_bytes(format!("RESERVED {id} {BODY_BYTES}\r\n"));
            unread.take_bytes(BODY_BYTES + 2).expect("the connection lives");
        }
        control.expect("use never\r\n", "USING never");
        control.expect("put 0 0 3600 1\r\nx\r\n", "INSERTED 4");
        waits.expect_reply("RESERVED 4 1");
    });
}
