//! What a conversation needs from a server, whichever way it is reached.

use std::time::Duration;

/// A fresh server. Connections are numbered from 0 in the order of [`Peer::open`].
///
/// Nothing here fails: a server that has hung up shows in what is received next.
pub trait Peer {
    /// Opens a connection and returns its number.
    fn open(&mut self) -> usize;

    /// Sends all of `bytes`.
    fn send(&mut self, conn: usize, bytes: &[u8]);

    /// What the server has sent on `conn` since the last call.
    fn receive(&mut self, conn: usize, patience: Patience) -> Received;

    /// Lets time pass.
    fn advance(&mut self, span: Duration);

    /// Ends what this side sends; the server may still answer.
    fn half_close(&mut self, conn: usize);

    /// Ends the connection.
    fn close(&mut self, conn: usize);

    /// Tells the server to accept no new jobs.
    fn drain(&mut self);
}

/// How long to wait for bytes where waiting is real. A peer without a network ignores it: what is not
/// there yet will not come by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    /// Something must come; silence is a failure.
    Reply,
    /// Nothing should come; long enough to catch what comes all the same.
    Quiet,
}

/// What came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Received {
    /// At least one byte.
    Bytes(Vec<u8>),
    /// Nothing, and the connection is open.
    Silence,
    /// Nothing, and nothing will come: the server has closed the connection.
    Closed,
}
