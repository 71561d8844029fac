//! `reserve-batch`: the jobs that a reserve for each of them would get.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::background::BACKGROUND_STEPS;
use super::draw::{Lots, Urn};
use super::engine::Engine;
use crate::ids::{ClientKey, ClientSlot, JobId, JobKey, TubeSlot};
use crate::limits::BATCH_BODY_BYTES_MAX;
use crate::time::Time;

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
    Drawn { tubes: Vec<TubeSlot>, urn: Urn },
}

/// The tube that is next, and its place.
struct Turn {
    tube: TubeSlot,
    at: Place,
}

enum Place {
    /// The tube came next because of the job with this priority and id.
    Urgent((u32, JobId)),
    /// The number of the tube in the urn.
    Drawn(usize),
}

impl Turns {
    /// Whether there may be tubes with jobs that have no turn.
    const fn is_cut(&self) -> bool {
        matches!(self, Self::Urgent { is_cut: true, .. })
    }

    fn next(&mut self, lots: &mut Lots) -> Option<Turn> {
        match self {
            Self::Urgent { heads, .. } => {
                let Reverse((pri, id, tube)) = heads.pop()?;
                Some(Turn { tube, at: Place::Urgent((pri, id)) })
            }
            Self::Drawn { tubes, urn } => {
                let number = urn.draw(lots.draw())?;
                Some(Turn { tube: tubes[number], at: Place::Drawn(number) })
            }
        }
    }

    /// Gives a tube its next turn, if it has another job.
    fn put_back(&mut self, turn: &Turn, next: Option<(u32, JobId)>) {
        match (self, &turn.at, next) {
            (Self::Urgent { heads, .. }, _, Some((pri, id))) => heads.push(Reverse((pri, id, turn.tube))),
            (Self::Drawn { urn, .. }, &Place::Drawn(number), None) => urn.take_out(number),
            // It left the heap with its turn, or it is still in the urn.
            _ => {}
        }
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
        let client = self.clients.slot(client);
        let most = room.jobs.saturating_sub(jobs.len());
        let limit = self.step_limit(BACKGROUND_STEPS + most as u32);
        if most == 0 || !self.shut_full_lanes_for(client, limit) {
            return;
        }
        let mut bytes: u64 = jobs.iter().map(|&job| self.body_bytes(job)).sum();
        let mut turns = self.turns(client, most, may_overtake);
        while jobs.len() < room.jobs {
            let Some(turn) = turns.next(&mut self.lots) else {
                if !turns.is_cut() || self.is_reached(limit) {
                    break;
                }
                turns = self.turns(client, room.jobs - jobs.len(), may_overtake);
                continue;
            };
            // A job of this batch may have taken the last place of the key of the next one.
            self.shut_full_lanes(turn.tube, limit);
            let head = self.head(turn.tube, may_overtake);
            let is_next =
                |&(key, _): &((u32, JobId), JobKey)| !matches!(turn.at, Place::Urgent(at) if at != key);
            if let Some((_, job)) = head.filter(is_next) {
                bytes += self.body_bytes(job);
                if bytes > room.body_bytes {
                    break;
                }
                self.steps += 1;
                self.hand_out(job, client, now);
                jobs.push(job);
            }
            turns.put_back(&turn, self.head(turn.tube, may_overtake).map(|(key, _)| key));
        }
    }

    fn head(&self, tube: TubeSlot, may_overtake: bool) -> Option<((u32, JobId), JobKey)> {
        let head = self.tubes.heads.get(tube);
        head.job(may_overtake).map(|job| (head.key(), job))
    }

    fn turns(&mut self, client: ClientSlot, most: usize, may_overtake: bool) -> Turns {
        if self.clients[client].mode.is_weighted() {
            let (tubes, urn) = self.fill_urn(client, may_overtake);
            return Turns::Drawn { tubes, urn };
        }
        let (heads, is_cut) = self.most_urgent_heads(client, most, may_overtake);
        Turns::Urgent { heads: heads.into_iter().map(Reverse).collect(), is_cut }
    }
}
