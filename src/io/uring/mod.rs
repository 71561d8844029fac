//! The driver for kernels with io_uring: requests gather during an iteration, and one system call submits them and waits for
//! completions.
//!
//! The input of a connection is one multishot receive: each completion brings a buffer that the kernel has taken from a
//! common pool. The output is one send at a time, of what the server shows. Whatever a request refers to stays in place until
//! the request has completed: a connection is closed only when it has no request in flight.

mod buffers;
mod connection;
mod dry;
mod ending;
#[cfg(test)]
mod fake;
mod kernel;
mod log_writes;
#[cfg(test)]
mod multishot;
mod receiving;
mod registered;
mod requests;
mod ring;
mod self_check;
mod sending;
mod setup;
mod tail_buffers;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;

use self::connection::Connection;
use self::dry::DryQueues;
use self::kernel::KernelRing;
use self::log_writes::LogWrite;
use self::registered::Registered;
use self::ring::{Completion, Ring, Token};
use self::self_check::SelfCheck;
use self::setup::RING_BYTES_MIN;
use super::ring_error::RingError;
use super::shell::{Backend, InputState, Shell};
use super::socket::AcceptError;
use super::{DriverError, Exit, Resources, retry_for_locked_memory};
use crate::server::Service;
use crate::time::{Span, Time};
use crate::values::ids::ConnId;
use crate::values::limits::EVENTS_MAX;
use crate::wal::{DiskOperation, DiskOutcome};

/// What `stats` calls this driver.
pub const NAME: &str = "uring";

/// The ring of a driver, before it runs.
pub struct PreparedRing(KernelRing);

/// Sets up the ring.
///
/// # Errors
/// If the kernel grants none.
pub fn prepare() -> Result<PreparedRing, DriverError> {
    let is_shortage = |&errno: &Errno| errno == Errno::ENOMEM;
    let ring = retry_for_locked_memory(RING_BYTES_MIN, KernelRing::new, is_shortage);
    let refused = |errno| DriverError::Ring(RingError { driver: NAME, oldest: "6.0", errno });
    ring.map(PreparedRing).map_err(refused)
}

/// Runs the server until it stops or restarts in place.
///
/// # Errors
/// If the ring or a listener breaks, or the server fails.
pub fn run<S: Service>(
    server: S,
    PreparedRing(ring): PreparedRing,
    resources: Resources,
) -> Result<Exit, DriverError> {
    let clock = resources.clock;
    let mut driver = UringDriver::new(server, ring, resources, clock.now());
    let result = driver.run(|| clock.now());
    driver.self_check.end();
    driver.finish_sends(|| clock.now());
    let exit = driver.shell.exit(result);
    // The kernel may read and write the memory of requests in flight until the process ends.
    std::mem::forget(driver);
    exit
}

struct UringDriver<S: Service, R> {
    shell: Shell<S, Connection>,
    ring: R,
    /// Connections whose sends found no room, by the time of the next attempt.
    stalled: BinaryHeap<Reverse<(Time, u64)>>,
    registered: Registered,
    self_check: SelfCheck,
    dry: DryQueues,
    /// None are wanted, or the kernel does not know those that report a copy.
    refuses_zero_copy: bool,
    log_write: Option<LogWrite>,
}

impl<S: Service, R: Ring> UringDriver<S, R> {
    fn new(server: S, ring: R, resources: Resources, now: Time) -> Self {
        let registered_bytes_max = resources.registered_bytes_max;
        let (shell, _) = Shell::new(server, resources);
        let mut driver = Self {
            shell,
            ring,
            stalled: BinaryHeap::new(),
            registered: Registered::new(registered_bytes_max),
            self_check: SelfCheck::default(),
            dry: DryQueues::default(),
            refuses_zero_copy: registered_bytes_max == 0,
            log_write: None,
        };
        driver.shell.now = now;
        driver.shell.allocated(driver.ring.memory_bytes());
        driver.watch_signals();
        if driver.shell.outcome_fd().is_some() {
            driver.watch_disk();
        }
        driver.watch_all_listeners();
        driver
    }

    fn run(&mut self, now: impl Fn() -> Time) -> Result<(), DriverError> {
        let mut timeout = Some(Span::ZERO);
        while !self.shell.is_done() {
            self.shell.counts.kept().waits += 1;
            self.ring.enter(timeout).map_err(DriverError::Wait)?;
            timeout = self.iterate(now())?;
        }
        // This submits the last sends too.
        self.unwatch_listeners().map_err(DriverError::Wait)
    }

    /// Takes a bounded number of completions. Returns how long to wait for the next; `None` if there is no deadline.
    fn iterate(&mut self, now: Time) -> Result<Option<Span>, DriverError> {
        self.shell.now = now;
        for taken in 0..EVENTS_MAX {
            // At least one, whatever the effects of the last turn have cost.
            if taken > 0 && self.shell.is_full() {
                break;
            }
            let Some(completion) = self.ring.next() else { break };
            self.complete(completion)?;
        }
        self.receive_in_turn();
        self.retry_stalled();
        self.run_turn()?;
        self.check_itself();
        let dry_until = (!self.dry.is_empty()).then_some(now);
        let deadlines =
            [self.shell.next_deadline(), self.stalled_until(), self.self_check.deadline(), dry_until];
        Ok(deadlines.into_iter().flatten().min().map(|first| first.since(now)))
    }

    fn complete(&mut self, completion: Completion) -> Result<(), DriverError> {
        let Completion { token, result, buffer, is_last } = completion;
        match token {
            Token::Listener(number) => self.accept(number as usize, result)?,
            Token::Receive(slot) => self.received(slot, result, buffer, is_last),
            Token::Send(slot) => self.sent(slot, result, is_last),
            Token::Notification(slot) => self.notified(slot, result != Ok(0)),
            Token::Watch(slot) => self.watched(slot, result.is_ok()),
            Token::Signals => {
                self.read_signals()?;
                self.watch_signals();
            }
            Token::Disk => {
                self.complete_log_requests();
                self.watch_disk();
            }
            Token::LogWrite => self.log_written(result),
            Token::Cancel => {}
        }
        self.carry_out();
        Ok(())
    }

    fn watch_signals(&mut self) {
        self.ring.watch(Token::Signals, self.shell.signals.as_fd().as_raw_fd());
    }

    fn watch_disk(&mut self) {
        let fd = self.shell.outcome_fd().expect("another thread reports something").as_raw_fd();
        self.ring.watch(Token::Disk, fd);
    }

    /// Closes a connection without requests in flight, if the server wants it closed.
    fn close_if_quiet(&mut self, conn: ConnId) {
        let Some(connection) = self.shell.connections.get_mut(conn) else { return };
        if connection.input != InputState::Closing || !connection.is_quiet() {
            return;
        }
        // Only an open socket can be reset, in case the peer never acknowledges what the network still reads.
        if connection.notifications > 0 {
            return connection.shut();
        }
        self.shell.closed(conn);
    }
}

impl<S: Service, R: Ring> Backend for UringDriver<S, R> {
    type Service = S;
    type Connection = Connection;

    fn shell(&mut self) -> &mut Shell<S, Connection> {
        &mut self.shell
    }

    fn send(&mut self, conn: ConnId) {
        self.send_next(conn);
    }

    fn pause(&mut self, conn: ConnId) {
        let connection = self.shell.connection(conn);
        if connection.input == InputState::Receiving {
            connection.input = InputState::Paused;
            self.cancel_receive(conn);
            self.watch_if_paused(conn);
        }
    }

    fn resume(&mut self, conn: ConnId) {
        let connection = self.shell.connection(conn);
        if connection.input == InputState::Paused {
            (connection.input, connection.reported_ending) = (InputState::Receiving, false);
            self.cancel_watch(conn);
            self.receive_if_wanted(conn);
        }
    }

    /// Cancels all requests of a connection. It is closed when they have completed.
    fn close(&mut self, conn: ConnId) {
        self.shell.connection(conn).input = InputState::Closing;
        self.cancel_send(conn);
        self.cancel_receive(conn);
        self.cancel_watch(conn);
        self.close_if_quiet(conn);
    }

    fn accept_from(&mut self, listener: usize) -> Result<OwnedFd, AcceptError> {
        self.ring.accept(&self.shell.listeners[listener].listener)
    }

    fn admit(&mut self, listener: usize, fd: OwnedFd) {
        let conn = self.shell.register(listener, &fd);
        self.shell.insert(conn, Connection::new(fd, listener as u16));
        let grown = self.self_check.make_room(self.shell.connections.slots());
        self.shell.allocated(grown);
        self.receive_if_wanted(conn);
        self.carry_out();
    }

    fn watch_listener(&mut self, listener: usize) -> nix::Result<()> {
        let fd = self.shell.listeners[listener].listener.as_fd().as_raw_fd();
        self.ring.watch(Token::Listener(listener as u32), fd);
        Ok(())
    }

    fn begin_disk(&mut self, operation: DiskOperation) -> Option<DiskOutcome> {
        self.begin_operation(operation)
    }
}

/// Waits for the end of requests on listeners, each of at most 1 ms.
const UNWATCH_ENTERS_MAX: usize = 1000;

impl<S: Service, R: Ring> UringDriver<S, R> {
    pub(super) fn watch_all_listeners(&mut self) {
        self.watch_listeners().expect("a request does not fail when it is made");
    }

    /// Accepts connections after the watch of a listener has completed, and watches it again.
    pub(super) fn accept(&mut self, listener: usize, watched: Result<u32, Errno>) -> Result<(), DriverError> {
        self.shell.listeners[listener].is_watched = false;
        if let Err(errno) = watched {
            self.shell.admission.pause(self.shell.now, errno);
        }
        self.accept_batch(listener)?;
        self.watch_all_listeners();
        Ok(())
    }

    /// Cancels the requests on listeners, so that another server can bind their addresses as soon as this one has ended. The
    /// kernel keeps a listener open as long as a request refers to it, even after the process has ended.
    pub(super) fn unwatch_listeners(&mut self) -> nix::Result<()> {
        for (number, watched) in self.shell.listeners.iter().enumerate() {
            if watched.is_watched {
                self.ring.cancel(Token::Listener(number as u32));
            }
        }
        for _ in 0..UNWATCH_ENTERS_MAX {
            let is_watched = self.shell.listeners.iter().any(|watched| watched.is_watched);
            self.ring.enter(Some(if is_watched { Span::from_millis(1) } else { Span::ZERO }))?;
            if !is_watched {
                break;
            }
            while let Some(Completion { token, .. }) = self.ring.next() {
                if let Token::Listener(number) = token {
                    self.shell.listeners[number as usize].is_watched = false;
                }
            }
        }
        Ok(())
    }
}
