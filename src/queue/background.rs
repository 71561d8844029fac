//! What time brings, and commands too large for one go: done in bounded steps between other work.

use super::change::Change;
use super::engine::{Engine, Notice};
use super::job::State;
use super::timers::Owner;
use crate::ids::{ClientKey, ConnId, JobKey, TubeKey};
use crate::limits::{BACKGROUND_STEPS, SAFETY_MARGIN};
use crate::time::Time;

/// Work that goes on until it is done. A tube that it names is pinned.
pub(super) enum Work {
    /// Make jobs ready; tell the client how many it were.
    Kick(Kick),
    /// Let go of what a client that has gone held and watched.
    Depart { client: ClientKey },
    /// Give ready jobs to clients that wait.
    Serve { tube: TubeKey },
    /// Forget names of tubes that have gone, which no list shows any more.
    Tidy,
}

/// A `kick` under way.
pub(super) struct Kick {
    pub(super) conn: ConnId,
    pub(super) tube: TubeKey,
    /// Buried or delayed.
    pub(super) from: State,
    pub(super) left: u32,
    pub(super) kicked: u32,
}

/// What a piece of work may still do in this step.
pub(super) struct Budget(u32);

impl Budget {
    pub(super) const fn whole() -> Self {
        Self(BACKGROUND_STEPS)
    }

    /// How many steps may be taken.
    const fn left(&self) -> u32 {
        self.0
    }

    /// Takes one step; false if that was the last.
    fn spend(&mut self) -> bool {
        self.charge(1);
        self.0 > 0
    }

    /// Takes steps that have been done already, which may be more than there were.
    fn charge(&mut self, steps: u32) {
        self.0 = self.0.saturating_sub(steps);
    }
}

impl Engine {
    /// Does a bounded piece of what is due at `now` or unfinished. True if more is left to do at once.
    pub fn step(&mut self, now: Time) -> bool {
        let mut budget = Budget::whole();
        if let Some(work) = self.work.pop_front() {
            self.resume(work, now, &mut Budget(BACKGROUND_STEPS / 2));
        }
        while let Some(owner) = self.timers.fire(now) {
            match owner {
                Owner::Client(client) => self.client_due(client, now, &mut budget),
                Owner::Tube(tube) => self.tube_due(tube, now, &mut budget),
            }
            if !budget.spend() {
                break;
            }
        }
        self.steps = 0;
        !self.work.is_empty() || self.timers.next().is_some_and(|at| at <= now)
    }

    fn resume(&mut self, work: Work, now: Time, budget: &mut Budget) {
        match work {
            Work::Kick(mut kick) => {
                if self.kick_some(&mut kick, now, budget) {
                    self.notices.push_back(Notice::Kicked(kick.conn, kick.kicked));
                } else {
                    self.work.push_back(Work::Kick(kick));
                }
            }
            Work::Depart { client } => {
                if !self.depart(client, now, budget) {
                    self.work.push_back(Work::Depart { client });
                }
            }
            Work::Serve { tube } => {
                self.tubes.get_mut(tube).serving = false;
                self.serve(tube, now);
                self.unpin(tube);
            }
            Work::Tidy => {
                if self.tubes.tidy(budget.left()) {
                    self.work.push_back(Work::Tidy);
                } else {
                    self.is_tidying = false;
                }
            }
        }
    }

    /// Goes on with a kick. True if it is done.
    pub(super) fn kick_some(&mut self, kick: &mut Kick, now: Time, budget: &mut Budget) -> bool {
        while kick.left > 0 {
            let tube = self.tubes.get(kick.tube);
            let next = match kick.from {
                State::Buried => tube.buried.front().map(JobKey),
                _ => tube.delayed.min().map(|key| self.jobs.activities[key].job),
            };
            let Some(job) = next else { break };
            self.make_ready(job, Change::Kicked(job), now);
            self.steps += 1;
            kick.left -= 1;
            kick.kicked += 1;
            if !budget.spend() && kick.left > 0 {
                return false;
            }
        }
        self.unpin(kick.tube);
        true
    }

    /// Lets go of what a client has. True if it is done and the client is no more.
    pub(super) fn depart(&mut self, client: ClientKey, now: Time, budget: &mut Budget) -> bool {
        // In the order in which it got them, as in the reference: who waits sees it.
        while let Some(job) = self.clients.get(client).held_order.front().map(JobKey) {
            self.make_ready(job, Change::Returned(job), now);
            if !budget.spend() {
                return false;
            }
        }
        // From the front, the last taking its place, as the reference does: `list-tubes` shows the order.
        while let Some(&watch) = self.clients.get(client).watches.first() {
            self.unwatch(watch);
            if !budget.spend() {
                return false;
            }
        }
        let client = self.clients.remove(client);
        self.timers.remove(client.timer);
        self.tubes.get_mut(client.used).using -= 1;
        self.drop_if_unwanted(client.used);
        true
    }

    /// Ends the client's wait if it is over, and reservations that have timed out.
    fn client_due(&mut self, client: ClientKey, now: Time, budget: &mut Budget) {
        let record = self.clients.get(client);
        if let Some(wait) = record.wait {
            let conn = record.conn;
            let margin = self.soonest_held(client).map(|deadline| deadline.back(SAFETY_MARGIN));
            let end = wait.until.filter(|&until| until <= now);
            let soon = margin.filter(|&margin| margin <= now);
            let notice = match (soon, end) {
                (Some(soon), end) if end.is_none_or(|end| soon <= end) => Some(Notice::DeadlineSoon(conn)),
                (_, Some(_)) => Some(Notice::TimedOut(conn)),
                _ => None,
            };
            if let Some(notice) = notice {
                self.end_wait(client);
                self.notices.push_back(notice);
            }
        }
        while let Some(activity) = self.clients.get(client).held.min() {
            let activity = &mut self.jobs.activities[activity];
            if activity.deadline > now {
                break;
            }
            activity.counts.timeouts += 1;
            let job = activity.job;
            self.census.timeouts += 1;
            self.make_ready(job, Change::TimedOut(job), now);
            if !budget.spend() {
                break;
            }
        }
        self.rearm_client(client);
    }

    /// Ends the tube's pause if it is over, and makes jobs ready whose delay is.
    fn tube_due(&mut self, key: TubeKey, now: Time, budget: &mut Budget) {
        let tube = self.tubes.get_mut(key);
        if tube.pause.is_some_and(|pause| pause.until <= now) {
            tube.pause = None;
            self.tubes.relist(key);
            budget.charge(self.serve(key, now));
        }
        while let Some(activity) = self.tubes.get(key).delayed.min() {
            let activity = &self.jobs.activities[activity];
            if activity.deadline > now {
                break;
            }
            let job = activity.job;
            self.leave(job, now);
            self.enter_ready(job, now);
            self.serve(key, now);
            if !budget.spend() {
                break;
            }
        }
        let tube = self.tubes.get(key);
        let soonest = tube.delayed.min().map(|activity| self.jobs.activities[activity].deadline);
        let pause = tube.pause.map(|pause| pause.until);
        if let Some(at) = [soonest, pause].into_iter().flatten().min() {
            self.timers.arm(tube.timer, at);
        }
    }

    fn unpin(&mut self, tube: TubeKey) {
        self.tubes.get_mut(tube).pins -= 1;
        self.drop_if_unwanted(tube);
    }
}
