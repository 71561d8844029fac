//! Processes that a benchmark starts: their driver, their address, and a guard that stops them.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Child;

use clap::ValueEnum;

/// A driver of beanring, named as for `--io`.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Driver {
    Uring,
    Epoll,
    TokioUring,
}

impl Driver {
    /// Returns the name for the command line.
    pub fn name(self) -> &'static str {
        match self {
            Driver::Uring => "uring",
            Driver::Epoll => "epoll",
            Driver::TokioUring => "tokio-uring",
        }
    }
}

/// A child that is killed when the guard is dropped.
pub struct Guarded(pub Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        // This fails only if the process has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the `nth` address of this process. Each start has an address of its own, since an io_uring, and the sockets
/// that it listens on, may outlive its process for a moment.
pub fn address(nth: u32) -> SocketAddr {
    const HOSTS: u32 = 254;
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let host = (1 + nth % HOSTS) as u8;
    let port = 21300 + u16::try_from(nth / HOSTS).expect("no run starts millions");
    (Ipv4Addr::new(127, 64 | high & 63, low, host), port).into()
}
