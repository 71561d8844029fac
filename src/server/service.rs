//! What a driver sees of a server.

use std::io::IoSlice;

use super::{Effect, Event};
use crate::bodies::Bodies;
use crate::ids::ConnId;
use crate::time::Time;
use crate::wal::Operation;

/// What is spoken over a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// By clients of the queue.
    Beanstalk,
    /// By those who watch the server.
    Http,
}

/// A server as a driver sees it: [`Server`](super::Server), or a stand-in that shows what a driver costs
/// by itself.
///
/// Inputs: [`connect`](Self::connect), [`handle`](Self::handle) and [`turn`](Self::turn). After each of
/// them the driver carries out [`next_effect`](Self::next_effect) until it is dry. Between them it
/// asks [`direct`](Self::direct) where to receive and [`outgoing`](Self::outgoing) what to send. It calls
/// `turn` once for every batch of events and no later than [`next_deadline`](Self::next_deadline).
pub trait Service {
    /// A connection was accepted.
    fn connect(&mut self) -> ConnId;

    /// A connection was accepted where HTTP is spoken.
    fn connect_http(&mut self) -> ConnId;

    /// A connection was accepted where this is spoken.
    fn connect_over(&mut self, protocol: Protocol) -> ConnId {
        match protocol {
            Protocol::Beanstalk => self.connect(),
            Protocol::Http => self.connect_http(),
        }
    }

    /// Something happened.
    ///
    /// # Panics
    /// If the event names a connection that is closed: a defect of the driver.
    fn handle(&mut self, now: Time, event: Event<'_>);

    /// Does a bounded piece of what is due or was left over.
    fn turn(&mut self, now: Time);

    /// What a driver must do now.
    fn next_effect(&mut self) -> Option<Effect>;

    /// When [`turn`](Self::turn) must be called next, if nothing else happens: at once while something is
    /// left to do. To be asked after the effects are carried out, since a send may free a connection
    /// for its next turn.
    fn next_deadline(&self) -> Option<Time>;

    /// Where the next bytes of this connection belong, if they are part of a large body: a driver may
    /// receive them there. It has to end where this ends; what follows is ordinary input.
    fn direct(&mut self, conn: ConnId) -> Option<&mut [u8]>;

    /// Appends what to send to this connection next. It stays where it is until [`Event::Sent`] or
    /// [`Event::Closed`].
    fn outgoing<'a>(&'a mut self, conn: ConnId, slices: &mut Vec<IoSlice<'a>>);

    /// The next operation for the disk, to be begun now. Its outcome is told by [`Event::Disk`].
    fn disk(&mut self, _now: Time) -> Option<Operation> {
        None
    }

    /// Whether everything that has to be on disk at the end is there.
    fn is_settled(&self) -> bool {
        true
    }

    /// Why it cannot go on.
    fn failure(&self) -> Option<String> {
        None
    }

    /// Where large bodies lie, for a driver that makes their memory known to the kernel.
    fn bodies(&mut self) -> Option<&mut Bodies>;
}
