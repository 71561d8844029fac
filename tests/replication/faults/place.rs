//! A database with two synchronous standbys, and servers whose job log is in it.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use beanring::io::replica::init;
use beanring_testkit::bench::stats::Stats;
use beanring_testkit::client::Client;
use beanring_testkit::namespaces::Machines;
use beanring_testkit::postgres::{Cluster, Programs};
use beanring_testkit::process::REPLY_PATIENCE;
use beanring_testkit::statistics::{field, number, value};
use beanring_testkit::wait;

use super::check::{Left, Survivor};
use super::record::{ATTEMPTS_MAX, Clock, Event, TUBES};
use super::schedules;
use crate::node::Node;
use crate::site::parse;

/// How long a take-over may take, with any number of jobs.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Commands that are sent at a time to ask for the jobs that are left.
const AT_A_TIME: usize = 500;

/// The size of a segment: a quarter of the standard one, so that segments are trimmed while a test runs.
const SEGMENT: &str = "1m";

/// The machine of the database, and that of the clients. Those of the servers follow.
pub const DATABASE: usize = 0;
pub const CLIENTS: usize = 1;
pub const SERVERS: usize = 2;

/// How the servers of the database are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Other tests use them too.
    Shared,
    /// The test stops or changes them.
    Own,
    /// They have a machine of their own, and so has each server.
    OverNetwork,
}

/// Dropped in the order of its fields.
pub struct Place {
    pub nodes: Vec<Node>,
    pub cluster: Cluster,
    pub machines: Option<Machines>,
}

impl Place {
    /// Starts a database and this many servers; says why that cannot be.
    pub fn start(servers: usize, lease_s: usize, database: Use) -> Result<Self, String> {
        let programs = Programs::find().map_err(str::to_owned)?;
        let machines =
            (database == Use::OverNetwork).then(|| Machines::lay(SERVERS + servers)).transpose()?;
        let cluster = match &machines {
            Some(machines) => {
                let programs = programs.inside(&machines.name(DATABASE));
                Cluster::start(&programs, 2, &[("listen_addresses", "*")])
            }
            None if database == Use::Own => Cluster::start(&programs, 2, &[]),
            None => Cluster::shared(&programs),
        };
        let mut place = Self { nodes: Vec::new(), cluster, machines };
        let url = place.url();
        place.at_clients(|| init(&parse(&url))).expect("the user owns the database");
        for number in 0..servers {
            let flags = ["--lease", &lease_s.to_string(), "-s", SEGMENT];
            let machine = place.machines.as_ref().map(|machines| (machines, SERVERS + number));
            place.nodes.push(Node::new(&url, &flags, machine));
        }
        place.nodes.iter_mut().for_each(Node::start);
        let all_listen = || place.nodes.iter().all(|node| node.connect().is_some());
        wait::until("all servers listen", || place.at_clients(all_listen));
        place.set_rules();
        Ok(place)
    }

    /// Where servers find the database, whichever of its servers is the primary.
    fn url(&self) -> String {
        let host = self.machines.as_ref().map_or(Ipv4Addr::LOCALHOST, |machines| machines.address(DATABASE));
        let all = [&self.cluster.primary].into_iter().chain(&self.cluster.standbys);
        let hosts: Vec<String> = all.map(|server| format!("{host}:{}", server.port())).collect();
        self.cluster.primary.url_with(&hosts.join(","))
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.address).collect()
    }

    /// Waits for a server that leads, and returns its number.
    pub fn leader(&self, patience: Duration) -> usize {
        let started = Instant::now();
        loop {
            for asked in &self.nodes {
                let pid = self.at_clients(|| ask_pid(asked.address));
                if let Some(leader) = self.nodes.iter().position(|node| pid.is_some() && node.pid() == pid) {
                    return leader;
                }
            }
            assert!(started.elapsed() < patience, "no server leads");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Gives the tube `mail` its rules, and adds schedules.
    fn set_rules(&self) {
        self.ask_leader(REPLY_PATIENCE, |client| {
            client.expect(&format!("tube-config mail max-attempts {ATTEMPTS_MAX}\r\n"), "CONFIGURED");
            client.expect("tube-config mail dead-letter dead\r\n", "CONFIGURED");
            client.expect("tube-config mail retry-delay 1\r\n", "CONFIGURED");
            client.expect("tube-config mail retry-max-delay 2\r\n", "CONFIGURED");
            schedules::put(client);
        });
    }

    /// Does `what` where the clients are.
    pub fn at_clients<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        match &self.machines {
            None => what(),
            Some(machines) => machines.on(CLIENTS, what),
        }
    }

    /// Cuts the machines of each pair off from each other, or connects them again.
    pub fn cut(&self, pairs: &[(usize, usize)], is_cut: bool) {
        self.machines.as_ref().expect("there is a network").cut(pairs, is_cut);
    }

    fn ask_leader<T: Send>(&self, patience: Duration, what: impl FnOnce(&mut Client) -> T + Send) -> T {
        let leader = &self.nodes[self.leader(patience)];
        self.at_clients(|| what(&mut leader.connect().expect("it listens")))
    }

    /// Kills all servers and starts them again, so that what is left comes from the database alone.
    pub fn restart_all(&mut self) {
        self.nodes.iter_mut().for_each(Node::kill);
        self.nodes.iter_mut().for_each(Node::start);
        self.leader(PATIENCE);
    }

    /// Asks for all jobs that these events name.
    pub fn survivor(&self, events: &[Event], clock: Clock) -> Survivor {
        let mut ids: Vec<u64> = events.iter().filter_map(Event::id).collect();
        ids.sort_unstable();
        ids.dedup();
        self.ask_leader(PATIENCE, |client| survivor(client, &ids, clock))
    }

    /// Checks that each schedule has run at each of its times.
    pub fn check_schedules(&self) {
        self.ask_leader(PATIENCE, schedules::check);
    }

    /// Whether a server has a put of a client executed.
    pub fn puts_through(&self, server: usize) -> bool {
        self.at_clients(|| {
            let mut client = self.nodes[server].connect().expect("it listens");
            client.send("use through\r\nput 0 0 60 1\r\nx\r\n");
            let mut has_line = |text: &str| client.line().is_some_and(|line| line.starts_with(text));
            has_line("USING through") && has_line("INSERTED ")
        })
    }

    /// The number of jobs of a tube.
    pub fn count_of(&self, tube: &str) -> usize {
        self.ask_leader(PATIENCE, |client| count_of(client, tube))
    }
}

/// The process that executes what a server is asked: behind a standby, the leader.
pub fn ask_pid(address: SocketAddr) -> Option<u32> {
    let stream = TcpStream::connect_timeout(&address, Duration::from_millis(500)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).expect("a socket option");
    Stats::exchange(stream).ok()?.number("pid").ok()?.try_into().ok()
}

/// Asks again if jobs have ended meanwhile: what a client sent before it was cut off may arrive as late as now.
fn survivor(client: &mut Client, ids: &[u64], clock: Clock) -> Survivor {
    let mut survivor = None;
    wait::until("no job ends any more", || {
        let before = count_all(client);
        let found = survivor.insert(survivor_of_now(client, ids, clock));
        found.count == before
    });
    survivor.expect("it was found")
}

fn survivor_of_now(client: &mut Client, ids: &[u64], clock: Clock) -> Survivor {
    let mut jobs = ask_jobs(client, ids, clock);
    // Asked again, after all jobs that may have their keys: no client reserves a job any more.
    let passed_over = |(&id, left): (&u64, &Option<Left>)| left.as_ref()?.is_passed_over.then_some(id);
    let passed_over: Vec<u64> = jobs.iter().filter_map(passed_over).collect();
    for (id, again) in ask_jobs(client, &passed_over, clock) {
        let left = jobs.get_mut(&id).and_then(Option::as_mut).expect("it was there");
        left.is_passed_over = again.is_some_and(|again| again.is_passed_over);
    }
    let count = count_all(client);
    Survivor { jobs, count, rules: client.ask("tube-config mail\r\n").1 }
}

fn ask_jobs(client: &mut Client, ids: &[u64], clock: Clock) -> HashMap<u64, Option<Left>> {
    let mut jobs = HashMap::new();
    for some in ids.chunks(AT_A_TIME) {
        let asked_at = clock.now();
        let mut text = String::new();
        some.iter().for_each(|id| write!(text, "stats-job {id}\r\n").expect("memory"));
        client.send(&text);
        for &id in some {
            let (reply, stats) = client.reply().expect("it leads");
            let left = reply.starts_with("OK ").then(|| Left {
                state: field(&stats, "state").to_owned(),
                tube: field(&stats, "tube").trim_matches('"').to_owned(),
                is_passed_over: value(&stats, "passed-over") == Some("true"),
                asked_at,
                replied_at: clock.now(),
            });
            jobs.insert(id, left);
        }
    }
    jobs
}

fn count_all(client: &mut Client) -> usize {
    TUBES.iter().map(|tube| count_of(client, tube)).sum()
}

/// The number of jobs of a tube, which need not exist.
pub fn count_of(client: &mut Client, tube: &str) -> usize {
    let (reply, stats) = client.ask(&format!("stats-tube {tube}\r\n"));
    if reply == "NOT_FOUND" {
        return 0;
    }
    let states = ["ready", "reserved", "delayed", "buried", "held"];
    states.iter().map(|state| number(&stats, &format!("current-jobs-{state}")) as usize).sum()
}
