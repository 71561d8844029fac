//! The one timer queue. Clients and tubes have a timer each; what they hold (reservations, delays) is in
//! heaps of their own, and the timer stands for the soonest of it.
//!
//! A timer may fire early, never late: moving a deadline back costs nothing then and at most one look
//! at the owner later. That keeps the usual reserve and delete off this heap.

use crate::ids::{ClientKey, TubeKey};
use crate::intrusive::{Heap, Linked, Links, Pages, Ranked};
use crate::time::Time;

/// Whose timer it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Owner {
    /// Reservations that time out, the safety margin, the end of a wait.
    Client(ClientKey),
    /// Delayed jobs, the end of a pause.
    Tube(TubeKey),
}

/// Where the timer queue keeps a timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimerKey(u32);

/// All timers.
#[derive(Default)]
pub struct Timers {
    slab: Pages<Timer>,
    heap: Heap,
}

struct Timer {
    at: Time,
    owner: Option<Owner>,
    armed: bool,
    links: Links,
    rank: u8,
}

impl Timers {
    /// Makes a timer, which is not armed and has no owner yet.
    pub fn add(&mut self) -> TimerKey {
        let timer = Timer { at: Time::ZERO, owner: None, armed: false, links: Links::NONE, rank: 0 };
        TimerKey(self.slab.insert(timer))
    }

    /// Says whose timer it is, before it is armed.
    pub fn set_owner(&mut self, key: TimerKey, owner: Owner) {
        self.slab[key.0].owner = Some(owner);
    }

    /// Takes a timer away.
    pub fn remove(&mut self, key: TimerKey) {
        if self.slab[key.0].armed {
            self.heap.remove(&mut self.slab, key.0);
        }
        self.slab.remove(key.0);
    }

    /// Makes sure that the timer fires no later than `at`.
    pub fn arm(&mut self, key: TimerKey, at: Time) {
        let timer = &self.slab[key.0];
        if timer.armed {
            if timer.at <= at {
                return;
            }
            self.heap.remove(&mut self.slab, key.0);
        }
        let timer = &mut self.slab[key.0];
        timer.at = at;
        timer.armed = true;
        self.heap.insert(&mut self.slab, key.0);
    }

    /// Disarms a timer that is due at `now` and returns its owner, which looks what is due and arms it again.
    pub fn fire(&mut self, now: Time) -> Option<Owner> {
        let key = self.heap.min().filter(|&key| self.slab[key].at <= now)?;
        self.heap.remove(&mut self.slab, key);
        let timer = &mut self.slab[key];
        timer.armed = false;
        Some(timer.owner.expect("an armed timer has an owner"))
    }

    /// When the next timer fires.
    pub fn next(&self) -> Option<Time> {
        self.heap.min().map(|key| self.slab[key].at)
    }

    /// When this timer fires, if it is armed.
    pub fn armed(&self, key: TimerKey) -> Option<Time> {
        let timer = &self.slab[key.0];
        timer.armed.then_some(timer.at)
    }

    /// What one of them takes.
    pub(super) const fn element_bytes(&self) -> usize {
        size_of::<Option<Timer>>()
    }

    pub(super) const fn bytes(&self) -> usize {
        self.slab.bytes()
    }

    pub(super) fn check(&self) {
        self.slab.check();
        self.heap.check(&self.slab);
        let armed = self.slab.iter().filter(|(_, timer)| timer.armed).count();
        assert_eq!(self.heap.len(), armed, "the armed timers are in the queue");
    }
}

impl Linked for Timer {
    fn links(&self) -> &Links {
        &self.links
    }

    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

impl Ranked for Timer {
    type Key = (Time, Option<Owner>);

    fn key(&self) -> (Time, Option<Owner>) {
        (self.at, self.owner)
    }

    fn rank(&self) -> u8 {
        self.rank
    }

    fn set_rank(&mut self, rank: u8) {
        self.rank = rank;
    }
}
