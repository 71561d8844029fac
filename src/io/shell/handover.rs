//! An in-place restart closes no connection on which nothing has come yet. The next program gets it with its listener, as it gets
//! those in the backlog.

use std::cmp::Reverse;
use std::mem;

use nix::sys::resource::{Resource, getrlimit};

use super::{Connection, InputState, RunState, Shell};
use crate::io::reexec::HANDED_OVER_MAX;
use crate::io::socket::Listener;
use crate::server::Service;
use crate::time::Time;
use crate::values::ids::ConnId;

/// Descriptors of the process that are no connections to hand over: listeners, the lock of the job log, and a margin.
const OTHER_DESCRIPTORS: u64 = 16;

impl<S: Service, C: Connection> Shell<S, C> {
    /// Begins to hold connections on which nothing has come, if the next program takes them over: the newest, as many as can be
    /// handed over. Returns them.
    pub(super) fn begin_to_hold(&mut self) -> Vec<ConnId> {
        if self.signals.takes_connections() {
            let untouched =
                self.connections.iter().filter(|(_, connection)| connection.untouched().is_some());
            self.held = untouched.map(|(conn, _)| conn).collect();
            self.held.sort_unstable_by_key(|&conn| Reverse(self.server.names(conn).number));
            self.held.truncate(handed_over_max());
        }
        self.run_state = RunState::Holding;
        self.held.clone()
    }

    /// Stops the server for a restart when nothing more is received on connections that are held. Before that it serves what has come: a
    /// server that stops serves no command. Returns whether it stops now.
    pub(super) fn stop_if_held(&mut self) -> bool {
        let has_receive = |&conn| self.connections.get(conn).is_some_and(Connection::has_receive);
        let stops = self.run_state == RunState::Holding && !self.held.iter().any(has_receive);
        if stops {
            self.stop(true);
        }
        stops
    }

    /// Hands over the connections that are held, except for those on which something has come, or which have ended.
    pub(super) fn hand_over(&mut self, listeners: &[Listener]) {
        for conn in mem::take(&mut self.held) {
            let Some(connection) = self.connections.get_mut(conn) else { continue };
            if *connection.input() != InputState::Paused {
                continue;
            }
            let Some(listener) = connection.untouched() else { continue };
            if let Some(fd) = self.connections.remove(conn).into_fd() {
                listeners[usize::from(listener)].hand_over(fd);
            }
        }
    }

    /// Notes whether listeners have connections that the program before has handed over.
    pub(super) fn note_handed_over(&mut self) {
        self.has_handed_over = self.listeners.iter().any(|watched| watched.listener.has_handed_over());
    }

    /// When an iteration must run because of them: at once, if they can be accepted.
    pub(super) fn handed_over_due(&self) -> Option<Time> {
        let can_accept = |(index, has_any): (usize, bool)| has_any && !self.is_accept_paused(index);
        let waiting = self.listeners.iter().map(|watched| watched.listener.has_handed_over());
        (self.has_handed_over && waiting.enumerate().any(can_accept)).then_some(self.now)
    }
}

/// The most connections that are handed over. Each needs two numbers below the limit of descriptors for a moment.
fn handed_over_max() -> usize {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    HANDED_OVER_MAX.min((limit / 2).saturating_sub(OTHER_DESCRIPTORS) as usize)
}
