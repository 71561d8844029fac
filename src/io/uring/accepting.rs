//! Listeners, and the connections that wait at them.
//!
//! The ring tells once when connections wait; accept(2) takes them, a bounded number of them at a time.

use std::mem::replace;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use tracing::debug;

use super::connection::Connection;
use super::ring::{Completion, Ring, Token};
use super::{Driver, peer_name};
use crate::io::DriverError;
use crate::io::socket::{AcceptError, Listener};
use crate::limits::ACCEPTS_MAX;
use crate::server::{Protocol, Service};
use crate::time::Span;

/// Waits for the end of requests on listeners, of 1 ms and less each.
const LETTING_GO_ENTERS_MAX: usize = 1000;

/// A listener, with the request that watches it.
pub(super) struct Listening {
    pub listener: Listener,
    /// The ring tells when a connection waits.
    pub is_watched: bool,
}

impl Listening {
    pub const fn new(listener: Listener) -> Self {
        Self { listener, is_watched: false }
    }
}

impl<S: Service, R: Ring> Driver<S, R> {
    /// Watches each listener whose connections may be accepted.
    pub(super) fn watch_listeners(&mut self) {
        for (number, listening) in self.listeners.iter_mut().enumerate() {
            let is_paused = self.admission.turns_away(listening.listener.protocol());
            if !is_paused && !replace(&mut listening.is_watched, true) {
                self.ring.watch_listener(number as u32, listening.listener.as_fd().as_raw_fd());
            }
        }
    }

    /// Accepts what waits at a listener. Connections that may not be accepted now stay in its backlog.
    pub(super) fn accept(&mut self, number: u32, watched: Result<u32, Errno>) -> Result<(), DriverError> {
        self.listeners[number as usize].is_watched = false;
        if let Err(errno) = watched {
            self.admission.rest(self.now, errno);
        }
        for _ in 0..ACCEPTS_MAX {
            let listener = &self.listeners[number as usize].listener;
            let protocol = listener.protocol();
            if self.admission.turns_away(protocol) {
                break;
            }
            match self.ring.accept(listener) {
                Ok(fd) => self.admit(protocol, fd),
                Err(AcceptError::Peer) => {}
                Err(AcceptError::Empty) => break,
                Err(AcceptError::Exhausted(errno)) => self.admission.rest(self.now, errno),
                Err(AcceptError::Listener(errno)) => return Err(DriverError::Accept(errno)),
            }
        }
        self.watch_listeners();
        Ok(())
    }

    fn admit(&mut self, protocol: Protocol, fd: OwnedFd) {
        let conn = self.server.accept(protocol);
        debug!(conn = conn.slot, peer = peer_name(&fd), "connected");
        let before = self.connections.bytes();
        self.connections.insert(conn, Connection::new(fd, protocol));
        self.grow_memory(self.connections.bytes() - before);
        self.admission.opened(protocol, self.now);
        self.receive_if_wanted(conn);
        self.carry_out();
    }

    /// Ends the requests on listeners, so that another server can have their addresses as soon as this one is
    /// gone. The kernel keeps a listener open as long as a request refers to it, also after the process has ended.
    pub(super) fn let_listeners_go(&mut self) -> nix::Result<()> {
        for (number, _) in self.listeners.iter().enumerate().filter(|(_, listening)| listening.is_watched) {
            self.ring.cancel(Token::Listener(number as u32));
        }
        for _ in 0..LETTING_GO_ENTERS_MAX {
            let is_watched = self.listeners.iter().any(|listening| listening.is_watched);
            self.ring.enter(Some(if is_watched { Span::from_millis(1) } else { Span::ZERO }))?;
            if !is_watched {
                break;
            }
            while let Some(Completion { token, .. }) = self.ring.next() {
                if let Token::Listener(number) = token {
                    self.listeners[number as usize].is_watched = false;
                }
            }
        }
        Ok(())
    }
}
