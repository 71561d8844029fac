//! The life of a client and of a server on the running kernel, in steps, under each driver. `ci/kernels` boots other
//! kernels with this program and the static server.
//!
//! `BEANRING_TEST_PEERS` names two addresses of this machine, which the server and the client use as if on two machines. Without it both
//! use one address. The log is in the directory of temporary files (`TMPDIR`).

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, thread};

use beanring::io::driver::Driver;
use beanring_testkit::client::{Client, put, serve_by};
use beanring_testkit::driver;
use beanring_testkit::process::{Address, REPLY_PATIENCE, ServerProcess, program};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::statistics::field;
use beanring_testkit::stream::Stream;
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};

/// The ports of the first server, for clients and for HTTP. Each later server has its own: the kernel closes the ring of a killed
/// process, and the listeners with it, some time after its end.
const PORT: u16 = 21_377;
const HTTP_PORT: u16 = PORT + 100;

/// More than the minimum of a zero-copy send, and more than a socket takes at once.
const BODY_BYTES: usize = 100_000;

#[test]
fn a_life_under_uring() {
    live("uring");
}

#[test]
fn a_life_under_epoll() {
    live("epoll");
}

#[test]
fn a_life_under_tokio_uring() {
    live("tokio-uring");
}

/// The name of a step, and the step, which leaves the queue empty.
type Step = (&'static str, fn(&mut Life));

const STEPS: [Step; 16] = [
    ("stats name the driver", names_its_driver),
    ("put, reserve, delete", put_reserve_delete),
    ("touch, release", touch_release),
    ("bury, kick", bury_kick),
    ("delay, time-out", delay),
    ("watch, ignore", watch_ignore),
    ("pause", pause),
    ("a waiting client", waits),
    ("pipelined commands", pipelined),
    ("large bodies", large_bodies),
    ("zero-copy sends", zero_copy),
    ("a client that hangs up", hangs_up),
    ("metrics", metrics),
    ("kill -9 and recovery", killed),
    ("in-place restart", replaced),
    ("clean stop and recovery", stopped),
];

/// A server with a job log, and the state that its steps share.
struct Life {
    driver: &'static str,
    ours: Ipv4Addr,
    theirs: Ipv4Addr,
    dir: PathBuf,
    /// Servers started before this one.
    before: u16,
    server: Option<ServerProcess>,
    client: Client,
}

fn live(name: &str) {
    let Some(&driver) = Driver::ALL.iter().find(|driver| driver.name() == name) else {
        return println!("skipped: a life under {name}, because this build leaves it out");
    };
    if !driver::is_allowed(driver, "a life") {
        return;
    }
    let (ours, theirs) = peers(driver);
    let scratch = Scratch::new(&format!("life-{name}"));
    let (server, client) = start(driver.name(), ours, 0, &scratch.0);
    let mut life = Life {
        driver: driver.name(),
        ours,
        theirs,
        dir: scratch.0.clone(),
        before: 0,
        server: Some(server),
        client,
    };
    for (number, (what, step)) in STEPS.iter().enumerate() {
        step(&mut life);
        println!("{name}: step {} of {}: {what}: ok", number + 1, STEPS.len());
    }
    let said = fs::read_to_string(life.dir.join("said")).expect("the file is read");
    for line in said.lines().filter(|line| line.contains("Landlock")).take(1) {
        println!("{name}: {line}");
    }
    assert!(!said.contains("the kernel refuses to send or receive"), "{said}");
}

/// The addresses of the server and of its client.
fn peers(driver: Driver) -> (Ipv4Addr, Ipv4Addr) {
    let Ok(both) = env::var("BEANRING_TEST_PEERS") else {
        // The tests of all drivers run at the same time.
        let number = Driver::ALL.iter().position(|&other| other == driver).expect("the driver is built in");
        let own = Ipv4Addr::new(127, 77, (std::process::id() % 250) as u8, 1 + number as u8);
        return (own, own);
    };
    let mut both = both.split(' ').map(|text| text.parse().expect("an IPv4 address"));
    (both.next().expect("the server's"), both.next().expect("the client's"))
}

fn start(driver: &str, ours: Ipv4Addr, before: u16, dir: &Path) -> (ServerProcess, Client) {
    let mut command = Command::new(program());
    let said = File::options().create(true).append(true).open(dir.join("said")).expect("the file is created");
    command.stderr(said);
    let log = dir.join("log");
    fs::create_dir_all(&log).expect("the directory is created");
    let (log, http) = (log.to_str().expect("UTF-8"), format!("{ours}:{}", HTTP_PORT + before));
    let flags =
        ["--io", driver, "-VV", "-f", "0", "-z", "300000", "-s", "1048576", "-b", log, "--http", &http];
    serve_by(command, Address::Tcp((ours, PORT + before).into()), &flags)
}

impl Life {
    /// Connects a client from the other address.
    fn connect(&self) -> Client {
        let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None);
        let socket = socket.expect("a descriptor is free");
        let at = |ip: Ipv4Addr, port| SockaddrIn::from(std::net::SocketAddrV4::new(ip, port));
        bind(socket.as_raw_fd(), &at(self.theirs, 0)).expect("the address is one of this machine");
        connect(socket.as_raw_fd(), &at(self.ours, PORT + self.before))
            .expect("the server accepts connections");
        Client::new(Stream::Tcp(TcpStream::from(socket)))
    }

    fn server(&mut self) -> &mut ServerProcess {
        self.server.as_mut().expect("the server was started")
    }

    /// Starts the server again on the same log.
    fn start_again(&mut self) {
        self.server = None;
        self.before += 1;
        let (server, client) = start(self.driver, self.ours, self.before, &self.dir);
        (self.server, self.client) = (Some(server), client);
    }

    /// Puts a job and returns its id.
    fn put(&mut self, delay: u32, body: &str) -> u64 {
        id_of(&self.client.ask(&put(0, delay, body)).0, "INSERTED ")
    }

    /// Reserves a job that has this body, and deletes it.
    fn reserve_and_delete(&mut self, expected: u64, body: &str) {
        let (line, data) = self.client.ask("reserve-with-timeout 50\r\n");
        assert_eq!(line, format!("RESERVED {expected} {}", body.len()));
        assert!(data.trim_end() == body, "job {expected} has another body");
        self.client.expect(&format!("delete {expected}\r\n"), "DELETED");
    }
}

fn id_of(line: &str, word: &str) -> u64 {
    let rest = line.strip_prefix(word).unwrap_or_else(|| panic!("{line}"));
    rest.split(' ').next().and_then(|id| id.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

fn names_its_driver(life: &mut Life) {
    let (_, stats) = life.client.ask("stats\r\n");
    assert_eq!(field(&stats, "io-driver"), life.driver);
}

/// Asserts the reply to each command. `ID` stands for the id of the job.
fn talk(life: &mut Life, id: u64, lines: &[(&str, &str)]) {
    let with_id = |text: &str| text.replace("ID", &id.to_string());
    for (command, reply) in lines {
        life.client.expect(&(with_id(command) + "\r\n"), &with_id(reply));
    }
}

fn put_reserve_delete(life: &mut Life) {
    let id = life.put(0, "hello");
    life.reserve_and_delete(id, "hello");
    talk(life, id, &[("reserve-with-timeout 0", "TIMED_OUT"), ("peek-ready", "NOT_FOUND")]);
}

fn touch_release(life: &mut Life) {
    let id = life.put(0, "job");
    talk(life, id, &[("reserve", "RESERVED ID 3"), ("touch ID", "TOUCHED")]);
    talk(life, id, &[("release ID 7 0", "RELEASED"), ("peek-ready", "FOUND ID 3")]);
    life.reserve_and_delete(id, "job");
}

fn bury_kick(life: &mut Life) {
    let id = life.put(0, "job");
    talk(life, id, &[("reserve", "RESERVED ID 3"), ("bury ID 0", "BURIED")]);
    talk(life, id, &[("peek-buried", "FOUND ID 3"), ("kick 10", "KICKED 1")]);
    life.reserve_and_delete(id, "job");
}

fn delay(life: &mut Life) {
    // A long delay, since the machine may pause for longer than a short one.
    let id = life.put(1000, "later");
    talk(life, id, &[("reserve-with-timeout 0", "TIMED_OUT"), ("peek-delayed", "FOUND ID 5")]);
    talk(life, id, &[("kick-job ID", "KICKED")]);
    life.reserve_and_delete(id, "later");
    let id = life.put(1, "soon");
    life.reserve_and_delete(id, "soon");
}

fn watch_ignore(life: &mut Life) {
    talk(life, 0, &[("use other", "USING other")]);
    let id = life.put(0, "there");
    talk(life, id, &[("reserve-with-timeout 0", "TIMED_OUT"), ("watch other", "WATCHING 2")]);
    life.reserve_and_delete(id, "there");
    let back =
        [("ignore other", "WATCHING 1"), ("ignore default", "NOT_IGNORED"), ("use default", "USING default")];
    talk(life, id, &back);
}

fn pause(life: &mut Life) {
    let id = life.put(0, "held back");
    talk(life, id, &[("pause-tube default 1000", "PAUSED"), ("reserve-with-timeout 0", "TIMED_OUT")]);
    talk(life, id, &[("pause-tube default 0", "PAUSED")]);
    life.reserve_and_delete(id, "held back");
}

fn waits(life: &mut Life) {
    let mut worker = life.connect();
    worker.send("reserve\r\n");
    while life.client.stat("current-waiting") == 0 {
        thread::yield_now();
    }
    let id = life.put(0, "at last");
    assert_eq!(worker.line(), Some(format!("RESERVED {id} 7")));
    assert_eq!(worker.line().as_deref(), Some("at last"));
    worker.expect(&format!("delete {id}\r\n"), "DELETED");
}

fn pipelined(life: &mut Life) {
    const JOBS: usize = 200;
    let mut worker = life.connect();
    life.client.send(&put(0, 0, "many").repeat(JOBS));
    worker.send(&"reserve\r\n".repeat(JOBS));
    let next = |client: &mut Client, word| id_of(&client.reply().expect("the server runs").0, word);
    let put: Vec<u64> = (0..JOBS).map(|_| next(&mut life.client, "INSERTED ")).collect();
    let reserved: Vec<u64> = (0..JOBS).map(|_| next(&mut worker, "RESERVED ")).collect();
    assert_eq!(put, reserved, "jobs come in the order in which they were put");
    put.iter().for_each(|id| worker.send(&format!("delete {id}\r\n")));
    put.iter().for_each(|_| assert_eq!(worker.line().as_deref(), Some("DELETED")));
}

/// Sends bodies to the other address and back, over new and over used connections.
fn large_bodies(life: &mut Life) {
    let body = |number: usize| {
        (0..BODY_BYTES).map(|at| char::from(b'a' + ((at / 7 + number) % 26) as u8)).collect::<String>()
    };
    for _ in 0..2 {
        let mut client = life.connect();
        for number in 0..3 {
            let body = body(number);
            let id = id_of(&client.ask(&put(0, 0, &body)).0, "INSERTED ");
            for _ in 0..2 {
                let (line, data) = client.ask(&format!("peek {id}\r\n"));
                assert_eq!(line, format!("FOUND {id} {BODY_BYTES}"));
                assert!(data.trim_end() == body, "the body is unaltered");
            }
            let (line, data) = client.ask("reserve\r\n");
            assert_eq!(line, format!("RESERVED {id} {BODY_BYTES}"));
            assert!(data.trim_end() == body, "the body is unaltered");
            client.expect(&format!("delete {id}\r\n"), "DELETED");
        }
    }
}

fn zero_copy(life: &mut Life) {
    let sends = life.client.stat("io-zero-copy-sends");
    let is_expected = life.driver == "uring" && life.ours != life.theirs;
    assert_eq!(sends > 0, is_expected, "{sends} zero-copy sends");
}

fn hangs_up(life: &mut Life) {
    let id = life.put(0, "dropped");
    let mut worker = life.connect();
    worker.expect("reserve\r\n", &format!("RESERVED {id} 7"));
    drop(worker);
    life.reserve_and_delete(id, "dropped");
}

fn metrics(life: &mut Life) {
    let mut stream =
        TcpStream::connect((IpAddr::V4(life.ours), HTTP_PORT)).expect("the server accepts connections");
    stream.set_read_timeout(Some(REPLY_PATIENCE)).expect("the connection is open");
    stream
        .write_all(
            format!("GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", life.ours).as_bytes(),
        )
        .expect("the connection is open");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("UTF-8");
    assert!(page.starts_with("HTTP/1.1 200 ") && page.contains("\nbeanring_"), "{page}");
}

/// Leaves jobs in several states, which the next server must recover.
fn leave_jobs(life: &mut Life) -> [u64; 3] {
    let large = "x".repeat(BODY_BYTES);
    let ids = [life.put(0, "small"), life.put(1000, "delayed"), life.put(0, &large)];
    life.client.expect("reserve\r\n", &format!("RESERVED {} 5", ids[0]));
    life.client.expect(&format!("bury {} 3\r\n", ids[0]), "BURIED");
    ids
}

fn find_jobs(life: &mut Life, ids: [u64; 3]) {
    for (id, state, bytes) in [(ids[0], "buried", 5), (ids[1], "delayed", 7), (ids[2], "ready", BODY_BYTES)] {
        let (_, stats) = life.client.ask(&format!("stats-job {id}\r\n"));
        assert_eq!(field(&stats, "state"), state, "job {id}");
        life.client.expect(&format!("peek {id}\r\n"), &format!("FOUND {id} {bytes}"));
        life.client.expect(&format!("delete {id}\r\n"), "DELETED");
    }
    life.client.expect("reserve-with-timeout 0\r\n", "TIMED_OUT");
}

fn killed(life: &mut Life) {
    let ids = leave_jobs(life);
    life.server().signal(Signal::SIGKILL);
    assert_eq!(life.server().wait(), None, "a signal has ended it");
    life.start_again();
    find_jobs(life, ids);
}

fn replaced(life: &mut Life) {
    let ids = leave_jobs(life);
    life.server().signal(Signal::SIGUSR2);
    assert_eq!(life.client.line(), None, "the connection is closed");
    life.client = life.connect();
    find_jobs(life, ids);
    names_its_driver(life);
}

fn stopped(life: &mut Life) {
    let ids = leave_jobs(life);
    life.server().signal(Signal::SIGTERM);
    assert_eq!(life.server().wait(), Some(0), "a clean stop");
    life.start_again();
    find_jobs(life, ids);
}
