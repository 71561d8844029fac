//! What the driver knows of one connection.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use nix::libc::linger;
use nix::sys::socket::{Shutdown, setsockopt, shutdown, sockopt};

use super::dry::Dryness;
use crate::io::shell::{self, InputState};
use crate::time::{Span, Time};

/// The delay before a send is repeated that found no room, on a connection whose peer has ended its input: io_uring cannot
/// wait for room on such a socket.
pub const SEND_RETRY_DELAY: Span = Span::from_millis(20);

/// The delay doubles up to this while there is no room: ten thousand such connections take 2 % of a core.
const SEND_RETRY_DELAY_MAX: Span = Span::from_millis(1280);

/// Receives that are requested one at a time after a large body, in case another follows. A multishot receive would have to
/// be cancelled before the next large body could be received to its place.
const SINGLE_RECEIVES: u8 = 8;

/// A connection and the requests on it that are in flight.
#[derive(Debug)]
pub struct Connection {
    /// `None` once a connection is reset at the end of the driver, and only notifications are left to come.
    fd: Option<OwnedFd>,
    pub input: InputState,
    /// The number of its listener, until something has come.
    pub untouched: Option<u16>,
    pub receive: ReceiveRequest,
    pub watch: WatchRequest,
    /// When a receive last brought something.
    pub last_input: Time,
    pub quiet_check: QuietCheck,
    pub is_sending: bool,
    /// The send in flight makes no copy.
    pub sends_zero_copy: bool,
    /// The peer is known to send no more. The kernel then takes the socket for ready whatever a request waits for.
    pub is_ending: bool,
    /// The server knows of that and the connection is paused: its sends find a break, so it is not watched.
    pub reported_ending: bool,
    /// A send found no room, and is repeated after a delay.
    pub is_stalled: bool,
    /// The next such delay.
    retry_delay: Span,
    /// Whether large bodies are sent without a copy. Not known before the first.
    pub zero_copy: Option<bool>,
    /// Bytes that are sent but not reported to the server, since the network may still read them.
    pub unreported: usize,
    /// Notifications about that that are still to come.
    pub notifications: u32,
    /// Receives that are still to be requested one at a time.
    single_receives: u8,
    /// Whether it waits for a receive buffer.
    pub dryness: Dryness,
}

/// The receive in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReceiveRequest {
    None,
    /// Of any input, into a buffer.
    Any {
        is_multishot: bool,
    },
    /// Straight to the place of a large body.
    Direct,
    /// Cancelled, and not complete yet.
    Cancelled {
        is_direct: bool,
    },
}

/// The watch for the end of the input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WatchRequest {
    None,
    Armed,
    /// Cancelled, and not complete yet.
    Cancelled,
}

/// Whether the [self-check](super::self_check) is to look for unreported input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QuietCheck {
    None,
    Scheduled,
    /// It has found unreported input, and checks once more.
    HasUnreported,
}

impl Connection {
    pub const fn new(fd: OwnedFd, listener: u16) -> Self {
        Self {
            fd: Some(fd),
            input: InputState::Receiving,
            untouched: Some(listener),
            receive: ReceiveRequest::None,
            watch: WatchRequest::None,
            last_input: Time::ZERO,
            quiet_check: QuietCheck::None,
            is_sending: false,
            sends_zero_copy: false,
            is_ending: false,
            reported_ending: false,
            is_stalled: false,
            retry_delay: SEND_RETRY_DELAY,
            zero_copy: None,
            unreported: 0,
            notifications: 0,
            single_receives: 0,
            dryness: Dryness::None,
        }
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_ref().expect("the connection is open").as_raw_fd()
    }

    /// Resets the connection, whatever is still to be sent, once no request refers to its descriptor.
    pub fn reset_if_quiet(&mut self) {
        if !self.is_quiet() {
            return;
        }
        if let Some(fd) = self.fd.take() {
            // It fails for a socket that is not connected any more, which has nothing to send.
            let _ = setsockopt(&fd, sockopt::Linger, &linger { l_onoff: 1, l_linger: 0 });
        }
    }

    /// Ends the connection after what is still to be sent.
    pub fn shut(&self) {
        // It fails if the peer has reset the connection.
        let _ = shutdown(self.fd(), Shutdown::Both);
    }

    /// Whether no request refers to its descriptor.
    pub fn is_quiet(&self) -> bool {
        self.receive == ReceiveRequest::None && self.watch == WatchRequest::None && !self.is_sending
    }

    /// Whether a request for its input, or for the end of it, should be in flight and is not.
    pub fn lacks_request(&self) -> bool {
        self.lacks_receive() || self.lacks_watch()
    }

    /// Whether a receive should be in flight and is not.
    pub fn lacks_receive(&self) -> bool {
        let is_in_queue = self.dryness == Dryness::Waiting;
        self.input == InputState::Receiving && self.receive == ReceiveRequest::None && !is_in_queue
    }

    /// Whether the end of its input should be watched for and is not.
    pub fn lacks_watch(&self) -> bool {
        self.input == InputState::Paused && !self.reported_ending && self.watch == WatchRequest::None
    }

    /// Returns the delay after a send that found no room. It grows each time.
    pub fn back_off(&mut self) -> Span {
        let longer = Span::from_nanos(2 * self.retry_delay.as_nanos()).min(SEND_RETRY_DELAY_MAX);
        std::mem::replace(&mut self.retry_delay, longer)
    }

    /// Resets the delay after a send that found room.
    pub fn reset_back_off(&mut self) {
        self.retry_delay = SEND_RETRY_DELAY;
    }

    /// Requests the next receives one at a time: a large body was received.
    pub fn expect_large_bodies(&mut self) {
        self.single_receives = SINGLE_RECEIVES;
    }

    /// Whether the next receive is a multishot one.
    pub fn next_is_multishot(&mut self) -> bool {
        let is_multishot = self.single_receives == 0;
        self.single_receives = self.single_receives.saturating_sub(1);
        is_multishot
    }
}

impl shell::Connection for Connection {
    fn input(&mut self) -> &mut InputState {
        &mut self.input
    }

    fn fd(&self) -> RawFd {
        Self::fd(self)
    }

    fn open_fd(&self) -> Option<RawFd> {
        self.fd.as_ref().map(AsRawFd::as_raw_fd)
    }

    fn untouched(&self) -> Option<u16> {
        self.untouched
    }

    fn has_receive(&self) -> bool {
        self.receive != ReceiveRequest::None
    }

    fn into_fd(self) -> Option<OwnedFd> {
        self.fd
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn sends_to_a_peer_that_does_not_read_back_off() {
        let file = File::open("/dev/null").expect("/dev/null opens");
        let mut connection = Connection::new(file.into(), 0);
        let delays: Vec<u64> = (0..9).map(|_| connection.back_off().as_nanos() / 1_000_000).collect();
        assert_eq!(delays, [20, 40, 80, 160, 320, 640, 1280, 1280, 1280]);
        connection.reset_back_off();
        assert_eq!(connection.back_off(), SEND_RETRY_DELAY);
    }
}
