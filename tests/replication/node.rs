//! A server process whose job log is in the database, with its log lines. It can be started again.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use beanring_testkit::client::Client;
use beanring_testkit::namespaces::{Machines, command, inside};
use beanring_testkit::process::{Address, Transport, program};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::stream::Stream;
use beanring_testkit::unused_address::ReservedPort;
use beanring_testkit::wait;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Lines of a log that are shown after a failure.
const LINES_SHOWN: usize = 60;

pub struct Node {
    pub address: SocketAddr,
    /// Where standbys find it.
    pub advertised: String,
    pub http: SocketAddr,
    /// The network namespace of its machine.
    machine: Option<String>,
    flags: Vec<String>,
    /// Where its log is.
    scratch: Scratch,
    child: Option<Child>,
    /// For standbys, unless the server has a machine of its own.
    _port: Option<ReservedPort>,
}

impl Node {
    /// A server with these flags, which is not started, on loopback addresses of its own or on a machine.
    pub fn new(url: &str, flags: &[&str], machine: Option<(&Machines, usize)>) -> Self {
        let (address, advertised, port) = if let Some((machines, number)) = machine {
            let host = machines.address(number);
            (SocketAddr::from((host, 11300)), format!("{host}:11401"), None)
        } else {
            let Address::Tcp(own) = Address::fresh(Transport::Tcp) else { unreachable!("it is one of TCP") };
            let port = ReservedPort::take();
            (own, format!("localhost:{}", port.get()), Some(port))
        };
        let machine = machine.map(|(machines, number)| machines.name(number));
        let http = SocketAddr::from((address.ip(), 11380));
        let (host, client_port) = (address.ip(), address.port());
        let mut own = format!("-l {host} -p {client_port} --http {http} --replicate {url} --log-level info");
        if !flags.contains(&"--no-forward") {
            own += &format!(" --advertise {advertised}");
        }
        let flags = own.split(' ').chain(flags.iter().copied()).map(str::to_owned).collect();
        let scratch = Scratch::new("node");
        Self { address, advertised, http, machine, flags, scratch, child: None, _port: port }
    }

    /// Starts the server.
    pub fn start(&mut self) {
        self.start_by(&[program()]);
    }

    /// Starts the server with a limit of open files.
    pub fn start_with_descriptors(&mut self, limit: u32) {
        let script = format!("ulimit -n {limit}; exec \"$0\" \"$@\"");
        self.start_by(&["sh", "-c", &script, program()]);
    }

    fn start_by(&mut self, program: &[&str]) {
        assert!(self.child.is_none(), "it runs");
        let log = OpenOptions::new().create(true).append(true).open(self.log()).expect("there is space");
        let mut command = match &self.machine {
            None => command(program),
            Some(machine) => command(&[&["ip", "netns", "exec", machine], program].concat()),
        };
        command.args(&self.flags).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().expect("it can be started"));
    }

    /// Kills the server, and waits for its end.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        self.ended();
    }

    /// Ends the server with SIGTERM, and waits for its end. Returns its exit code.
    pub fn terminate(&mut self) -> Option<i32> {
        self.signal(Signal::SIGTERM);
        self.ended().code()
    }

    /// Waits for its end.
    pub fn ended(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("it runs");
        let mut status = None;
        wait::until("the server ends", || {
            status = child.try_wait().expect("it is a child");
            // The kernel closes listeners of an io_uring only after the end of its process.
            status.is_some() && !self.listens()
        });
        status.expect("it has ended")
    }

    fn listens(&self) -> bool {
        let try_connect = || {
            let addresses = [self.address, self.http].map(|address| address.to_string());
            addresses.iter().chain([&self.advertised]).any(|address| TcpStream::connect(address).is_ok())
        };
        self.machine.as_ref().map_or_else(try_connect, |machine| inside(machine, try_connect))
    }

    pub fn signal(&self, signal: Signal) {
        let pid = self.pid().expect("it runs");
        kill(Pid::from_raw(pid.cast_signed()), signal).expect("it runs");
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Returns a client, once the server listens.
    pub fn client(&mut self) -> Client {
        let mut client = None;
        wait::until("the server listens", || {
            client = self.connect();
            let ended = self.child.as_mut().expect("it runs").try_wait().expect("it is a child");
            assert_eq!(ended, None);
            client.is_some()
        });
        client.expect("it listens")
    }

    /// Returns a client, if the server listens.
    pub fn connect(&self) -> Option<Client> {
        let stream = TcpStream::connect(self.address).ok()?;
        stream.set_nodelay(true).expect("a socket option");
        Some(Client::new(Stream::Tcp(stream)))
    }

    /// Asks until a connection is not closed. Returns it, and how long that took.
    pub fn serves(&mut self, command: &str, expected: &str) -> (Client, Duration) {
        let began = Instant::now();
        let mut client = self.client();
        wait::until("a connection is not closed", || {
            client.send(command);
            let reply = client.reply();
            let Some((reply, _)) = reply else {
                client = self.client();
                return false;
            };
            assert_eq!(reply, expected);
            true
        });
        (client, began.elapsed())
    }

    /// Asks it over HTTP. Returns the status and the body; none if it does not answer.
    pub fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect_timeout(&self.http, Duration::from_secs(1)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).expect("a socket option");
        let request = format!("GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.http);
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

    /// Waits until `/readyz` has this text.
    pub fn wait_for_readiness(&self, expected: &str) {
        let expected_status = if expected == "ready\n" { 200 } else { 503 };
        wait::until(expected, || {
            let Some((status, body)) = self.get("/readyz") else { return false };
            let is_met = body.ends_with(expected);
            assert!(!is_met || status == expected_status, "{status} {body}");
            is_met
        });
    }

    /// Waits until a log line has this text.
    pub fn wait_for(&self, text: &str) {
        wait::until(text, || self.log_text().contains(text));
    }

    fn log(&self) -> PathBuf {
        self.scratch.join("log")
    }

    pub fn log_text(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    pub fn empty_log(&self) {
        File::create(self.log()).expect("there is space");
    }

    /// The last lines of its log.
    pub fn last_lines(&self) -> String {
        let text = self.log_text();
        let lines: Vec<&str> = text.lines().collect();
        let last = &lines[lines.len().saturating_sub(LINES_SHOWN)..];
        format!("log of the server at {}:\n{}\n", self.address, last.join("\n"))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.last_lines());
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
