//! Replies that wait for the log.

use super::{Effect, Server};
use crate::ids::ConnId;
use crate::protocol::reply::Reply;
use crate::time::Time;
use crate::wal::Outcome;

impl Server {
    /// Has the session told of the batch of the log that its next replies wait for.
    pub(super) fn await_log(&mut self, conn: ConnId) {
        let Self { core, sessions, held, .. } = self;
        let session = &mut sessions[conn];
        let known = core.safe_ticket().max(session.awaited);
        if let Some(ticket) = session.talk.output.waits_for().filter(|&ticket| ticket > known) {
            session.awaited = ticket;
            let at = held.partition_point(|&(other, _)| other <= ticket);
            held.insert(at, (ticket, conn));
        }
    }

    /// Lets go what waited for the disk.
    pub(super) fn disk_done(&mut self, outcome: Outcome, now: Time) {
        let log = self.core.log.as_mut().expect("only a log asks for the disk");
        log.complete(outcome, now);
        if log.failure().is_some() {
            return self.fail();
        }
        let safe = log.safe();
        while let Some((_, conn)) = self.held.pop_front_if(|(ticket, _)| *ticket <= safe) {
            if self.sessions.get(conn).is_some() {
                self.ask_to_send(conn);
            }
        }
    }

    /// The log cannot be written: whoever waits for it is told, and nobody else is served any more.
    fn fail(&mut self) {
        let Self { core, sessions, held, effects, .. } = self;
        for (_, conn) in held.drain(..) {
            let Some(session) = sessions.get_mut(conn) else { continue };
            let output = &mut session.talk.output;
            output.fail(Reply::InternalError, core.engine.bodies_mut(), &mut core.buffers);
            if !session.is_sending {
                session.is_sending = true;
                effects.push_back(Effect::Send(conn));
            }
        }
        effects.push_back(Effect::Fail);
    }
}
