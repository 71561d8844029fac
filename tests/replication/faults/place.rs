//! A database with two synchronous standbys, and servers whose job log is in it.

use std::collections::HashMap;
use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use beanring_testkit::namespaces::Machines;
use beanring_testkit::postgres::{Cluster, Programs};
use beanring_testkit::process::{Address, REPLY_PATIENCE, Transport, program};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::statistics::{field, number, value};
use beanring_testkit::unused_address::ReservedPort;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::check::{Check, Left, Survivor};
use super::clients::{Clients, Plan};
use super::record::{ATTEMPTS_MAX, Clock, Event, TUBES};

/// How long a take-over may take, with any number of jobs.
const PATIENCE: Duration = Duration::from_secs(300);

/// A take-over whose logs are shown, in microseconds.
const SLOW: u64 = 3_000_000;

/// Parts of lines that say nothing about a fault.
const NOT_SHOWN: [&str; 9] = [
    "I/O driver",
    "beanring 0.",
    "durability",
    "limits:",
    "listening",
    "protect the port",
    "ready after",
    "sandbox",
    "serving the console",
];

/// What a standby logs when it finds damage.
pub const ALARM: &str = "cannot follow the job log";

/// Lines of a server's log that are shown after a failure.
const LINES_SHOWN: usize = 60;

/// Commands that are sent at a time to ask for the jobs that are left.
const AT_A_TIME: usize = 500;

/// How a place is made.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub servers: usize,
    pub lease_s: u32,
    /// Each server and the database have a machine of their own.
    pub over_network: bool,
    /// A quarter of the standard size of a segment, or less, so that segments are trimmed while a test runs.
    pub segment: &'static str,
}

/// Dropped in the order of its fields.
pub struct Place {
    pub nodes: Vec<Node>,
    pub cluster: Cluster,
    pub machines: Option<Machines>,
    /// A test has damaged the log.
    pub is_damaged: bool,
    scratch: Scratch,
}

/// A server process that is started again and again.
pub struct Node {
    pub address: SocketAddr,
    http: SocketAddr,
    child: Option<Child>,
    words: Vec<String>,
    log: PathBuf,
    /// For standbys, unless the server has a machine of its own.
    _port: ReservedPort,
}

/// The machine of the database, and that of the clients. Those of the servers follow.
pub const DATABASE: usize = 0;
pub const CLIENTS: usize = 1;

impl Default for Settings {
    fn default() -> Self {
        Self { servers: 3, lease_s: 1, over_network: false, segment: "1m" }
    }
}

/// How often a fault occurs: the number in a variable of the environment, or a few times.
pub fn rounds(name: &str, default: usize) -> usize {
    let name = format!("BEANRING_TEST_{name}");
    env::var(&name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// The seed of a run, which is printed.
pub fn seed() -> u64 {
    let given = env::var("BEANRING_TEST_SEED").ok().map(|text| text.parse().expect("a seed is a number"));
    let time = || std::time::UNIX_EPOCH.elapsed().expect("a clock after 1970").as_micros() as u64;
    let seed = given.unwrap_or_else(time);
    println!("seed {seed}: BEANRING_TEST_SEED={seed} makes the same choices");
    seed
}

impl Place {
    /// Starts a database and servers; returns nothing where that cannot be.
    pub fn start(what: &str, settings: Settings) -> Option<Self> {
        match Self::try_start(settings) {
            Ok(place) => Some(place),
            Err(reason) => {
                println!("skipped: {what}, because {reason}");
                None
            }
        }
    }

    fn try_start(settings: Settings) -> Result<Self, String> {
        let mut programs = Programs::find().map_err(str::to_owned)?;
        let machines = settings.over_network.then(|| Machines::lay(2 + settings.servers)).transpose()?;
        let mut lines = String::new();
        if let Some(machines) = &machines {
            programs = programs.inside(&machines.name(DATABASE));
            lines += "listen_addresses = '*'\n";
        }
        let cluster = Cluster::start(&programs, 2, &lines);
        let mut place =
            Self { nodes: Vec::new(), cluster, machines, is_damaged: false, scratch: Scratch::new("faults") };
        let made = place.run_tool(&["init"]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        for number in 0..settings.servers {
            let node = place.node(number, settings);
            place.nodes.push(node);
        }
        for node in &mut place.nodes {
            node.start();
        }
        place.leader(REPLY_PATIENCE);
        place.wait_until_all_listen();
        place.set_rules();
        Ok(place)
    }

    /// Where servers find the database, whichever of its servers is the primary.
    fn url(&self) -> String {
        let host = self.machines.as_ref().map_or(Ipv4Addr::LOCALHOST, |machines| machines.address(DATABASE));
        let all = [&self.cluster.primary].into_iter().chain(&self.cluster.standbys);
        let hosts: Vec<String> = all.map(|server| format!("{host}:{}", server.port())).collect();
        format!("postgres://beanring:secret@{}/queue", hosts.join(","))
    }

    fn run_tool(&self, words: &[&str]) -> std::process::Output {
        let mut command = match &self.machines {
            None => Command::new(program()),
            Some(machines) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &machines.name(DATABASE), program()]);
                command
            }
        };
        command.arg("replicate").args(words).env("BEANRING_REPLICATE", self.url());
        command.output().expect("it runs")
    }

    fn node(&self, number: usize, settings: Settings) -> Node {
        let Address::Tcp(own) = Address::fresh(Transport::Tcp) else { unreachable!("it is one of TCP") };
        let port = ReservedPort::take();
        let (mut words, address, inner) = match &self.machines {
            None => (Vec::new(), own, format!("127.0.0.1:{}", port.get())),
            Some(machines) => {
                let words = ["ip", "netns", "exec", &machines.name(2 + number)].map(str::to_owned).to_vec();
                let host = machines.address(2 + number);
                (words, SocketAddr::from((host, 11300)), format!("{host}:11401"))
            }
        };
        let http = SocketAddr::from((address.ip(), 11380));
        let flags = [
            program(),
            "-l",
            &address.ip().to_string(),
            "-p",
            &address.port().to_string(),
            "--advertise",
            &inner,
            "--lease",
            &settings.lease_s.to_string(),
            "--http",
            &http.to_string(),
            "-s",
            settings.segment,
            "--log-level",
            "info",
        ];
        words.extend(flags.map(str::to_owned));
        words.extend(["--replicate".to_owned(), self.url()]);
        let log = self.scratch.join(&format!("server{number}.log"));
        Node { address, http, child: None, words, log, _port: port }
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.address).collect()
    }

    pub fn plan(&self, seed: u64) -> Plan {
        let namespace = self.machines.as_ref().map(|machines| machines.name(CLIENTS));
        Plan { namespace, ..Plan::new(self.addresses(), seed) }
    }

    /// Waits for a server that leads, and returns its number.
    ///
    /// # Panics
    /// If there is none in time.
    pub fn leader(&self, patience: Duration) -> usize {
        let started = Instant::now();
        loop {
            for at in 0..self.nodes.len() {
                let stats = self.at_clients(|| ask_stats(self.nodes[at].address));
                let pid =
                    stats.and_then(|stats| value(&stats, "pid").and_then(|pid| pid.parse::<u32>().ok()));
                let leads = |node: &Node| pid.is_some() && node.child.as_ref().map(Child::id) == pid;
                if let Some(leader) = self.nodes.iter().position(leads) {
                    return leader;
                }
            }
            assert!(started.elapsed() < patience, "no server leads\n{}", self.logs());
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn wait_until_all_listen(&self) {
        let started = Instant::now();
        let is_refused = |node: &Node| TcpStream::connect(node.address).is_err();
        while self.at_clients(|| self.nodes.iter().any(is_refused)) {
            assert!(started.elapsed() < REPLY_PATIENCE, "not all servers listen\n{}", self.logs());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Gives the tube `mail` its rules.
    fn set_rules(&self) {
        let leader = self.nodes[self.leader(REPLY_PATIENCE)].address;
        let rules = [format!("max-attempts {ATTEMPTS_MAX}"), "dead-letter dead".to_owned()];
        self.at_clients(|| {
            let mut stream = connect(leader);
            for rule in rules {
                let mut line = String::new();
                stream
                    .get_mut()
                    .write_all(format!("tube-config mail {rule}\r\n").as_bytes())
                    .expect("it is open");
                stream.read_line(&mut line).expect("it replies");
                assert_eq!(line, "CONFIGURED\r\n");
            }
        });
    }

    /// Does `what` where the clients are.
    pub fn at_clients<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        let Some(machines) = &self.machines else { return what() };
        let name = machines.name(CLIENTS);
        let run = || {
            beanring_testkit::namespaces::enter(&name);
            what()
        };
        thread::scope(|scope| scope.spawn(run).join().expect("it does not panic"))
    }

    /// Kills all servers and starts them again, so that what is left comes from the database alone.
    pub fn restart_all(&mut self) {
        for node in &mut self.nodes {
            node.kill();
        }
        for node in &mut self.nodes {
            node.start();
        }
        self.leader(PATIENCE);
    }

    /// Asks for all jobs that these events name.
    pub fn survivor(&self, events: &[Event], clock: Clock) -> Survivor {
        let mut ids: Vec<u64> = events.iter().filter_map(Event::id).collect();
        ids.sort_unstable();
        ids.dedup();
        let leader = self.nodes[self.leader(PATIENCE)].address;
        self.at_clients(|| survivor(leader, &ids, clock))
    }

    /// Whether a server has a put of a client executed.
    pub fn puts_through(&self, server: usize) -> bool {
        self.at_clients(|| {
            let mut stream = connect(self.nodes[server].address);
            stream.get_mut().write_all(b"use through\r\nput 0 0 60 1\r\nx\r\n").expect("it is open");
            let mut lines = String::new();
            let is_read = (0..2).all(|_| stream.read_line(&mut lines).is_ok());
            is_read && lines.starts_with("USING through\r\nINSERTED ")
        })
    }

    /// The number of jobs of a tube.
    pub fn count_of(&self, tube: &str) -> usize {
        let leader = self.nodes[self.leader(PATIENCE)].address;
        self.at_clients(|| {
            let mut stream = connect(leader);
            count_of(&mut stream, tube)
        })
    }

    /// Prints the logs after a take-over that took long, in microseconds.
    pub fn show_if_slow(&self, took: u64) {
        if took > SLOW {
            println!("{} ms until a put was accepted\n{}", took / 1000, self.logs());
        }
    }

    /// The last lines of all logs.
    pub fn logs(&self) -> String {
        let text = |node: &Node| {
            let text = fs::read_to_string(&node.log).unwrap_or_default();
            let lines: Vec<&str> =
                text.lines().filter(|line| !NOT_SHOWN.iter().any(|part| line.contains(part))).collect();
            let last = &lines[lines.len().saturating_sub(LINES_SHOWN)..];
            format!("log of the server at {}:\n{}\n", node.address, last.join("\n"))
        };
        self.nodes.iter().map(text).collect()
    }

    /// No server takes a fault for damage, unless there was some.
    fn check_alarms(&self, name: &str) {
        let alarms: usize = self.nodes.iter().map(|node| node.log_text().matches(ALARM).count()).sum();
        assert!(alarms == 0 || self.is_damaged, "{name}: {alarms} false alarms");
    }

    /// Ends the load, checks the record, and prints what was counted. See [`Check`] for `closing`.
    ///
    /// # Panics
    /// If the record is violated.
    pub fn conclude(&mut self, name: &str, clients: Clients, closing: &[Range<u64>]) -> Vec<Event> {
        let clock = clients.shared.clock;
        let events = clients.end();
        self.check_alarms(name);
        // As they are now, and as the database has them.
        for restarts in [false, true] {
            if restarts {
                self.restart_all();
            }
            let survivor = self.survivor(&events, clock);
            match Check::new(&events, &survivor, closing).run() {
                Ok(figures) if restarts => println!("{name}: {figures:?}, {} jobs are left", survivor.count),
                Ok(_) => {}
                Err(violations) => {
                    panic!("{name}: after a restart of all: {restarts}: {violations}")
                }
            }
        }
        events
    }
}

impl Node {
    /// Starts the server.
    pub fn start(&mut self) {
        assert!(self.child.is_none(), "it runs");
        let log = OpenOptions::new().create(true).append(true).open(&self.log).expect("there is space");
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().expect("it can be started"));
    }

    /// Kills the server, and waits for its end.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("it runs");
        child.wait().expect("it is a child");
    }

    /// Ends the server with SIGTERM, and waits for its end. Returns its exit code.
    pub fn terminate(&mut self) -> Option<i32> {
        self.signal(Signal::SIGTERM);
        self.child.take().expect("it runs").wait().expect("it is a child").code()
    }

    pub fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("it runs");
        kill(Pid::from_raw(child.id().cast_signed()), signal).expect("it runs");
    }

    /// Asks it over HTTP. Returns the status and the body; none if it does not answer.
    pub fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect_timeout(&self.http, Duration::from_secs(1)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).expect("a socket option");
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.http);
        stream.write_all(request.as_bytes()).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }

    /// A value of its metrics; none while it does not answer.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let (_, text) = self.get("/metrics")?;
        let name = format!("beanring_{name} ");
        text.lines().find_map(|line| line.strip_prefix(&name))?.trim().parse().ok()
    }

    pub fn log_text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn empty_log(&self) {
        File::create(&self.log).expect("there is space");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.logs());
        }
    }
}

fn ask_stats(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_millis(500)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).expect("a socket option");
    stream.write_all(b"stats\r\n").ok()?;
    read_data(&mut BufReader::new(stream))
}

/// Reads `OK` with its data; none if it is another reply.
fn read_data(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut line = String::new();
    stream.read_line(&mut line).ok()?;
    let bytes: usize = line.strip_prefix("OK ")?.trim_end().parse().ok()?;
    let mut data = vec![0; bytes + 2];
    stream.read_exact(&mut data).ok()?;
    String::from_utf8(data).ok()
}

fn survivor(leader: SocketAddr, ids: &[u64], clock: Clock) -> Survivor {
    let mut stream = connect(leader);
    let mut jobs = ask_jobs(&mut stream, ids, clock);
    // Asked again, after all jobs that may have their keys: no client reserves a job any more.
    let passed_over = |(&id, left): (&u64, &Option<Left>)| left.as_ref()?.is_passed_over.then_some(id);
    let passed_over: Vec<u64> = jobs.iter().filter_map(passed_over).collect();
    for (id, again) in ask_jobs(&mut stream, &passed_over, clock) {
        let left = jobs.get_mut(&id).and_then(Option::as_mut).expect("it was there");
        left.is_passed_over = again.is_some_and(|again| again.is_passed_over);
    }
    let count = TUBES.iter().map(|tube| count_of(&mut stream, tube)).sum();
    stream.get_mut().write_all(b"tube-config mail\r\n").expect("it is open");
    Survivor { jobs, count, rules: read_data(&mut stream).unwrap_or_default() }
}

fn ask_jobs(stream: &mut BufReader<TcpStream>, ids: &[u64], clock: Clock) -> HashMap<u64, Option<Left>> {
    let mut jobs = HashMap::new();
    for some in ids.chunks(AT_A_TIME) {
        let asked_at = clock.now();
        let text: String = some.iter().map(|id| format!("stats-job {id}\r\n")).collect();
        stream.get_mut().write_all(text.as_bytes()).expect("it is open");
        for &id in some {
            let left = read_data(stream).map(|stats| Left {
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

fn connect(server: SocketAddr) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(server).expect("it listens");
    stream.set_read_timeout(Some(REPLY_PATIENCE)).expect("a socket option");
    BufReader::new(stream)
}

/// The number of jobs of a tube, which need not exist.
fn count_of(stream: &mut BufReader<TcpStream>, tube: &str) -> usize {
    stream.get_mut().write_all(format!("stats-tube {tube}\r\n").as_bytes()).expect("it is open");
    let Some(stats) = read_data(stream) else { return 0 };
    let states = ["ready", "reserved", "delayed", "buried", "held"];
    states.iter().map(|state| number(&stats, &format!("current-jobs-{state}")) as usize).sum()
}
