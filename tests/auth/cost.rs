//! What authentication costs, in CPU time of the event loop.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use beanring::io::driver::Driver;
use beanring::server::{Config, Users};
use beanring_testkit::config::config;
use beanring_testkit::driver;
use beanring_testkit::http_client::{HttpClient, get, page, signed};
use beanring_testkit::measured::MeasuredServer;

use super::users;

const CLIENTS: usize = 8;

/// `auth` lines that a client sends at once. Their replies fit into the buffers of its socket.
const REPEATS: usize = 400;

/// CPU time of an event-loop iteration: what SECURITY.md promises. A build without optimization takes some times as long.
const LONGEST_MAX: Duration = Duration::from_millis(if cfg!(debug_assertions) { 8 } else { 2 });

/// Measurements. The smallest result counts, since the CPU time has page faults too.
const ATTEMPTS: usize = 5;

/// The longest tokens.
fn token(user: usize) -> String {
    format!("{user:0>200}")
}

fn with_all_users() -> Config {
    let all: String = (0..Users::MAX)
        .map(|user| format!("[users.u{user}]\ntoken = \"{}\"\nproduce = [\"*\"]\n", token(user)))
        .collect();
    Config { users: Some(users(&all)), ..config(65_535) }
}

fn longest(server: &MeasuredServer, mut action: impl FnMut()) -> Duration {
    let measure = |_| {
        server.await_idle();
        let start = server.reset();
        action();
        server.await_idle();
        server.since(&start).longest
    };
    (0..ATTEMPTS).map(measure).min().expect("there are attempts")
}

fn receive(mut stream: &TcpStream, bytes: usize) {
    stream.read_exact(&mut vec![0; bytes]).expect("the server replies");
}

#[test]
fn clients_that_authenticate_again_and_again_take_no_time() {
    driver::under_each("the cost of tokens", |io: Driver| {
        let server = MeasuredServer::start(io, with_all_users());
        let lines = format!("auth {}\r\n", token(Users::MAX - 1)).repeat(REPEATS);
        let clients: Vec<TcpStream> =
            (0..CLIENTS).map(|_| TcpStream::connect(server.address).expect("it listens")).collect();
        let longest_of_all = longest(&server, || {
            clients.iter().for_each(|mut client| client.write_all(lines.as_bytes()).expect("it reads"));
            clients.iter().for_each(|client| receive(client, REPEATS * "AUTHENTICATED\r\n".len()));
        });
        println!("{}: auth of {CLIENTS} clients: {longest_of_all:?}", io.name());
        assert!(longest_of_all <= LONGEST_MAX, "{}: {longest_of_all:?}", io.name());
        let requests = [page("/healthz"), signed(&get("server"), &token(7))];
        for request in requests.map(|request| signed(&request, &"x".repeat(200))).map(|one| one.repeat(64)) {
            let longest_of_all = longest(&server, || {
                let mut client = HttpClient::tcp(server.http);
                client.stream.send(&request);
                client.response(true);
            });
            println!("{}: requests over HTTP: {longest_of_all:?}", io.name());
            assert!(longest_of_all <= LONGEST_MAX, "{}: {longest_of_all:?}", io.name());
        }
    });
}
