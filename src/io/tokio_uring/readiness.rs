//! What the driver learns by readiness instead of completions.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{MsgFlags, recv};
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

use crate::io::socket::to_errno;

/// A borrowed descriptor that is watched for input. Its owner keeps it open for as long as this lives.
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
        // SAFETY: its owner keeps it open: a listener, the signals or the disk until no task runs any more, the task of a
        // connection until this is dropped.
        #[allow(unsafe_code)]
        let watched = unsafe { AsyncFd::register_with_interest(Borrowed(fd), Interest::READABLE) };
        watched.map(Self).map_err(|error| to_errno(&error.into()))
    }

    pub async fn readable(&self) -> io::Result<AsyncFdReadyGuard<'_, Borrowed>> {
        self.0.readable().await
    }
}

/// What a paused connection's peer has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It has ended its input, but not everything that it sent before is received.
    Coming,
    /// It has ended its input, and all is received.
    Reached,
    /// Nothing can be sent or received.
    Broken,
}

/// Waits until the peer has ended its input, or the connection is broken, without receiving.
pub async fn wait_for_end(stream: RawFd) -> End {
    // The kernel limits how many descriptors a user watches (epoll(7), max_user_watches).
    let Ok(watched) = Watched::new(stream) else { return End::Broken };
    loop {
        let Ok(mut readable) = watched.readable().await else { return End::Broken };
        match probe(stream) {
            Some(end) => return end,
            None => readable.clear_ready(),
        }
    }
}

fn probe(stream: RawFd) -> Option<End> {
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

/// The state of the peer as poll(2) reports it. (`nix` does not know POLLRDHUP.)
fn events(fd: RawFd) -> libc::c_short {
    let mut entry = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: there is one entry, which outlives the call.
    #[allow(unsafe_code)]
    let result = unsafe { libc::poll(&raw mut entry, 1, 0) };
    // It fails only for want of memory. The next probe reports the state then.
    if result < 0 { 0 } else { entry.revents }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn an_end_with_unread_input_before_it_is_distinguished() {
        let (mut ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
        let fd = ours.as_raw_fd();
        assert_eq!(probe(fd), None);
        theirs.write_all(b"x").expect("the socket takes a byte");
        assert_eq!(probe(fd), None);
        theirs.shutdown(Shutdown::Write).expect("the socket is open");
        assert_eq!(probe(fd), Some(End::Coming));
        ours.read_exact(&mut [0]).expect("a byte");
        assert_eq!(probe(fd), Some(End::Reached));
        drop(theirs);
        assert_eq!(probe(fd), Some(End::Broken));
    }
}
