//! What goes out: one send at a time for each connection.
//!
//! A large body for another machine is sent without a copy: the network reads it where it lies, and a
//! notification tells when it is done with it. Until then the server is not told that it is sent, though the
//! driver goes on behind it.

use std::cmp::Reverse;
use std::io::IoSlice;

use nix::errno::Errno;
use tracing::info;

use super::connection::Phase;
use super::ring::{Flags, Ring, Token};
use super::{Driver, recycle};
use crate::ids::ConnId;
use crate::limits::ZERO_COPY_BYTES_MIN;
use crate::server::{Event, Service};
use crate::time::Time;

impl<S: Service, R: Ring> Driver<S, R> {
    /// Sends what there is, if nothing is being sent.
    pub(super) fn send(&mut self, conn: ConnId) {
        let connection = self.connections.get_mut(conn).expect("the server names only open connections");
        let is_busy = connection.is_sending || connection.is_stalled;
        if is_busy || matches!(connection.phase, Phase::Broken | Phase::Closing) {
            return;
        }
        let mut slices = recycle(std::mem::take(&mut self.slices));
        self.server.outgoing(conn, &mut slices);
        let mut rest = &mut slices[..];
        IoSlice::advance_slices(&mut rest, connection.unreported);
        let large = rest.iter().position(|slice| slice.len() >= ZERO_COPY_BYTES_MIN);
        if large.is_some() && connection.zero_copy.is_none() {
            connection.zero_copy = Some(self.ring.is_remote(connection.fd()));
        }
        let large = large.filter(|_| connection.zero_copy == Some(true) && !self.refuses_zero_copy);
        connection.is_sending = !rest.is_empty();
        let wait = !connection.is_ending;
        let mut unregistered = None;
        // SAFETY: the service keeps what it has shown until it is told that it is sent or the connection
        // closed. Both come after the completion, and after the notification where there is one.
        #[allow(unsafe_code)]
        match large {
            _ if rest.is_empty() => {}
            Some(0) => {
                let buffer = self.registered.find(&rest[0]);
                unregistered = buffer.is_none().then(|| rest[0].as_ptr().addr());
                unsafe { self.ring.send_zero_copy(conn.slot, connection.fd(), &rest[0], buffer, wait) };
            }
            Some(before) => unsafe {
                self.ring.send(conn.slot, connection.fd(), &rest[..before], Flags { wait, more: true });
            },
            None => unsafe {
                self.ring.send(conn.slot, connection.fd(), rest, Flags { wait, more: false });
            },
        }
        self.slices = recycle(slices);
        if let Some(address) = unregistered
            && let Some(bodies) = self.server.body_memory()
        {
            self.registered.add(address, bodies, &mut self.ring);
            self.stats.registered_bytes = self.registered.bytes();
        }
    }

    /// A send is over. Where it is not the last that comes of it, a notification follows.
    pub(super) fn sent(&mut self, slot: u32, result: Result<u32, Errno>, is_last: bool) {
        let (conn, connection) = self.connections.at_slot(slot).expect("a send keeps its connection");
        connection.is_sending = false;
        if !is_last {
            connection.notifications += 1;
            self.stats.zero_copy_sends += 1;
        }
        match (connection.phase, result) {
            (Phase::Broken | Phase::Closing, _) => {}
            (_, Ok(bytes)) => {
                connection.unreported += bytes as usize;
                connection.end_rest();
                self.report_sent(conn);
                self.carry_out();
                if self.connections.get_mut(conn).is_some() {
                    self.send(conn);
                }
            }
            (_, Err(Errno::EAGAIN)) if connection.is_ending => {
                connection.is_stalled = true;
                let until = self.now + connection.rest();
                self.stalled.push(Reverse((until, conn.to_u64())));
            }
            (_, Err(Errno::EINTR | Errno::EAGAIN | Errno::ECANCELED)) => self.send(conn),
            // There is no memory for it, or the socket cannot do it after all.
            (_, Err(Errno::ENOMEM | Errno::ENOBUFS | Errno::EOPNOTSUPP))
                if connection.zero_copy == Some(true) =>
            {
                connection.zero_copy = Some(false);
                self.send(conn);
            }
            // Linux 6.0 and the first releases of 6.1 do not know that a notification can report a copy. A kernel that
            // has made one such send knows it: then this connection alone cannot.
            (_, Err(errno @ Errno::EINVAL)) if connection.zero_copy == Some(true) => {
                connection.zero_copy = Some(false);
                if self.stats.zero_copy_sends == 0 && !std::mem::replace(&mut self.refuses_zero_copy, true) {
                    info!("no zero-copy sends: this kernel refuses them ({})", errno.desc());
                }
                self.send(conn);
            }
            (_, Err(errno)) => self.break_off(conn, errno),
        }
        self.carry_out();
        self.close_if_quiet(conn);
    }

    /// The network is done with what was sent without a copy; or the kernel has made one all the same, and then
    /// it is not worth trying again.
    pub(super) fn notified(&mut self, slot: u32, was_copied: bool) {
        let (conn, connection) = self.connections.at_slot(slot).expect("a notification keeps its connection");
        connection.notifications -= 1;
        if was_copied {
            connection.zero_copy = Some(false);
        }
        if !matches!(connection.phase, Phase::Broken | Phase::Closing) {
            self.report_sent(conn);
            self.carry_out();
            if self.connections.get_mut(conn).is_some() {
                self.send(conn);
            }
        }
        self.carry_out();
        self.close_if_quiet(conn);
    }

    /// Tells the server what is sent, when nobody reads it any more.
    fn report_sent(&mut self, conn: ConnId) {
        let connection = self.connection(conn);
        if connection.notifications == 0 && connection.unreported > 0 {
            let bytes = std::mem::take(&mut connection.unreported);
            self.tell(Event::Sent { conn, bytes });
        }
    }

    /// The peer sends no more: from now on the kernel would find the socket ready again and again, and in the
    /// end leave a waiting send to a thread of its own.
    pub(super) fn stop_waiting_to_send(&mut self, conn: ConnId) {
        let was_ending = std::mem::replace(&mut self.connection(conn).is_ending, true);
        if !was_ending {
            self.cancel_send(conn);
        }
    }

    /// Tries the sends again that found no room, when it is time.
    pub(super) fn retry_stalled(&mut self) {
        while self.stalled_until().is_some_and(|until| until <= self.now) {
            let Reverse((_, conn)) = self.stalled.pop().expect("there is a first");
            let conn = ConnId::from_u64(conn);
            if let Some(connection) = self.connections.get_mut(conn) {
                connection.is_stalled = false;
                self.send(conn);
            }
        }
        self.carry_out();
    }

    /// When the first of them is to be tried.
    pub(super) fn stalled_until(&self) -> Option<Time> {
        self.stalled.peek().map(|Reverse((until, _))| *until)
    }

    pub(super) fn cancel_send(&mut self, conn: ConnId) {
        if self.connection(conn).is_sending {
            self.ring.cancel(Token::Send(conn.slot));
        }
    }
}
