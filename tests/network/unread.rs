//! Large bodies that are sent without a copy to peers that do not read them: a restart in place waits for no such peer.

use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use beanring_testkit::client::Client;
use beanring_testkit::namespaces::Network;
use beanring_testkit::process::ServerProcess;
use beanring_testkit::scratch::Scratch;
use beanring_testkit::statistics::field;
use beanring_testkit::stream::Stream;
use beanring_testkit::wait;
use nix::sys::signal::Signal;

use crate::sockets::{connect_narrowly, launch, over_a_network, put};

/// What the peer of a large body does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Habit {
    Reads,
    /// A byte each 50 ms.
    Crawls,
    Stops,
    /// Its machine is gone.
    Vanishes,
}

/// A peer that crawls has ended after some seconds, one that reads with the connection.
const READS_MAX: usize = 60;

/// How long nobody may be served.
const SERVED_WITHIN: Duration = Duration::from_secs(3);

/// Starts a server with large bodies on their way to some peers, and does `what` with it.
fn beside_readers(what: &str, habit: Habit, act: impl FnOnce(&Network, ServerProcess) + Send) {
    over_a_network(what, &[], |network| {
        let _uncopied = match network.pass_uncopied() {
            Ok(uncopied) => uncopied,
            Err(error) => return println!("skipped: {what}, because {error}"),
        };
        let scratch = Scratch::new("unread");
        let (server, mut control) = launch(network, &["-b", &scratch.0.display().to_string()]);
        put(&mut control, 1..9);
        let mut readers: Vec<Client> = (1..5).map(|_| connect_narrowly(network, &server)).collect();
        for (reader, id) in readers.iter_mut().zip(1..) {
            reader.send(&format!("reserve-job {id}\r\nreserve-job {}\r\n", id + 4));
        }
        control.await_stat("current-jobs-reserved", |count| count == 8);
        control.await_stat("io-zero-copy-sends", |count| count >= 4);
        assert_eq!(control.stat("io-zero-copy-copies"), 0);
        drop(control);
        thread::scope(|scope| {
            if matches!(habit, Habit::Reads | Habit::Crawls) {
                for mut reader in readers.drain(..) {
                    scope.spawn(move || (0..READS_MAX).all(|_| read(&mut reader, habit)));
                }
            }
            if habit == Habit::Vanishes {
                network.cut(true);
            }
            act(network, server);
            network.cut(false);
        });
    });
}

/// Reads something. Returns false at the end of the connection.
fn read(reader: &mut Client, habit: Habit) -> bool {
    let bytes = match habit {
        Habit::Crawls => {
            thread::sleep(Duration::from_millis(50));
            1
        }
        _ => 4096,
    };
    reader.take_bytes(bytes).is_some()
}

/// Asks for the id of the program, from the machine of the server.
fn ask_id(network: &Network) -> Option<String> {
    network.beside_server(|| {
        let stream = TcpStream::connect(network.address()).ok()?;
        let mut client = Client::new(Stream::Tcp(stream));
        client.send("stats\r\n");
        let (_, stats) = client.reply()?;
        Some(field(&stats, "id").to_owned())
    })
}

#[test]
fn a_restart_waits_for_no_peer() {
    for habit in [Habit::Reads, Habit::Crawls, Habit::Stops, Habit::Vanishes] {
        beside_readers(
            &format!("a restart over a network beside a peer that {habit:?}"),
            habit,
            |network, server| {
                let before = ask_id(network).expect("it serves");
                let began = Instant::now();
                server.signal(Signal::SIGUSR2);
                wait::until("the new program serves", || ask_id(network).is_some_and(|id| id != before));
                let took = began.elapsed();
                println!("{habit:?}: served again after {took:?}");
                assert!(took < SERVED_WITHIN, "{habit:?}: {took:?}");
            },
        );
    }
}
