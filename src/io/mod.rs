//! Drivers and all else that talks to the kernel. Nothing outside this directory opens a descriptor or
//! reads a clock.
//!
//! A driver is one file with a `NAME` for `stats` and a `run(&mut Server, Sources)` that returns when
//! the process was told to stop. It feeds events to the server and carries out the effects; sockets,
//! signals and descriptors are shared by all drivers and stand in files of their own.

pub mod clock;
pub mod descriptors;
pub mod epoll;
pub mod host;
pub mod signal;
pub mod socket;
pub mod table;
pub mod user;

use std::fmt;

use nix::errno::Errno;

use clock::Clock;
use signal::Signals;
use socket::Listener;

/// What a driver watches besides its connections.
#[derive(Debug)]
pub struct Sources {
    /// Where connections come from; at least one.
    pub listeners: Vec<Listener>,
    /// What the process is told by signals.
    pub signals: Signals,
    /// The time.
    pub clock: Clock,
}

/// Why a driver could not start or go on. Nothing that a peer does can cause one.
#[derive(Debug)]
pub enum DriverError {
    /// The kernel refused what the driver needs at start.
    Setup(Errno),
    /// Waiting for events failed.
    Wait(Errno),
    /// A listening socket broke.
    Accept(Errno),
    /// Reading the signals failed.
    Signals(Errno),
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, errno) = match self {
            Self::Setup(errno) => ("cannot set up the event loop", errno),
            Self::Wait(errno) => ("cannot wait for events", errno),
            Self::Accept(errno) => ("cannot accept connections", errno),
            Self::Signals(errno) => ("cannot read signals", errno),
        };
        write!(f, "{what}: {}", errno.desc())
    }
}

impl std::error::Error for DriverError {}
