//! What the driver knows of one connection.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::limits::{SEND_REST, SEND_REST_MAX};
use crate::server::Protocol;
use crate::time::{Span, Time};

/// Receives that are made one at a time after a large body, in case another follows: a receive that waits for
/// any input would have to be ended first to receive the next one to its place.
const SINGLE_RECEIVES: u8 = 8;

/// A connection, with which requests on it are under way.
#[derive(Debug)]
pub struct Connection {
    pub protocol: Protocol,
    /// Open until it is closed with nothing but notifications left to come.
    fd: Option<OwnedFd>,
    pub phase: Phase,
    pub receive: Receive,
    pub watch: Watch,
    /// When a receive that is still armed brought something.
    pub last_input: Time,
    pub quiet_check: QuietCheck,
    pub is_sending: bool,
    /// The peer is known to send no more. The kernel then takes the socket for ready whatever is waited for.
    pub is_ending: bool,
    /// A send found no room, and is tried again after a while.
    pub is_stalled: bool,
    /// How long it rests when that happens the next time.
    rest: Span,
    /// Whether large bodies are sent without a copy; not known before the first.
    pub zero_copy: Option<bool>,
    /// Sent, but the server has not been told, since the network may be reading it still.
    pub unreported: usize,
    /// How many notifications that it is done are still to come.
    pub notifications: u32,
    /// Receives still to be made one at a time.
    singly: u8,
}

/// How far a connection's input is.
///
/// ```text
///            Pause
///  Reading <-------> Paused
///   |       Resume      | end, all read
///   | end, all read     v
///   +---------------> Ended        from each of them, on an error or a hang-up: Broken;
///                                  from each, when the server says so: Closing
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Received as it comes.
    Reading,
    /// Left in the kernel; only its end is looked for.
    Paused,
    /// Paused, and the peer is known to send no more. It has output to be sent, which finds a break.
    PausedEnding,
    /// All read.
    Ended,
    /// Nothing can be sent or received.
    Broken,
    /// Closed as soon as no request is under way.
    Closing,
}

/// The receive under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Receive {
    /// None.
    Idle,
    /// Of whatever comes: once or repeatedly.
    Any,
    /// Straight to its place.
    Direct,
    /// One that was cancelled, and has not ended yet: to its place or not.
    Ending { is_direct: bool },
}

/// The look-out for the end of the input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Watch {
    Idle,
    Armed,
    Ending,
}

/// Whether the [self-check](super::self_check) is to look for unreported input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QuietCheck {
    None,
    Scheduled,
    /// It has found some, and looks once more.
    HasUnreported,
}

impl Connection {
    pub fn new(fd: OwnedFd, protocol: Protocol) -> Self {
        Self {
            protocol,
            fd: Some(fd),
            phase: Phase::Reading,
            receive: Receive::Idle,
            watch: Watch::Idle,
            last_input: Time::ZERO,
            quiet_check: QuietCheck::None,
            is_sending: false,
            is_ending: false,
            is_stalled: false,
            rest: SEND_REST,
            zero_copy: None,
            unreported: 0,
            notifications: 0,
            singly: 0,
        }
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_ref().expect("it is open").as_raw_fd()
    }

    /// Closes the descriptor. False if it was closed before.
    pub fn close(&mut self) -> bool {
        self.fd.take().is_some()
    }

    /// Whether no request refers to its descriptor.
    pub fn is_quiet(&self) -> bool {
        self.receive == Receive::Idle && self.watch == Watch::Idle && !self.is_sending
    }

    /// Whether a request for its input, or for the end of it, should be under way and is not.
    pub fn lacks_request(&self) -> bool {
        match self.phase {
            Phase::Reading => self.receive == Receive::Idle,
            Phase::Paused => self.watch == Watch::Idle,
            Phase::PausedEnding | Phase::Ended | Phase::Broken | Phase::Closing => false,
        }
    }

    /// How long to rest, since a send found no room. Longer each time.
    pub fn rest(&mut self) -> Span {
        let longer = Span::from_nanos(2 * self.rest.as_nanos()).min(SEND_REST_MAX);
        std::mem::replace(&mut self.rest, longer)
    }

    /// A send found room.
    pub fn end_rest(&mut self) {
        self.rest = SEND_REST;
    }

    /// Part of a large body was received.
    pub fn expect_large_bodies(&mut self) {
        self.singly = SINGLE_RECEIVES;
    }

    /// Whether the next receive is to be a repeated one.
    pub fn receives_repeatedly(&mut self) -> bool {
        let is_over = self.singly == 0;
        self.singly = self.singly.saturating_sub(1);
        is_over
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn who_does_not_read_is_asked_less_and_less_often() {
        let file = File::open("/dev/null").expect("it is everywhere");
        let mut connection = Connection::new(file.into(), Protocol::Beanstalk);
        let rests: Vec<u64> = (0..9).map(|_| connection.rest().as_nanos() / 1_000_000).collect();
        assert_eq!(rests, [20, 40, 80, 160, 320, 640, 1280, 1280, 1280]);
        connection.end_rest();
        assert_eq!(connection.rest(), SEND_REST);
    }
}
