//! Lists of tubes. They are rendered in pieces between other work, no faster than they are sent. So a client that requests
//! a long list and does not read it costs the memory of a piece, not of a copy.

use std::sync::Arc;

use super::session::Session;
use crate::protocol::reply::{Reply, Yaml};
use crate::queue::{Listed, TubeList};
use crate::server::client_state::{ProtocolState, SessionState};
use crate::server::commit_gate::Replies;
use crate::server::memory::Kept;
use crate::server::{Core, Rights, User};
use crate::time::Time;
use crate::values::budget::Cost;
use crate::values::tube_name::TubeName;

/// A piece ends at this many bytes: some 10 us.
const PIECE_BYTES: usize = 8 * 1024;

/// A piece ends after this many entries, with or without a tube: again some 10 us.
const PIECE_ENTRIES: usize = 1024;

/// A piece of a list that a user sees a part of ends when its tubes were compared with patterns for this many elementary steps.
const PIECE_STEPS: u32 = 256;

/// A list of tubes while it is rendered.
pub(in crate::server) struct Listing {
    list: TubeList,
    /// The user that sees only some of them.
    part: Option<Part>,
}

/// The part of a list that a user sees. Its size is in front of it, so all tubes are visited twice.
struct Part {
    user: Arc<User>,
    /// The list from its beginning, until the tubes are counted.
    whole: Option<TubeList>,
    tubes: usize,
    name_lengths: usize,
}

impl Listing {
    /// All tubes of a list, or those that a user may inspect.
    pub fn new(list: TubeList, user: Option<Arc<User>>) -> Self {
        let part = user.map(|user| Part { user, whole: Some(list.clone()), tubes: 0, name_lengths: 0 });
        Self { list, part }
    }

    /// Whether the size of the list is still unknown.
    fn is_counting(&self) -> bool {
        self.part.as_ref().is_some_and(|part| part.whole.is_some())
    }
}

impl Part {
    /// The price of finding out whether the user sees an entry.
    fn cost_of_entry(&self) -> Cost {
        self.user.cost_of(Rights::INSPECT)
    }
}

impl Core {
    /// Renders another piece of the list that a session waits for.
    pub(in crate::server) fn continue_list(&mut self, session: &mut Session, now: Time) {
        let Session { protocol, output, .. } = session;
        self.with_replies(output, |core, replies| {
            replies.set_harmless(true);
            let list = protocol.list.as_mut().expect("a session that lists has a list");
            if core.reply_piece(list, replies) {
                core.end_list(protocol);
                protocol.serve_again();
                protocol.is_choked = replies.unsent_bytes() >= core.memory.output_bytes_pause();
            }
        });
        self.charge(Cost::COMMAND);
        self.after_serving(session, now);
    }

    /// Replies with a list: at once if it is short, else in pieces.
    pub(in crate::server) fn begin_list(
        &mut self,
        protocol: &mut ProtocolState,
        replies: &mut Replies,
        mut listing: Listing,
    ) {
        if listing.part.is_none() {
            let bytes = Yaml::list_length(listing.list.tubes(), listing.list.name_lengths());
            replies.reply(Reply::Ok { bytes }, &mut self.buffers);
            self.begin_data(replies);
        }
        let mut is_done = self.reply_piece(&mut listing, replies);
        if !is_done && listing.part.is_some() && !listing.is_counting() {
            // A short list is counted in one piece, and rendered in another.
            is_done = self.reply_piece(&mut listing, replies);
        }
        if !is_done {
            self.engine.register_list(&listing.list);
            self.memory.count(Kept::List, false, true);
            protocol.list = Some(Box::new(listing));
            protocol.state = SessionState::Listing;
        }
    }

    /// Forgets the list of a session, if there is one.
    pub(in crate::server) fn end_list(&mut self, protocol: &mut ProtocolState) {
        if let Some(listing) = protocol.list.take() {
            self.engine.end_list(&listing.list);
            self.memory.count(Kept::List, true, false);
        }
    }

    /// Appends what stands before the entries.
    fn begin_data(&mut self, replies: &mut Replies) {
        let mut data = self.buffers.take_scratch();
        _ = Yaml::new(&mut data);
        replies.data(&data, &mut self.buffers);
        self.buffers.keep_scratch(data);
    }

    /// Appends a bounded piece of a list, or counts a piece of it. Returns true if it was the last.
    fn reply_piece(&mut self, listing: &mut Listing, replies: &mut Replies) -> bool {
        if listing.is_counting() {
            if let Some(bytes) = self.count(listing) {
                replies.reply(Reply::Ok { bytes }, &mut self.buffers);
                self.begin_data(replies);
            }
            return false;
        }
        let mut data = self.buffers.take_scratch();
        let is_done = self.render(listing, &mut data);
        replies.data(&data, &mut self.buffers);
        self.buffers.keep_scratch(data);
        is_done
    }

    /// Counts a bounded piece of what a user sees. Returns the length of the list after the last one, and goes back to its beginning.
    fn count(&mut self, Listing { list, part }: &mut Listing) -> Option<usize> {
        let part = part.as_mut().expect("only a part is counted");
        let (each, limit) = (part.cost_of_entry(), self.engine.budget().within(PIECE_STEPS));
        let mut entries = 0;
        while entries < PIECE_ENTRIES && self.engine.budget().spend(each, limit) {
            entries += 1;
            match self.engine.next_listed(list) {
                Listed::Tube(name) if part.user.may(Rights::INSPECT, name) => {
                    part.tubes += 1;
                    part.name_lengths += name.as_bytes().len();
                }
                Listed::Tube(_) | Listed::Nothing => {}
                Listed::End => {
                    self.charge(Cost::entries(entries));
                    *list = part.whole.take().expect("the list is counted once");
                    return Some(Yaml::list_length(part.tubes, part.name_lengths));
                }
            }
        }
        self.charge(Cost::entries(entries));
        None
    }

    /// Renders a bounded piece of a list. Returns true if it was the last.
    fn render(&mut self, Listing { list, part }: &mut Listing, out: &mut Vec<u8>) -> bool {
        let begin = out.len();
        let (mut entries, mut is_done) = (0, false);
        let each = part.as_ref().map_or(Cost::NOTHING, Part::cost_of_entry);
        let limit = self.engine.budget().within(PIECE_STEPS);
        let is_seen =
            |name: TubeName<'_>| part.as_ref().is_none_or(|part| part.user.may(Rights::INSPECT, name));
        while !is_done
            && entries < PIECE_ENTRIES
            && out.len() - begin < PIECE_BYTES
            && self.engine.budget().spend(each, limit)
        {
            entries += 1;
            match self.engine.next_listed(list) {
                Listed::Tube(name) if is_seen(name) => Yaml::resume(out).item(name),
                Listed::Tube(_) | Listed::Nothing => {}
                Listed::End => {
                    out.extend_from_slice(b"\r\n");
                    is_done = true;
                }
            }
        }
        self.charge(Cost::rendered(out.len() - begin).plus(Cost::entries(entries)));
        is_done
    }
}
