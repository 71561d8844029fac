//! Everything that can happen to the server, and everything that it can request from a driver.

use super::{HandshakeFailure, Peer};
use crate::protocol::foreign::Foreign;
use crate::time::Time;
use crate::values::budget::Cost;
use crate::values::ids::ConnId;
use crate::wal::LogReply;

/// What a driver reports to the server.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum Event<'a> {
    /// Bytes were received. They are valid until the call returns.
    Received {
        conn: ConnId,
        /// Not empty.
        bytes: &'a [u8],
    },
    /// Bytes were received to the place that [`Service::direct`](super::Service::direct) returned.
    ReceivedDirect {
        conn: ConnId,
        /// Not 0, and not more than the size of the place.
        bytes: usize,
    },
    /// The peer has ended its input, but not everything that it sent before is received: the connection is paused. The peer may
    /// still read.
    InputEnding { conn: ConnId },
    /// The peer has ended its input, and everything is received. The peer may still read.
    InputEnded { conn: ConnId },
    /// Bytes of [`Service::outgoing`](super::Service::outgoing) were sent.
    Sent {
        conn: ConnId,
        /// The number of bytes, from the front.
        bytes: usize,
    },
    /// The connection is broken: nothing can be sent or received.
    HungUp { conn: ConnId },
    /// A load balancer has told who the peer of an HTTP connection is. No input came before. The server may close another
    /// connection for it.
    Peer { conn: ConnId, peer: &'a Peer },
    /// The peer has proved, by its certificate, that it has these names. No input came before.
    Certified { conn: ConnId, names: &'a [String] },
    /// The driver has closed the connection after [`Effect::Close`], and no operation on its memory is in flight.
    Closed {
        /// The id is not used again.
        conn: ConnId,
    },
    /// The server is to accept no new jobs (SIGUSR1).
    Drain,
    /// The process is to end (SIGTERM): the server syncs the job log.
    Stop,
    /// The place of the job log has answered a [`Service::poll_log_request`](super::Service::poll_log_request).
    Log(LogReply),
    /// The memory that the driver has allocated for itself has changed: its size in bytes.
    OuterMemory(u64),
    /// The system clock has this time. It may have been set.
    SystemClock(Time),
}

impl Event<'_> {
    /// The price of its arrival. What it leads to is charged where it is done.
    // Without a wildcard, so that an event without a price does not compile.
    #[inline(always)]
    pub const fn cost(&self) -> Cost {
        match *self {
            Self::Received { bytes, .. } => Cost::received(bytes.len()),
            Self::ReceivedDirect { bytes, .. } => Cost::received(bytes),
            Self::Sent { bytes, .. } => Cost::sent(bytes),
            Self::InputEnding { .. } | Self::InputEnded { .. } | Self::HungUp { .. } => Cost::END,
            Self::Closed { .. } => Cost::CLOSE,
            Self::Log(_) => Cost::DISK,
            Self::Peer { .. } | Self::Certified { .. } => Cost::STEP,
            Self::OuterMemory(_) | Self::SystemClock(_) | Self::Drain | Self::Stop => Cost::STEP,
        }
    }

    /// The connection that the event is about, if it is about one.
    #[inline]
    pub const fn conn(&self) -> Option<ConnId> {
        match *self {
            Self::Received { conn, .. }
            | Self::ReceivedDirect { conn, .. }
            | Self::InputEnding { conn }
            | Self::InputEnded { conn }
            | Self::Sent { conn, .. }
            | Self::HungUp { conn }
            | Self::Peer { conn, .. }
            | Self::Certified { conn, .. }
            | Self::Closed { conn } => Some(conn),
            Self::Drain | Self::Stop | Self::Log(_) | Self::OuterMemory(_) | Self::SystemClock(_) => None,
        }
    }
}

/// What the server requests from its driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Send what [`Service::outgoing`](super::Service::outgoing) shows, until it shows nothing. The effect is not repeated before
    /// that.
    Send(ConnId),
    /// Do not receive from this connection, but watch for its end.
    Pause(ConnId),
    /// Receive from this connection again.
    Resume(ConnId),
    /// Close this connection and report [`Event::Closed`]. No effect for it follows.
    Close(ConnId),
    /// Log what this client has done, with its address.
    LogClient(ConnId, ClientAct),
    /// Begin the requests of [`Service::poll_log_request`](super::Service::poll_log_request), until it returns none.
    Log,
    /// The server cannot continue: send what can be sent at once, and stop. The [`Status`](super::Status) says why: its failure, or its role if
    /// the term of a leader has ended.
    Fail,
}

/// What a client can do that an operator has to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientAct {
    /// It has begun drain mode.
    Drain,
    /// It has ended drain mode.
    Undrain,
    /// Its connection is closed because it began with a request of another protocol.
    ForeignRequest(Foreign),
    /// Its connection is closed because the TLS handshake has failed, for this reason in words.
    HandshakeFailed(HandshakeFailure, &'static str),
    /// Its connection is closed because it has not begun with a header of the PROXY protocol.
    WrongProxyHeader,
    /// Its connection is closed because it has not shown the secret that a standby knows.
    WrongForwardSecret,
    /// Its connection is closed because its standby, with the right secret, has a listener that this server lacks: one with TLS, or
    /// one without.
    WrongForwardKind {
        /// Whether the client speaks TLS.
        has_tls: bool,
    },
    /// It has sent a token of no user.
    WrongToken,
}

impl ClientAct {
    /// What drain mode means, for log lines.
    pub const DRAIN_EFFECT: &str = "put is refused with DRAINING until a client sends undrain";
    /// What its end means.
    pub const UNDRAIN_EFFECT: &str = "put is accepted again";
}
