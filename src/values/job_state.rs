//! The state of a job.

/// The state of a job.
///
/// ```text
///            put             reserve              delete
///   ---------------> Ready -----------> Reserved --------> gone
///   put with delay   ^  ^ ^              |  |  |
///   ----> Delayed ---'  | '--------------'  |  | bury
///            ^   time   |  release, TTR,    |  v
///            |   kick   |  hang-up          | Buried --> delete
///            |          '-------------------|----' kick
///            '------------------------------'
///               release with delay
/// ```
/// A delayed or buried job can also be reserved by id. A client can delete any job that no other client holds.
/// Every client may finish a job that was reserved before a restart.
///
/// A job that waits for a group is Held from its put on, until the group is done. Then it is Ready, or Delayed if its delay is not
/// over. A kick makes it Ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobState {
    /// In its tube's ready heap, or in the lane of its concurrency key.
    Ready,
    /// In its holder's heap and list of reserved jobs.
    Reserved,
    /// In its tube's heap of delayed jobs.
    Delayed,
    /// In its tube's list of buried jobs.
    Buried,
    /// Waits for a group, in its tube's list of held jobs. No client has reserved it.
    Held,
}

impl JobState {
    /// Number of states.
    pub const COUNT: usize = Self::Held as usize + 1;
    /// Every state, in order.
    pub const ALL: [Self; Self::COUNT] =
        [Self::Ready, Self::Reserved, Self::Delayed, Self::Buried, Self::Held];

    /// The state that a word of the protocol names.
    pub fn named(word: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.word().as_bytes() == word)
    }

    /// Whether jobs in this state can be moved to another tube together.
    pub const fn can_move(self) -> bool {
        !matches!(self, Self::Reserved | Self::Held)
    }

    /// The word of the protocol for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Reserved => "reserved",
            Self::Delayed => "delayed",
            Self::Buried => "buried",
            Self::Held => "held",
        }
    }
}
