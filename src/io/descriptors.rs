//! Descriptors as a resource that runs out.

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
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
use crate::server::Protocol;
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

/// How many connections a process with this limit of descriptors can have, about.
pub const fn connections_within(limit: u64) -> u64 {
    limit.saturating_sub(DESCRIPTORS_RESERVED as u64 + DESCRIPTORS_OWN)
}

/// Descriptors held back from connections, for files of the log that must be opened whatever happens. Shared by the
/// threads that open such files.
#[derive(Debug)]
pub struct Reserve {
    /// Each a descriptor, or none.
    held: [AtomicI32; DESCRIPTORS_RESERVED],
}

const NONE: RawFd = -1;

impl Reserve {
    /// Takes [`DESCRIPTORS_RESERVED`] descriptors, or as many as there are.
    pub fn take() -> Self {
        let reserve = Self { held: [const { AtomicI32::new(NONE) }; DESCRIPTORS_RESERVED] };
        reserve.refill();
        reserve
    }

    /// Opens something, in place of what is held here if there is no other descriptor left. Where one was given up, a
    /// connection may have been faster: then it is tried again for a second, in which other threads give back what
    /// they took.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn open<T>(&self, mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        self.open_or_wait(DESCRIPTOR_TRIES, &mut open)
    }

    /// The same for a thread that nobody waits for: it waits as long as connections have all descriptors.
    pub fn open_in_time<T>(&self, mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        self.open_or_wait(u32::MAX, &mut open)
    }

    fn open_or_wait<T>(&self, mut tries: u32, open: &mut impl FnMut() -> io::Result<T>) -> io::Result<T> {
        self.refill();
        loop {
            match open() {
                Err(error) if is_shortage(&error) && self.spend() => {}
                Err(error) if is_shortage(&error) && tries > 0 => {
                    tries -= 1;
                    thread::sleep(Duration::from_nanos(DESCRIPTOR_PAUSE.as_nanos()));
                }
                result => return result,
            }
        }
    }

    /// Takes back what was spent, as far as it can be had. Whether that is all.
    pub fn refill(&self) -> bool {
        self.held.iter().all(|place| {
            if place.load(Ordering::Acquire) != NONE {
                return true;
            }
            let Ok(file) = File::open("/dev/null") else { return false };
            let fd = file.into_raw_fd();
            if let Err(held) = place.compare_exchange(NONE, fd, Ordering::AcqRel, Ordering::Acquire) {
                debug_assert_ne!(held, NONE);
                close(fd);
            }
            true
        })
    }

    /// Gives one back, so that the next thing that is opened finds room. False if none is left.
    fn spend(&self) -> bool {
        let given_up =
            self.held.iter().map(|place| place.swap(NONE, Ordering::AcqRel)).find(|&fd| fd != NONE);
        given_up.map(close).is_some()
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        while self.spend() {}
    }
}

/// Closes a descriptor of the reserve.
fn close(fd: RawFd) {
    // SAFETY: it was opened here, and whoever has taken it out of the reserve is the only one who knows it.
    #[allow(unsafe_code)]
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
}

/// Whether the process, or the system, has no descriptor left.
fn is_shortage(error: &io::Error) -> bool {
    matches!(to_errno(error), Errno::EMFILE | Errno::ENFILE)
}

/// Whether connections are accepted, or have to wait: for descriptors, or for one of as many as there may be to
/// close. Who waits stays in the kernel's queue.
#[derive(Debug)]
pub struct Admission {
    /// Connections of clients.
    open: u32,
    open_max: u32,
    /// There is something to wait for, which others may give back until then.
    rest: Option<Time>,
    complained: Option<Time>,
    pauses: u64,
    /// Goes before connections.
    reserve: Option<Arc<Reserve>>,
}

impl Admission {
    /// At most `open_max` connections of clients at once (`None`: any number), of which there is none yet, and only
    /// while the reserve is full, if there is one.
    pub fn new(open_max: Option<u32>, reserve: Option<Arc<Reserve>>) -> Self {
        let open_max = open_max.unwrap_or(u32::MAX);
        Self { open: 0, open_max, rest: None, complained: None, pauses: 0, reserve }
    }

    /// Accepting failed for want of something that comes back.
    pub fn rest(&mut self, now: Time, errno: Errno) {
        self.rest = Some(now + ACCEPT_REST);
        self.complain(now, || errno.desc().to_owned());
    }

    /// A connection is accepted. It may be the last for now.
    pub fn opened(&mut self, protocol: Protocol, now: Time) {
        if protocol == Protocol::Beanstalk {
            self.open += 1;
            let open = self.open;
            if open == self.open_max {
                self.complain(now, || format!("{open} are open, as many as --max-connections allows"));
            }
        }
    }

    /// A connection has closed: there is room for another.
    pub fn closed(&mut self, protocol: Protocol, now: Time) {
        let mut is_awaited = self.rest.is_some();
        if protocol == Protocol::Beanstalk {
            is_awaited |= self.open == self.open_max;
            self.open -= 1;
        }
        let is_filled = self.fills_reserve();
        if is_awaited {
            self.rest = if is_filled { Some(now) } else { self.rest.or(Some(now + ACCEPT_REST)) };
        }
    }

    /// Ends the rest if its time has come, and tells whether it did: then look again whether somebody is
    /// [turned away](Self::turns_away).
    pub fn resume(&mut self, now: Time) -> bool {
        if self.rest.is_none_or(|until| now < until) {
            return false;
        }
        let is_filled = self.fills_reserve();
        self.rest = (!is_filled).then(|| now + ACCEPT_REST);
        is_filled
    }

    fn fills_reserve(&self) -> bool {
        self.reserve.as_ref().is_none_or(|reserve| reserve.refill())
    }

    /// Such connections are not accepted now. Those who watch the server come in beside as many clients as there may
    /// be.
    pub fn turns_away(&self, protocol: Protocol) -> bool {
        self.rest.is_some() || protocol == Protocol::Beanstalk && self.open >= self.open_max
    }

    /// When to call [`resume`](Self::resume).
    pub const fn deadline(&self) -> Option<Time> {
        self.rest
    }

    /// How often accept was paused.
    pub const fn pauses(&self) -> u64 {
        self.pauses
    }

    fn complain(&mut self, now: Time, why: impl FnOnce() -> String) {
        self.pauses += 1;
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

    use Protocol::{Beanstalk, Http};

    #[test]
    fn rests_until_its_time_or_until_there_is_room() {
        let start = Time::from_nanos(1);
        let mut admission = Admission::new(None, None);
        (0..2).for_each(|_| admission.opened(Beanstalk, start));
        admission.closed(Beanstalk, start);
        assert!(!admission.resume(start));

        admission.rest(start, Errno::EMFILE);
        assert!(admission.turns_away(Beanstalk) && admission.turns_away(Http));
        assert!(!admission.resume(start));
        assert!(admission.resume(start + ACCEPT_REST));
        assert!(!admission.turns_away(Beanstalk) && !admission.turns_away(Http));

        admission.rest(start, Errno::EMFILE);
        let soon = start + Span::from_millis(1);
        admission.closed(Beanstalk, soon);
        assert_eq!(admission.deadline(), Some(soon));
        assert!(admission.resume(soon));
    }

    #[test]
    fn rests_while_there_are_as_many_as_there_may_be() {
        let now = Time::from_nanos(1);
        let mut admission = Admission::new(Some(2), None);
        admission.opened(Beanstalk, now);
        (0..9).for_each(|_| admission.opened(Http, now));
        assert!(!admission.turns_away(Beanstalk));
        admission.opened(Beanstalk, now);
        assert_eq!(admission.pauses(), 1);
        assert!(admission.turns_away(Beanstalk) && !admission.turns_away(Http));
        assert!(admission.deadline().is_none() && !admission.resume(now + ACCEPT_REST));
        // The end of a rest for want of something else does not make room.
        admission.rest(now, Errno::EMFILE);
        assert!(admission.turns_away(Http) && admission.resume(now + ACCEPT_REST));
        assert!(admission.turns_away(Beanstalk) && !admission.turns_away(Http));
        admission.closed(Http, now);
        assert!(admission.turns_away(Beanstalk));
        admission.closed(Beanstalk, now);
        assert!(admission.resume(now) && !admission.turns_away(Beanstalk));
    }

    #[test]
    fn what_has_to_be_opened_takes_the_place_of_what_is_held() {
        let reserve = Reserve::take();
        let held = || reserve.held.iter().filter(|place| place.load(Ordering::Acquire) != NONE).count();
        let mut left = DESCRIPTORS_RESERVED;
        let opened = reserve.open(|| match left.checked_sub(1) {
            None => Ok("a file"),
            Some(fewer) => {
                left = fewer;
                Err(Errno::EMFILE.into())
            }
        });
        assert_eq!(opened.expect("there was room at last"), "a file");
        assert_eq!(held(), 0);
        assert!(reserve.refill());
        let error = reserve.open(|| Err::<(), _>(Errno::ENOENT.into())).expect_err("it fails");
        assert_eq!((to_errno(&error), held()), (Errno::ENOENT, DESCRIPTORS_RESERVED));
    }
}
