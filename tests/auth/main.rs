//! Users and rights (`--auth`): who may send which command, tokens, changes of the users, and HTTP.

mod cost;
mod http;
mod influence;
mod live;
mod matrix;
mod meetings;
mod reload;
mod tokens;

use beanring::io::users_file;
use beanring::server::{Config, Users};
use beanring_testkit::config::config;
use beanring_testkit::in_memory::{Cut, InMemoryServer};
use beanring_testkit::peer::Peer;

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

/// The user `one` with these rights.
fn one(rights: &str) -> String {
    format!("[users.one]\ntoken = \"one-one-one-one-one\"\n{rights}\n")
}

/// A configuration with the users of a text, beside root.
fn with_users(text: &str) -> Config {
    Config { users: Some(users(&format!("{ROOT}{text}"))), ..config(65_535) }
}

/// A server in memory with the users of a text, beside root.
fn server(text: &str) -> InMemoryServer {
    InMemoryServer::with(with_users(text), Cut::Whole)
}

/// Connections that authenticate.
trait Authenticate {
    fn user(&mut self, token: &str) -> usize;

    fn one(&mut self) -> usize {
        self.user("one-one-one-one-one")
    }

    fn root(&mut self) -> usize {
        self.user("root-root-root-root")
    }
}

impl Authenticate for InMemoryServer {
    fn user(&mut self, token: &str) -> usize {
        let conn = self.open();
        self.expect(conn, &format!("auth {token}\r\n"), "AUTHENTICATED\r\n");
        conn
    }
}
