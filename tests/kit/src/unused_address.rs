//! Addresses that are bound while nothing listens. Listening and dropping the listener would not do: a child that
//! another thread starts inherits the listening socket until its exec.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrLike, UnixAddr, bind, getsockname, socket,
};

/// Returns a port that is free on each IPv4 address and stays bound while the descriptor lives. A port that is free on
/// 127.0.0.1 would not do for a server on 0.0.0.0: another address of the loopback may have a connection in TIME_WAIT there.
pub fn port() -> (OwnedFd, u16) {
    let held = bound(AddressFamily::Inet, &SockaddrIn::new(0, 0, 0, 0, 0));
    let port = getsockname::<SockaddrIn>(held.as_raw_fd()).expect("it is bound").port();
    (held, port)
}

/// Creates the file of a UNIX socket.
pub fn file(path: &Path) {
    bound(AddressFamily::Unix, &UnixAddr::new(path).expect("it is short enough"));
}

fn bound(family: AddressFamily, address: &impl SockaddrLike) -> OwnedFd {
    let held = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("there are descriptors");
    bind(held.as_raw_fd(), address).expect("the address is free");
    held
}
