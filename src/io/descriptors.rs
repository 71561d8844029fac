//! Descriptors as a resource that runs out.

use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::{info, warn};

use super::host::Counts;
use super::socket::to_errno;
use crate::server::Protocol;
use crate::time::{Span, Time};
use crate::values::limits::HTTP_CONNECTIONS_MAX;
use crate::values::log_limit::LogLimit;

/// Descriptors of a server besides those of connections and the spare ones: the standard ones, listeners, the event loop's
/// own, those of the job log.
const OWN_DESCRIPTORS: u64 = 24;

/// Spare descriptors for the job log, so that a process full of connections can continue it: two segments, each open in two ways
/// (4), and one for each of its threads (2). Two more replace spare descriptors that a new connection takes before the
/// log does.
const SPARE_DESCRIPTORS: usize = 8;

/// Descriptors that clients leave for HTTP, at most: its 64 connections, and one more that takes the place of another. With a low
/// limit this part of it.
const HTTP_DESCRIPTORS_MAX: u64 = HTTP_CONNECTIONS_MAX as u64 + 1;

/// Descriptors that clients leave for the database of `--replicate`, at most: two connections, the names that are looked up for them,
/// and files of certificates.
const DATABASE_DESCRIPTORS_MAX: u64 = 16;

/// The part of a low limit that is left for each of them.
const RESERVED_SHARE: u64 = 8;

/// Attempts to open a file of the job log that found no descriptor, and the pause between them: the loop waits for a second.
const OPEN_ATTEMPTS: u32 = 200;
const OPEN_PAUSE: Span = Span::from_millis(5);

/// The pause of accept when the process or the system has no descriptor left. A connection that closes ends it at once. The
/// pause is for descriptors that others free.
pub(super) const ACCEPT_PAUSE: Span = Span::from_millis(100);

/// What an operator can do about too few descriptors.
const RAISE: &str = "; raise the limit of open files (ulimit -n, LimitNOFILE=)";

/// The shortest time between warnings about pauses. A client at the maximum that reconnects causes one each time.
const WARNING_INTERVAL: Span = Span::from_secs(10);

/// Raises the soft limit of this process to the hard limit, and returns it. The usual soft limit of 1024 is for programs that
/// call select(2).
///
/// # Errors
/// Those of getrlimit(2) and setrlimit(2).
pub fn raise_limit() -> nix::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

/// Descriptors of this limit that clients leave for connections over HTTP and for those to a database, if there are such.
pub fn reserved(limit: u64, has_http: bool, has_database: bool) -> u64 {
    let share = limit / RESERVED_SHARE;
    let for_http = if has_http { HTTP_DESCRIPTORS_MAX.min(share) } else { 0 };
    let for_database = if has_database { DATABASE_DESCRIPTORS_MAX.min(share) } else { 0 };
    for_http + for_database
}

/// The number of HTTP connections that find a descriptor though clients have taken all that they may.
pub fn http_connections_max() -> usize {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
    reserved(limit, true, false).saturating_sub(1).max(1) as usize
}

/// The approximate number of connections that fit into a limit of descriptors.
pub const fn connections_within(limit: u64) -> u64 {
    limit.saturating_sub(SPARE_DESCRIPTORS as u64 + OWN_DESCRIPTORS)
}

/// Descriptors kept from connections, for files of the job log that must be opened. Shared by the threads that open such files.
#[derive(Debug)]
pub struct SpareDescriptors {
    /// Each is a descriptor or [`NONE`].
    spares: [AtomicI32; SPARE_DESCRIPTORS],
}

const NONE: RawFd = -1;

impl SpareDescriptors {
    /// Opens the spare descriptors, or as many as the limit allows.
    pub fn open_all() -> Self {
        let spares = Self { spares: [const { AtomicI32::new(NONE) }; SPARE_DESCRIPTORS] };
        spares.refill();
        spares
    }

    /// Calls `open`. If no descriptor is left, closes a spare one and repeats the call. A connection may take that descriptor
    /// first, so the call is repeated for up to a second, in which other threads free theirs.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn open<T>(&self, mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        self.open_or_wait(OPEN_ATTEMPTS, &mut open)
    }

    /// Opens something on a thread of the disk: repeats the call as long as connections have all descriptors.
    ///
    /// # Errors
    /// Those of `open` but for a shortage of descriptors.
    pub fn open_in_time<T>(&self, mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        self.open_or_wait(u32::MAX, &mut open)
    }

    fn open_or_wait<T>(&self, mut attempts: u32, open: &mut impl FnMut() -> io::Result<T>) -> io::Result<T> {
        self.refill();
        loop {
            match open() {
                Err(error) if is_shortage(&error) && self.spend() => {}
                Err(error) if is_shortage(&error) && attempts > 0 => {
                    attempts -= 1;
                    thread::sleep(Duration::from_nanos(OPEN_PAUSE.as_nanos()));
                }
                result => return result,
            }
        }
    }

    /// Opens the spare descriptors that are missing, as far as the limit allows. Returns whether all are open.
    pub fn refill(&self) -> bool {
        self.spares.iter().all(|place| {
            if place.load(Ordering::Acquire) != NONE {
                return true;
            }
            let Ok(file) = File::open("/dev/null") else { return false };
            let fd = file.into_raw_fd();
            if let Err(spare) = place.compare_exchange(NONE, fd, Ordering::AcqRel, Ordering::Acquire) {
                debug_assert_ne!(spare, NONE);
                close(fd);
            }
            true
        })
    }

    /// Closes a spare descriptor, so that the next open finds one. Returns false if none is left.
    fn spend(&self) -> bool {
        let spare = self.spares.iter().map(|place| place.swap(NONE, Ordering::AcqRel)).find(|&fd| fd != NONE);
        spare.map(close).is_some()
    }
}

impl Drop for SpareDescriptors {
    fn drop(&mut self) {
        while self.spend() {}
    }
}

/// Closes a spare descriptor.
fn close(fd: RawFd) {
    // SAFETY: it was opened here, and only the thread that took it from its place knows it.
    #[allow(unsafe_code)]
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
}

/// Whether the process, or the system, has no descriptor left.
fn is_shortage(error: &io::Error) -> bool {
    matches!(to_errno(error), Errno::EMFILE | Errno::ENFILE)
}

/// Decides whether connections are accepted. Accept is paused for want of descriptors, and at the maximum number of client
/// connections. New connections then wait in the listen backlog.
pub struct Admission {
    /// Client connections.
    open: u32,
    open_max: u32,
    /// A client connection with this descriptor or a higher one pauses accept for clients: the rest is for probes, scrapers and the
    /// database.
    fd_max: RawFd,
    /// There is such a connection.
    is_full: bool,
    /// Clients that are forwarded to a leader.
    #[cfg(feature = "replicate")]
    forwarded: usize,
    /// This server is a standby that forwards as many clients as it may.
    is_forwarder_full: bool,
    /// When to try again to get what was missing.
    paused_until: Option<Time>,
    limit: LogLimit,
    /// A line said that accept is paused, and none that it is not.
    is_pause_logged: bool,
    /// Why accept is paused, if no line has said so.
    unlogged: Option<String>,
    counts: Rc<Counts>,
    /// Filled before connections are accepted again.
    spares: Option<Arc<SpareDescriptors>>,
}

impl Admission {
    /// Admits up to `open_max` client connections, and only while the spare descriptors are complete, if there are any.
    pub fn new(open_max: Option<u32>, spares: Option<Arc<SpareDescriptors>>, counts: Rc<Counts>) -> Self {
        Self {
            open: 0,
            open_max: open_max.unwrap_or(u32::MAX),
            fd_max: RawFd::MAX,
            is_full: false,
            #[cfg(feature = "replicate")]
            forwarded: 0,
            is_forwarder_full: false,
            paused_until: None,
            limit: LogLimit::every(WARNING_INTERVAL),
            is_pause_logged: false,
            unlogged: None,
            counts,
            spares,
        }
    }

    /// Keeps descriptors from clients, for [others](reserved) of which the server has few at a time.
    pub fn reserve(&mut self, has_http: bool, has_database: bool) {
        let Ok((limit, _)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
        let reserved = reserved(limit, has_http, has_database);
        if reserved == 0 {
            return;
        }
        // The kernel gives the lowest number that is free. The connection that has this one is the last.
        let last = (limit - reserved).saturating_sub(1);
        self.fd_max = RawFd::try_from(last).unwrap_or(RawFd::MAX);
    }

    /// The number of client connections.
    pub const fn open(&self) -> u32 {
        self.open
    }

    /// Pauses accept for a moment, since it failed for want of something.
    pub fn pause(&mut self, now: Time, errno: Errno) {
        self.paused_until = Some(now + ACCEPT_PAUSE);
        self.note_pause(now, || describe(errno));
        self.show();
    }

    /// Counts an accepted connection, and pauses accept if no further one is allowed.
    pub fn opened(&mut self, protocol: Protocol, fd: RawFd, now: Time) {
        if protocol == Protocol::Beanstalk {
            self.open += 1;
            self.is_full |= fd >= self.fd_max;
            self.show();
            let open = self.open;
            if open == self.open_max {
                return self.note_pause(now, || format!("--max-connections {open} is reached"));
            }
            if self.is_full {
                return self.note_pause(now, || describe(Errno::EMFILE));
            }
        }
        // Not when the pause ends: the next accept may fail like the last one.
        self.note_end_of_pause();
    }

    /// Learns how many clients are forwarded. At the maximum of a standby, accept is paused for clients. Fewer than before may have left
    /// the descriptors that a leader lacks.
    #[cfg(feature = "replicate")]
    pub fn forwarded(&mut self, open: usize, max: Option<usize>, now: Time) {
        let was_paused = self.is_paused(Protocol::Beanstalk);
        if open < mem::replace(&mut self.forwarded, open) {
            self.end_if_not_full();
        }
        let was_full = mem::replace(&mut self.is_forwarder_full, max.is_some_and(|max| open >= max));
        if self.is_forwarder_full && !was_full {
            let open_max = self.open_max as usize;
            self.note_pause(now, || match max {
                Some(max) if max == open_max => format!("--max-connections {max} is reached"),
                _ => format!("this standby forwards {open} clients, and has descriptors for no more{RAISE}"),
            });
        }
        if was_paused != self.is_paused(Protocol::Beanstalk) {
            self.show();
            self.note_end_of_pause();
        }
    }

    /// Counts a closed connection. Its descriptor may end a pause.
    pub fn closed(&mut self, protocol: Protocol, now: Time) {
        let mut was_paused = self.paused_until.is_some();
        if protocol == Protocol::Beanstalk {
            was_paused |= self.open == self.open_max;
            self.open -= 1;
        }
        was_paused |= self.end_if_not_full();
        let is_complete = self.refill_spares();
        if was_paused {
            self.paused_until =
                if is_complete { Some(now) } else { self.paused_until.or(Some(now + ACCEPT_PAUSE)) };
        }
        self.show();
    }

    /// Ends a pause whose time has come. Returns whether it did: then some listener may be [paused](Self::is_paused) no
    /// longer.
    pub fn resume(&mut self, now: Time) -> bool {
        self.log_lasting_pause(now);
        if self.paused_until.is_none_or(|until| now < until) {
            return false;
        }
        let is_complete = self.refill_spares();
        self.paused_until = (!is_complete).then(|| now + ACCEPT_PAUSE);
        self.show();
        is_complete
    }

    /// Ends the pause of a full process if a descriptor is free that a client may have. Returns whether it did.
    fn end_if_not_full(&mut self) -> bool {
        let is_free = |file: File| file.as_raw_fd() < self.fd_max;
        let ends = self.is_full && File::open("/dev/null").is_ok_and(is_free);
        self.is_full &= !ends;
        ends
    }

    fn show(&self) {
        self.counts.kept().is_accept_paused = self.is_paused(Protocol::Beanstalk);
    }

    fn refill_spares(&self) -> bool {
        self.spares.as_ref().is_none_or(|spares| spares.refill())
    }

    /// Whether connections of this protocol are not accepted now. The maximum number of connections does not count those for
    /// metrics and probes.
    pub fn is_paused(&self, protocol: Protocol) -> bool {
        self.paused_until.is_some()
            || protocol == Protocol::Beanstalk
                && (self.open >= self.open_max || self.is_full || self.is_forwarder_full)
    }

    /// When to call [`resume`](Self::resume).
    pub fn deadline(&self) -> Option<Time> {
        let unlogged = self.unlogged.as_ref().map(|_| self.limit.next());
        self.paused_until.into_iter().chain(unlogged).min()
    }

    /// Logs how many warnings were left out, at the end of a run.
    pub fn end(&mut self) {
        self.leave_out();
        self.limit.end("accept is paused");
    }

    /// Counts a pause that has ended, or has another reason now, before a line could say so.
    fn leave_out(&mut self) {
        if self.unlogged.take().is_some() {
            self.limit.leave_out();
        }
    }

    fn note_end_of_pause(&mut self) {
        if self.is_paused(Protocol::Beanstalk) {
            return;
        }
        self.leave_out();
        if mem::take(&mut self.is_pause_logged) {
            info!("accept goes on: connections are accepted again");
        }
    }

    fn note_pause(&mut self, now: Time, why: impl FnOnce() -> String) {
        self.counts.kept().accept_pauses += 1;
        self.leave_out();
        self.unlogged = Some(why());
        self.log_lasting_pause(now);
    }

    /// Says that accept is paused, once a line may.
    fn log_lasting_pause(&mut self, now: Time) {
        if self.unlogged.is_none() || now < self.limit.next() {
            return;
        }
        let Some(why) = self.unlogged.take().filter(|_| self.is_paused(Protocol::Beanstalk)) else { return };
        if let Some(left_out) = self.limit.admit(now) {
            self.is_pause_logged = true;
            warn!("accept is paused, new connections wait in the listen backlog: {why}{left_out}");
        }
    }
}

fn describe(errno: Errno) -> String {
    let remedy = if matches!(errno, Errno::EMFILE) { RAISE } else { "" };
    format!("{}{remedy}", errno.desc())
}

#[cfg(test)]
mod tests {
    use super::*;

    use Protocol::{Beanstalk, Http};

    #[test]
    fn a_pause_ends_at_its_time_or_when_a_connection_closes() {
        let start = Time::from_nanos(1);
        let mut admission = Admission::new(None, None, Rc::default());
        (0..2).for_each(|_| admission.opened(Beanstalk, 9, start));
        admission.closed(Beanstalk, start);
        assert!(!admission.resume(start));

        admission.pause(start, Errno::EMFILE);
        assert!(admission.is_paused(Beanstalk) && admission.is_paused(Http));
        assert!(!admission.resume(start));
        assert!(admission.resume(start + ACCEPT_PAUSE));
        assert!(!admission.is_paused(Beanstalk) && !admission.is_paused(Http));

        admission.pause(start, Errno::EMFILE);
        let soon = start + Span::from_millis(1);
        admission.closed(Beanstalk, soon);
        assert_eq!(admission.deadline(), Some(soon));
        assert!(admission.resume(soon));
    }

    #[test]
    fn accept_is_paused_at_the_maximum_number_of_connections() {
        let now = Time::from_nanos(1);
        let counts = Rc::new(Counts::default());
        let mut admission = Admission::new(Some(2), None, counts.clone());
        admission.opened(Beanstalk, 9, now);
        (0..9).for_each(|_| admission.opened(Http, 9, now));
        assert!(!admission.is_paused(Beanstalk));
        admission.opened(Beanstalk, 9, now);
        assert!(counts.kept().accept_pauses == 1 && counts.kept().is_accept_paused);
        assert!(admission.is_paused(Beanstalk) && !admission.is_paused(Http));
        assert!(admission.deadline().is_none() && !admission.resume(now + ACCEPT_PAUSE));
        // The end of a pause for want of descriptors does not make room.
        admission.pause(now, Errno::EMFILE);
        assert!(admission.is_paused(Http) && admission.resume(now + ACCEPT_PAUSE));
        assert!(admission.is_paused(Beanstalk) && !admission.is_paused(Http));
        admission.opened(Http, 9, now);
        assert!(admission.is_pause_logged, "clients wait, though a probe does not");
        admission.closed(Http, now);
        assert!(admission.is_paused(Beanstalk));
        admission.closed(Beanstalk, now);
        assert!(admission.resume(now) && !admission.is_paused(Beanstalk) && !counts.kept().is_accept_paused);
    }

    #[test]
    fn a_pause_that_lasts_is_logged_when_a_line_may() {
        use Protocol::Beanstalk;
        let (counts, start) = (Rc::new(Counts::default()), Time::from_nanos(1_000_000_000_000));
        let mut admission = Admission::new(Some(1), None, counts);
        admission.opened(Beanstalk, 9, start);
        assert!(admission.is_pause_logged && admission.deadline().is_none());
        admission.closed(Beanstalk, start);
        admission.resume(start);
        admission.opened(Protocol::Http, 9, start);
        assert!(!admission.is_pause_logged, "accept goes on");
        let again = start + Span::from_secs(1);
        admission.opened(Beanstalk, 9, again);
        assert!(!admission.is_pause_logged);
        assert_eq!(admission.deadline(), Some(start + WARNING_INTERVAL));
        admission.resume(start + WARNING_INTERVAL);
        assert!(admission.is_pause_logged && admission.deadline().is_none());
    }

    #[test]
    fn an_open_without_descriptors_uses_the_spare_ones() {
        let spares = SpareDescriptors::open_all();
        let open = || spares.spares.iter().filter(|place| place.load(Ordering::Acquire) != NONE).count();
        let mut left = SPARE_DESCRIPTORS;
        let opened = spares.open(|| match left.checked_sub(1) {
            None => Ok("a file"),
            Some(fewer) => {
                left = fewer;
                Err(Errno::EMFILE.into())
            }
        });
        assert_eq!(opened.expect("a spare descriptor makes room"), "a file");
        assert_eq!(open(), 0);
        assert!(spares.refill());
        let error = spares.open(|| Err::<(), _>(Errno::ENOENT.into())).expect_err("it fails");
        assert_eq!((to_errno(&error), open()), (Errno::ENOENT, SPARE_DESCRIPTORS));
    }
}
