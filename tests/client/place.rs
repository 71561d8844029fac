//! Servers, and the client that the tests run against them.

use std::env;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::thread;

use beanring::config::address;
use beanring::io::driver::Driver;
use beanring_testkit::certificates::Certificates;
use beanring_testkit::client::Client;
use beanring_testkit::process::{Address, ServerProcess, Transport, is_over_tls, program};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::{beanstalkd, driver, statistics, tls_front, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// A running server.
pub struct Place {
    pub server: ServerProcess,
    /// Its address, for `--addr`.
    pub address: String,
    /// The flags with which it can be started again.
    pub flags: Vec<String>,
    /// The variables of TLS, and the certificates they name.
    tls: Option<(Scratch, Vec<(&'static str, String)>)>,
    pub is_beanring: bool,
}

/// What a run of the client has printed.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

/// Runs a test against new servers at the same time: one under each driver, and beanstalkd.
pub fn everywhere(what: &str, test: impl Fn(&Place) + Sync) {
    let mut places: Vec<Place> =
        driver::allowed(what).map(|io| Place::beanring(io, Transport::Tcp, &[])).collect();
    match beanstalkd::installed() {
        Some(path) => places.push(Place::beanstalkd(&path)),
        None => println!("skipped: {what}, because beanstalkd is not installed"),
    }
    thread::scope(|scope| {
        for place in &places {
            scope.spawn(|| test(place));
        }
    });
}

/// Runs a test against beanring under the driver of `BEANRING_IO`, and against beanstalkd.
pub fn with_both(what: &str, test: impl Fn(&Place)) {
    test(&Place::default());
    match beanstalkd::installed() {
        Some(path) => test(&Place::beanstalkd(&path)),
        None => println!("skipped: {what}, because beanstalkd is not installed"),
    }
}

impl Default for Place {
    fn default() -> Self {
        Self::launch(Path::new(program()), Address::fresh(Transport::Tcp), &[], true)
    }
}

impl Place {
    pub fn beanring(io: Driver, transport: Transport, flags: &[&str]) -> Self {
        let all: Vec<String> = driver::flags(io).iter().chain(flags).map(|&flag| flag.to_owned()).collect();
        Self::launch(Path::new(program()), Address::fresh(transport), &all, true)
    }

    fn beanstalkd(path: &Path) -> Self {
        Self::launch(path, Address::fresh(Transport::Tcp), &[], false)
    }

    pub fn launch(program: &Path, address: Address, flags: &[String], is_beanring: bool) -> Self {
        let text = match &address {
            Address::Tcp(address) => address.to_string(),
            Address::Unix(path) => format!("unix:{}", path.display()),
            #[cfg(feature = "tls")]
            Address::Tls(tls) => format!("beanstalks://{}", tls.at),
        };
        let mut command = Command::new(program);
        if !is_beanring {
            // beanstalkd prints every reply that is an error.
            command.stderr(Stdio::null());
        }
        let Some(plain) = (match &address {
            Address::Tcp(address) if is_over_tls() => Some(*address),
            _ => None,
        }) else {
            let (server, _) = ServerProcess::launch(command, address, flags);
            return Self { server, address: text, flags: flags.to_vec(), tls: None, is_beanring };
        };
        let scratch = Scratch::new("client-tls");
        let certificates = Certificates::new(&scratch.0);
        let variables = vec![
            ("BEANRING_TLS_CA", certificates.ca.display().to_string()),
            ("BEANRING_TLS_NAME", "localhost".to_owned()),
        ];
        let mut flags = flags.to_vec();
        let tls = if is_beanring {
            let tls = SocketAddr::new(plain.ip(), address::TLS_PORT_DEFAULT);
            flags.extend(["--tls-listen".to_owned(), tls.to_string()]);
            flags.extend(certificates.server.flags());
            tls
        } else {
            tls_front::start(plain, tls_front::config(&certificates.server, None))
        };
        let (server, _) = ServerProcess::launch(command, address, &flags);
        let address = format!("beanstalks://{tls}");
        Self { server, address, flags, tls: Some((scratch, variables)), is_beanring }
    }

    /// A client that talks to this server.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = client();
        command.args(arguments).env("BEANRING_ADDR", &self.address);
        command.envs(self.variables());
        command
    }

    /// Runs the client to its end.
    pub fn run(&self, arguments: &[&str]) -> Ran {
        ran(&mut self.command(arguments), b"")
    }

    /// Runs the client with this input.
    pub fn feed(&self, arguments: &[&str], input: &[u8]) -> Ran {
        ran(&mut self.command(arguments), input)
    }

    /// Runs the client, which must succeed without a word on stderr. Returns what it printed.
    pub fn ok(&self, arguments: &[&str]) -> String {
        self.run(arguments).ok()
    }

    /// Runs the client on a terminal, and returns what appeared there.
    pub fn on_terminal(&self, arguments: &[&str], variables: &[(&str, &str)]) -> String {
        let tls: Vec<(&str, &str)> = self.variables().map(|(name, value)| (name, &**value)).collect();
        on_terminal(&self.address, arguments, &[&tls, variables].concat())
    }

    /// What the client needs besides the address.
    pub fn variables(&self) -> impl Iterator<Item = (&'static str, &String)> {
        self.tls.iter().flat_map(|(_, variables)| variables).map(|(name, value)| (*name, value))
    }

    /// Returns a number that `beanring job`, `tube` or `stats` shows. A dot in the key leads into an object.
    pub fn number(&self, arguments: &[&str], key: &str) -> u64 {
        let object = self.json(arguments);
        let found = key.split('.').fold(&object, |within, name| &within[name]);
        found.as_u64().unwrap_or_else(|| panic!("{arguments:?}: {key} is {found}"))
    }

    /// Returns the object that a verb prints with `--json`.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let text = self.ok(&[arguments, &["--json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
    }

    /// Returns the objects that a verb prints with `--json`.
    pub fn json_lines(&self, arguments: &[&str]) -> Vec<Value> {
        let text = self.ok(&[arguments, &["--json"]].concat());
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// Begins to run the client, without input.
    pub fn begin(&self, arguments: &[&str]) -> Running {
        Running::spawn(self.command(arguments).stdin(Stdio::null()))
    }

    /// Begins to run the client, whose input comes later.
    pub fn begin_fed(&self, arguments: &[&str]) -> (Running, ChildStdin) {
        let mut running = Running::spawn(self.command(arguments).stdin(Stdio::piped()));
        let stdin = running.0.stdin.take().expect("a pipe");
        (running, stdin)
    }

    /// A client without TLS that is not the program under test.
    pub fn control(&self) -> Client {
        Client::new(self.server.connect())
    }

    /// Returns the numbers of ready, reserved, delayed and buried jobs.
    pub fn jobs(&self) -> [u64; 4] {
        let (_, stats) = self.control().ask("stats\r\n");
        ["ready", "reserved", "delayed", "buried"]
            .map(|state| statistics::number(&stats, &format!("current-jobs-{state}")))
    }

    /// Waits until the server has these numbers of jobs.
    pub fn wait_for_jobs(&self, expected: [u64; 4]) {
        wait::until(&format!("the server has {expected:?} jobs"), || self.jobs() == expected);
    }

    /// Waits until `stats` of the server has this number.
    pub fn await_stat(&self, key: &str, number: u64) {
        wait::until(&format!("{key} is {number}"), || self.control().stat(key) == number);
    }
}

/// A client that runs.
pub struct Running(pub Child);

impl Running {
    /// Starts a command whose output is read at its end.
    pub fn spawn(command: &mut Command) -> Self {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().expect("the program starts"))
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).expect("it runs");
    }

    /// Waits for its end.
    pub fn end(self) -> Ran {
        let Output { status, stdout, stderr } = self.0.wait_with_output().expect("it is ours");
        Ran { code: status.code(), stdout, stderr: String::from_utf8(stderr).expect("text") }
    }
}

impl Ran {
    /// Asserts success without a word on stderr. Returns what was printed.
    pub fn ok(self) -> String {
        assert_eq!((self.code, &*self.stderr), (Some(0), ""), "{self:?}");
        self.text()
    }

    /// Asserts the exit code and the only line on stderr.
    pub fn fails(self, code: i32, line: &str) {
        let said = self.stderr.strip_prefix("beanring: ").and_then(|rest| rest.strip_suffix('\n'));
        assert_eq!((self.code, said), (Some(code), Some(line)), "{self:?}");
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).expect("text")
    }

    /// Returns the object on standard output.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// The client without variables of this test run.
pub fn client() -> Command {
    let mut command = Command::new(program());
    without_variables(&mut command);
    command
}

fn without_variables(command: &mut Command) {
    for (name, _) in env::vars().filter(|(name, _)| name.starts_with("BEANRING_") || name == "NO_COLOR") {
        command.env_remove(name);
    }
}

/// Runs the client on a terminal with the server at this address, and returns what appeared there.
pub fn on_terminal(address: &str, arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let words = [&[program()], arguments].concat();
    let line: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &line.join(" "), "/dev/null"]);
    without_variables(&mut command);
    command.env("BEANRING_ADDR", address).env("TERM", "xterm").envs(variables.iter().copied());
    let output = command.stdin(Stdio::null()).output().expect("script is there");
    String::from_utf8(output.stdout).expect("the terminal gets text").replace("\r\n", "\n")
}

/// Runs a command with this input.
pub fn ran(command: &mut Command, input: &[u8]) -> Ran {
    let mut running = Running::spawn(command.stdin(Stdio::piped()));
    let mut stdin = running.0.stdin.take().expect("a pipe");
    thread::scope(|scope| {
        // The command may end before it has read everything.
        scope.spawn(move || drop(stdin.write_all(input)));
        running.end()
    })
}

/// Runs the client with this address of a server.
pub fn run_at(address: &str, arguments: &[&str]) -> Ran {
    ran(client().args(arguments).env("BEANRING_ADDR", address), b"")
}
