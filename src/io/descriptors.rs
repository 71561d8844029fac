//! Descriptors as a resource that runs out.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::warn;

use crate::limits::{ACCEPT_COMPLAINT_EVERY, ACCEPT_REST, DESCRIPTORS_OWN, DESCRIPTORS_RESERVED};
use crate::server::IoCounters;
use crate::time::Time;

/// Raises this process's limit as far as it may go without rights. The usual soft limit of 1024 is for
/// programs that call select(2).
/// Returns what it is then.
pub fn raise_limit() -> nix::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

/// How many connections a process with this limit of descriptors can have, about.
pub const fn connections_within(limit: u64) -> u64 {
    limit.saturating_sub(DESCRIPTORS_RESERVED as u64 + DESCRIPTORS_OWN)
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

/// Whether connections are accepted, or have to wait: for descriptors, or for one of as many as there may be to
/// close. Who waits stays in the kernel's queue.
#[derive(Debug)]
pub struct Admission {
    open: u32,
    open_max: u32,
    rest: Option<Rest>,
    complained: Option<Time>,
    counters: Rc<IoCounters>,
}

/// Why connections have to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rest {
    /// For descriptors that others may give back until then.
    Until(Time),
    /// There are as many as there may be.
    Full,
}

impl Admission {
    /// At most `open_max` connections at once (`None`: any number), of which there is none yet.
    pub fn new(open_max: Option<u32>, counters: Rc<IoCounters>) -> Self {
        Self { open: 0, open_max: open_max.unwrap_or(u32::MAX), rest: None, complained: None, counters }
    }

    /// Accepting failed for want of something that comes back.
    pub fn rest(&mut self, now: Time, errno: Errno) {
        self.begin(Rest::Until(now + ACCEPT_REST), now, || errno.desc().to_owned());
    }

    /// A connection is accepted. It may be the last for now.
    pub fn opened(&mut self, now: Time) {
        self.open += 1;
        let open = self.open;
        if open >= self.open_max {
            self.begin(Rest::Full, now, || format!("{open} are open, as many as --max-connections allows"));
        }
    }

    /// A connection has closed: there is room for another.
    pub fn closed(&mut self, now: Time) {
        self.open -= 1;
        if self.is_resting() && self.open < self.open_max {
            self.rest = Some(Rest::Until(now));
        }
    }

    /// Ends the rest if its time has come, and tells whether it did.
    pub fn resume(&mut self, now: Time) -> bool {
        let is_over = self.deadline().is_some_and(|until| until <= now);
        if is_over {
            self.rest = None;
        }
        is_over
    }

    /// Connections are not accepted now.
    pub const fn is_resting(&self) -> bool {
        self.rest.is_some()
    }

    /// When to call [`resume`](Self::resume).
    pub const fn deadline(&self) -> Option<Time> {
        match self.rest {
            Some(Rest::Until(until)) => Some(until),
            Some(Rest::Full) | None => None,
        }
    }

    fn begin(&mut self, rest: Rest, now: Time, why: impl FnOnce() -> String) {
        if self.rest == Some(Rest::Full) {
            return;
        }
        self.rest = Some(rest);
        self.counters.accept_rests.update(|count| count + 1);
        let said_lately = self.complained.is_some_and(|at| now.since(at) < ACCEPT_COMPLAINT_EVERY);
        if !said_lately {
            self.complained = Some(now);
            warn!("new connections have to wait: {}", why());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;

    #[test]
    fn rests_until_its_time_or_until_there_is_room() {
        let start = Time::from_nanos(1);
        let mut admission = Admission::new(None, Rc::default());
        (0..2).for_each(|_| admission.opened(start));
        admission.closed(start);
        assert!(!admission.resume(start));

        admission.rest(start, Errno::EMFILE);
        assert!(!admission.resume(start));
        assert!(admission.resume(start + ACCEPT_REST));
        assert!(!admission.is_resting());

        admission.rest(start, Errno::EMFILE);
        let soon = start + Span::from_millis(1);
        admission.closed(soon);
        assert_eq!(admission.deadline(), Some(soon));
        assert!(admission.resume(soon));
    }

    #[test]
    fn rests_while_there_are_as_many_as_there_may_be() {
        let (now, counters) = (Time::from_nanos(1), Rc::<IoCounters>::default());
        let mut admission = Admission::new(Some(2), counters.clone());
        admission.opened(now);
        assert!(!admission.is_resting());
        admission.opened(now);
        // What is known already does not end it sooner.
        admission.rest(now, Errno::EMFILE);
        assert!(admission.is_resting() && admission.deadline().is_none());
        assert!(!admission.resume(now + ACCEPT_REST));
        admission.closed(now);
        assert!(admission.resume(now) && !admission.is_resting());
        assert_eq!(counters.accept_rests.get(), 1);
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
