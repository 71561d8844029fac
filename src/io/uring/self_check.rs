//! Checks about once a second that the ring has reported everything.
//!
//! Kernels lose wake-ups of multishot receives (docs/internals/IO.md). Input, or its end, then lies in the socket until more comes, and
//! a client that waits for its reply would wait forever. So the driver checks each connection once that has been quiet for a
//! while after such a receive brought something. It also looks for requests that the
//! driver should have made and has not. It repairs what it finds, logs a warning, and counts it.

use std::collections::VecDeque;

use nix::errno::Errno;
use tracing::warn;

use super::UringDriver;
use super::connection::{Connection, QuietCheck, ReceiveRequest};
use super::ring::Ring;
use crate::io::shell::{Backend, InputState};
use crate::server::Service;
use crate::time::{Span, Time};
use crate::values::log_limit::LogLimit;

/// How long a connection is quiet before the first check, and from each check to the next. A client whose wake-up the kernel
/// has lost waits three times this at most. Ten thousand clients that send once in this time take 0.3 % of a core more.
pub(super) const SELF_CHECK_INTERVAL: Span = Span::from_secs(1);

/// Connections that one iteration checks: some 100 us.
const SELF_CHECK_STEPS: usize = 256;

/// How often, at most, each kind of repair is logged. They are counted in `stats`.
const WARNING_INTERVAL: Span = Span::from_secs(60);

/// The connections that are to be checked, and when.
pub(super) struct SelfCheck {
    /// The slots of connections, sorted by time. A slot stays after its connection has closed. So it is in the queue at most once,
    /// however many connections come and go.
    quiet: VecDeque<(Time, u32)>,
    /// By slot: whether it is in `quiet`.
    is_queued: Vec<bool>,
    /// The slot at which the search for missing requests continues.
    next_slot: u32,
    unreported_limit: LogLimit,
    missing_limit: LogLimit,
}

impl Default for SelfCheck {
    fn default() -> Self {
        let limit = || LogLimit::every(WARNING_INTERVAL);
        Self {
            quiet: VecDeque::new(),
            is_queued: Vec::new(),
            next_slot: 0,
            unreported_limit: limit(),
            missing_limit: limit(),
        }
    }
}

impl SelfCheck {
    /// Logs how many warnings were left out, at the end of a run.
    pub fn end(&mut self) {
        self.unreported_limit.end("input that the kernel did not report to io_uring");
        self.missing_limit.end("requests to io_uring that were missing");
    }

    /// Makes room for connections in this number of slots. Returns by how many bytes that has grown.
    pub fn make_room(&mut self, slots: usize) -> usize {
        let bytes_before = self.bytes();
        if slots > self.is_queued.len() {
            self.is_queued.resize(slots, false);
            self.quiet.reserve(slots - self.quiet.len());
        }
        self.bytes() - bytes_before
    }

    pub fn bytes(&self) -> usize {
        self.is_queued.capacity() + self.quiet.capacity() * size_of::<(Time, u32)>()
    }

    /// Schedules a check of a connection, which is due when the connection has been quiet since its last input. Called when a
    /// receive has brought that and is still armed.
    pub fn check_when_quiet(&mut self, slot: u32, connection: &mut Connection) {
        if connection.quiet_check == QuietCheck::None {
            // On a full interval, so that one wake-up of the loop serves all connections that are due.
            let due = (connection.last_input + SELF_CHECK_INTERVAL).round_up(SELF_CHECK_INTERVAL);
            connection.quiet_check = QuietCheck::Scheduled;
            self.schedule(slot, due);
        }
    }

    /// When the next connection is due.
    pub fn deadline(&self) -> Option<Time> {
        self.quiet.front().map(|&(due, _)| due)
    }

    /// An earlier time at which the slot is due already is not too early: a check schedules the next one.
    fn schedule(&mut self, slot: u32, due: Time) {
        if !std::mem::replace(&mut self.is_queued[slot as usize], true) {
            self.quiet.push_back((due, slot));
        }
    }

    fn next_due(&mut self, now: Time) -> Option<(Time, u32)> {
        let (due, slot) = self.quiet.pop_front_if(|&mut (due, _)| due <= now)?;
        self.is_queued[slot as usize] = false;
        Some((due, slot))
    }
}

impl<S: Service, R: Ring> UringDriver<S, R> {
    /// Checks the connections that are due, a bounded number of them.
    pub(super) fn check_itself(&mut self) {
        let now = self.shell.now;
        if self.self_check.deadline().is_none_or(|due| due > now) {
            return;
        }
        let mut unreported = 0;
        for _ in 0..SELF_CHECK_STEPS {
            let Some((due, slot)) = self.self_check.next_due(now) else { break };
            unreported += u64::from(self.check_quiet(slot, due));
        }
        let missing = self.make_missing_requests();
        if unreported > 0
            && let Some(left_out) = self.self_check.unreported_limit.admit(now)
        {
            warn!(
                "the kernel did not report the input of {unreported} connections to io_uring; the server reads it now{left_out}"
            );
        }
        if missing > 0
            && let Some(left_out) = self.self_check.missing_limit.admit(now)
        {
            warn!(
                "bug: {missing} requests to io_uring were missing, and the server makes them now; please report this \
                 line{left_out}"
            );
        }
        self.shell.counts.kept().self_check_repairs += unreported + missing;
        self.carry_out();
    }

    /// Returns whether the ring has failed to report input of a connection, and makes it report. It has failed only if the
    /// input was there at two checks of the same multishot receive with nothing received in between: otherwise a completion may
    /// be on its way. A receive of one shot loses nothing.
    fn check_quiet(&mut self, slot: u32, due: Time) -> bool {
        let now = self.shell.now;
        let Some((conn, connection)) = self.shell.connections.at_slot(slot) else { return false };
        let check = std::mem::replace(&mut connection.quiet_check, QuietCheck::None);
        let is_multishot = connection.receive == ReceiveRequest::Any { is_multishot: true };
        if check == QuietCheck::None || connection.input != InputState::Receiving || !is_multishot {
            return false;
        }
        connection.quiet_check = if now.since(connection.last_input) < SELF_CHECK_INTERVAL {
            QuietCheck::Scheduled
        } else {
            match self.ring.peek(connection.fd()) {
                Err(Errno::EAGAIN) => return false,
                _ if check == QuietCheck::HasUnreported => {
                    self.cancel_receive(conn);
                    return true;
                }
                _ => QuietCheck::HasUnreported,
            }
        };
        // One interval after it was due, and not after it was done: a check is always a little late.
        let due = (due + SELF_CHECK_INTERVAL).max(now.round_up(SELF_CHECK_INTERVAL));
        self.self_check.schedule(slot, due);
        false
    }

    /// Makes requests that should be in flight and are not. Returns how many.
    fn make_missing_requests(&mut self) -> u64 {
        let listeners = self.shell.unwatched().count() as u64;
        self.watch_all_listeners();
        let mut connections = 0;
        for _ in 0..SELF_CHECK_STEPS.min(self.shell.connections.slots()) {
            let slot = self.self_check.next_slot;
            self.self_check.next_slot = (slot + 1) % self.shell.connections.slots() as u32;
            let Some((conn, connection)) = self.shell.connections.at_slot(slot) else { continue };
            if connection.lacks_request() {
                connections += 1;
                self.receive_if_wanted(conn);
                self.watch_if_paused(conn);
            }
        }
        listeners + connections
    }
}
