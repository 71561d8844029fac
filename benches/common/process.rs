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

/// One of its own for each start: no socket of an earlier one is in the way, nor that of another run.
pub fn address(nth: u32) -> SocketAddr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let [_, _, upper, lower] = nth.to_be_bytes();
    (Ipv4Addr::new(127, 64 | high & 63, low, lower.clamp(1, 254)), 21300 + u16::from(upper)).into()
}
