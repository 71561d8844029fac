//! Round trips to the database that prove that a leader still leads.
//!
//! A lock that is held and a lease that is not over prove nothing about what another server has done since: PostgreSQL frees a lock
//! whose holder still lives, and clocks differ. So a reply that reveals the state of the queue leaves only when a request is
//! acknowledged that began after its command was executed. Raft calls that a read index. Appends are such requests, so a
//! busy leader makes no others.

/// The number of a round, from 1. Every reply may leave that waits for round 0.
pub type Round = u64;

/// How far the rounds are. Without a leader that makes them, every reply waits for round 0.
#[derive(Default, Debug)]
pub struct Rounds {
    /// A leader makes them.
    are_made: bool,
    /// The last round that has begun.
    begun: Round,
    /// The last round that is acknowledged.
    proven: Round,
    /// The last round that a reply waits for: at most one has not begun.
    wanted: Round,
}

impl Rounds {
    /// A leader makes rounds from now on.
    pub const fn enable(&mut self) {
        self.are_made = true;
    }

    /// The round that a reply waits for whose command is executed now: the next one.
    #[inline]
    pub const fn want(&mut self) -> Round {
        self.wanted = self.next();
        self.wanted
    }

    /// The round that begins next.
    #[inline]
    pub const fn next(&self) -> Round {
        if self.are_made { self.begun + 1 } else { 0 }
    }

    /// Whether a reply waits for a round that has not begun.
    pub const fn is_wanted(&self) -> bool {
        self.wanted > self.begun
    }

    /// Begins a round with a request that leaves now.
    pub const fn begin(&mut self) -> Round {
        self.begun += 1;
        self.begun
    }

    /// The request of this round is acknowledged.
    pub const fn prove(&mut self, round: Round) {
        if self.proven < round {
            self.proven = round;
        }
    }

    /// The last round that is acknowledged: replies that wait for this one or an earlier one may leave.
    pub const fn proven(&self) -> Round {
        self.proven
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_round_that_begins_later_is_a_proof() {
        let mut rounds = Rounds::default();
        assert_eq!((rounds.want(), rounds.is_wanted()), (0, false), "nothing is waited for");
        rounds.enable();
        let early = rounds.begin();
        let wanted = rounds.want();
        assert!(rounds.is_wanted());
        rounds.prove(early);
        assert!(rounds.proven() < wanted);
        let later = rounds.begin();
        assert!(!rounds.is_wanted());
        let next = rounds.want();
        rounds.prove(later);
        assert!(wanted <= rounds.proven() && rounds.proven() < next);
        rounds.prove(early);
        assert_eq!(rounds.proven(), later);
    }
}
