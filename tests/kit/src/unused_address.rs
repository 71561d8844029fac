//! Addresses that are taken, and where nobody listens. What listens and is dropped would not do: a child that another
//! thread starts has it open until it becomes its own program, and meanwhile it listens.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrLike, UnixAddr, bind, getsockname, socket,
};

/// A port of 127.0.0.1, for as long as the value lives.
pub fn port() -> (OwnedFd, u16) {
    let held = bound(AddressFamily::Inet, &SockaddrIn::new(127, 0, 0, 1, 0));
    let port = getsockname::<SockaddrIn>(held.as_raw_fd()).expect("it is bound").port();
    (held, port)
}

/// Makes the file of a socket.
pub fn file(path: &Path) {
    bound(AddressFamily::Unix, &UnixAddr::new(path).expect("it is short enough"));
}

fn bound(family: AddressFamily, address: &impl SockaddrLike) -> OwnedFd {
    let held = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("there are descriptors");
    bind(held.as_raw_fd(), address).expect("the place is free");
    held
}
