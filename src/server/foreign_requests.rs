//! Connections that begin with a request of another protocol.

use super::{ClientAct, Core, Effect};
use crate::protocol::command::Command;
use crate::protocol::foreign::{Foreign, Opening, Verdict};
use crate::protocol::framing::LineReader;
use crate::protocol::parse::parse;
use crate::values::ids::ConnId;

impl Core {
    /// Whether the connection begins with a request of another protocol. Empties `opening` once the first line decides it.
    #[cold]
    pub(super) fn is_foreign_request(
        &mut self,
        conn: ConnId,
        opening: &mut Option<Opening>,
        reader: &LineReader,
        input: &[u8],
    ) -> bool {
        let Some(verdict) = opening.as_mut().and_then(|line| line.feed(input)) else { return false };
        *opening = None;
        let protocol = match verdict {
            Verdict::Foreign(protocol) => protocol,
            Verdict::RequestLine if !is_command(reader.peek(input).as_deref()) => Foreign::Http,
            Verdict::RequestLine | Verdict::Native => return false,
        };
        self.foreign_requests += 1;
        self.effects.push_back(Effect::LogClient(conn, ClientAct::ForeignRequest(protocol)));
        true
    }
}

/// Whether a line is a command. A `put` with invalid tags and a `put-batch` without a count are none: what follows them is
/// discarded.
fn is_command(line: Option<&[u8]>) -> bool {
    match line.map(parse) {
        Some(Ok(Command::Put { tags: None, .. } | Command::PutBatch { count: None })) => false,
        Some(Ok(_)) => true,
        Some(Err(_)) | None => false,
    }
}
