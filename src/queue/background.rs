//! What time brings, and commands too large for one go: done in bounded steps between other work.

use super::change::Change;
use super::engine::{Engine, Notice};
use super::job::State;
use super::timers::Owner;
use crate::ids::{ClientKey, ClientSlot, ConnId, JobKey, TubeKey, TubeSlot};
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

/// Where the engine's count of steps stands when a piece of work has to stop.
#[derive(Clone, Copy)]
pub(super) struct Limit(pub(super) u32);

impl Engine {
    /// A limit of this many steps, counted from now.
    pub(super) const fn limit(&self, steps: u32) -> Limit {
        Limit(self.steps.saturating_add(steps))
    }

    pub(super) const fn is_spent(&self, limit: Limit) -> bool {
        self.steps >= limit.0
    }

    /// Does a bounded piece of what is due at `now` or unfinished. True if more is left to do at once.
    ///
    /// Unfinished work may take half of the steps. What time brings takes the rest, so neither waits for the other.
    pub fn step(&mut self, now: Time) -> bool {
        let (half, whole) = (self.limit(BACKGROUND_STEPS / 2), self.limit(BACKGROUND_STEPS));
        while !self.is_spent(half) {
            let Some(work) = self.work.pop_front() else { break };
            let least = self.steps + 1;
            self.resume(work, now, half);
            self.steps = self.steps.max(least);
        }
        while !self.is_spent(whole) {
            let Some(owner) = self.timers.fire(now) else { break };
            let least = self.steps + 1;
            match owner {
                Owner::Client(client) => self.client_due(self.clients.slot(client), now, whole),
                Owner::Tube(tube) => self.tube_due(self.tubes.slot(tube), now, whole),
            }
            self.steps = self.steps.max(least);
        }
        self.hang_up_steps = BACKGROUND_STEPS;
        !self.work.is_empty() || self.timers.next().is_some_and(|at| at <= now)
    }

    fn resume(&mut self, work: Work, now: Time, limit: Limit) {
        match work {
            Work::Kick(mut kick) => {
                if self.kick_some(&mut kick, now, limit) {
                    self.notices.push_back(Notice::Kicked(kick.conn, kick.kicked));
                } else {
                    self.work.push_back(Work::Kick(kick));
                }
            }
            Work::Depart { client } => {
                if !self.depart(client, now, limit) {
                    self.work.push_back(Work::Depart { client });
                }
            }
            Work::Serve { tube } => {
                let tube = self.tubes.slot(tube);
                self.tubes[tube].serving = false;
                self.serve(tube, limit, now);
                self.unpin(tube);
            }
            Work::Tidy => {
                let budget = limit.0.saturating_sub(self.steps);
                let mut left = budget;
                let is_untidy = self.tubes.tidy(&mut left);
                self.steps += budget - left;
                if is_untidy {
                    self.work.push_back(Work::Tidy);
                } else {
                    self.is_tidying = false;
                }
            }
        }
    }

    /// Goes on with a kick. True if it is done.
    pub(super) fn kick_some(&mut self, kick: &mut Kick, now: Time, limit: Limit) -> bool {
        while kick.left > 0 {
            if self.is_spent(limit) {
                return false;
            }
            let tube = self.tubes.get(kick.tube);
            let next = match kick.from {
                State::Buried => tube.buried.front().map(JobKey),
                _ => tube.delayed.min().map(|key| self.jobs.activities[key].job),
            };
            let Some(job) = next else { break };
            self.make_ready(job, Change::Kicked(job), limit, now);
            kick.left -= 1;
            kick.kicked += 1;
        }
        self.unpin(kick.tube.slot);
        true
    }

    /// Lets go of what a client has. True if it is done and the client is no more.
    pub(super) fn depart(&mut self, client: ClientKey, now: Time, limit: Limit) -> bool {
        // In the order in which it got them, as in the reference: who waits sees it.
        let slot = self.clients.slot(client);
        while let Some(job) = self.clients[slot].held_order.front().map(JobKey) {
            if self.is_spent(limit) {
                return false;
            }
            self.make_ready(job, Change::Returned(job), limit, now);
        }
        // From the front, the last taking its place, as the reference does: `list-tubes` shows the order.
        while let Some(&watch) = self.clients[slot].watches.first() {
            if self.is_spent(limit) {
                return false;
            }
            self.steps += 1;
            self.unwatch(watch);
        }
        let client = self.clients.remove(client);
        self.timers.remove(client.timer);
        self.tubes[client.used].using -= 1;
        self.drop_if_unwanted(client.used);
        true
    }

    /// Ends the client's wait if it is over, and reservations that have timed out.
    fn client_due(&mut self, client: ClientSlot, now: Time, limit: Limit) {
        let record = &self.clients[client];
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
                self.stop_waiting(client);
                self.notices.push_back(notice);
            }
        }
        while let Some(activity) = self.clients[client].held.min() {
            let activity = &mut self.jobs.activities[activity];
            if activity.deadline > now || self.steps >= limit.0 {
                break;
            }
            activity.counts.timeouts += 1;
            let job = activity.job;
            self.totals.timeouts += 1;
            self.make_ready(job, Change::TimedOut(job), limit, now);
        }
        self.rearm_client(client);
    }

    /// Ends the tube's pause if it is over, and makes jobs ready whose delay is.
    fn tube_due(&mut self, key: TubeSlot, now: Time, limit: Limit) {
        let tube = &mut self.tubes[key];
        if tube.pause.is_some_and(|pause| pause.until <= now) {
            tube.pause = None;
            self.tubes.relist(key);
            self.serve(key, limit, now);
        }
        while let Some(activity) = self.tubes[key].delayed.min() {
            let activity = &self.jobs.activities[activity];
            if activity.deadline > now || self.is_spent(limit) {
                break;
            }
            let job = activity.job;
            self.steps += 1;
            self.leave(job, now);
            self.enter_ready(job, now);
            self.serve(key, limit, now);
        }
        let tube = &self.tubes[key];
        let soonest = tube.delayed.min().map(|activity| self.jobs.activities[activity].deadline);
        let pause = tube.pause.map(|pause| pause.until);
        if let Some(at) = [soonest, pause].into_iter().flatten().min() {
            self.timers.arm(tube.timer, at);
        }
    }

    fn unpin(&mut self, tube: TubeSlot) {
        self.tubes[tube].pins -= 1;
        self.drop_if_unwanted(tube);
    }
}
