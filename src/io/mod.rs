//! Everything that talks to the kernel. No module outside of this directory opens a descriptor or reads a clock.
//!
//! A driver has a `NAME` for `stats` and a `run(server, Resources)` that returns when the server stops or restarts in place. It
//! waits for events, passes them to the server and carries out the server's effects. `shell` contains
//! what all drivers do alike, and [`driver`] chooses one.

mod bell;
pub mod binlog_import;
pub mod certificate;
pub mod cgroup;
pub mod clock;
mod conn_table;
mod connection_log;
pub mod descriptors;
pub mod dial;
pub mod driver;
#[cfg(any(feature = "tokio-uring", feature = "uring"))]
mod durable_write;
pub mod epoll;
#[cfg(feature = "replicate")]
pub mod forward;
pub mod host;
pub mod layers;
#[cfg(feature = "tls")]
pub mod lenient_verifier;
pub mod log_writer;
pub mod lost_peers;
pub mod named_file;
pub mod privileges;
pub mod reexec;
#[cfg(feature = "replicate")]
pub mod replica;
pub mod ring_error;
pub mod sandbox;
mod shell;
pub mod signal;
pub mod socket;
pub mod stdout;
pub mod systemd;
#[cfg(feature = "tokio-uring")]
pub mod tokio_uring;
#[cfg(feature = "tls")]
pub mod trusted;
#[cfg(feature = "uring")]
pub mod uring;
pub mod users_file;
pub mod wal_files;
pub mod watched_files;

use std::fmt;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
#[cfg(any(feature = "tokio-uring", feature = "uring"))]
use nix::sys::resource::{Resource, getrlimit};

use clock::Clock;
use host::ProcessFiles;
use lost_peers::Keepalive;
use ring_error::RingError;
use signal::Signals;
use socket::Listener;
use wal_files::Disk;
use watched_files::WatchedFiles;

use crate::time::Span;
use crate::wal::replica::LogStore;

/// What a driver is given besides the server.
#[derive(Debug)]
pub struct Resources {
    /// At least one.
    pub listeners: Vec<Listener>,
    /// The signals of the process.
    pub signals: Signals,
    /// The clock whose times the server is given.
    pub clock: Clock,
    /// The disk, for a server with a job log.
    pub disk: Option<Disk>,
    /// The database, for a server whose job log is in one.
    pub database: Option<Box<dyn Database>>,
    /// What forwards clients to the leader, for a server that does that as a standby.
    pub forwarding: Option<Forwarding>,
    /// The maximum number of client connections, if they are bounded.
    pub connections_max: Option<u32>,
    /// When the kernel probes the peers of TCP connections, if it does.
    pub keepalive: Option<Keepalive>,
    /// The maximum size of body memory that is registered with the kernel, in bytes.
    pub registered_bytes_max: u64,
    /// What the kernel tells about the process.
    pub process: ProcessFiles,
    /// Files that are read again when they change.
    pub watched_files: WatchedFiles,
}

/// This program is no standby.
#[cfg(not(feature = "replicate"))]
pub type Forwarding = std::convert::Infallible;

/// A standby's way to the leader.
#[cfg(feature = "replicate")]
#[derive(Debug)]
pub struct Forwarding {
    /// The thread that forwards.
    pub forwarder: forward::Forwarder,
    /// What standbys must show when this server leads.
    pub own_secret: u64,
}

/// The database of a job log as the event loop sees it.
pub trait Database: LogStore + fmt::Debug {
    /// A descriptor that is readable when there is a reply.
    fn reply_fd(&self) -> BorrowedFd<'_>;

    /// Resets the descriptor. Call this before [`reply`](LogStore::reply), so that no reply is missed.
    fn clear_reply_fd(&mut self);

    /// Ends its threads and closes its connections.
    fn end(self: Box<Self>);
}

/// Pauses between attempts at something that the kernel may not have back yet from a process that has ended: an address, or
/// locked memory.
const RETRY_PAUSES: [Span; 3] = [Span::from_millis(50), Span::from_millis(100), Span::from_millis(200)];

/// Repeats an attempt for up to 350 ms while it fails for want of such a thing. The kernel frees the memory of an io_uring
/// some time after its process has ended.
fn retry_briefly<T, E>(
    mut attempt: impl FnMut() -> Result<T, E>,
    is_shortage: impl Fn(&E) -> bool,
) -> Result<T, E> {
    for pause in RETRY_PAUSES {
        match attempt() {
            Err(error) if is_shortage(&error) => thread::sleep(Duration::from_nanos(pause.as_nanos())),
            result => return result,
        }
    }
    attempt()
}

/// Repeats an attempt as [`retry_briefly`] does that needs `bytes` of locked memory or more. Where the limit of the process is
/// lower, no other process can give back enough, so there is one attempt.
#[cfg(any(feature = "tokio-uring", feature = "uring"))]
fn retry_for_locked_memory<T, E>(
    bytes: u64,
    attempt: impl FnMut() -> Result<T, E>,
    is_shortage: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(u64::MAX, |(soft, _)| soft);
    retry_within(limit, bytes, attempt, is_shortage)
}

#[cfg(any(feature = "tokio-uring", feature = "uring"))]
fn retry_within<T, E>(
    limit: u64,
    bytes: u64,
    attempt: impl FnMut() -> Result<T, E>,
    is_shortage: impl Fn(&E) -> bool,
) -> Result<T, E> {
    retry_briefly(attempt, |error| limit >= bytes && is_shortage(error))
}

/// How a run has ended.
#[derive(Debug)]
pub enum Exit {
    /// The server has stopped.
    Stopped,
    /// The server has stopped, and the process is to restart in place with these listeners and the lock of a job log in a
    /// directory.
    Restart(Vec<Listener>, Option<File>),
    /// Another server leads a replicated queue: the process is to restart in place as a standby.
    Fenced(Vec<Listener>),
}

/// Why a driver could not start or continue. No peer can cause one.
// docs/RUNBOOK.md lists these messages.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum DriverError {
    #[error("cannot set up the event loop: {}", .0.desc())]
    Setup(Errno),
    #[error("{0}")]
    Ring(RingError),
    #[error("cannot wait for events: {}", .0.desc())]
    Wait(Errno),
    #[error("cannot accept connections: {}", .0.desc())]
    Accept(Errno),
    #[error("cannot read signals: {}", .0.desc())]
    Signals(Errno),
    #[error("{0}")]
    Server(String),
}

#[cfg(all(test, any(feature = "tokio-uring", feature = "uring")))]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_too_low_is_no_reason_to_wait() {
        let attempts = |bytes| {
            let mut count = 0;
            let attempt = || {
                count += 1;
                Err::<(), _>(Errno::ENOMEM)
            };
            let result = retry_within(1 << 16, bytes, attempt, |&errno| errno == Errno::ENOMEM);
            assert_eq!(result, Err(Errno::ENOMEM));
            count
        };
        assert_eq!(attempts((1 << 16) + 1), 1);
        assert_eq!(attempts(1 << 16), 1 + RETRY_PAUSES.len());
    }
}
