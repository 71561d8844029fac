//! Servers, and the client that the tests run against them.

use std::env;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use beanring::config::address;
use beanring::io::driver::Driver;
use beanring_testkit::certificates::{Certificates, Pair};
use beanring_testkit::process::{Address, REPLY_PATIENCE, ServerProcess, Transport, is_over_tls, program};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::{beanstalkd, driver, tls_front};

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
    let drivers = Driver::ALL.iter().copied().filter(|&io| driver::is_allowed(io, what));
    let mut places: Vec<Place> = drivers.map(|io| Place::beanring(io, Transport::Tcp, &[])).collect();
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
        let mut all = driver::flags(io);
        all.extend(flags.iter().map(|&flag| flag.to_owned()));
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
            let Pair { certificate, key } = &certificates.server;
            let (certificate, key) = (certificate.display().to_string(), key.display().to_string());
            flags.extend(["--tls-listen".to_owned(), tls.to_string(), "--tls-cert".to_owned(), certificate]);
            flags.extend(["--tls-key".to_owned(), key]);
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
    pub fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let text = self.ok(&[arguments, &["--json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
    }

    /// Returns the objects that a verb prints with `--json`.
    pub fn json_lines(&self, arguments: &[&str]) -> Vec<serde_json::Value> {
        let text = self.ok(&[arguments, &["--json"]].concat());
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// Returns the numbers of ready, reserved, delayed and buried jobs.
    pub fn jobs(&self) -> [u64; 4] {
        let stats = self.json(&["stats"]);
        ["ready", "reserved", "delayed", "buried"]
            .map(|state| stats["jobs"][state].as_u64().expect("a number"))
    }

    /// Waits until the server has these numbers of jobs.
    pub fn wait_until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        wait_until(|| is_so(self), || what.to_owned());
    }

    pub fn wait_for_jobs(&self, expected: [u64; 4]) {
        wait_until(|| self.jobs() == expected, || format!("{:?} instead of {expected:?}", self.jobs()));
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
    let mut child = spawn(command.stdin(Stdio::piped()));
    let mut stdin = child.stdin.take().expect("a pipe");
    let Output { status, stdout, stderr } = thread::scope(|scope| {
        // The command may end before it has read everything.
        scope.spawn(move || drop(stdin.write_all(input)));
        child.wait_with_output().expect("it is ours")
    });
    Ran { code: status.code(), stdout, stderr: String::from_utf8(stderr).expect("text") }
}

/// Starts a command whose output is read later.
pub fn spawn(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
}

/// Waits until something has happened.
pub fn wait_until(has_happened: impl Fn() -> bool, what: impl Fn() -> String) {
    let started = Instant::now();
    while !has_happened() {
        assert!(started.elapsed() < REPLY_PATIENCE, "{}", what());
        thread::sleep(Duration::from_millis(10));
    }
}
