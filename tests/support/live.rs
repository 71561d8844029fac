//! A server process of its own for each test, and a [`Peer`] that talks to it over sockets.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{MsgFlags, recv};
use nix::unistd::Pid;

use super::diagnosis;
use super::peer::{Patience, Peer, Received};
use super::signals::mask_has;

/// How long a live test waits for what must come. It bounds a failure, not a server: nothing that
/// passes depends on it.
pub const REPLY_PATIENCE: Duration = Duration::from_secs(60);

const QUIET_PATIENCE: Duration = Duration::from_millis(60);

/// Time for what was sent to reach a server.
const ARRIVAL: Duration = Duration::from_millis(5);

const PORT: u16 = 21_300;

/// What a server is to listen on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    Tcp,
    Unix,
}

/// Debian's beanstalkd, where it is installed.
pub fn reference() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).map(|dir| dir.join("beanstalkd")).find(|program| program.is_file())
}

/// A running server; ends with this value.
pub struct ServerProcess {
    child: Child,
    address: Address,
}

/// Where a server listens.
#[derive(Debug)]
pub enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl ServerProcess {
    /// Starts `program` with beanstalkd's flags and returns it with its first connection.
    ///
    /// # Panics
    /// If the server does not come up.
    pub fn start(program: &Path, transport: Transport, flags: &[String]) -> (Self, Stream) {
        let mut command = Command::new(program);
        if program.ends_with("beanstalkd") {
            // It reports each answer that is an error of sorts.
            command.stderr(Stdio::null());
        }
        Self::launch(command, Address::fresh(transport), flags)
    }

    /// Starts a server with a command that runs it, or becomes it with the arguments that follow, and
    /// returns it with its first connection.
    ///
    /// # Panics
    /// If the server does not come up.
    pub fn launch(mut command: Command, address: Address, flags: &[String]) -> (Self, Stream) {
        command.args(address.flags()).args(flags).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let mut server = Self { child, address };
        let started = Instant::now();
        loop {
            match server.try_connect() {
                Ok(stream) => return (server, stream),
                Err(error) => {
                    let ended = server.child.try_wait().expect("the child is ours");
                    assert!(ended.is_none(), "{command:?} ended with {ended:?}");
                    assert!(started.elapsed() < REPLY_PATIENCE, "{command:?}: {error}");
                    thread::sleep(Duration::from_millis(5));
                }
            }
        }
    }

    /// A new connection.
    ///
    /// # Panics
    /// If the server refuses it.
    pub fn connect(&self) -> Stream {
        self.try_connect().unwrap_or_else(|error| panic!("cannot connect to {:?}: {error}", self.address))
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().expect("a pid"));
        kill(pid, signal).expect("the process is ours");
    }

    /// Tells the server to drain, once it awaits to be told: the reference is there to be connected to before that, and
    /// would end.
    ///
    /// # Panics
    /// If it never awaits it.
    pub fn drain(&self) {
        let started = Instant::now();
        while !["SigCgt:", "SigBlk:"].into_iter().any(|mask| mask_has(self.child.id(), mask, Signal::SIGUSR1))
        {
            assert!(started.elapsed() < REPLY_PATIENCE, "it does not await SIGUSR1");
            thread::sleep(Duration::from_millis(2));
        }
        self.signal(Signal::SIGUSR1);
    }

    /// Waits for the end of a process that was told to stop. Its exit code.
    ///
    /// # Panics
    /// If it does not end.
    pub fn wait(&mut self) -> Option<i32> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("the child is ours") {
                return status.code();
            }
            assert!(started.elapsed() < REPLY_PATIENCE, "it does not end");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Processor time that the process has used.
    pub fn cpu_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("it runs");
        let fields = stat.rsplit(") ").next().expect("fields follow the name");
        let ticks = |at: usize| fields.split(' ').nth(at).and_then(|text| text.parse::<u64>().ok());
        Duration::from_millis(10 * (ticks(11).expect("a number") + ticks(12).expect("a number")))
    }

    /// Resident memory of the process, in bytes.
    pub fn resident_bytes(&self) -> usize {
        let statm = fs::read_to_string(format!("/proc/{}/statm", self.child.id())).expect("it runs");
        let pages: usize = statm.split(' ').nth(1).and_then(|text| text.parse().ok()).expect("a number");
        pages * 4096
    }

    /// How many descriptors the process has open.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("it runs").count()
    }

    /// Waits until the server has taken note of what was done to one connection, before something is done to
    /// another: it is woken by that, and sleeps when it is done. On a busy machine this takes a while.
    ///
    /// # Panics
    /// If the server never sleeps, or cannot because it was stopped or has ended.
    pub fn settle(&self) {
        self.settle_within(REPLY_PATIENCE);
    }

    /// [`Self::settle`] with another limit.
    ///
    /// # Panics
    /// Likewise.
    pub fn settle_within(&self, patience: Duration) {
        let started = Instant::now();
        loop {
            thread::sleep(ARRIVAL);
            match self.state() {
                'S' => return,
                state @ ('T' | 't' | 'Z' | 'X') => panic!("the server cannot settle in state {state}"),
                state => assert!(started.elapsed() < patience, "the server does not sleep: state {state}"),
            }
        }
    }

    /// The state of the process, as in proc(5).
    pub fn state(&self) -> char {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("it is ours");
        stat.rsplit(") ").next().and_then(|fields| fields.chars().next()).expect("the state follows the name")
    }

    fn try_connect(&self) -> io::Result<Stream> {
        match &self.address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
            Address::Unix(path) => Ok(Stream::Unix(UnixStream::connect(path)?)),
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        if thread::panicking() {
            let connection = self.try_connect().ok();
            eprintln!("{}", diagnosis::of(self.child.id(), &self.address, connection));
        }
        // Both fail only for a process that has ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Address::Unix(path) = &self.address {
            let _ = fs::remove_file(path);
        }
    }
}

impl Address {
    /// Loopback has 2^24 addresses. With one for each server no free port has to be found, which
    /// somebody else could take before it is used.
    pub fn fresh(transport: Transport) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let own = process::id().wrapping_mul(251).wrapping_add(count);
        match transport {
            Transport::Tcp => {
                let [_, high, middle, low] = (own % 0xfe_fffe + 0x01_0001).to_be_bytes();
                Self::Tcp((Ipv4Addr::new(127, high, middle, low), PORT).into())
            }
            Transport::Unix => {
                Self::Unix(env::temp_dir().join(format!("beanring-test-{}-{count}.sock", process::id())))
            }
        }
    }

    fn flags(&self) -> Vec<String> {
        match self {
            Self::Tcp(address) => {
                vec!["-l".into(), address.ip().to_string(), "-p".into(), address.port().to_string()]
            }
            Self::Unix(path) => vec!["-l".into(), format!("unix:{}", path.display())],
        }
    }
}

/// A client's connection.
#[derive(Debug)]
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Sends all of it. A server that has hung up shows in what is received.
    pub fn send(&mut self, bytes: &[u8]) {
        let sent = match self {
            Self::Tcp(stream) => stream.write_all(bytes),
            Self::Unix(stream) => stream.write_all(bytes),
        };
        if let Err(error) = sent {
            assert!(is_hang_up(&error), "cannot send: {error}");
        }
    }

    /// What there is, or comes within `patience`.
    pub fn receive(&mut self, patience: Duration) -> Received {
        let mut buffer = vec![0; 64 * 1024];
        let timeout = Some(patience.max(Duration::from_micros(1)));
        let mut read = || match self {
            Self::Tcp(stream) => stream.set_read_timeout(timeout).and_then(|()| stream.read(&mut buffer)),
            Self::Unix(stream) => stream.set_read_timeout(timeout).and_then(|()| stream.read(&mut buffer)),
        };
        let result = loop {
            match read() {
                // A signal ends a wait that has a limit, whoever it is for.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => break result,
            }
        };
        Self::received(result, buffer)
    }

    /// What there is by now.
    pub fn receive_now(&mut self) -> Received {
        let mut buffer = vec![0; 64 * 1024];
        let fd = match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
        };
        let result = recv(fd, &mut buffer, MsgFlags::MSG_DONTWAIT).map_err(io::Error::from);
        Self::received(result, buffer)
    }

    /// Ends what this side sends.
    pub fn half_close(&mut self) {
        self.shut_down(Shutdown::Write);
    }

    /// Closes it, also while another test starts a process that has a copy of it for a moment.
    pub fn close(mut self) {
        self.shut_down(Shutdown::Both);
    }

    fn shut_down(&mut self, how: Shutdown) {
        // Fails only if the server was first.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(how),
            Self::Unix(stream) => stream.shutdown(how),
        };
    }
}

impl Stream {
    fn received(result: io::Result<usize>, mut buffer: Vec<u8>) -> Received {
        match result {
            Ok(0) => Received::Closed,
            Ok(length) => {
                buffer.truncate(length);
                Received::Bytes(buffer)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Received::Silence,
            Err(error) if is_hang_up(&error) => Received::Closed,
            Err(error) => panic!("cannot receive: {error}"),
        }
    }
}

fn is_hang_up(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::NotConnected)
}

/// A [`Peer`] with a real server, real sockets and real time.
pub struct Live {
    server: ServerProcess,
    /// PersistedState for the first `open`, so that the server counts no connection that the conversation does
    /// not make.
    first: Option<Stream>,
    streams: Vec<Option<Stream>>,
    /// The connection that spoke last and was not answered since: another one that speaks now could be
    /// heard before it.
    unanswered: Option<usize>,
}

impl Live {
    /// Starts a server.
    pub fn start(program: &Path, transport: Transport, flags: &[String]) -> Self {
        Self::with(ServerProcess::start(program, transport, flags))
    }

    /// With a server that runs, and its first connection.
    pub fn with((server, first): (ServerProcess, Stream)) -> Self {
        Self { server, first: Some(first), streams: Vec::new(), unanswered: None }
    }

    fn stream(&mut self, conn: usize) -> &mut Stream {
        self.streams[conn].as_mut().expect("the connection is open")
    }

    fn settle_unless(&mut self, conn: usize) {
        if self.unanswered.take().is_some_and(|other| other != conn) {
            self.server.settle();
        }
    }
}

impl Peer for Live {
    fn open(&mut self) -> usize {
        let stream = self.first.take().unwrap_or_else(|| self.server.connect());
        self.streams.push(Some(stream));
        self.streams.len() - 1
    }

    fn send(&mut self, conn: usize, bytes: &[u8]) {
        self.settle_unless(conn);
        self.stream(conn).send(bytes);
        self.unanswered = Some(conn);
    }

    fn receive(&mut self, conn: usize, patience: Patience) -> Received {
        let received = self.stream(conn).receive(match patience {
            Patience::Reply => REPLY_PATIENCE,
            Patience::Quiet => QUIET_PATIENCE,
        });
        self.unanswered = None;
        received
    }

    fn advance(&mut self, span: Duration) {
        thread::sleep(span);
    }

    fn half_close(&mut self, conn: usize) {
        self.settle_unless(conn);
        self.stream(conn).half_close();
        self.server.settle();
    }

    fn close(&mut self, conn: usize) {
        self.settle_unless(conn);
        self.streams[conn].take().expect("the connection is open").close();
        self.server.settle();
    }

    fn drain(&mut self) {
        self.server.drain();
        self.server.settle();
    }
}
