//! Drivers and all else that talks to the kernel. Nothing outside this directory opens a descriptor or
//! reads a clock.
//!
//! A driver is one file with a `NAME` for `stats` and a `run(server, Sources)` that returns when the
//! process was told to stop; [`driver`] knows them all. It feeds events to the server and carries out the
//! effects; sockets, signals and descriptors are shared by all drivers and stand in files of their own.

pub mod binlog_import;
pub mod breaks;
pub mod clock;
pub mod descriptors;
pub mod driver;
pub mod epoll;
pub mod host;
pub mod iovecs;
pub mod privileges;
pub mod probe;
pub mod reexec;
pub mod refusal;
pub mod rights;
pub mod sandbox;
pub mod signal;
pub mod socket;
pub mod systemd;
pub mod table;
#[cfg(feature = "tokio-uring")]
pub mod tokio_uring;
#[cfg(feature = "uring")]
pub mod uring;
pub mod wal_files;

use std::fmt;
use std::fs::File;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;

use clock::Clock;
use refusal::Refusal;
use signal::Signals;
use socket::Listener;
use wal_files::Disk;

use crate::limits::TAKEN_PAUSES;

/// What a driver watches besides its connections.
#[derive(Debug)]
pub struct Sources {
    /// Where connections come from; at least one.
    pub listeners: Vec<Listener>,
    /// What the process is told by signals.
    pub signals: Signals,
    /// The time.
    pub clock: Clock,
    /// Where the log is, if there is one.
    pub disk: Option<Disk>,
    /// How many connections there may be at once, if that is bounded.
    pub connections_max: Option<u32>,
    /// How much memory of job bodies may be registered with the kernel, in bytes.
    pub registered_bytes_max: u64,
}

/// Tries something again for a moment if it fails for want of what the kernel may be about to get back: what a program
/// that has ended had left to an io_uring, it lets go only after that.
fn patiently<T, E>(mut attempt: impl FnMut() -> Result<T, E>, is_want: impl Fn(&E) -> bool) -> Result<T, E> {
    for pause in TAKEN_PAUSES {
        match attempt() {
            Err(error) if is_want(&error) => thread::sleep(Duration::from_nanos(pause.as_nanos())),
            result => return result,
        }
    }
    attempt()
}

/// How serving has ended.
#[derive(Debug)]
pub enum Ending {
    /// The process was told to stop.
    Stopped,
    /// Another program is to take over, with the sockets and the lock of the log.
    Replaced(Vec<Listener>, File),
}

impl Ending {
    /// With the sockets that were listened on; where they are not handed over, they are closed. Where they are, the
    /// threads of the disk end before: the descriptors of the process are then this thread's alone.
    pub fn of(is_replaced: bool, listeners: impl Iterator<Item = Listener>, disk: Option<Disk>) -> Self {
        if !is_replaced {
            return Self::Stopped;
        }
        let lock = disk.expect("only a server with a log is replaced").end();
        Self::Replaced(listeners.collect(), lock)
    }
}

/// Why a driver could not start or go on. Nothing that a peer does can cause one.
#[derive(Debug)]
pub enum DriverError {
    /// The kernel refused what the driver needs at start.
    Setup(Errno),
    /// The kernel refused an io_uring.
    Ring(Refusal),
    /// Waiting for events failed.
    Wait(Errno),
    /// A listening socket broke.
    Accept(Errno),
    /// Reading the signals failed.
    Signals(Errno),
    /// The server cannot go on, and says why.
    Server(String),
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, errno) = match self {
            Self::Setup(errno) => ("cannot set up the event loop", errno),
            Self::Ring(refusal) => return refusal.fmt(f),
            Self::Wait(errno) => ("cannot wait for events", errno),
            Self::Accept(errno) => ("cannot accept connections", errno),
            Self::Signals(errno) => ("cannot read signals", errno),
            Self::Server(why) => return f.write_str(why),
        };
        write!(f, "{what}: {}", errno.desc())
    }
}

impl std::error::Error for DriverError {}
