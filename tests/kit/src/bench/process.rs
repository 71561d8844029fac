//! Processes that a benchmark starts: which driver, on which address, and that none outlives its guard.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Child;

use clap::ValueEnum;

/// How beanring does its I/O; named as its `--io` names it.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Driver {
    Uring,
    Epoll,
    TokioUring,
}

impl Driver {
    /// As typed.
    pub fn name(self) -> &'static str {
        match self {
            Driver::Uring => "uring",
            Driver::Epoll => "epoll",
            Driver::TokioUring => "tokio-uring",
        }
    }
}

/// A child that does not outlive its guard.
pub struct Guarded(pub Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        // Fails only where it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One of its own for each start: no socket of an earlier one is in the way, nor that of another run. A ring goes after
/// its process, and so does what it listened on.
pub fn address(nth: u32) -> SocketAddr {
    const HOSTS: u32 = 254;
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let host = (1 + nth % HOSTS) as u8;
    let port = 21300 + u16::try_from(nth / HOSTS).expect("no run starts millions");
    (Ipv4Addr::new(127, 64 | high & 63, low, host), port).into()
}
