//! A standby's thread, clients of it, and a leader that a test plays.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use beanring::io::descriptors;
use beanring::io::forward::{Arrival, Forwarder, LeaderTarget, Settings};
use beanring::server::ForwardCounts;
use beanring::time::Span;
use beanring::transport::forwarded::{Inbound, admit};
use beanring::values::link_secret::LinkSecret;
use beanring_testkit::process::REPLY_PATIENCE;
use beanring_testkit::wait;
use nix::time::{ClockId, clock_gettime};

use super::end::TlsEnd;

pub const SECRET: LinkSecret = LinkSecret { token: 0x70ce_2970_ce29_70ce, shown: 0x5ec7_e7f0_0d5e_c7e7 };

/// What a connection to the leader takes of the memory of a standby beside its buffers.
pub const TLS_BYTES: u64 = 10 * 1024;

/// A standby: a listener whose connections the thread forwards.
pub struct Standby {
    pub forwarder: Forwarder,
    /// The id of its thread.
    thread: String,
    listener: TcpListener,
}

/// One starts at a time, so that its thread is known.
static STARTING: Mutex<()> = Mutex::new(());

/// The ids of the threads of this process that forward: those of other tests too.
fn forwarding_threads() -> BTreeSet<String> {
    let tasks = fs::read_dir("/proc/self/task").expect("there is /proc");
    let ids = tasks.filter_map(|task| task.ok()?.file_name().into_string().ok());
    let name = |id: &str| fs::read_to_string(format!("/proc/self/task/{id}/comm"));
    ids.filter(|id| name(id).is_ok_and(|name| name == "forward\n")).collect()
}

/// The addresses of a forwarded client: its own, and the one that it has connected to. Both tell it from the connection that watches
/// the leader, which may have the same port.
type Ends = (SocketAddr, SocketAddr);

type Arrived = HashMap<Ends, TlsEnd>;

/// A leader: each connection is known by the addresses in its header.
pub struct PlayedLeader {
    pub address: SocketAddr,
    arrived: Arc<(Mutex<Arrived>, Condvar)>,
}

/// Settings for tests, which wait less than clients do.
pub fn settings() -> Settings {
    Settings { wait: Span::from_secs(20), connect: Span::from_millis(500), ..Settings::default() }
}

impl Standby {
    pub fn new(settings: Settings) -> Self {
        descriptors::raise_limit().expect("a soft limit can be raised");
        let _alone = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        let others = forwarding_threads();
        let forwarder = Forwarder::start(settings).expect("a thread can be started");
        let mut thread = None;
        // A thread has its name when it runs.
        wait::until("the thread runs", || {
            thread = forwarding_threads().difference(&others).next().cloned();
            thread.is_some()
        });
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        Self { forwarder, thread: thread.expect("it runs"), listener }
    }

    /// The CPU time of its thread.
    pub fn cpu_time(&self) -> Duration {
        let id: i32 = self.thread.parse().expect("the name of a task is a number");
        // The clock of a thread: clock_getcpuclockid(3) has only that of a process.
        clock_gettime(ClockId::from_raw(!id << 3 | 6)).expect("the thread runs").into()
    }

    /// A standby of a played leader.
    pub fn led(settings: Settings) -> (Self, PlayedLeader) {
        let (standby, leader) = (Self::new(settings), PlayedLeader::new());
        standby.lead_to(leader.address);
        (standby, leader)
    }

    /// Returns a client with the leader's end of its connection.
    pub fn forwarded_to(&self, leader: &PlayedLeader) -> (TcpStream, TlsEnd) {
        let client = self.client();
        let end = leader.end_of(&client);
        (client, end)
    }

    /// Returns a client whose connection is forwarded.
    pub fn client(&self) -> TcpStream {
        self.client_with(Inbound::default())
    }

    pub fn client_with(&self, inbound: Inbound) -> TcpStream {
        let address = self.listener.local_addr().expect("it is bound");
        let client = TcpStream::connect(address).expect("it listens");
        client.set_read_timeout(Some(REPLY_PATIENCE)).expect("a socket option");
        client.set_nodelay(true).expect("a socket option");
        let (accepted, _) = self.listener.accept().expect("a client has connected");
        accepted.set_nodelay(true).expect("a socket option");
        self.forwarder.forward(accepted.into(), Arrival { listener: 0, inbound });
        client
    }

    pub fn lead_to(&self, address: impl ToString) {
        self.forwarder.lead_to(Some(LeaderTarget { address: address.to_string(), secret: SECRET }));
    }

    pub fn counts(&self) -> &ForwardCounts {
        self.forwarder.counts()
    }

    /// Waits for a condition of the counts.
    pub fn wait_for(&self, what: &str, condition: impl Fn(&ForwardCounts) -> bool) {
        wait::until_ok(|| match self.counts() {
            counts if condition(counts) => Ok(()),
            counts => Err(format!("waited for {what}: {counts:?}")),
        });
    }
}

impl PlayedLeader {
    pub fn new() -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").expect("a port is free"))
    }

    pub fn on(listener: TcpListener) -> Self {
        Self::with(listener, SECRET)
    }

    /// A leader with another secret, at this listener.
    pub fn with(listener: TcpListener, secret: LinkSecret) -> Self {
        let address = listener.local_addr().expect("it is bound");
        let arrived = Arc::new((Mutex::new(HashMap::new()), Condvar::new()));
        let shared = Arc::clone(&arrived);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let Ok(mut stream) = TlsEnd::greet(stream, secret) else { continue };
                if let Some(ends) = read_header(&mut stream) {
                    shared.0.lock().expect("no thread panics").insert(ends, stream);
                    shared.1.notify_all();
                }
            }
        });
        Self { address, arrived }
    }

    /// Waits for the leader's end of a forwarded connection.
    pub fn end_of(&self, client: &TcpStream) -> TlsEnd {
        let ends = ends_of(client);
        let stream = self.wait_for(|all| all.contains_key(&ends)).remove(&ends);
        let stream = stream.expect("the client is forwarded in time");
        stream.set_read_timeout(Some(REPLY_PATIENCE)).expect("a socket option");
        stream
    }

    /// Waits until a connection watches this leader. Its client is the standby.
    pub fn await_watch(&self) {
        let is_watched = |all: &Arrived| all.keys().any(|(_, to)| *to == self.address);
        assert!(is_watched(&self.wait_for(is_watched)), "no connection watches the leader");
    }

    /// Waits for connections that arrive.
    fn wait_for(&self, is_met: impl Fn(&Arrived) -> bool) -> MutexGuard<'_, Arrived> {
        let arrived = self.arrived.0.lock().expect("no thread panics");
        let wait = self.arrived.1.wait_timeout_while(arrived, REPLY_PATIENCE, |all| !is_met(all));
        wait.expect("no thread panics").0
    }

    /// Whether the client has reached this leader.
    pub fn has(&self, client: &TcpStream) -> bool {
        self.arrived.0.lock().expect("no thread panics").contains_key(&ends_of(client))
    }
}

fn ends_of(client: &TcpStream) -> Ends {
    (client.local_addr().expect("it is connected"), client.peer_addr().expect("it is connected"))
}

/// Reads a header, checks its secret, and returns the client's addresses.
fn read_header(stream: &mut TlsEnd) -> Option<Ends> {
    let mut header = vec![0; 16];
    stream.read_exact(&mut header).ok()?;
    header.resize(16 + usize::from(u16::from_be_bytes([header[14], header[15]])), 0);
    stream.read_exact(&mut header[16..]).ok()?;
    assert!(admit(&header, Some(SECRET.shown)).is_some(), "{header:?}");
    let port = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let four = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&header[at..at + 4]).expect("four bytes"));
    let six = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&header[at..at + 16]).expect("16 bytes"));
    Some(match header[13] {
        0x11 => ((four(16), port(24)).into(), (four(20), port(26)).into()),
        0x21 => ((six(16), port(48)).into(), (six(32), port(50)).into()),
        family => panic!("an unknown family: {family}"),
    })
}

/// Returns what arrives until the connection ends.
pub fn rest(stream: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A reset is an end too. A time-out is none.
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
    bytes
}

/// Sends bytes, which must arrive at the other end.
pub fn pass(from: &mut impl Write, to: &mut impl Read, bytes: &[u8]) {
    from.write_all(bytes).expect("it is open");
    let mut found = vec![0; bytes.len()];
    to.read_exact(&mut found).expect("it is passed on");
    assert_eq!(found, bytes);
}

/// Ends the output of a client.
pub fn end_output(stream: &TcpStream) {
    stream.shutdown(Shutdown::Write).expect("it is connected");
}

/// Ends the output of the leader.
pub fn end_output_of_leader(end: &TlsEnd) {
    end.end_output().expect("it is connected");
}
