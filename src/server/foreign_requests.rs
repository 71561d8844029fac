//! Connections that begin with a request of another protocol.

use super::{ClientAct, Core, Effect};
use crate::ids::ConnId;
use crate::protocol::foreign::{Opening, Verdict};

impl Core {
    /// Whether the connection begins with a request of another protocol. Empties `opening` once the first line decides it.
    #[cold]
    pub(super) fn is_foreign_request(
        &mut self,
        conn: ConnId,
        opening: &mut Option<Opening>,
        input: &[u8],
    ) -> bool {
        let Some(verdict) = opening.as_mut().and_then(|line| line.feed(input)) else { return false };
        *opening = None;
        let Verdict::Foreign(protocol) = verdict else { return false };
        self.foreign_requests += 1;
        self.effects.push_back(Effect::LogClient(conn, ClientAct::ForeignRequest(protocol)));
        true
    }
}
