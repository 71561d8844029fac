//! What goes out: one send at a time for each connection.
//!
//! A large body for another machine is sent without a copy: the network reads it where it lies, and a notification follows
//! when the network is done with it. Only then is the send reported to the server, though the driver continues behind it.

use std::cmp::Reverse;
use std::io::IoSlice;

use nix::errno::Errno;
use tracing::info;

use super::UringDriver;
use super::ring::{Flags, Ring, Token};
use crate::io::shell::{Backend, InputState, Shell};
use crate::server::{Event, Service};
use crate::time::Time;
use crate::values::ids::ConnId;

/// A piece of output of at least this size is sent without a copy. Waiting for the notification of a smaller one costs more
/// than its copy.
const ZERO_COPY_BYTES_MIN: usize = 32 * 1024;

impl<S: Service, R: Ring> UringDriver<S, R> {
    /// Requests a send of what the server shows, unless one is in flight.
    pub(super) fn send_next(&mut self, conn: ConnId) {
        let Self { shell, ring, registered, refuses_zero_copy, .. } = self;
        let Shell { server, connections, iovecs, .. } = shell;
        let connection = connections.get_mut(conn).expect("the connection is open");
        if connection.is_sending || connection.is_stalled || connection.input >= InputState::Broken {
            return;
        }
        let unregistered = iovecs.with_outgoing(server, conn, |slices| {
            let mut rest = slices;
            IoSlice::advance_slices(&mut rest, connection.unreported);
            let large = rest.iter().position(|slice| slice.len() >= ZERO_COPY_BYTES_MIN);
            if large.is_some() && connection.zero_copy.is_none() {
                connection.zero_copy = Some(ring.is_remote(connection.fd()));
            }
            let large = large.filter(|_| connection.zero_copy == Some(true) && !*refuses_zero_copy);
            connection.is_sending = !rest.is_empty();
            connection.sends_zero_copy = large == Some(0);
            let wait = !connection.is_ending;
            // SAFETY: the server keeps what it has shown until it handles `Sent` or `Closed`. Both come after the
            // completion, and after the notification if there is one.
            #[allow(unsafe_code)]
            match large {
                _ if rest.is_empty() => {}
                Some(0) => {
                    let buffer = registered.find(&rest[0]);
                    unsafe { ring.send_zero_copy(conn.slot, connection.fd(), &rest[0], buffer, wait) };
                    return buffer.is_none().then(|| rest[0].as_ptr().addr());
                }
                Some(before) => unsafe {
                    ring.send(conn.slot, connection.fd(), &rest[..before], Flags { wait, more: true });
                },
                None => unsafe {
                    ring.send(conn.slot, connection.fd(), rest, Flags { wait, more: false });
                },
            }
            None
        });
        if let Some(address) = unregistered
            && let Some(memory) = server.body_memory()
        {
            registered.add(address, memory, ring);
            shell.counts.kept().registered_bytes = registered.bytes();
        }
    }

    /// Processes the completion of a send. If it is not the last, a notification follows.
    pub(super) fn sent(&mut self, slot: u32, result: Result<u32, Errno>, is_last: bool) {
        let Shell { connections, counts, now, .. } = &mut self.shell;
        let (conn, connection) = connections.at_slot(slot).expect("a send keeps its connection");
        connection.is_sending = false;
        if !is_last {
            connection.notifications += 1;
            counts.kept().zero_copy_sends += 1;
        }
        match result {
            _ if connection.input >= InputState::Broken => {}
            Ok(bytes) => {
                connection.unreported += bytes as usize;
                connection.reset_back_off();
                self.report_and_go_on(conn);
            }
            Err(Errno::EAGAIN) if connection.is_ending => {
                connection.is_stalled = true;
                let until = *now + connection.back_off();
                self.stalled.push(Reverse((until, conn.to_u64())));
            }
            Err(Errno::EINTR | Errno::EAGAIN | Errno::ECANCELED) => self.send_next(conn),
            // There is no memory for it, or the socket cannot do it.
            Err(Errno::ENOMEM | Errno::ENOBUFS | Errno::EOPNOTSUPP) if connection.sends_zero_copy => {
                connection.zero_copy = Some(false);
                self.send_next(conn);
            }
            // Linux 6.0 and the first releases of 6.1 do not know notifications that report a copy. A kernel that has made
            // one such send knows them: then only this connection cannot.
            Err(errno @ Errno::EINVAL) if connection.sends_zero_copy => {
                connection.zero_copy = Some(false);
                if counts.kept().zero_copy_sends == 0 && !std::mem::replace(&mut self.refuses_zero_copy, true)
                {
                    info!("zero-copy sends are off: the kernel refuses them ({})", errno.desc());
                }
                self.send_next(conn);
            }
            Err(errno) => self.fail(conn, errno),
        }
        self.carry_out();
        self.close_if_quiet(conn);
    }

    /// Processes the notification that the network is done with a zero-copy send. If the kernel has made a copy, this
    /// connection does not try again.
    pub(super) fn notified(&mut self, slot: u32, was_copied: bool) {
        let (conn, connection) =
            self.shell.connections.at_slot(slot).expect("a notification keeps its connection");
        connection.notifications -= 1;
        if was_copied {
            connection.zero_copy = Some(false);
            self.shell.counts.kept().zero_copy_copies += 1;
        }
        if connection.input < InputState::Broken {
            self.report_and_go_on(conn);
        }
        self.carry_out();
        self.close_if_quiet(conn);
    }

    /// Tells the server what was sent, and sends more unless that closes the connection.
    fn report_and_go_on(&mut self, conn: ConnId) {
        self.report_sent(conn);
        self.carry_out();
        if self.shell.connections.get_mut(conn).is_some() {
            self.send_next(conn);
        }
    }

    /// Reports what is sent to the server, once the network reads none of it.
    fn report_sent(&mut self, conn: ConnId) {
        let connection = self.shell.connection(conn);
        if connection.notifications == 0 && connection.unreported > 0 {
            let bytes = std::mem::take(&mut connection.unreported);
            self.shell.handle(Event::Sent { conn, bytes });
        }
    }

    /// Cancels a send that waits for room, when the peer has ended its input. From then on the kernel would find the socket
    /// ready again and again, and in the end leave the send to a thread of its own.
    pub(super) fn stop_waiting_to_send(&mut self, conn: ConnId) {
        let was_ending = std::mem::replace(&mut self.shell.connection(conn).is_ending, true);
        if !was_ending {
            self.cancel_send(conn);
        }
    }

    /// Repeats the sends that found no room and whose delay is over.
    pub(super) fn retry_stalled(&mut self) {
        while self.stalled_until().is_some_and(|until| until <= self.shell.now) {
            let Reverse((_, conn)) = self.stalled.pop().expect("a send is stalled");
            let conn = ConnId::from_u64(conn);
            if let Some(connection) = self.shell.connections.get_mut(conn) {
                connection.is_stalled = false;
                self.send_next(conn);
            }
        }
        self.carry_out();
    }

    /// When the first stalled send is repeated.
    pub(super) fn stalled_until(&self) -> Option<Time> {
        self.stalled.peek().map(|Reverse((until, _))| *until)
    }

    pub(super) fn cancel_send(&mut self, conn: ConnId) {
        if self.shell.connection(conn).is_sending {
            self.ring.cancel(Token::Send(conn.slot));
        }
    }
}
