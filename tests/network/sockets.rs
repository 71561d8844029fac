//! Zero-copy sends of large bodies between two network namespaces, which the kernel takes for two machines: the bodies arrive
//! unaltered.
//!
//! The kernel copies them in the end, since both are the same machine. Until then, and until they are acknowledged, it reads them
//! where they lie. With `BEANRING_TEST_TLS` that is where their ciphertext lies, which is never registered.

use std::env;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::process::Command;

use beanring::io::driver::Driver;
use beanring_testkit::client::{Client, serve_by};
use beanring_testkit::driver;
use beanring_testkit::live::Live;
use beanring_testkit::namespaces::{Network, command, try_run};
use beanring_testkit::process::{Address, ServerProcess, Transport, is_over_tls, program};
use beanring_testkit::random::Random;
use beanring_testkit::runner::{Dialect, run};
use beanring_testkit::statistics::number;
use beanring_testkit::suite::{flags, in_real_time, run_at_once};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, connect, setsockopt, socket, sockopt};
use nix::unistd::geteuid;

pub const BODY_BYTES: usize = 60_000;

/// Each wave of jobs has readers of its own: after the kernel has copied on a connection, the server sends nothing more on it
/// without a copy.
const WAVES: u64 = 4;
const READERS: u64 = 40;
const JOBS_PER_READER: u64 = 5;
const JOBS_PER_WAVE: u64 = READERS * JOBS_PER_READER;

/// The memory that an unprivileged process may lock on most systems.
const LOCKED_BYTES_MAX: u64 = 8 * 1024 * 1024;
const MEMLOCK: &str = "--memlock=8388608:8388608";

const _: () = assert!(JOBS_PER_WAVE * BODY_BYTES as u64 > LOCKED_BYTES_MAX + LOCKED_BYTES_MAX / 4);

/// The receive buffer of a reader. A body fits into it and the send buffer of the server together. So the server sees it sent,
/// and the kernel still reads most of it in place.
const READER_SOCKET_BYTES: usize = 16 * 1024;

#[test]
fn large_bodies_are_sent_without_a_copy() {
    over_a_network("large bodies over a network", &[], |network| {
        let (server, mut control) = launch(network, &[]);
        exchange(network, &server, &mut control);
        let stats = control.stats();
        assert!(number(&stats, "io-zero-copy-sends") > 0, "{stats}");
        assert!(number(&stats, "io-zero-copy-copies") > 0, "a virtual cable copies: {stats}");
        assert_eq!(number(&stats, "io-registered-bytes") > 0, !is_over_tls(), "{stats}");
    });
}

#[test]
fn nothing_is_sent_without_a_copy_if_disabled() {
    over_a_network("large bodies over a network, with copies", &[], |network| {
        let (server, mut control) = launch(network, &["--zero-copy-memory", "0"]);
        exchange(network, &server, &mut control);
        let stats = control.stats();
        assert_eq!(number(&stats, "io-zero-copy-sends"), 0, "{stats}");
        assert_eq!(number(&stats, "io-registered-bytes"), 0, "{stats}");
    });
}

#[test]
fn more_bodies_than_lockable_memory() {
    over_a_network("large bodies over a network, with a limit of locked memory", &limit(), |network| {
        let (mut said, stderr) = io::pipe().expect("a descriptor is free");
        let mut command = network.on_server(&[&limit()[..], &[program()]].concat());
        command.stderr(stderr);
        let (server, mut control) = launch_with(command, network, &[]);
        exchange(network, &server, &mut control);
        let stats = control.stats();
        assert!(number(&stats, "io-zero-copy-sends") > 0, "{stats}");
        let registered = number(&stats, "io-registered-bytes");
        assert!(registered <= LOCKED_BYTES_MAX, "{stats}");
        assert_eq!(registered > 0, !is_over_tls(), "{stats}");

        drop(server);
        let mut lines = String::new();
        said.read_to_string(&mut lines).expect("UTF-8");
        let is_other = |line: &&str| line.contains("other machines may connect");
        let lines: Vec<&str> = lines.lines().filter(|line| !is_other(line)).collect();
        // Nothing else needs more locked memory than there is.
        assert_eq!(
            lines.len(),
            usize::from(!is_over_tls()),
            "a registration that fails is one line: {lines:?}"
        );
        assert!(lines.iter().all(|line| line.contains("WARN") && line.contains("ulimit -l")), "{lines:?}");
    });
}

#[test]
fn conversations_with_a_limit_of_locked_memory() {
    const WHAT: &str = "conversations with a limit of locked memory";
    if !driver::is_allowed(Driver::Uring, WHAT) {
        return;
    }
    if let Err(error) = try_run(&mut command(&[&limit()[..], &["true"]].concat())) {
        return println!("skipped: {WHAT}, because {error}");
    }
    let _turn = turn_of_limited();
    // The limit is that of the user, which has room for some 30 rings. The kernel frees a ring after the end of its process.
    run_at_once(4, in_real_time().collect(), |conversation| {
        let flags = [&flags(conversation)[..], &driver::flags(Driver::Uring).map(str::to_owned)].concat();
        let limited = command(&[&limit()[..], &[program()]].concat());
        let server = ServerProcess::launch(limited, Address::fresh(Transport::of_suite()), &flags);
        run(conversation, &mut Live::with(server), Dialect::Quoted)
    });
}

/// One body belongs to a job that remains, and one to a deleted job.
#[test]
fn a_client_that_vanishes_within_a_large_body() {
    over_a_network("clients over a network that vanish within a large body", &[], |network| {
        let (server, mut control) = launch(network, &[]);
        for first in (1..40).step_by(4) {
            put(&mut control, first..first + 2);
            let mut holds = connect_narrowly(network, &server);
            holds.send(&format!("reserve-job {first}\r\n"));
            let mut deleted = Reader::start(network, &server, first + 1..first + 2);
            for client in [&mut holds, &mut deleted.client] {
                client.expect_bytes("RESERVED ");
            }
            drop((holds, deleted));
            put(&mut control, first + 2..first + 4);
            control.await_stat("current-jobs-reserved", |count| count == 0);
            Reader::start(network, &server, first..first + 1).finish();
            Reader::start(network, &server, first + 2..first + 4).finish();
        }
        control.await_stat("current-connections", |count| count == 1);
        assert!(control.stat("io-zero-copy-sends") > 0);
    });
}

/// The clients quit, or end their input, while a body is in flight.
#[test]
fn clients_that_end_their_input_before_they_read() {
    over_a_network("clients over a network that are done before they have read", &[], |network| {
        let (server, mut control) = launch(network, &[]);
        let mut readers: Vec<Reader> = Vec::new();
        for (round, quits) in (0..6).zip([true, false].into_iter().cycle()) {
            let ids = 1 + round * READERS..1 + (round + 1) * READERS;
            put(&mut control, ids.clone());
            for mut reader in readers.drain(..) {
                reader.finish();
                reader.client.expect_end();
            }
            readers.extend(ids.map(|id| Reader::start(network, &server, id..id + 1)));
            for Reader { client, .. } in &mut readers {
                if quits { client.send("quit\r\n") } else { client.stream.half_close() }
            }
            control.await_stat("cmd-delete", |count| count == (round + 1) * READERS);
        }
        drop(readers);
        control.await_stat("current-connections", |count| count == 1);
    });
}

/// Runs `test` on the client's side of a network, if the test can create one. The server runs behind `wrapper`.
pub fn over_a_network(what: &str, wrapper: &[&str], test: impl FnOnce(&Network) + Send) {
    if !driver::is_allowed(Driver::Uring, what) {
        return;
    }
    let network = Network::lay().and_then(|network| {
        try_run(&mut network.on_server(&[wrapper, &["true"]].concat()))?;
        Ok(network)
    });
    match network {
        Ok(network) => {
            let _turn = (!wrapper.is_empty()).then(turn_of_limited);
            network.on_client(|| test(&network));
        }
        Err(error) => println!("skipped: {what}, because {error}"),
    }
}

/// Returns the command that runs a program with a limit of locked memory (RLIMIT_MEMLOCK).
fn limit() -> Vec<&'static str> {
    let mut words = vec!["prlimit", MEMLOCK];
    // Root has a capability that voids the limit. Other users do not have it, and may not drop capabilities like this.
    if geteuid().is_root() {
        words.extend(["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"]);
    }
    words
}

/// Locks a file, so that only one server with a limit of locked memory runs at a time, in all processes: the memory of all of them
/// counts for each.
fn turn_of_limited() -> File {
    let name = format!("beanring-test-locked-memory-{}", geteuid());
    let file = File::create(env::temp_dir().join(name)).expect("the file is created");
    file.lock().expect("the file is locked");
    file
}

pub fn launch(network: &Network, flags: &[&str]) -> (ServerProcess, Client) {
    launch_with(network.on_server(&[program()]), network, flags)
}

fn launch_with(command: Command, network: &Network, flags: &[&str]) -> (ServerProcess, Client) {
    let flags = [&driver::flags(Driver::Uring)[..], flags].concat();
    let address = Address::at(network.address().into(), Transport::of_suite());
    let (server, mut control) = serve_by(command, address, &flags);
    let stats = control.stats();
    assert!(stats.contains("\nio-driver: uring\n"), "{stats}");
    (server, control)
}

/// Sends bodies to many readers. While they are in flight, new bodies arrive, which would take any slot that is freed.
fn exchange(network: &Network, server: &ServerProcess, control: &mut Client) {
    let mut readers = Vec::new();
    for wave in 0..WAVES {
        let first = 1 + wave * JOBS_PER_WAVE;
        put(control, first..first + JOBS_PER_WAVE);
        readers.drain(..).for_each(|mut reader: Reader| reader.finish());
        let firsts = (first..).step_by(JOBS_PER_READER as usize).take(READERS as usize);
        readers.extend(firsts.map(|first| Reader::start(network, server, first..first + JOBS_PER_READER)));
        // The first job of each reader: the others wait until that is read.
        control.await_stat("cmd-delete", |count| count >= wave * JOBS_PER_WAVE + READERS);
    }
    readers.drain(..).for_each(|mut reader: Reader| reader.finish());
}

/// Puts jobs, which get these ids.
pub fn put(control: &mut Client, ids: Range<u64>) {
    for id in ids.clone() {
        control.send(&format!("put 0 0 1000 {BODY_BYTES}\r\n"));
        control.stream.send(&body(id));
        control.send("\r\n");
    }
    ids.for_each(|id| control.expect_reply(&format!("INSERTED {id}")));
}

/// The body of a job, different from every other.
fn body(id: u64) -> Vec<u8> {
    let mut random = Random::new(id);
    let mut body = vec![0; BODY_BYTES];
    for word in body.chunks_exact_mut(8) {
        word.copy_from_slice(&random.next().to_le_bytes());
    }
    body
}

/// A client that has reserved jobs and has not read the replies.
struct Reader {
    client: Client,
    jobs: Range<u64>,
}

impl Reader {
    /// Reserves the jobs and deletes each, without reading the replies.
    fn start(network: &Network, server: &ServerProcess, jobs: Range<u64>) -> Self {
        let mut client = connect_narrowly(network, server);
        for id in jobs.clone() {
            client.send(&format!("reserve-job {id}\r\ndelete {id}\r\n"));
        }
        Self { client, jobs }
    }

    /// Reads the replies and checks them.
    fn finish(&mut self) {
        for id in self.jobs.clone() {
            self.client.expect_bytes(format!("RESERVED {id} {BODY_BYTES}\r\n"));
            let received = self.client.take_bytes(BODY_BYTES).expect("the server runs");
            let altered = received.iter().zip(&body(id)).position(|(one, other)| one != other);
            assert_eq!(altered, None, "the first byte of job {id} that is altered");
            self.client.expect_bytes("\r\nDELETED\r\n");
        }
    }
}

/// Connects with a small receive buffer.
pub fn connect_narrowly(network: &Network, server: &ServerProcess) -> Client {
    connect_with(network, server, READER_SOCKET_BYTES)
}

/// Connects with a receive buffer of this size.
pub fn connect_with(network: &Network, server: &ServerProcess, buffer_bytes: usize) -> Client {
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None);
    let socket = socket.expect("a descriptor is free");
    // Before the connection: the window that is announced then does not shrink.
    setsockopt(&socket, sockopt::RcvBuf, &buffer_bytes).expect("the socket option is set");
    connect(socket.as_raw_fd(), &SockaddrIn::from(network.address()))
        .expect("the server accepts connections");
    Client::new(server.over(socket.into()))
}
