//! The timer queue. Each client and each tube has one timer, for the earliest deadline in its own heap of held or delayed
//! jobs, and for its rules. The idempotency keys of deleted jobs share one, and so do schedules.
//!
//! A timer may fire early, never late. So a deadline that moves back leaves its timer as it is, and costs at most one check
//! of the owner later. That keeps the usual reserve and delete off this heap.

use crate::intrusive::{Heap, Links, Pages, intrusive};
use crate::time::Time;
use crate::values::ids::{ClientKey, TubeKey};

/// The owner of a timer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Owner {
    /// For the end of reservations, the safety margin, and the end of a wait.
    Client(ClientKey),
    /// For the end of delays, of a pause, and of what its rules limit.
    Tube(TubeKey),
    /// For the end of kept idempotency keys.
    IdpKeys,
    /// For runs of schedules, and looks at the system clock.
    Schedules,
}

/// The slot of a timer.
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
    /// The memory of one timer.
    pub const ELEMENT_BYTES: usize = size_of::<Option<Timer>>();

    /// Adds a timer, which is not armed and has no owner.
    pub fn add(&mut self) -> TimerKey {
        let timer = Timer { at: Time::ZERO, owner: None, armed: false, links: Links::NONE, rank: 0 };
        TimerKey(self.slab.insert(timer))
    }

    /// Sets the owner. A timer needs one before it is armed.
    pub fn set_owner(&mut self, key: TimerKey, owner: Owner) {
        self.slab[key.0].owner = Some(owner);
    }

    pub fn remove(&mut self, key: TimerKey) {
        if self.slab[key.0].armed {
            self.heap.remove(&mut self.slab, key.0);
        }
        self.slab.remove(key.0);
    }

    /// Arms the timer to fire no later than `at`.
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

    /// Disarms the first timer that is due at `now`. Returns its owner, which handles what is due and arms the timer again,
    /// and the time for which it was armed.
    pub fn fire(&mut self, now: Time) -> Option<(Owner, Time)> {
        let key = self.heap.min().filter(|&key| self.slab[key].at <= now)?;
        self.heap.remove(&mut self.slab, key);
        let timer = &mut self.slab[key];
        timer.armed = false;
        Some((timer.owner.expect("an armed timer has an owner"), timer.at))
    }

    /// The time at which the next timer fires.
    pub fn next(&self) -> Option<Time> {
        self.heap.min().map(|key| self.slab[key].at)
    }

    /// The time at which this timer fires, if it is armed.
    pub fn armed(&self, key: TimerKey) -> Option<Time> {
        let timer = &self.slab[key.0];
        timer.armed.then_some(timer.at)
    }

    pub const fn bytes(&self) -> usize {
        self.slab.bytes()
    }

    pub fn check(&self) {
        self.slab.check();
        self.heap.check(&self.slab);
        // Bounded by its caller: a test.
        let armed = self.slab.iter().filter(|(_, timer)| timer.armed).count();
        assert_eq!(self.heap.len(), armed, "the armed timers are in the heap");
    }
}

intrusive!(Timer: in heaps by (Time, Option<Owner>), |timer| (timer.at, timer.owner));
