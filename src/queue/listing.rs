//! Lists of tubes that are read piece by piece. [`TubeOrder`](super::tube_order::TubeOrder) keeps them consistent while
//! tubes are added and removed.

use super::engine::Engine;
use super::tube_order::Found;
use super::work::Work;
use crate::values::ids::ClientKey;
use crate::values::tube_name::TubeName;

/// A list of tubes that is being read.
///
/// [`Engine::list_tubes`] and [`Engine::list_watched`] create one, [`Engine::next_listed`] reads it. A list that is not read
/// to its end before the next command must be registered with [`Engine::register_list`] and ended with [`Engine::end_list`].
#[derive(Debug)]
pub struct TubeList {
    source: Source,
    /// The next place to read.
    at: usize,
    /// The number of tubes still to be shown.
    tubes: usize,
    /// The length of their names.
    name_lengths: usize,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    /// All tubes of this version.
    Tubes { version: u64 },
    /// The watches of one client. They do not change while the client waits for the list.
    Watched(ClientKey),
}

/// The next place of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Listed<'a> {
    /// A tube to show.
    Tube(TubeName<'a>),
    /// A place without a tube of this list.
    Nothing,
    /// The end of the list.
    End,
}

impl TubeList {
    /// The number of tubes still to be shown.
    pub fn tubes(&self) -> usize {
        self.tubes
    }

    /// The length of the names still to be shown.
    pub fn name_lengths(&self) -> usize {
        self.name_lengths
    }
}

impl Engine {
    /// A list of all tubes.
    pub fn list_tubes(&self) -> TubeList {
        let source = Source::Tubes { version: self.tubes.version() };
        TubeList { source, at: 0, tubes: self.tubes.len(), name_lengths: self.tubes.name_lengths() }
    }

    /// A list of the tubes that the client watches.
    pub fn list_watched(&self, client: ClientKey) -> TubeList {
        let record = self.clients.get(client);
        let (tubes, name_lengths) = (record.watch_count(), record.name_lengths);
        TubeList { source: Source::Watched(client), at: 0, tubes, name_lengths }
    }

    /// Registers a list that is read across commands, while tubes are added and removed. During a list of its watches, a client
    /// must send no command.
    pub fn register_list(&mut self, list: &TubeList) {
        if let Source::Tubes { version } = list.source {
            self.tubes.begin_list(version);
        }
    }

    /// Ends a list, read to its end or not.
    pub fn end_list(&mut self, list: &TubeList) {
        if let Source::Tubes { version } = list.source
            && self.tubes.end_list(version)
            && !self.is_purging
        {
            self.is_purging = true;
            self.work.push_back(Work::PurgeTubeOrder);
        }
    }

    /// Returns the next place of a list.
    ///
    /// # Panics
    /// If the list shows more or fewer tubes than there were at its start, which is a bug of the queue.
    pub fn next_listed(&self, list: &mut TubeList) -> Listed<'_> {
        let found = match list.source {
            Source::Tubes { version } => self.tubes.listed_at(list.at, version),
            Source::Watched(client) => match self.clients.watched_at(client, list.at) {
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
                Listed::Tube(TubeName::new(name).expect("a tube was created with a valid name"))
            }
            Found::Nothing => Listed::Nothing,
            Found::End => {
                assert_eq!((list.tubes, list.name_lengths), (0, 0), "a list shows all tubes that there were");
                Listed::End
            }
        }
    }
}
