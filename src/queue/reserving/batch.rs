//! `reserve-batch`: the jobs that a reserve for each of them would get.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::draw::{Block, Rng, WeightedChoice};
use super::search::Look;
use crate::values::budget::Budget;
use crate::values::ids::{JobId, JobKey, TubeSlot};
use crate::values::limits::BATCH_BODY_BYTES_MAX;

/// What a batch takes at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchRoom {
    /// Number of jobs.
    pub jobs: usize,
    /// The size of their bodies without CR LF. The first job may have a larger one.
    pub body_bytes: u64,
}

impl BatchRoom {
    /// Room for this many jobs, and for as large bodies as the protocol permits.
    pub const fn new(jobs: usize) -> Self {
        Self { jobs, body_bytes: BATCH_BODY_BYTES_MAX as u64 }
    }
}

/// In which order a batch takes jobs from tubes.
pub enum Turns {
    /// The most urgent job of all tubes is next.
    Urgent {
        heads: BinaryHeap<Reverse<(u32, JobId, TubeSlot)>>,
        /// There are more tubes than jobs in the batch, and the others are left out.
        is_cut: bool,
    },
    /// Chance decides.
    Drawn(WeightedChoice),
}

/// The tube that is next, and why.
pub struct Turn {
    pub tube: TubeSlot,
    at: TurnPlace,
}

#[derive(Clone, Copy)]
enum TurnPlace {
    /// The tube came next because of the job with this priority and id.
    Urgent((u32, JobId)),
    /// The tube is of this block of the weighted choice.
    Drawn(Block),
}

impl Turns {
    /// The turns of up to this many jobs.
    pub fn new(look: Look<'_>, most: usize, budget: &mut Budget) -> Self {
        if look.client().mode.is_weighted() {
            return Self::Drawn(WeightedChoice::fill(look, budget));
        }
        let (heads, is_cut) = look.most_urgent_heads(most, budget);
        Self::Urgent { heads: heads.into_iter().map(Reverse).collect(), is_cut }
    }

    pub fn next(&mut self, rng: &mut Rng, look: Look<'_>, budget: &mut Budget) -> Option<Turn> {
        match self {
            Self::Urgent { heads, .. } => {
                let Reverse((pri, id, tube)) = heads.pop()?;
                Some(Turn { tube, at: TurnPlace::Urgent((pri, id)) })
            }
            Self::Drawn(choice) => {
                let (tube, block) = rng.draw_tube(choice, look, budget)?;
                Some(Turn { tube, at: TurnPlace::Drawn(block) })
            }
        }
    }

    /// Gives a tube its next turn, if it has another job.
    pub fn end(&mut self, turn: &Turn, look: Look<'_>, budget: &mut Budget) {
        match (self, turn.at) {
            (Self::Urgent { heads, .. }, _) => {
                let head = look.head(turn.tube);
                if look.job(head).is_some() {
                    let (pri, id) = head.key();
                    heads.push(Reverse((pri, id, turn.tube)));
                }
            }
            (Self::Drawn(choice), TurnPlace::Drawn(block)) => choice.renew(block, look, budget),
            (Self::Drawn(_), TurnPlace::Urgent(_)) => unreachable!("the turn was drawn"),
        }
    }

    /// Whether there may be tubes with jobs that have no turn.
    pub const fn is_cut(&self) -> bool {
        matches!(self, Self::Urgent { is_cut: true, .. })
    }
}

impl Turn {
    /// The job that the turn takes. There is none if the most urgent job of its tube is another one by now.
    pub fn next_job(&self, look: Look<'_>) -> Option<JobKey> {
        let head = look.head(self.tube);
        let job = look.job(head)?;
        (!matches!(self.at, TurnPlace::Urgent(at) if at != head.key())).then_some(job)
    }
}
