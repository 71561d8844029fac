//! Databases of tests: on servers that all tests of the program share, or on servers of a test's own that it may stop and change.

use std::ops::{Deref, DerefMut};
use std::process::Command;

use beanring::io::driver::Driver;
use beanring::io::replica::{LogNumber, Settings, init};
use beanring_testkit::client::Client;
use beanring_testkit::driver;
use beanring_testkit::postgres::{Cluster, OWNER, Postgres, Programs};
use beanring_testkit::process::program;
use beanring_testkit::scratch::Scratch;

use crate::node::Node;

/// A database, and a directory for what uses it.
pub struct Site {
    cluster: Cluster,
    pub scratch: Scratch,
}

/// A database without the tables; nothing where there is no PostgreSQL.
pub fn empty(what: &str) -> Option<Site> {
    Some(Site::new(Cluster::shared(&programs(what)?)))
}

/// A database with the tables.
pub fn site(what: &str) -> Option<Site> {
    empty(what).map(Site::with_tables)
}

/// A database without the tables, on servers of its own.
pub fn own_empty(what: &str, standbys: usize) -> Option<Site> {
    Some(Site::new(Cluster::start(&programs(what)?, standbys, &[])))
}

/// A database with the tables, on a primary and two standbys of its own.
pub fn own_site(what: &str) -> Option<Site> {
    own_empty(what, 2).map(Site::with_tables)
}

fn programs(what: &str) -> Option<Programs> {
    Programs::find().inspect_err(|reason| println!("skipped: {what}, because {reason}")).ok()
}

impl Site {
    fn new(cluster: Cluster) -> Self {
        Self { cluster, scratch: Scratch::new("replicate") }
    }

    pub fn with_tables(self) -> Self {
        init(&settings(&self.primary)).expect("the user owns the database");
        self
    }

    pub fn url(&self) -> String {
        self.primary.url(OWNER)
    }

    /// Starts a server, and returns it with its first client. One that does not serve yet has the client wait.
    pub fn start(&self, name: &str, flags: &[&str]) -> (Node, Client) {
        self.start_at(&self.url(), name, flags)
    }

    /// The same with this URL.
    pub fn start_at(&self, url: &str, name: &str, flags: &[&str]) -> (Node, Client) {
        let driver = driver::flags(Driver::Epoll);
        let own = driver.iter().map(String::as_str).chain(["--lease", "1"]);
        let all: Vec<&str> = own.chain(flags.iter().copied()).collect();
        let mut server = Node::new(url, self.scratch.join(name), &all, None);
        server.start();
        let client = server.client();
        (server, client)
    }

    /// Runs `beanring replicate`.
    pub fn replicate(&self, words: &[&str]) -> (i32, String, String) {
        replicate(words, &self.url())
    }
}

impl Deref for Site {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

impl DerefMut for Site {
    fn deref_mut(&mut self) -> &mut Cluster {
        &mut self.cluster
    }
}

pub fn settings(server: &Postgres) -> Settings {
    parse(&server.url(OWNER))
}

/// The settings for log 1 at a URL.
pub fn parse(url: &str) -> Settings {
    Settings::parse(url, LogNumber::default()).expect("the URL is valid")
}

/// A query for the number of the test's sessions that meet a condition.
pub fn sessions(condition: &str) -> String {
    format!("select count(*) from pg_stat_activity where datname = current_database() and {condition}")
}

/// Ends the sessions of stores, as a fault of the network does.
pub fn terminate_sessions(server: &Postgres) {
    server.sql(&sessions("application_name = 'beanring'").replace("(*)", "(pg_terminate_backend(pid))"));
}

/// Runs the program with the URL in the variable, and returns its exit code, output and errors.
pub fn run(words: &[&str], url: &str) -> (i32, String, String) {
    let mut command = Command::new(program());
    let output = command.args(words).env("BEANRING_REPLICATE", url).output().expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("it is text");
    (output.status.code().expect("no signal ends it"), text(output.stdout), text(output.stderr))
}

/// Does the same for `beanring replicate`.
pub fn replicate(words: &[&str], url: &str) -> (i32, String, String) {
    run(&[&["replicate"], words].concat(), url)
}
