//! What comes in: one receive at a time for each connection, or a watch for the end of a paused one.

use nix::errno::Errno;

use super::UringDriver;
use super::connection::{ReceiveRequest, WatchRequest};
use super::dry::Dryness;
use super::ring::{Buffer, Ring, Token};
use crate::io::shell::{Backend, InputState};
use crate::server::{Event, Service};
use crate::values::ids::ConnId;
use crate::values::limits::RECEIVE_DIRECT_BYTES_MAX;

impl<S: Service, R: Ring> UringDriver<S, R> {
    /// Requests a receive, if the server wants input and no receive is in flight.
    pub(super) fn receive_if_wanted(&mut self, conn: ConnId) {
        let is_crowded = self.shell.is_crowded();
        let Some(connection) = self.shell.connections.get_mut(conn) else { return };
        if !connection.lacks_receive() {
            return;
        }
        let (fd, has_turn) = (connection.fd(), connection.dryness == Dryness::Requested);
        if let Some(place) = self.shell.server.direct(conn) {
            let length = place.len().min(RECEIVE_DIRECT_BYTES_MAX);
            connection.receive = ReceiveRequest::Direct;
            connection.expect_large_bodies();
            let place: *mut [u8] = &mut place[..length];
            // SAFETY: the server keeps the place, and does not use it, until it handles `ReceivedDirect` or `Closed`.
            // Both come after the completion.
            #[allow(unsafe_code)]
            unsafe {
                self.ring.receive_into(conn.slot, fd, place);
            }
        } else if has_turn || !self.wait_for_buffer(conn, false) {
            let connection = self.shell.connection(conn);
            let is_multishot = connection.next_is_multishot() && !has_turn && !is_crowded;
            connection.receive = ReceiveRequest::Any { is_multishot };
            self.ring.receive(conn.slot, fd, is_multishot);
        }
    }

    pub(super) fn received(
        &mut self,
        slot: u32,
        result: Result<u32, Errno>,
        buffer: Option<Buffer>,
        is_last: bool,
    ) {
        let now = self.shell.now;
        let (conn, connection) =
            self.shell.connections.at_slot(slot).expect("a receive keeps its connection");
        let is_direct = matches!(
            connection.receive,
            ReceiveRequest::Direct | ReceiveRequest::Cancelled { is_direct: true }
        );
        let has_run_dry = is_last && result == Err(Errno::ENOBUFS);
        connection.last_input = now;
        if is_last {
            connection.receive = ReceiveRequest::None;
        } else {
            self.self_check.check_when_quiet(slot, connection);
        }
        if connection.input < InputState::Broken {
            self.deliver(conn, result, buffer.as_ref(), is_direct);
        }
        if let Some(buffer) = buffer {
            self.ring.give_back(buffer);
        }
        self.carry_out();
        if is_last {
            self.end_receive(conn, has_run_dry);
        }
        self.continue_receiving(conn);
        self.close_if_quiet(conn);
    }

    /// Ends the turn of a receive, or has one that got no buffer wait for another.
    fn end_receive(&mut self, conn: ConnId, has_run_dry: bool) {
        let Some(connection) = self.shell.connections.get_mut(conn) else { return };
        if has_run_dry && connection.lacks_receive() {
            self.wait_for_buffer(conn, true);
        } else {
            connection.dryness = Dryness::None;
        }
    }

    /// Passes the result of a receive to the server.
    fn deliver(
        &mut self,
        conn: ConnId,
        result: Result<u32, Errno>,
        buffer: Option<&Buffer>,
        is_direct: bool,
    ) {
        match result {
            Ok(0) => self.all_received(conn),
            Ok(bytes) => {
                self.shell.connection(conn).untouched = None;
                let in_buffer = buffer.map_or(0, Buffer::len);
                if is_direct {
                    self.shell.handle(Event::ReceivedDirect { conn, bytes: bytes as usize - in_buffer });
                }
                if let Some(buffer) = buffer {
                    self.shell.handle(Event::Received { conn, bytes: self.ring.bytes(buffer) });
                }
            }
            Err(Errno::ENOBUFS | Errno::ECANCELED | Errno::EINTR | Errno::EAGAIN) => {}
            Err(errno) => self.fail(conn, errno),
        }
    }

    /// After input was passed on: requests the next receive, or cancels one that would take a large body into buffers.
    fn continue_receiving(&mut self, conn: ConnId) {
        let Some(connection) = self.shell.connections.get_mut(conn) else { return };
        match connection.receive {
            ReceiveRequest::None => self.receive_if_wanted(conn),
            ReceiveRequest::Any { .. } if self.shell.server.direct(conn).is_some() => {
                connection.expect_large_bodies();
                self.cancel_receive(conn);
            }
            _ => {}
        }
    }

    pub(super) fn cancel_receive(&mut self, conn: ConnId) {
        let connection = self.shell.connection(conn);
        let is_direct = match connection.receive {
            ReceiveRequest::None | ReceiveRequest::Cancelled { .. } => return,
            ReceiveRequest::Any { .. } => false,
            ReceiveRequest::Direct => true,
        };
        connection.receive = ReceiveRequest::Cancelled { is_direct };
        self.ring.cancel(Token::Receive(conn.slot));
    }

    pub(super) fn cancel_watch(&mut self, conn: ConnId) {
        let connection = self.shell.connection(conn);
        if connection.watch == WatchRequest::Armed {
            connection.watch = WatchRequest::Cancelled;
            self.ring.cancel(Token::Watch(conn.slot));
        }
    }

    /// Watches for the end of a paused connection's input, unless a watch is armed or the end is reported.
    pub(super) fn watch_if_paused(&mut self, conn: ConnId) {
        let connection = self.shell.connection(conn);
        if connection.lacks_watch() {
            connection.watch = WatchRequest::Armed;
            let fd = connection.fd();
            self.ring.watch(Token::Watch(conn.slot), fd);
        }
    }

    pub(super) fn watched(&mut self, slot: u32, has_ended: bool) {
        let (conn, connection) = self.shell.connections.at_slot(slot).expect("a watch keeps its connection");
        connection.watch = WatchRequest::None;
        if has_ended && connection.lacks_watch() {
            self.check_end(conn);
        }
        self.carry_out();
        if self.shell.connections.get_mut(conn).is_some() {
            self.watch_if_paused(conn);
            self.close_if_quiet(conn);
        }
    }

    /// The peer of a paused connection has ended its input. All is received only if nothing that the peer sent before lies
    /// unread.
    fn check_end(&mut self, conn: ConnId) {
        let connection = self.shell.connection(conn);
        match self.ring.peek(connection.fd()) {
            Ok(0) if connection.receive == ReceiveRequest::None => self.all_received(conn),
            Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => {
                connection.reported_ending = true;
                self.stop_waiting_to_send(conn);
                self.shell.handle(Event::InputEnding { conn });
            }
            Err(errno) => self.fail(conn, errno),
        }
    }

    fn all_received(&mut self, conn: ConnId) {
        self.stop_waiting_to_send(conn);
        self.end_input(conn);
    }
}
