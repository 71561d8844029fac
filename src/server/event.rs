//! All that can happen to the server, and all that it can ask of a driver.

use super::DriverStats;
use crate::ids::ConnId;
use crate::wal::Outcome;

/// What a driver tells the server.
#[derive(Debug)]
pub enum Event<'a> {
    /// Bytes arrived. They may be kept only until the call returns.
    Received {
        /// From whom.
        conn: ConnId,
        /// What; not empty.
        bytes: &'a [u8],
    },
    /// Bytes arrived and are already where [`Server::direct`](super::Server::direct) said.
    ReceivedDirect {
        /// From whom.
        conn: ConnId,
        /// How many; not 0 and not more than the place had room for.
        bytes: usize,
    },
    /// The peer will send nothing more, but what it sent before is not all received yet: the connection
    /// is paused. It may still read.
    InputEnding {
        /// Whose input.
        conn: ConnId,
    },
    /// Everything that the peer sent is received, and it will send nothing more; it may still read.
    InputEnded {
        /// Whose input.
        conn: ConnId,
    },
    /// The kernel took this many bytes of [`Server::outgoing`](super::Server::outgoing).
    Sent {
        /// To whom.
        conn: ConnId,
        /// How many, from the front.
        bytes: usize,
    },
    /// The connection is broken: nothing can be sent or received any more.
    HungUp {
        /// Which.
        conn: ConnId,
    },
    /// The driver has closed the connection after [`Effect::Close`] and no operation on its memory is
    /// under way.
    Closed {
        /// Which; the id is not used again.
        conn: ConnId,
    },
    /// Accept no new jobs from now on (SIGUSR1).
    Drain,
    /// The process is to end (SIGTERM): bring to disk what is to be there.
    Stop,
    /// An operation from [`Service::disk`](super::Service::disk) is over.
    Disk(Outcome),
    /// The answer to [`Effect::SampleStats`].
    StatsSampled(DriverStats),
    /// The memory that the driver has allocated for itself has changed: its size in bytes.
    DriverMemory(u64),
}

impl Event<'_> {
    /// The connection that it is about, if it is about one.
    #[inline]
    pub const fn conn(&self) -> Option<ConnId> {
        match *self {
            Self::Received { conn, .. }
            | Self::ReceivedDirect { conn, .. }
            | Self::InputEnding { conn }
            | Self::InputEnded { conn }
            | Self::Sent { conn, .. }
            | Self::HungUp { conn }
            | Self::Closed { conn } => Some(conn),
            Self::Drain | Self::Stop | Self::Disk(_) | Self::StatsSampled(_) | Self::DriverMemory(_) => None,
        }
    }
}

/// What the server asks of its driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// There is output: send what [`Server::outgoing`](super::Server::outgoing) shows, and go on until
    /// it shows nothing. Comes once until then.
    Send(ConnId),
    /// Do not receive from this connection, but watch for its hang-up.
    Pause(ConnId),
    /// Receive from it again.
    Resume(ConnId),
    /// Close it and report [`Event::Closed`]. The last effect for this connection.
    Close(ConnId),
    /// A reply or a page needs what the driver counts: report it at once by [`Event::StatsSampled`].
    SampleStats,
    /// There is something to do for the disk: begin what [`Service::disk`](super::Service::disk) tells, until it
    /// tells nothing.
    Disk,
    /// It cannot go on: send what can be sent at once, and stop. [`Service::failure`](super::Service::failure)
    /// tells why.
    Fail,
}
