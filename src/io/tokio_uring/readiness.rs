//! What is known by readiness, not by completion.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{MsgFlags, recv};
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

use crate::io::socket::to_errno;

/// A descriptor of somebody else, watched for input. Its owner keeps it open for as long as this lives.
pub struct Watched(AsyncFd<Borrowed>);

/// The descriptor of a [`Watched`].
pub struct Borrowed(RawFd);

impl AsRawFd for Borrowed {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl Watched {
    pub fn new(fd: RawFd) -> Result<Self, Errno> {
        // SAFETY: its owner keeps it open: a listener or the signals until no task runs any more, a
        // connection's task until this is dropped.
        #[allow(unsafe_code)]
        let watched = unsafe { AsyncFd::register_with_interest(Borrowed(fd), Interest::READABLE) };
        watched.map(Self).map_err(|error| to_errno(&error.into()))
    }

    pub async fn readable(&self) -> io::Result<AsyncFdReadyGuard<'_, Borrowed>> {
        self.0.readable().await
    }
}

/// What has become of a peer that is not received from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It will send nothing more, but what it sent before is not all received.
    Coming,
    /// It will send nothing more, and all is received.
    Reached,
    /// Nothing can be sent or received.
    Broken,
}

/// Waits for the end of a connection without receiving from it.
pub async fn end(stream: RawFd) -> End {
    // There is a limit to what one user may watch (epoll(7), max_user_watches).
    let Ok(watched) = Watched::new(stream) else { return End::Broken };
    loop {
        let Ok(mut readable) = watched.readable().await else { return End::Broken };
        match look(stream) {
            Some(end) => return end,
            None => readable.clear_ready(),
        }
    }
}

fn look(stream: RawFd) -> Option<End> {
    let events = events(stream);
    if events & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0 {
        return Some(End::Broken);
    }
    if events & libc::POLLRDHUP == 0 {
        return None;
    }
    match recv(stream, &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT) {
        Ok(0) => Some(End::Reached),
        Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => Some(End::Coming),
        Err(_) => Some(End::Broken),
    }
}

/// What poll(2) knows of the peer. (`nix` has no name for POLLRDHUP.)
fn events(fd: RawFd) -> libc::c_short {
    let mut asked = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: there is one entry, and the call is over before it is gone.
    #[allow(unsafe_code)]
    let result = unsafe { libc::poll(&raw mut asked, 1, 0) };
    // It fails only for want of memory: then the next look tells.
    if result < 0 { 0 } else { asked.revents }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn an_end_is_told_from_one_with_input_before_it() {
        let (mut ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
        let fd = ours.as_raw_fd();
        assert_eq!(look(fd), None);
        theirs.write_all(b"x").expect("there is room");
        assert_eq!(look(fd), None);
        theirs.shutdown(Shutdown::Write).expect("it is open");
        assert_eq!(look(fd), Some(End::Coming));
        ours.read_exact(&mut [0]).expect("a byte");
        assert_eq!(look(fd), Some(End::Reached));
        drop(theirs);
        assert_eq!(look(fd), Some(End::Broken));
    }
}
