//! What authentication costs, in CPU time of the event loop.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use beanring::io::driver::Driver;
use beanring::io::users_file::UsersFile;
use beanring::io::watched_files::{Identity, WatchedFiles};
use beanring::server::{Config, Users};
use beanring_testkit::client::Client;
use beanring_testkit::config::config;
use beanring_testkit::driver;
use beanring_testkit::http_client::{HttpClient, get, page, signed};
use beanring_testkit::measured::MeasuredServer;
use beanring_testkit::scratch::{Scratch, secret};
use beanring_testkit::stream::Stream;
use beanring_testkit::wait;

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

/// A file of all users, each with these tubes to put into.
fn all_users(tubes: &str) -> String {
    let user = |user| format!("[users.u{user}]\ntoken = \"{}\"\nproduce = [{tubes}]\n", token(user));
    (0..Users::MAX).map(user).collect()
}

fn with_all_users() -> Config {
    Config { users: Some(users(&all_users("\"*\""))), ..config(65_535) }
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

/// The server looks at the file by itself, and reads 200 KB of users beside the event loop.
#[test]
fn a_change_of_all_users_takes_no_time() {
    driver::under_each("the cost of a change of users", |io: Driver| {
        let scratch = Scratch::new("auth-cost");
        let path = scratch.join("users.toml");
        let tubes = |letter: char| -> String { (0..40).map(|at| format!("\"{letter}-{at:06}\",")).collect() };
        secret(&path, &all_users(&tubes('a')));
        let read = UsersFile::read(&path).unwrap_or_else(|error| panic!("{error}"));
        let mut files = WatchedFiles::default();
        files.add_users(path.clone(), Identity::of(&read.metadata));
        let config = Config { users: Some(read.users), ..config(65_535) };
        let server = MeasuredServer::watching(io, config, files);
        let mut clients: Vec<Client> = (0..Users::MAX)
            .map(|user| {
                let stream = TcpStream::connect(server.address).expect("it listens");
                let mut client = Client::new(Stream::Tcp(stream));
                client.expect(&format!("auth {}\r\n", token(user)), "AUTHENTICATED");
                client
            })
            .collect();
        server.await_idle();
        let start = server.reset();
        secret(&path, &all_users(&tubes('b')));
        for client in [0, Users::MAX - 1] {
            let client = &mut clients[client];
            wait::until("the users have changed", || client.ask("use b-000039\r\n").0 == "USING b-000039");
        }
        let longest = server.since(&start).longest;
        println!("{}: a change of {} users: {longest:?}", io.name(), Users::MAX);
        assert!(longest <= LONGEST_MAX, "{}: {longest:?}", io.name());
    });
}
