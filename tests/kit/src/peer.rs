//! The interface between a conversation and a server.

use std::time::Duration;

/// A new server. Connections are numbered from 0 in the order of [`Peer::open`].
///
/// No method fails. If the server has closed a connection, the next `receive` returns that.
pub trait Peer {
    /// Opens a connection and returns its number.
    fn open(&mut self) -> usize;

    /// Sends all of `bytes`.
    fn send(&mut self, conn: usize, bytes: &[u8]);

    /// Returns what the server has sent on `conn` since the last call.
    fn receive(&mut self, conn: usize, patience: Patience) -> Received;

    /// Waits, or advances virtual time.
    fn advance(&mut self, span: Duration);

    /// Shuts down the sending side. The server may still reply.
    fn half_close(&mut self, conn: usize);

    /// Closes the connection.
    fn close(&mut self, conn: usize);

    /// Makes the server drain, so that it refuses new jobs.
    fn drain(&mut self);
}

/// How long to wait for bytes in real time. A peer without a network ignores it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    /// A reply must arrive. Silence is a failure.
    Reply,
    /// Nothing should arrive. The wait is long enough to notice unexpected bytes.
    Quiet,
}

/// The result of a receive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Received {
    /// At least one byte.
    Bytes(Vec<u8>),
    /// No bytes. The connection is open.
    Silence,
    /// No bytes. The server has closed the connection.
    Closed,
}
