//! In-place restarts of servers with TLS, and listeners of other kinds.

use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use beanring_testkit::client::Client;
use beanring_testkit::process::{Address, REPLY_PATIENCE, ServerProcess, Transport, program};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::tls_stream::client;
use nix::sys::signal::Signal;

use super::place::Place;

/// Returns the id of a server, which is another one after a restart.
fn id(client: &mut Client) -> String {
    let (_, stats) = client.ask("stats\r\n");
    beanring_testkit::statistics::field(&stats, "id").to_owned()
}

#[test]
fn a_restart_keeps_both_listeners() {
    let wal = Scratch::new("restart-tls");
    let place = Place::new(&["-b", wal.0.to_str().expect("UTF-8")]);
    let before = id(&mut place.connect());
    let pid = place.server.pid();
    place.server.signal(Signal::SIGUSR2);
    let asked = Instant::now();
    while id(&mut place.connect()) == before {
        assert!(asked.elapsed() < REPLY_PATIENCE, "the new program does not run: {}", place.log());
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(pid, place.server.pid());
    Client::new(place.server.connect()).expect("list-tube-used\r\n", "USING default");
}

#[test]
fn a_restart_without_plaintext_keeps_the_listener() {
    let wal = Scratch::new("restart-tls");
    let flags = ["-b".to_owned(), wal.0.display().to_string()];
    let (server, stream) =
        ServerProcess::launch(Command::new(program()), Address::fresh(Transport::Tls), &flags);
    let mut first = Client::new(stream);
    let before = id(&mut first);
    server.signal(Signal::SIGUSR2);
    let asked = Instant::now();
    while id(&mut Client::new(server.connect())) == before {
        assert!(asked.elapsed() < REPLY_PATIENCE, "the new program does not run");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_unix_socket_may_have_tls() {
    let dir = Scratch::new("unix-tls");
    let path = dir.join("socket");
    let listen = format!("unix:{}", path.display());
    // The last address counts.
    let place = Place::new(&["--tls-listen", &listen]);
    let mut unix = UnixStream::connect(&path).expect("the server listens");
    unix.set_read_timeout(Some(REPLY_PATIENCE)).expect("a socket option");
    let mut tls = client(&place.trusting);
    let mut stream = rustls::Stream::new(&mut tls, &mut unix);
    std::io::Write::write_all(&mut stream, b"list-tube-used\r\n").expect("the server receives");
    let mut reply = [0; 15];
    std::io::Read::read_exact(&mut stream, &mut reply).expect("the server replies");
    assert_eq!(&reply, b"USING default\r\n");
}
