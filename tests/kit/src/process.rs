//! Server processes, each on an address of its own.

use std::ffi::OsStr;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
#[cfg(server_has_tls)]
use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{env, fmt, fs, iter, process, thread};

use nix::sys::signal::{Signal, kill};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

#[cfg(server_has_tls)]
use super::certificates::Certificates;
use super::client::Client;
use super::diagnosis;
#[cfg(server_has_tls)]
use super::scratch::Scratch;
use super::signals::mask_has;
use super::statistics::field;
use super::stream::Stream;
#[cfg(server_has_tls)]
use super::tls_stream::{TlsStream, client_config};
use super::wait;

/// How long a test waits for an event that must occur. It only limits how long a failure takes.
pub const REPLY_PATIENCE: Duration = Duration::from_secs(60);

/// The time that sent bytes may take to reach a server.
const ARRIVAL: Duration = Duration::from_millis(5);

/// How long a server at rest sleeps: longer than the pause between two steps of its work.
const REST: Duration = Duration::from_millis(20);

const PORT: u16 = 21_300;

/// Set to run suites over TLS instead of TCP.
const TLS_SWITCH: &str = "BEANRING_TEST_TLS";

/// What a server listens on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    Tcp,
    Unix,
    /// TLS over TCP, and nothing else.
    #[cfg(server_has_tls)]
    Tls,
}

impl Transport {
    /// Returns the transport of suites that run over TCP, or over TLS: TLS if `BEANRING_TEST_TLS` is set.
    ///
    /// # Panics
    /// If it is set and this build has no TLS.
    pub fn of_suite() -> Self {
        if !is_over_tls() {
            return Self::Tcp;
        }
        #[cfg(server_has_tls)]
        return Self::Tls;
        #[cfg(not(server_has_tls))]
        panic!("{TLS_SWITCH} needs a build with TLS");
    }
}

/// Whether suites run over TLS instead of TCP: `BEANRING_TEST_TLS` is set.
pub fn is_over_tls() -> bool {
    env::var_os(TLS_SWITCH).is_some()
}

/// Returns the path of the server under test: `BEANRING_TEST_PROGRAM` (`ci/confined` sets it), or the program that Cargo
/// has built beside the running test.
///
/// # Panics
/// If there is no such file.
pub fn program() -> &'static str {
    static PROGRAM: LazyLock<String> = LazyLock::new(|| {
        let program = env::var("BEANRING_TEST_PROGRAM").unwrap_or_else(|_| beside_this_test("beanring"));
        assert!(Path::new(&program).is_file(), "{program} does not exist: run the tests with cargo test");
        program
    });
    &PROGRAM
}

/// Returns a command that runs the server. It has no settings of this test run, except for the driver.
pub fn beanring(arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(arguments).stdin(Stdio::null());
    for (name, _) in env::vars().filter(|(name, _)| name.starts_with("BEANRING_") && name != "BEANRING_IO") {
        command.env_remove(name);
    }
    command
}

/// Tests and benchmarks are in `target/PROFILE/deps`, programs in `target/PROFILE`.
fn beside_this_test(name: &str) -> String {
    let test = env::current_exe().expect("the path of this program is known");
    let profile = test.parent().and_then(Path::parent).expect("a test is two directories deep");
    profile.join(name).into_os_string().into_string().expect("the target directory has a UTF-8 name")
}

/// A running server. It is killed when the value is dropped.
pub struct ServerProcess {
    child: Child,
    address: Address,
}

/// The address that a server listens on.
#[derive(Debug)]
pub enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
    #[cfg(server_has_tls)]
    Tls(Box<TlsAddress>),
}

/// The address of a server with TLS, which has a certificate of its own.
#[cfg(server_has_tls)]
pub struct TlsAddress {
    pub at: SocketAddr,
    pub certificates: Certificates,
    client: Arc<rustls::ClientConfig>,
    /// The directory of the certificates.
    _dir: Scratch,
}

#[cfg(server_has_tls)]
impl fmt::Debug for TlsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} over TLS", self.at)
    }
}

impl ServerProcess {
    /// Starts `program` with beanstalkd's flags and returns it with its first connection.
    ///
    /// # Panics
    /// If the server does not start.
    pub fn start(program: &Path, transport: Transport, flags: &[impl AsRef<OsStr>]) -> (Self, Stream) {
        let mut command = Command::new(program);
        if program.ends_with("beanstalkd") {
            // beanstalkd prints every reply that is an error.
            command.stderr(Stdio::null());
        }
        Self::launch(command, Address::fresh(transport), flags)
    }

    /// Starts a server by a command that runs it, or becomes it with the arguments that follow. Returns it with its
    /// first connection.
    ///
    /// # Panics
    /// If the server does not start.
    pub fn launch(mut command: Command, address: Address, flags: &[impl AsRef<OsStr>]) -> (Self, Stream) {
        let child = spawn(&mut command, &address, flags);
        let mut server = Self { child, address };
        let stream = server.await_connection(&command);
        (server, stream)
    }

    /// Wraps a child that listens on this address, or will.
    pub const fn of(child: Child, address: Address) -> Self {
        Self { child, address }
    }

    /// Returns the address that clients connect to.
    pub const fn address(&self) -> &Address {
        &self.address
    }

    /// Sets that address.
    pub fn set_address(&mut self, address: Address) {
        self.address = address;
    }

    /// Starts a server on the address of this one, which has ended. Returns its first connection.
    ///
    /// # Panics
    /// If the server does not start.
    pub fn launch_again(&mut self, mut command: Command, flags: &[impl AsRef<OsStr>]) -> Stream {
        self.child = spawn(&mut command, &self.address, flags);
        self.await_connection(&command)
    }

    fn await_connection(&mut self, command: &Command) -> Stream {
        let started = Instant::now();
        loop {
            match self.try_connect() {
                Ok(stream) => return stream,
                Err(error) => {
                    let ended = self.child.try_wait().expect("the child is ours");
                    assert!(ended.is_none(), "{command:?} ended with {ended:?}");
                    assert!(started.elapsed() < REPLY_PATIENCE, "{command:?}: {error}");
                    thread::sleep(Duration::from_millis(5));
                }
            }
        }
    }

    /// Opens a connection.
    ///
    /// # Panics
    /// If the server refuses it.
    pub fn connect(&self) -> Stream {
        self.try_connect().unwrap_or_else(|error| panic!("cannot connect to {:?}: {error}", self.address))
    }

    /// Opens a connection for a client that reads line by line.
    pub fn client(&self) -> Client {
        Client::new(self.connect())
    }

    /// Restarts the process in place. Returns a connection to the new program.
    ///
    /// # Panics
    /// If the old program goes on.
    pub fn restart(&self) -> Client {
        let before = self.id();
        self.signal(Signal::SIGUSR2);
        self.await_other_than(&before)
    }

    /// Waits for a program with another [`Self::id`]. Returns a connection to it.
    ///
    /// # Panics
    /// If the program stays the same.
    pub fn await_other_than(&self, id: &str) -> Client {
        let mut client = self.client();
        wait::until("the new program runs", || {
            client = self.client();
            id_of(&mut client).is_some_and(|found| found != id)
        });
        client
    }

    /// Returns what `stats` shows as the `id` of the running program.
    pub fn id(&self) -> String {
        // A restart closes a connection that was made before it.
        iter::repeat_with(|| id_of(&mut self.client())).flatten().next().expect("there is no end")
    }

    /// Stops the server by SIGTERM.
    ///
    /// # Panics
    /// If that is not a clean stop.
    pub fn stop(&mut self) {
        self.signal(Signal::SIGTERM);
        assert_eq!(self.wait(), Some(0), "a clean stop");
    }

    /// Returns a field of /proc/PID/status.
    ///
    /// # Panics
    /// If there is none of this name.
    pub fn status(&self, name: &str) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let field = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        field.unwrap_or_else(|| panic!("no {name} in {status}")).trim().to_owned()
    }

    /// Returns the flags of a client for this server.
    pub fn client_flags(&self) -> String {
        self.address.client_flags()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().expect("a pid"));
        kill(pid, signal).expect("the process is ours");
    }

    /// Makes the server drain, as soon as it handles SIGUSR1: beanstalkd accepts connections before that, and the
    /// signal would end it.
    ///
    /// # Panics
    /// If the server never handles the signal.
    pub fn drain(&self) {
        wait::until("the server handles SIGUSR1", || {
            ["SigCgt:", "SigBlk:"].into_iter().any(|mask| mask_has(self.child.id(), mask, Signal::SIGUSR1))
        });
        self.signal(Signal::SIGUSR1);
    }

    /// Waits for the end of a process that should stop. Returns its exit code.
    ///
    /// # Panics
    /// If it does not end.
    pub fn wait(&mut self) -> Option<i32> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("the child is ours") {
                return status.code();
            }
            assert!(started.elapsed() < REPLY_PATIENCE, "the server does not end");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Kills the server, and waits for its end.
    ///
    /// # Panics
    /// If it does not end, or has ended before.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        assert_eq!(self.wait(), None, "the server ran");
    }

    /// Returns the CPU time of the process.
    pub fn cpu_time(&self) -> Duration {
        let pid = Pid::from_raw(self.child.id().try_into().expect("a pid"));
        clock_getcpuclockid(pid).and_then(clock_gettime).expect("it runs").into()
    }

    /// Returns the resident memory of the process in bytes.
    pub fn resident_bytes(&self) -> usize {
        let statm = fs::read_to_string(format!("/proc/{}/statm", self.child.id())).expect("it runs");
        let pages: usize = statm.split(' ').nth(1).and_then(|text| text.parse().ok()).expect("a number");
        pages * 4096
    }

    /// Returns the memory that belongs to the process alone.
    pub fn anonymous_bytes(&self) -> usize {
        anonymous_bytes(self.child.id())
    }

    /// Returns the number of open descriptors.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("it runs").count()
    }

    /// Waits until the server has processed everything that one connection has sent, before another one sends: the
    /// server is woken, and sleeps again when it is done. This takes a while on a busy machine.
    ///
    /// # Panics
    /// If the server never sleeps, or cannot because it is stopped or has ended.
    pub fn settle(&self) {
        self.settle_within(REPLY_PATIENCE);
    }

    /// [`Self::settle`] with another time limit.
    ///
    /// # Panics
    /// As for [`Self::settle`].
    pub fn settle_within(&self, patience: Duration) {
        let started = Instant::now();
        loop {
            thread::sleep(ARRIVAL);
            let states = self.thread_states();
            match states.iter().find(|&&state| state != 'S') {
                None => return,
                Some(state @ ('T' | 't' | 'Z' | 'X')) => panic!("the server cannot settle in state {state}"),
                Some(state) => {
                    assert!(started.elapsed() < patience, "the server does not sleep: state {state}");
                }
            }
        }
    }

    /// Returns whether no thread of the server runs in the next moment: the server has nothing left to do.
    pub fn is_at_rest(&self) -> bool {
        // They count how often the thread has left the CPU.
        let before = self.of_threads("status");
        thread::sleep(REST);
        self.thread_states().iter().all(|&state| state == 'S') && self.of_threads("status") == before
    }

    /// Waits until the lines are written that the server has logged before its last reply. Its thread for them then runs or sleeps.
    pub fn await_log(&self) {
        let is_idle =
            || self.of_threads("stat").iter().all(|stat| !stat.contains(" (log) ") || state_in(stat) == 'S');
        wait::until("the log is written", is_idle);
    }

    /// Returns the states of all threads.
    fn thread_states(&self) -> Vec<char> {
        self.of_threads("stat").iter().map(|stat| state_in(stat)).collect()
    }

    /// Returns a file of each thread.
    fn of_threads(&self, name: &str) -> Vec<String> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.child.id())).into_iter().flatten();
        threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join(name)).ok()).collect()
    }

    /// Returns whether the process has ended, even if the test has not waited for that.
    pub fn has_ended(&self) -> bool {
        fs::read_to_string(format!("/proc/{}/stat", self.child.id()))
            .map_or(true, |stat| state_in(&stat) == 'Z')
    }

    /// Returns the state of the process, as in proc(5).
    pub fn state(&self) -> char {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("it is ours");
        state_in(&stat)
    }

    /// Turns a TCP connection to the server into one of its clients: over TLS it shakes hands.
    ///
    /// # Panics
    /// If the server listens on a UNIX socket, or the handshake fails.
    pub fn over(&self, tcp: TcpStream) -> Stream {
        self.address.over(tcp).unwrap_or_else(|error| panic!("cannot connect to {:?}: {error}", self.address))
    }

    /// Opens a connection, if the server does not refuse it.
    ///
    /// # Errors
    /// Those of connect(2), and of the handshake.
    pub fn try_connect(&self) -> io::Result<Stream> {
        let at = match &self.address {
            Address::Unix(path) => return Ok(Stream::Unix(UnixStream::connect(path)?)),
            Address::Tcp(at) => *at,
            #[cfg(server_has_tls)]
            Address::Tls(tls) => tls.at,
        };
        let tcp = TcpStream::connect(at)?;
        tcp.set_nodelay(true)?;
        self.address.over(tcp)
    }
}

fn id_of(client: &mut Client) -> Option<String> {
    client.send("stats\r\n");
    client.reply().map(|(_, stats)| field(&stats, "id").to_owned())
}

fn spawn(command: &mut Command, address: &Address, flags: &[impl AsRef<OsStr>]) -> Child {
    command.args(address.flags()).args(flags).stdin(Stdio::null()).stdout(Stdio::null());
    // The output of the tests stays readable. A flag in `flags` wins.
    command.env("BEANRING_LOG_LEVEL", "warn");
    command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"))
}

/// The state in a line of proc(5).
fn state_in(stat: &str) -> char {
    stat.rsplit(") ").next().and_then(|fields| fields.chars().next()).expect("the state follows the name")
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        if thread::panicking() {
            let connection = self.try_connect().ok();
            eprintln!("{}", diagnosis::of(self.child.id(), &self.address, connection));
        }
        // Both calls fail only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Address::Unix(path) = &self.address {
            let _ = fs::remove_file(path);
        }
    }
}

/// As in the flags of the server.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(at) => at.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            #[cfg(server_has_tls)]
            Self::Tls(tls) => tls.at.fmt(f),
        }
    }
}

impl Address {
    /// Returns an address of this server's own. Loopback has 2^24 addresses, so there is no need to search for a free
    /// port that another process could take first.
    pub fn fresh(transport: Transport) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let own = process::id().wrapping_mul(251).wrapping_add(count);
        let [_, high, middle, low] = (own % 0xfe_fffe + 0x01_0001).to_be_bytes();
        let at = (Ipv4Addr::new(127, high, middle, low), PORT).into();
        match transport {
            Transport::Unix => {
                Self::Unix(env::temp_dir().join(format!("beanring-test-{}-{count}.sock", process::id())))
            }
            transport => Self::at(at, transport),
        }
    }

    /// Returns a socket address of this server's own, as [`Self::fresh`] does.
    ///
    /// # Panics
    /// Never: TCP has socket addresses.
    pub fn fresh_tcp() -> SocketAddr {
        match Self::fresh(Transport::Tcp) {
            Self::Tcp(at) => at,
            other => panic!("{other:?} is not for TCP"),
        }
    }

    /// Returns this address for TCP or TLS. With TLS it gets new certificates.
    ///
    /// # Panics
    /// If the transport has no such addresses.
    pub fn at(at: SocketAddr, transport: Transport) -> Self {
        match transport {
            Transport::Tcp => Self::Tcp(at),
            #[cfg(server_has_tls)]
            Transport::Tls => {
                let dir = Scratch::new("tls-address");
                let certificates = Certificates::new(&dir.0);
                let client = client_config(&certificates.ca, None);
                Self::Tls(Box::new(TlsAddress { at, certificates, client, _dir: dir }))
            }
            Transport::Unix => panic!("a UNIX socket has a path"),
        }
    }

    fn client_flags(&self) -> String {
        match self {
            Self::Tcp(_) | Self::Unix(_) => format!("-a {self}"),
            #[cfg(server_has_tls)]
            Self::Tls(tls) => tls.certificates.client_flags(tls.at),
        }
    }

    fn over(&self, tcp: TcpStream) -> io::Result<Stream> {
        match self {
            Self::Tcp(_) => Ok(Stream::Tcp(tcp)),
            #[cfg(server_has_tls)]
            Self::Tls(tls) => Ok(Stream::Tls(TlsStream::over(tcp, &tls.client)?)),
            Self::Unix(_) => panic!("a UNIX socket is no TCP connection"),
        }
    }

    fn flags(&self) -> Vec<String> {
        match self {
            Self::Tcp(address) => {
                vec!["-l".into(), address.ip().to_string(), "-p".into(), address.port().to_string()]
            }
            Self::Unix(_) => vec!["-l".into(), self.to_string()],
            #[cfg(server_has_tls)]
            Self::Tls(tls) => {
                let listen = ["-l", "none", "--tls-listen", &tls.at.to_string()].map(str::to_owned);
                listen.into_iter().chain(tls.certificates.server.flags()).collect()
            }
        }
    }
}

/// Returns the memory that belongs to a process alone. Resident memory also has the pages of the program, which the kernel drops when
/// memory is short, and reads again when they are used.
pub fn anonymous_bytes(pid: u32) -> usize {
    let sums = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("it runs");
    let kib = |name: &str| {
        let line = sums.lines().find_map(|line| line.strip_prefix(name)).expect("all sums are there");
        line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number")
    };
    1024 * (kib("Anonymous:") + kib("Swap:"))
}
