//! Users and rights (`--auth`): who may send which command, tokens, changes of the users, and HTTP.

mod http;
mod live;
mod matrix;
mod meetings;
mod reload;
mod tokens;

use std::time::Duration;

use beanring::io::users_file;
use beanring::server::{Config, Users};
use beanring_testkit::config::config;
use beanring_testkit::in_memory::{Cut, InMemoryServer};
use beanring_testkit::peer::{Patience, Peer, Received};

/// A user that may do everything.
const ROOT: &str = r#"
[users.root]
token = "root-root-root-root"
produce = ["*"]
consume = ["*"]
inspect = ["*"]
admin = ["*"]
"#;

fn users(text: &str) -> Users {
    users_file::parse(text).unwrap_or_else(|error| panic!("{error}"))
}

/// A server in memory with the users of a text, beside root.
struct Bench {
    server: InMemoryServer,
}

impl Bench {
    fn new(text: &str) -> Self {
        Self::with(text, Cut::Whole)
    }

    fn with(text: &str, cut: Cut) -> Self {
        let users = Some(users(&format!("{ROOT}{text}")));
        Self { server: InMemoryServer::with(Config { users, ..config(65_535) }, cut) }
    }

    /// Opens a connection.
    fn open(&mut self) -> usize {
        self.server.open()
    }

    /// Opens a connection and authenticates.
    fn user(&mut self, token: &str) -> usize {
        let conn = self.open();
        assert_eq!(self.ask(conn, &format!("auth {token}\r\n")), "AUTHENTICATED\r\n");
        conn
    }

    fn root(&mut self) -> usize {
        self.user("root-root-root-root")
    }

    /// Sends a text. Returns what comes at once: nothing if the client waits, `closed` if the connection is closed.
    fn ask(&mut self, conn: usize, text: &str) -> String {
        self.server.send(conn, text.as_bytes());
        self.reply(conn)
    }

    fn reply(&mut self, conn: usize) -> String {
        match self.server.receive(conn, Patience::Quiet) {
            Received::Bytes(bytes) => String::from_utf8(bytes).expect("replies are text"),
            Received::Silence => String::new(),
            Received::Closed => "closed".to_owned(),
        }
    }

    fn expect(&mut self, conn: usize, text: &str, expected: &str) {
        assert_eq!(self.ask(conn, text), expected, "{text}");
    }

    fn advance(&mut self, millis: u64) {
        self.server.advance(Duration::from_millis(millis));
    }
}
