//! The end of a client connection: from its last input to the driver's close.

use bytes::BytesMut;

use super::observer::Observation;
use super::session::{Input, Session, SessionState};
use super::{Core, Effect, Server};
use crate::time::Time;
use crate::values::ids::ConnId;

impl Core {
    /// Removes the client from the queue. Its unsent replies may still be sent.
    pub(super) fn leave(&mut self, session: &mut Session, now: Time) {
        self.observe(session.protocol.client, Observation::Left);
        self.end_list(&mut session.protocol);
        self.drop_batch(&mut session.protocol);
        self.engine.disconnect(session.protocol.client, now);
        self.iteration_steps += self.take_steps();
        self.clients -= 1;
        session.inbox = BytesMut::new();
        self.memory.count_inbox(session);
    }

    /// Closes a connection that is closing and has sent everything. Returns whether it did.
    pub(super) fn close_if_sent(&mut self, session: &mut Session) -> bool {
        let is_sent = session.protocol.state == SessionState::Closing && session.output.unsent_bytes() == 0;
        if is_sent {
            self.close(session);
        }
        is_sent
    }

    pub(super) fn hung_up(&mut self, session: &mut Session, now: Time) {
        if session.is_open() {
            self.leave(session, now);
        }
        if session.protocol.state != SessionState::Closed {
            self.close(session);
        }
    }

    fn close(&mut self, session: &mut Session) {
        session.protocol.state = SessionState::Closed;
        self.effects.push_back(Effect::Close(session.conn));
    }
}

impl Server {
    /// Frees what a connection has kept for the kernel. The driver has closed it.
    pub(super) fn remove_client(&mut self, conn: ConnId) {
        let mut session = self.connections.remove_client(conn);
        assert_eq!(
            session.protocol.state,
            SessionState::Closed,
            "a driver closes a connection only on Effect::Close"
        );
        self.core.long_lines -= usize::from(session.has_long_line);
        self.count_tables();
        session.output.clear(self.core.engine.bodies_mut(), &mut self.core.buffers);
        if let Input::Body(incoming) = session.protocol.input {
            self.core.free_incoming(incoming);
        }
    }
}
