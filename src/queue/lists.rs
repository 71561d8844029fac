//! Lists of tubes, read a piece at a time. [`roll`](super::roll) keeps them consistent while tubes come and go.

use super::background::Work;
use super::engine::Engine;
use super::roll::Found;
use crate::ids::ClientKey;
use crate::tube_name::TubeName;

/// A list of tubes that is being read.
///
/// [`Engine::list_tubes`] and [`Engine::list_watched`] make one, [`Engine::next_listed`] reads it. A list that is not read to its end
/// before the next command is kept with [`Engine::keep_list`] and ended with [`Engine::end_list`].
#[derive(Debug)]
pub struct List {
    what: What,
    /// The next place.
    at: usize,
    /// Tubes that are still to be shown, and how long their names are together.
    tubes: usize,
    name_lengths: usize,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// All tubes of a moment.
    Tubes { moment: u64 },
    /// The watches of one client. They do not change while it waits for the list.
    Watched(ClientKey),
}

/// The next place of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Listed<'a> {
    /// A tube.
    Tube(TubeName<'a>),
    /// A place where there is none for this list.
    Nothing,
    /// The list is at its end.
    End,
}

impl List {
    /// How many tubes are still to be shown.
    pub fn tubes(&self) -> usize {
        self.tubes
    }

    /// How long their names are together.
    pub fn name_lengths(&self) -> usize {
        self.name_lengths
    }
}

impl Engine {
    /// A list of all tubes.
    pub fn list_tubes(&self) -> List {
        let what = What::Tubes { moment: self.tubes.moment() };
        List { what, at: 0, tubes: self.tubes.len(), name_lengths: self.tubes.name_lengths() }
    }

    /// A list of the tubes that the client watches.
    pub fn list_watched(&self, client: ClientKey) -> List {
        let record = self.clients.get(client);
        let (tubes, name_lengths) = (record.watch_count(), record.name_lengths);
        List { what: What::Watched(client), at: 0, tubes, name_lengths }
    }

    /// The list goes on while tubes come and go. For a list of what a client watches, the client does nothing until it
    /// has ended.
    pub fn keep_list(&mut self, list: &List) {
        if let What::Tubes { moment } = list.what {
            self.tubes.begin_list(moment);
        }
    }

    /// The list is over that was [kept](Self::keep_list), read to its end or not.
    pub fn end_list(&mut self, list: &List) {
        if let What::Tubes { moment } = list.what
            && self.tubes.end_list(moment)
            && !self.is_tidying
        {
            self.is_tidying = true;
            self.work.push_back(Work::Tidy);
        }
    }

    /// Returns the next place of a list.
    ///
    /// # Panics
    /// If tubes are missing at the end, or there are too many: a defect of the queue.
    pub fn next_listed(&self, list: &mut List) -> Listed<'_> {
        let found = match list.what {
            What::Tubes { moment } => self.tubes.listed_at(list.at, moment),
            What::Watched(client) => match self.clients.watched_at(client, list.at) {
                Some(tube) => Found::Name(self.tubes[tube].name().as_bytes()),
                None => Found::End,
            },
        };
        list.at += 1;
        match found {
            Found::Name(name) => {
                assert!(list.tubes > 0, "a list shows no more tubes than there were");
                list.tubes -= 1;
                list.name_lengths -= name.len();
                Listed::Tube(TubeName::new(name).expect("a tube was made from a valid name"))
            }
            Found::Nothing => Listed::Nothing,
            Found::End => {
                assert_eq!((list.tubes, list.name_lengths), (0, 0), "a list shows all tubes that there were");
                Listed::End
            }
        }
    }
}
