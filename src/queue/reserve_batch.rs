//! `reserve-batch`: the jobs that a reserve for each of them would get.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::background::BACKGROUND_STEPS;
use super::draw::{Block, Urn};
use super::engine::Engine;
use crate::time::Time;
use crate::values::budget::Cost;
use crate::values::ids::{ClientKey, ClientSlot, JobId, JobKey, TubeSlot};
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
enum Turns {
    /// The most urgent job of all tubes is next.
    Urgent {
        heads: BinaryHeap<Reverse<(u32, JobId, TubeSlot)>>,
        /// There are more tubes than jobs in the batch, and the others are left out.
        is_cut: bool,
    },
    /// Chance decides.
    Drawn(Urn),
}

/// The tube that is next, and why.
struct Turn {
    tube: TubeSlot,
    at: Place,
}

#[derive(Clone, Copy)]
enum Place {
    /// The tube came next because of the job with this priority and id.
    Urgent((u32, JobId)),
    /// The tube is of this block of the urn.
    Drawn(Block),
}

impl Turns {
    /// Whether there may be tubes with jobs that have no turn.
    const fn is_cut(&self) -> bool {
        matches!(self, Self::Urgent { is_cut: true, .. })
    }
}

impl Engine {
    /// Reserves more jobs for a client that has just reserved those in `jobs`, as that many `reserve`s would, and appends
    /// them until there are as many as the room permits. Takes none of a tube in which very many jobs are passed over first.
    ///
    /// A client that could wait must not overtake clients that do, so it takes no job of a tube whose jobs background work
    /// assigns. `may_overtake` is set for a client that could not.
    pub fn reserve_more(
        &mut self,
        client: ClientKey,
        room: BatchRoom,
        may_overtake: bool,
        now: Time,
        jobs: &mut Vec<JobKey>,
    ) {
        let client = self.store.clients.slot(client);
        let most = room.jobs.saturating_sub(jobs.len());
        let limit = self.budget.within(BACKGROUND_STEPS + most as u32);
        if most == 0
            || !self.cons.shut_full_for(
                client,
                limit,
                &mut self.store,
                &mut self.effects.work,
                &mut self.budget,
            )
        {
            return;
        }
        // Bounded by BATCH_JOBS_MAX: the jobs of one batch.
        let mut bytes: u64 = jobs.iter().map(|&job| self.store.body_bytes(job)).sum();
        let mut turns = self.turns(client, most, may_overtake);
        while jobs.len() < room.jobs {
            let Some(turn) = self.next_turn(client, &mut turns, may_overtake) else { break };
            // A job of this batch may have taken the last place of the key of the next one.
            // mutant con-batch-beyond-the-limit: removed
            self.shut_full_lanes(turn.tube, limit);
            let head = self.head(turn.tube, may_overtake);
            let is_next =
                |&(key, _): &((u32, JobId), JobKey)| !matches!(turn.at, Place::Urgent(at) if at != key);
            let next = head.filter(is_next);
            // mutant batch-without-the-tubes-left-out: turns.is_cut() => turns.is_cut() && jobs.is_empty()
            if next.is_none() && turns.is_cut() {
                // A tube that was left out may have a more urgent job than the next one of this tube.
                if self.budget.is_reached(limit) {
                    break;
                }
                turns = self.turns(client, room.jobs - jobs.len(), may_overtake);
                continue;
            }
            if let Some((_, job)) = next {
                bytes += self.store.body_bytes(job);
                if bytes > room.body_bytes {
                    break;
                }
                self.budget.charge(Cost::STEP);
                self.hand_out(job, client, now);
                jobs.push(job);
            }
            self.end_turn(client, &mut turns, &turn, may_overtake);
        }
    }

    fn head(&self, tube: TubeSlot, may_overtake: bool) -> Option<((u32, JobId), JobKey)> {
        let head = self.store.tubes.heads.get(tube);
        head.job(may_overtake).map(|job| (head.key(), job))
    }

    fn turns(&mut self, client: ClientSlot, most: usize, may_overtake: bool) -> Turns {
        if self.store.clients[client].mode.is_weighted() {
            return Turns::Drawn(self.fill_urn(client, may_overtake));
        }
        let (heads, is_cut) = self.most_urgent_heads(client, most, may_overtake);
        Turns::Urgent { heads: heads.into_iter().map(Reverse).collect(), is_cut }
    }

    fn next_turn(&mut self, client: ClientSlot, turns: &mut Turns, may_overtake: bool) -> Option<Turn> {
        match turns {
            Turns::Urgent { heads, .. } => {
                let Reverse((pri, id, tube)) = heads.pop()?;
                Some(Turn { tube, at: Place::Urgent((pri, id)) })
            }
            Turns::Drawn(urn) => {
                let (tube, block) = self.draw_from(client, urn, may_overtake)?;
                Some(Turn { tube, at: Place::Drawn(block) })
            }
        }
    }

    /// Gives a tube its next turn, if it has another job.
    fn end_turn(&mut self, client: ClientSlot, turns: &mut Turns, turn: &Turn, may_overtake: bool) {
        match (turns, turn.at) {
            (Turns::Urgent { heads, .. }, _) => {
                if let Some(((pri, id), _)) = self.head(turn.tube, may_overtake) {
                    heads.push(Reverse((pri, id, turn.tube)));
                }
            }
            (Turns::Drawn(urn), Place::Drawn(block)) => self.renew_block(client, urn, block, may_overtake),
            (Turns::Drawn(_), Place::Urgent(_)) => unreachable!("the turn was drawn"),
        }
    }
}
