//! Which job goes to which client.
//!
//! A client that finds no job waits. Up to [`NARROW_WATCH_MAX`](crate::limits::NARROW_WATCH_MAX) tubes,
//! it registers in the waiting list of each tube; one that watches more would pay for every tube on
//! every wait, so it is kept in one list of wide clients, and each tube knows its wide watchers. A job
//! that becomes ready goes to whoever has waited longest: the head of its tube's waiting list, or the
//! first wide client that watches the tube, found through the shorter of those two lists. Pools of
//! workers that watch the same many tubes find it at the first look.

use super::background::Work;
use super::client::{Clients, Wait};
use super::engine::{Engine, Notice, Reserved};
use crate::ids::{ClientKey, JobKey, TubeKey, WatchKey};
use crate::limits::{BACKGROUND_STEPS, SAFETY_MARGIN};
use crate::time::{Span, Time};

impl Engine {
    /// Gives the client the most urgent job of the tubes that it watches, or lets it wait for up to
    /// `patience` (`None`: for ever).
    pub fn reserve(&mut self, client: ClientKey, patience: Option<Span>, now: Time) -> Reserved {
        self.mark_worker(client);
        // While a tube's jobs are handed out in steps, whoever can wait gets in line.
        let may_overtake = patience == Some(Span::ZERO);
        if let Some(job) = self.best_ready(client, may_overtake) {
            self.take(job, client, now);
            return Reserved::Job(job);
        }
        if self.soonest_held(client).is_some_and(|deadline| deadline.back(SAFETY_MARGIN) <= now) {
            return Reserved::DeadlineSoon;
        }
        if patience == Some(Span::ZERO) {
            return Reserved::TimedOut;
        }
        self.begin_wait(client, patience.map(|span| now + span));
        Reserved::Waiting
    }

    /// The client does not wait any more, if it did.
    pub fn end_wait(&mut self, client: ClientKey) {
        let Clients { slab, watches, wide_waiting, .. } = &mut self.clients;
        let record = &mut slab[client.0];
        if record.wait.take().is_none() {
            return;
        }
        self.census.waiting -= 1;
        if record.is_wide() {
            return wide_waiting.remove(slab, client.0);
        }
        for &WatchKey(watch) in &record.watches {
            let tube = self.tubes.get_mut(watches[watch].tube);
            tube.waiting.remove(watches, watch);
        }
    }

    /// Gives ready jobs of the tube to clients that wait for them, a bounded number at once. Returns how
    /// many.
    pub(super) fn serve(&mut self, tube: TubeKey, now: Time) -> u32 {
        let record = self.tubes.get(tube);
        if record.serving || (record.waiting.is_empty() && record.wide.is_empty()) {
            return 0;
        }
        for served in 0..BACKGROUND_STEPS {
            if !self.tubes.get(tube).listed {
                return served;
            }
            let Some(client) = self.longest_waiting(tube) else { return served };
            let job = JobKey(self.tubes.get(tube).ready.min().expect("a servable tube has a ready job"));
            self.end_wait(client);
            self.take(job, client, now);
            self.notices.push_back(Notice::Reserved(self.clients.get(client).conn, job));
            self.steps += 1;
        }
        let record = self.tubes.get_mut(tube);
        record.pins += 1;
        record.serving = true;
        self.work.push_back(Work::Serve { tube });
        BACKGROUND_STEPS
    }

    /// A ready job goes to the client.
    pub(super) fn take(&mut self, job: JobKey, client: ClientKey, now: Time) {
        let since = self.leave_ready(job);
        self.hold(job, client, Some(since), now);
    }

    /// The timer of a client, set to when it must be looked at next.
    pub(super) fn rearm_client(&mut self, client: ClientKey) {
        let record = self.clients.get(client);
        let soonest = self.soonest_held(client);
        let margin = soonest.map(|deadline| deadline.back(SAFETY_MARGIN)).filter(|_| record.is_waiting());
        let end = record.wait.and_then(|wait| wait.until);
        if let Some(at) = [soonest, margin, end].into_iter().flatten().min() {
            self.timers.arm(record.timer, at);
        }
    }

    fn begin_wait(&mut self, client: ClientKey, until: Option<Time>) {
        self.turns += 1;
        self.census.waiting += 1;
        let Clients { slab, watches, wide_waiting, .. } = &mut self.clients;
        let record = &mut slab[client.0];
        record.wait = Some(Wait { turn: self.turns, until });
        if record.is_wide() {
            wide_waiting.push_back(slab, client.0);
        } else {
            for &WatchKey(watch) in &record.watches {
                let tube = self.tubes.get_mut(watches[watch].tube);
                tube.waiting.push_back(watches, watch);
            }
        }
        self.rearm_client(client);
    }

    /// The most urgent ready job of the watched tubes that are not paused: looks at the watched tubes or
    /// at those with ready jobs, whichever are fewer.
    fn best_ready(&mut self, client: ClientKey, may_overtake: bool) -> Option<JobKey> {
        let watches = &self.clients.get(client).watches;
        let candidate = |tube: TubeKey| {
            let tube = self.tubes.get(tube);
            let job = tube.ready.min().filter(|_| tube.listed && (may_overtake || !tube.serving))?;
            let record = self.jobs.get(JobKey(job));
            Some((record.pri, record.id, JobKey(job)))
        };
        let servable = self.tubes.servable.len();
        let (best, looked) = if watches.len() <= servable {
            let tubes = watches.iter().map(|watch| self.clients.watches[watch.0].tube);
            (tubes.filter_map(candidate).min(), watches.len())
        } else {
            let tubes = self.tubes.servable.iter(&self.tubes.slab).map(TubeKey);
            let watched = tubes.filter(|&tube| self.clients.is_watching(client, tube));
            (watched.filter_map(candidate).min(), servable)
        };
        self.steps += looked as u32;
        best.map(|(_, _, job)| job)
    }

    /// The client that has waited longest for a job of this tube.
    fn longest_waiting(&mut self, tube: TubeKey) -> Option<ClientKey> {
        let record = self.tubes.get(tube);
        let narrow = record.waiting.front().map(|watch| self.clients.watches[watch].client);
        if record.wide.is_empty() || self.clients.wide_waiting.is_empty() {
            return narrow;
        }
        let wide = self.longest_waiting_wide(tube);
        [narrow, wide].into_iter().flatten().min_by_key(|&client| self.clients.turn(client))
    }

    fn longest_waiting_wide(&mut self, tube: TubeKey) -> Option<ClientKey> {
        let clients = &self.clients;
        let watchers = &self.tubes.get(tube).wide;
        let mut looked = 0;
        let found = if clients.wide_waiting.len() <= watchers.len() {
            let waiting = clients.wide_waiting.iter(&clients.slab).map(ClientKey);
            waiting.inspect(|_| looked += 1).find(|&client| clients.is_watching(client, tube))
        } else {
            let watching = watchers.iter(&clients.watches).map(|watch| clients.watches[watch].client);
            watching
                .inspect(|_| looked += 1)
                .filter(|&client| clients.get(client).is_waiting())
                .min_by_key(|&client| clients.turn(client))
        };
        self.steps += looked;
        found
    }
}
