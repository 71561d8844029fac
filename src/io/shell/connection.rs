//! What a driver keeps for a connection, as far as all drivers do.

use std::os::fd::{OwnedFd, RawFd};

/// How far the input of a connection is.
///
/// ```text
///                 Pause
///   Receiving <---------> Paused
///      |        Resume      | the end, and all is received
///      | the end            v
///      +----------------> Ended
///
///   From each of them, on an error or a hang-up: Broken.
///   From each, on Effect::Close: Closing.
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum InputState {
    Receiving,
    /// Input stays in the kernel; the driver watches only for its end.
    Paused,
    /// All input is received.
    Ended,
    /// Nothing can be sent or received.
    Broken,
    /// The connection closes as soon as no request on it is in flight.
    #[cfg(any(feature = "tokio-uring", feature = "uring"))]
    Closing,
}

/// What a driver keeps for a connection.
pub trait Connection: Sized {
    /// How far its input is.
    fn input(&mut self) -> &mut InputState;

    /// Its descriptor, which is open.
    fn fd(&self) -> RawFd;

    /// Its descriptor, unless only requests on it that the kernel completes keep its record.
    fn open_fd(&self) -> Option<RawFd> {
        Some(self.fd())
    }

    /// The number of the listener that has accepted it, until something has come on it. None of a driver that cannot hand it over.
    fn untouched(&self) -> Option<u16> {
        None
    }

    /// Whether the kernel may still receive for this program.
    fn has_receive(&self) -> bool {
        false
    }

    /// Returns its descriptor, for the next program, if that may get it.
    fn into_fd(self) -> Option<OwnedFd> {
        None
    }
}
