//! Databases of tests: on servers that all tests of the program share, or on servers of a test's own that it may stop and change.

use std::process::Command;

use beanring::io::driver::Driver;
use beanring::io::replica::{Settings, init};
use beanring_testkit::client::Client;
use beanring_testkit::driver;
use beanring_testkit::postgres::{Cluster, OWNER, Postgres, Programs};
use beanring_testkit::process::program;

use crate::node::Node;

/// A database without the tables; nothing where there is no PostgreSQL.
pub fn empty(what: &str) -> Option<Cluster> {
    Some(Cluster::shared(&programs(what)?))
}

/// A database with the tables.
pub fn site(what: &str) -> Option<Cluster> {
    empty(what).map(with_tables)
}

/// A database without the tables, on servers of its own.
pub fn own_empty(what: &str, standbys: usize) -> Option<Cluster> {
    Some(Cluster::start(&programs(what)?, standbys, &[]))
}

/// A database with the tables, on a primary and two standbys of its own.
pub fn own_site(what: &str) -> Option<Cluster> {
    own_empty(what, 2).map(with_tables)
}

fn programs(what: &str) -> Option<Programs> {
    Programs::find().inspect_err(|reason| println!("skipped: {what}, because {reason}")).ok()
}

pub fn with_tables(site: Cluster) -> Cluster {
    init(&settings(&site.primary)).expect("the user owns the database");
    site
}

pub fn settings(server: &Postgres) -> Settings {
    parse(&server.url(OWNER))
}

/// The settings for log 1 at a URL.
pub fn parse(url: &str) -> Settings {
    Settings::parse(url).expect("the URL is valid")
}

/// A query for the number of the test's sessions that meet a condition.
pub fn sessions(condition: &str) -> String {
    format!("select count(*) from pg_stat_activity where datname = current_database() and {condition}")
}

/// Ends the sessions of stores, as a fault of the network does.
pub fn terminate_sessions(server: &Postgres) {
    server.sql(&sessions("application_name = 'beanring'").replace("(*)", "(pg_terminate_backend(pid))"));
}

/// Starts a server, and returns it with its first client. One that does not serve yet has the client wait.
pub fn start(url: &str, flags: &[&str]) -> (Node, Client) {
    let all = [&driver::flags(Driver::Epoll)[..], &["--lease", "1"], flags].concat();
    let mut server = Node::new(url, &all, None);
    server.start();
    let client = server.client();
    (server, client)
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
