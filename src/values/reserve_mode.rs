//! How a reserve chooses among the tubes that a client watches.

/// The choice among watched tubes that have a job. Within a tube, the most urgent job is always the next.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ReserveMode {
    /// The most urgent job of all watched tubes, as in beanstalkd.
    #[default]
    Default,
    /// The name of [`Default`](Self::Default) in tuber.
    Fifo,
    /// A tube by chance, in proportion to the weight of its watch.
    Weighted,
    /// A tube by chance, in proportion to the weight of its watch over the average time for which clients held its jobs.
    WeightedFair,
}

impl ReserveMode {
    const ALL: [Self; 4] = [Self::Default, Self::Fifo, Self::Weighted, Self::WeightedFair];

    /// The word of the protocol for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Fifo => "fifo",
            Self::Weighted => "weighted",
            Self::WeightedFair => "weighted-fair",
        }
    }

    /// Returns the mode with this word.
    pub fn named(word: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.word().as_bytes() == word)
    }

    /// Whether chance decides.
    pub const fn is_weighted(self) -> bool {
        matches!(self, Self::Weighted | Self::WeightedFair)
    }
}
