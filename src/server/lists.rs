//! Lists of tubes: rendered in pieces between other work, no faster than they are sent. Many clients that ask for a
//! long list and do not read it hold a piece each, not a copy.

use super::dispatch::REPORT_BYTES_A_STEP;
use super::session::{Phase, ProtocolState};
use super::{Core, Server};
use crate::ids::ConnId;
use crate::limits::{LIST_PIECE_BYTES, LIST_PIECE_PLACES, OUTPUT_BYTES_PAUSE};
use crate::protocol::reply::{Reply, Yaml};
use crate::queue::{List, Listed};
use crate::time::Time;

/// Places of a list without a tube that are passed in the time of a step.
const PLACES_A_STEP: usize = 16;

impl Server {
    /// Renders another piece of the list that a session waits for.
    pub(super) fn go_on_with_list(&mut self, conn: ConnId, now: Time) {
        let Self { core, sessions, .. } = self;
        let talk = &mut sessions[conn].talk;
        core.begin_replies(talk);
        let list = talk.list.as_mut().expect("a session that lists has a list");
        let mut data = std::mem::take(&mut core.scratch);
        data.clear();
        let is_done = core.render(list, &mut data);
        talk.output.data(&data, &mut core.buffers);
        core.scratch = data;
        if is_done {
            core.end_list(talk);
            talk.phase = Phase::Serving;
            talk.is_choked = talk.output.pending() >= OUTPUT_BYTES_PAUSE;
        }
        if core.is_stalled() {
            talk.output.stamp(core.safe_ticket());
        }
        self.spent += core.take_steps();
        self.after_serving(conn, now);
    }
}

impl Core {
    /// Answers with a list: at once, if it is short.
    pub(super) fn begin_list(&mut self, talk: &mut ProtocolState, mut list: List) {
        let bytes = Yaml::list_length(list.tubes(), list.name_lengths());
        talk.output.reply(Reply::Ok { bytes }, &mut self.buffers);
        let mut data = std::mem::take(&mut self.scratch);
        data.clear();
        Yaml::new(&mut data);
        let is_done = self.render(&mut list, &mut data);
        talk.output.data(&data, &mut self.buffers);
        self.scratch = data;
        if !is_done {
            self.engine.keep_list(&list);
            self.lists += 1;
            talk.list = Some(Box::new(list));
            talk.phase = Phase::Listing;
        }
    }

    /// The list of a session is over, or given up, if there is one.
    pub(super) fn end_list(&mut self, talk: &mut ProtocolState) {
        if let Some(list) = talk.list.take() {
            self.engine.end_list(&list);
            self.lists -= 1;
        }
    }

    /// Renders a bounded piece of a list. True if it was the last.
    fn render(&mut self, list: &mut List, out: &mut Vec<u8>) -> bool {
        let begin = out.len();
        let mut places = 0;
        let mut is_done = false;
        while !is_done && places < LIST_PIECE_PLACES && out.len() - begin < LIST_PIECE_BYTES {
            places += 1;
            match self.engine.next_listed(list) {
                Listed::Tube(name) => Yaml::resume(out).item(name),
                Listed::Nothing => {}
                Listed::End => {
                    out.extend_from_slice(b"\r\n");
                    is_done = true;
                }
            }
        }
        self.extra_steps += ((out.len() - begin) / REPORT_BYTES_A_STEP + places / PLACES_A_STEP) as u32;
        is_done
    }
}
