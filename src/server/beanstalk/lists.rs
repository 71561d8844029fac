//! Lists of tubes. They are rendered in pieces between other work, no faster than they are sent. So a client that requests
//! a long list and does not read it costs the memory of a piece, not of a copy.

use super::session::Session;
use crate::protocol::reply::{Reply, Yaml};
use crate::queue::{Listed, TubeList};
use crate::server::Core;
use crate::server::client_state::{ProtocolState, SessionState};
use crate::server::commit_gate::Replies;
use crate::time::Time;
use crate::values::limits::STATS_BYTES_PER_STEP;

/// A piece ends at this many bytes: some 10 us.
const PIECE_BYTES: usize = 8 * 1024;

/// A piece ends after this many entries, with or without a tube: again some 10 us.
const PIECE_ENTRIES: usize = 1024;

/// Entries, with a tube or without one, that are visited in the time of one elementary step.
const ENTRIES_PER_STEP: usize = 4;

impl Core {
    /// Renders another piece of the list that a session waits for.
    pub(in crate::server) fn continue_list(&mut self, session: &mut Session, now: Time) {
        let Session { protocol, output, .. } = session;
        self.with_replies(output, |core, replies| {
            replies.set_harmless(true);
            let list = protocol.list.as_mut().expect("a session that lists has a list");
            if core.reply_piece(list, replies, |_| {}) {
                core.end_list(protocol);
                protocol.state = SessionState::Serving;
                protocol.is_choked = replies.unsent_bytes() >= core.output_bytes_pause;
            }
        });
        self.iteration_steps += self.take_steps();
        self.after_serving(session, now);
    }

    /// Replies with a list: at once if it is short, else in pieces.
    pub(in crate::server) fn begin_list(
        &mut self,
        protocol: &mut ProtocolState,
        replies: &mut Replies,
        mut list: TubeList,
    ) {
        let bytes = Yaml::list_length(list.tubes(), list.name_lengths());
        replies.reply(Reply::Ok { bytes }, &mut self.buffers);
        let is_done = self.reply_piece(&mut list, replies, |data| _ = Yaml::new(data));
        if !is_done {
            self.engine.register_list(&list);
            self.lists += 1;
            protocol.list = Some(Box::new(list));
            protocol.state = SessionState::Listing;
        }
    }

    /// Forgets the list of a session, if there is one.
    pub(in crate::server) fn end_list(&mut self, protocol: &mut ProtocolState) {
        if let Some(list) = protocol.list.take() {
            self.engine.end_list(&list);
            self.lists -= 1;
        }
    }

    /// Appends what `begin` writes, and a bounded piece of a list. Returns true if it was the last piece.
    fn reply_piece(
        &mut self,
        list: &mut TubeList,
        replies: &mut Replies,
        begin: impl FnOnce(&mut Vec<u8>),
    ) -> bool {
        let mut data = std::mem::take(&mut self.scratch);
        data.clear();
        begin(&mut data);
        let is_done = self.render(list, &mut data);
        replies.data(&data, &mut self.buffers);
        self.scratch = data;
        is_done
    }

    /// Renders a bounded piece of a list. Returns true if it was the last.
    fn render(&mut self, list: &mut TubeList, out: &mut Vec<u8>) -> bool {
        let begin = out.len();
        let mut entries = 0;
        let mut is_done = false;
        while !is_done && entries < PIECE_ENTRIES && out.len() - begin < PIECE_BYTES {
            entries += 1;
            match self.engine.next_listed(list) {
                Listed::Tube(name) => Yaml::resume(out).item(name),
                Listed::Nothing => {}
                Listed::End => {
                    out.extend_from_slice(b"\r\n");
                    is_done = true;
                }
            }
        }
        self.extra_steps += ((out.len() - begin) / STATS_BYTES_PER_STEP + entries / ENTRIES_PER_STEP) as u32;
        is_done
    }
}
