//! A check, about once a second, that the ring has told the driver of everything it was asked for.
//!
//! Kernels lose wake-ups of a receive that completes again and again (docs/IO.md): input, or its end, then lies in
//! the socket until more comes, and a client that waits for its reply would wait for ever. So a connection that has
//! been quiet for a while after such a receive has brought something is looked at once. The check also finds requests
//! that the driver itself has failed to make. It repairs what it finds, warns, and counts it.

use std::collections::VecDeque;

use nix::errno::Errno;
use tracing::warn;

use super::Driver;
use super::connection::{Connection, Phase, QuietCheck, Receive};
use super::ring::Ring;
use crate::ids::ConnId;
use crate::limits::{SELF_CHECK_INTERVAL, SELF_CHECK_STEPS};
use crate::server::Service;
use crate::time::Time;

/// Which connections are to be looked at, and when.
#[derive(Default)]
pub(super) struct SelfCheck {
    /// Sorted by time. A connection is in it once.
    quiet: VecDeque<(Time, ConnId)>,
    /// The slot with which the search for missing requests goes on.
    next_slot: u32,
}

impl SelfCheck {
    /// A receive that is still armed has brought input: looks at the connection when it has been quiet since.
    pub fn note_input(&mut self, conn: ConnId, connection: &mut Connection, now: Time) {
        connection.last_input = now;
        if connection.quiet_check == QuietCheck::None {
            // On a full interval, so that one wake-up of the loop serves all connections that are due.
            let due = (now + SELF_CHECK_INTERVAL).round_up(SELF_CHECK_INTERVAL);
            self.schedule(conn, connection, QuietCheck::Scheduled, due);
        }
    }

    /// When the next connection is to be looked at.
    pub fn deadline(&self) -> Option<Time> {
        self.quiet.front().map(|&(due, _)| due)
    }

    fn schedule(&mut self, conn: ConnId, connection: &mut Connection, check: QuietCheck, due: Time) {
        connection.quiet_check = check;
        self.quiet.push_back((due, conn));
    }

    fn next_due(&mut self, now: Time) -> Option<(Time, ConnId)> {
        self.quiet.pop_front_if(|&mut (due, _)| due <= now)
    }
}

impl<S: Service, R: Ring> Driver<S, R> {
    /// Looks at what is due, a bounded number of connections at a time.
    pub(super) fn check_itself(&mut self) {
        if self.self_check.deadline().is_none_or(|due| due > self.now) {
            return;
        }
        let mut unreported = 0;
        for _ in 0..SELF_CHECK_STEPS {
            let Some((due, conn)) = self.self_check.next_due(self.now) else { break };
            unreported += u64::from(self.check_quiet(conn, due));
        }
        let missing = self.make_missing_requests();
        if unreported > 0 {
            warn!("io_uring has not reported the input of {unreported} connections; it is read now");
        }
        if missing > 0 {
            warn!("{missing} requests to io_uring were missing; they are made now. Please report this bug");
        }
        self.stats.self_check_repairs += unreported + missing;
        self.carry_out();
    }

    /// Whether the ring has failed to report input of a connection, which it is asked for again. It is said to have
    /// only where the input was there at two checks, with nothing received between them: it may be on its way.
    fn check_quiet(&mut self, conn: ConnId, due: Time) -> bool {
        let Some(connection) = self.connections.get_mut(conn) else { return false };
        let check = std::mem::replace(&mut connection.quiet_check, QuietCheck::None);
        if connection.phase != Phase::Reading || connection.receive != Receive::Any {
            return false;
        }
        let next = if self.now.since(connection.last_input) < SELF_CHECK_INTERVAL {
            QuietCheck::Scheduled
        } else {
            match self.ring.peek(connection.fd()) {
                Err(Errno::EAGAIN) => return false,
                _ if check == QuietCheck::HasUnreported => {
                    self.end_receive(conn);
                    return true;
                }
                _ => QuietCheck::HasUnreported,
            }
        };
        // One interval after it was due, and not after it was done: a check is always a little late.
        let due = (due + SELF_CHECK_INTERVAL).max(self.now.round_up(SELF_CHECK_INTERVAL));
        self.self_check.schedule(conn, connection, next, due);
        false
    }

    /// Makes requests that should be under way and are not. Returns how many.
    fn make_missing_requests(&mut self) -> u64 {
        let listeners = self.unwatched_listeners();
        self.watch_listeners();
        let mut connections = 0;
        for _ in 0..SELF_CHECK_STEPS.min(self.connections.slots()) {
            let slot = self.self_check.next_slot;
            self.self_check.next_slot = (slot + 1) % self.connections.slots() as u32;
            let Some((conn, connection)) = self.connections.at_slot(slot) else { continue };
            if connection.lacks_request() {
                connections += 1;
                self.receive_if_wanted(conn);
                self.watch_if_paused(conn);
            }
        }
        listeners + connections
    }

    /// How many listeners are not watched though their connections may be accepted.
    pub(super) fn unwatched_listeners(&self) -> u64 {
        let is_unwatched = |listening: &&super::Listening| {
            !listening.is_watched && !self.admission.turns_away(listening.listener.protocol())
        };
        self.listeners.iter().filter(is_unwatched).count() as u64
    }
}
