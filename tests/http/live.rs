//! A live server with an HTTP listener, and its log in a file.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use beanring::io::driver::Driver;
use beanring_testkit::client::{Client, serve_by};
use beanring_testkit::driver;
use beanring_testkit::http_client::HttpClient;
use beanring_testkit::process::{Address, ServerProcess, Transport, program};
use beanring_testkit::scratch::{Scratch, await_text, secret};

/// The token in the file that the flag `TOKEN` stands for.
pub const SECRET: &str = "a-secret-of-this-test";

pub struct Live {
    pub server: ServerProcess,
    pub client: Client,
    /// Where HTTP is served, if not on a UNIX socket.
    at: Option<SocketAddr>,
    scratch: Scratch,
}

impl Live {
    /// Starts a server that serves HTTP on a UNIX socket.
    pub fn start(io: Driver, flags: &[&str]) -> Self {
        Self::launch(io, None, flags)
    }

    /// Starts a server that serves HTTP on a socket address.
    pub fn at(at: SocketAddr, io: Driver, flags: &[&str]) -> Self {
        Self::launch(io, Some(at), flags)
    }

    fn launch(io: Driver, at: Option<SocketAddr>, flags: &[&str]) -> Self {
        let scratch = Scratch::new("http");
        let token = scratch.dir("secret").join("token");
        secret(&token, &format!("{SECRET}\n"));
        let http = at.map_or(format!("unix:{}", scratch.join("http").display()), |at| at.to_string());
        let (own, token) = (["--http", &http, "--log-level", "info"], token.display().to_string());
        let flags = flags.iter().map(|&flag| if flag == "TOKEN" { &*token } else { flag });
        let all: Vec<&str> = own.into_iter().chain(flags).collect();
        let mut command = Command::new(program());
        command.stderr(File::create(scratch.join("log")).expect("the file is created"));
        let all = [&driver::flags(io)[..], &all].concat();
        let (server, client) = serve_by(command, Address::fresh(Transport::Tcp), &all);
        Self { server, client, at, scratch }
    }

    pub fn connect(&self) -> HttpClient {
        self.at.map_or_else(|| HttpClient::unix(&self.socket()), HttpClient::tcp)
    }

    /// Sends a text, and returns everything until the server closes the connection.
    pub fn say(&self, text: &str) -> String {
        let mut client = self.connect();
        client.stream.send(text.as_bytes());
        client.rest()
    }

    /// The UNIX socket.
    pub fn socket(&self) -> PathBuf {
        self.scratch.join("http")
    }

    pub fn token_file(&self) -> PathBuf {
        self.scratch.join("secret/token")
    }

    pub const fn is_on_tcp(&self) -> bool {
        self.at.is_some()
    }

    /// Waits for a line of the log with this text.
    pub fn await_line(&self, text: &str) {
        await_text(&self.scratch.join("log"), text, 1);
    }

    pub fn log(&self) -> String {
        self.server.await_log();
        fs::read_to_string(self.scratch.join("log")).expect("the log is there")
    }
}
