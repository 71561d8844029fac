//! Descriptors as a resource that runs out.

use std::fs::File;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::warn;

use crate::limits::{ACCEPT_COMPLAINT_EVERY, ACCEPT_REST, DESCRIPTORS_RESERVED};
use crate::time::Time;

/// Raises this process's limit as far as it may go without rights. The usual soft limit of 1024 is for
/// programs that call select(2).
pub fn raise_limit() -> nix::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(())
}

/// Descriptors held back from connections, for files that must be opened whatever happens.
#[derive(Debug)]
pub struct Reserve {
    held: Vec<OwnedFd>,
}

impl Reserve {
    /// Takes [`DESCRIPTORS_RESERVED`] descriptors, or as many as there are.
    pub fn take() -> Self {
        let mut reserve = Self { held: Vec::with_capacity(DESCRIPTORS_RESERVED) };
        reserve.refill();
        reserve
    }

    /// Gives one back, so that the next thing that is opened finds room. False if none is left.
    pub fn spend(&mut self) -> bool {
        self.held.pop().is_some()
    }

    /// Takes back what was spent, as far as it can be had.
    pub fn refill(&mut self) {
        while self.held.len() < DESCRIPTORS_RESERVED {
            let Ok(file) = File::open("/dev/null") else { return };
            self.held.push(file.into());
        }
    }
}

/// Whether connections are accepted, or have to wait for descriptors.
#[derive(Debug, Default)]
pub struct Admission {
    rests_until: Option<Time>,
    complained: Option<Time>,
}

impl Admission {
    /// Accepting failed for want of something that comes back.
    pub fn rest(&mut self, now: Time, errno: Errno) {
        self.rests_until = Some(now + ACCEPT_REST);
        let said_lately = self.complained.is_some_and(|at| now.since(at) < ACCEPT_COMPLAINT_EVERY);
        if !said_lately {
            self.complained = Some(now);
            warn!("new connections have to wait: {}", errno.desc());
        }
    }

    /// A connection has closed: there is room for another.
    pub fn make_room(&mut self, now: Time) {
        if self.is_resting() {
            self.rests_until = Some(now);
        }
    }

    /// Ends the rest if its time has come, and tells whether it did.
    pub fn resume(&mut self, now: Time) -> bool {
        let is_over = self.rests_until.is_some_and(|until| until <= now);
        if is_over {
            self.rests_until = None;
        }
        is_over
    }

    /// Connections are not accepted now.
    pub const fn is_resting(&self) -> bool {
        self.rests_until.is_some()
    }

    /// When to call [`resume`](Self::resume).
    pub const fn deadline(&self) -> Option<Time> {
        self.rests_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;

    #[test]
    fn rests_until_its_time_or_until_there_is_room() {
        let start = Time::from_nanos(1);
        let mut admission = Admission::default();
        admission.make_room(start);
        assert!(!admission.resume(start));

        admission.rest(start, Errno::EMFILE);
        assert!(!admission.resume(start));
        assert!(admission.resume(start + ACCEPT_REST));
        assert!(!admission.is_resting());

        admission.rest(start, Errno::EMFILE);
        let soon = start + Span::from_millis(1);
        admission.make_room(soon);
        assert_eq!(admission.deadline(), Some(soon));
        assert!(admission.resume(soon));
    }

    #[test]
    fn the_reserve_can_be_spent_and_refilled() {
        let mut reserve = Reserve::take();
        for _ in 0..DESCRIPTORS_RESERVED {
            assert!(reserve.spend());
        }
        assert!(!reserve.spend());
        reserve.refill();
        assert!(reserve.spend());
    }
}
