//! Addresses that are bound while nothing listens. Listening and dropping the listener would not do: a child that
//! another thread starts inherits the listening socket until its exec.

use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrLike, UnixAddr, bind, getsockname, socket,
};

/// Below those that the kernel gives to connections, unless an administrator has changed that.
const PORTS: Range<u16> = 22_000..32_000;

/// Returns a port that is free on each IPv4 address and stays bound while the descriptor lives. A port that is free on
/// 127.0.0.1 would not do for a server on 0.0.0.0: another address of the loopback may have a connection in TIME_WAIT there.
pub fn port() -> (OwnedFd, u16) {
    let held = bound(AddressFamily::Inet, &SockaddrIn::new(0, 0, 0, 0, 0));
    let port = getsockname::<SockaddrIn>(held.as_raw_fd()).expect("it is bound").port();
    (held, port)
}

/// A port that no other test takes while this is alive. The kernel gives it to no connection either: it is not among those of
/// /proc/sys/net/ipv4/ip_local_port_range. So a server may bind it later, and again after a stop.
pub struct ReservedPort {
    port: u16,
    /// A socket whose name stands for the port: tests of other processes see it.
    _name: OwnedFd,
}

impl ReservedPort {
    /// Takes a port on which nothing listens.
    ///
    /// # Panics
    /// If there is none.
    pub fn take() -> Self {
        // Processes begin at different ports, so that few have to pass by those of others.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let first = std::process::id().wrapping_mul(977);
        for _ in PORTS {
            let next = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
            let port = PORTS.start + (next % PORTS.len() as u32) as u16;
            let name = format!("beanring-test-port-{port}");
            let name = UnixAddr::new_abstract(name.as_bytes()).expect("it is short enough");
            let Ok(name) = try_bound(AddressFamily::Unix, &name) else { continue };
            if try_bound(AddressFamily::Inet, &SockaddrIn::new(0, 0, 0, 0, port)).is_ok() {
                return Self { port, _name: name };
            }
        }
        panic!("all ports are taken");
    }

    /// The port.
    pub const fn get(&self) -> u16 {
        self.port
    }
}

/// Creates the file of a UNIX socket.
pub fn file(path: &Path) {
    bound(AddressFamily::Unix, &UnixAddr::new(path).expect("it is short enough"));
}

fn bound(family: AddressFamily, address: &impl SockaddrLike) -> OwnedFd {
    try_bound(family, address).expect("the address is free")
}

fn try_bound(family: AddressFamily, address: &impl SockaddrLike) -> nix::Result<OwnedFd> {
    let held = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("there are descriptors");
    bind(held.as_raw_fd(), address)?;
    Ok(held)
}
