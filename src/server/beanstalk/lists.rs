//! Lists of tubes. They are rendered in pieces between other work, no faster than they are sent. So a client that requests
//! a long list and does not read it costs the memory of a piece, not of a copy.

use std::sync::Arc;

use crate::protocol::reply::Yaml;
use crate::queue::{Engine, Listed, TubeList};
use crate::server::{Rights, User};
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

    /// Whether a user sees only a part of it.
    pub const fn is_part(&self) -> bool {
        self.part.is_some()
    }

    /// Its tubes.
    pub const fn list(&self) -> &TubeList {
        &self.list
    }

    /// Whether the size of the list is still unknown.
    pub fn is_counting(&self) -> bool {
        self.part.as_ref().is_some_and(|part| part.whole.is_some())
    }

    /// Counts a bounded piece of what a user sees. Returns the length of the list after the last one, and goes back to its beginning.
    pub fn count(&mut self, engine: &mut Engine) -> Option<usize> {
        let Self { list, part } = self;
        let part = part.as_mut().expect("only a part is counted");
        let (each, limit) = (part.cost_of_entry(), engine.budget().within(PIECE_STEPS));
        let mut entries = 0;
        while entries < PIECE_ENTRIES && engine.budget().spend(each, limit) {
            entries += 1;
            match engine.next_listed(list) {
                Listed::Tube(name) if part.user.may(Rights::INSPECT, name) => {
                    part.tubes += 1;
                    part.name_lengths += name.as_bytes().len();
                }
                Listed::Tube(_) | Listed::Nothing => {}
                Listed::End => {
                    engine.budget().charge(Cost::entries(entries));
                    *list = part.whole.take().expect("the list is counted once");
                    return Some(Yaml::list_length(part.tubes, part.name_lengths));
                }
            }
        }
        engine.budget().charge(Cost::entries(entries));
        None
    }

    /// Renders a bounded piece of a list. Returns true if it was the last.
    pub fn render(&mut self, engine: &mut Engine, out: &mut Vec<u8>) -> bool {
        let Self { list, part } = self;
        let begin = out.len();
        let (mut entries, mut is_done) = (0, false);
        let each = part.as_ref().map_or(Cost::NOTHING, Part::cost_of_entry);
        let limit = engine.budget().within(PIECE_STEPS);
        let is_seen =
            |name: TubeName<'_>| part.as_ref().is_none_or(|part| part.user.may(Rights::INSPECT, name));
        while !is_done
            && entries < PIECE_ENTRIES
            && out.len() - begin < PIECE_BYTES
            && engine.budget().spend(each, limit)
        {
            entries += 1;
            match engine.next_listed(list) {
                Listed::Tube(name) if is_seen(name) => Yaml::resume(out).item(name),
                Listed::Tube(_) | Listed::Nothing => {}
                Listed::End => {
                    out.extend_from_slice(b"\r\n");
                    is_done = true;
                }
            }
        }
        engine.budget().charge(Cost::rendered(out.len() - begin).plus(Cost::entries(entries)));
        is_done
    }
}

impl Part {
    /// The price of finding out whether the user sees an entry.
    fn cost_of_entry(&self) -> Cost {
        self.user.cost_of(Rights::INSPECT)
    }
}
