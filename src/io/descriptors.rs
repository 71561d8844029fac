//! Descriptors as a resource that runs out.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::warn;

use super::socket::to_errno;
use crate::limits::{
    ACCEPT_COMPLAINT_EVERY, ACCEPT_REST, DESCRIPTOR_PAUSE, DESCRIPTOR_TRIES, DESCRIPTORS_OWN,
    DESCRIPTORS_RESERVED,
};
use crate::server::IoCounters;
use crate::time::Time;

/// Raises this process's limit as far as it may go without rights. The usual soft limit of 1024 is for
/// programs that call select(2). Returns what it is then.
pub fn raise_limit() -> nix::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

/// The loop has one where there is a log, and so has each of the log's threads.
const RESERVES: u64 = 3;

/// How many connections a process with this limit of descriptors can have, about.
pub const fn connections_within(limit: u64) -> u64 {
    limit.saturating_sub(RESERVES * DESCRIPTORS_RESERVED as u64 + DESCRIPTORS_OWN)
}

/// Descriptors held back from connections, for files that must be opened whatever happens. Each thread that opens
/// such files has its own.
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

    /// Opens something, in place of what is held here if there is no other descriptor left.
    ///
    /// # Errors
    /// Those of `open`: of a shortage only if nothing is held any more.
    pub fn open<T>(&mut self, mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        self.refill();
        loop {
            match open() {
                Err(error) if is_shortage(&error) && self.spend() => {}
                result => return result,
            }
        }
    }

    /// The same for a thread that nobody waits for: another one may have been faster where a descriptor was given
    /// up, and a connection may have it for a while.
    pub fn open_in_time<T>(&mut self, mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        for _ in 0..DESCRIPTOR_TRIES {
            match self.open(&mut open) {
                Err(error) if is_shortage(&error) => {
                    thread::sleep(Duration::from_nanos(DESCRIPTOR_PAUSE.as_nanos()));
                }
                result => return result,
            }
        }
        self.open(open)
    }

    /// Gives one back, so that the next thing that is opened finds room. False if none is left.
    fn spend(&mut self) -> bool {
        self.held.pop().is_some()
    }

    /// Takes back what was spent, as far as it can be had.
    fn refill(&mut self) {
        while self.held.len() < DESCRIPTORS_RESERVED {
            let Ok(file) = File::open("/dev/null") else { return };
            self.held.push(file.into());
        }
    }
}

/// Whether the process, or the system, has no descriptor left.
fn is_shortage(error: &io::Error) -> bool {
    matches!(to_errno(error), Errno::EMFILE | Errno::ENFILE)
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
    fn what_has_to_be_opened_takes_the_place_of_what_is_held() {
        let mut reserve = Reserve::take();
        let mut left = DESCRIPTORS_RESERVED;
        let opened = reserve.open(|| match left.checked_sub(1) {
            None => Ok("a file"),
            Some(fewer) => {
                left = fewer;
                Err(Errno::EMFILE.into())
            }
        });
        assert_eq!(opened.expect("there was room at last"), "a file");
        assert!(reserve.held.is_empty());
        let refused = |errno: Errno| move || Err::<(), _>(io::Error::from(errno));
        assert_eq!(
            to_errno(&reserve.open(refused(Errno::ENFILE)).expect_err("nothing is left")),
            Errno::ENFILE
        );
        assert!(reserve.held.is_empty(), "it was filled again, and spent again");
        assert_eq!(to_errno(&reserve.open(refused(Errno::ENOENT)).expect_err("it fails")), Errno::ENOENT);
        assert_eq!(reserve.held.len(), DESCRIPTORS_RESERVED);
    }
}
