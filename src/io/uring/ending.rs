//! The end of the driver: execve(2) and the end of the process wait for zero-copy sends, whose bytes the network still reads.
//!
//! A peer that is slow, stopped or gone may acknowledge them late or never. So what is not acknowledged in time is given up: a reset
//! connection has no bytes to send.

use tracing::info;

use super::UringDriver;
use super::connection::{Connection, ReceiveRequest, WatchRequest};
use super::ring::{Completion, Ring, Token};
use crate::io::shell::InputState;
use crate::server::Service;
use crate::time::{Span, Time};
use crate::values::ids::ConnId;

/// How long peers have to acknowledge what they were sent, and then the kernel to free what they have not.
const PATIENCE: Span = Span::from_millis(1000);

impl Connection {
    /// Whether the network reads what was sent, or may begin to.
    fn is_read_by_network(&self) -> bool {
        self.notifications > 0 || self.is_sending && self.sends_zero_copy
    }
}

impl<S: Service, R: Ring> UringDriver<S, R> {
    /// Waits until the network reads no memory of this process. Serves nobody any more.
    pub(super) fn finish_sends(&mut self, now: impl Fn() -> Time) {
        self.await_network(&now);
        let late: Vec<ConnId> = self.read_by_network().collect();
        if late.is_empty() {
            return;
        }
        info!(
            "connections reset because their peers have not acknowledged what they were sent: {}",
            late.len()
        );
        for conn in late {
            self.shell.connection(conn).input = InputState::Closing;
            self.cancel_send(conn);
            self.cancel_receive(conn);
            self.cancel_watch(conn);
            self.shell.connection(conn).reset_if_quiet();
        }
        self.await_network(&now);
    }

    fn read_by_network(&self) -> impl Iterator<Item = ConnId> {
        let connections = self.shell.connections.iter();
        connections.filter(|(_, connection)| connection.is_read_by_network()).map(|(conn, _)| conn)
    }

    fn await_network(&mut self, now: impl Fn() -> Time) {
        let until = now() + PATIENCE;
        loop {
            while let Some(completion) = self.ring.next() {
                self.note_end(&completion);
            }
            let now = now();
            if now >= until || self.read_by_network().next().is_none() {
                return;
            }
            // The kernel waits for what is left.
            if self.ring.enter(Some(until.since(now))).is_err() {
                return;
            }
        }
    }

    /// Takes the end of a request. The server, which has ended, is not told.
    fn note_end(&mut self, &Completion { token, is_last, .. }: &Completion) {
        let (Token::Send(slot) | Token::Notification(slot) | Token::Receive(slot) | Token::Watch(slot)) =
            token
        else {
            return;
        };
        let Some((_, connection)) = self.shell.connections.at_slot(slot) else { return };
        match token {
            Token::Send(_) => {
                connection.is_sending = false;
                connection.notifications += u32::from(!is_last);
            }
            Token::Notification(_) => connection.notifications -= 1,
            Token::Receive(_) if is_last => connection.receive = ReceiveRequest::None,
            Token::Watch(_) => connection.watch = WatchRequest::None,
            _ => {}
        }
        if connection.input == InputState::Closing {
            connection.reset_if_quiet();
        }
    }
}
