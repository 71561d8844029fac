//! Which job goes to which client.
//!
//! A client that finds no job waits. Up to [`NARROW_WATCH_MAX`](crate::limits::NARROW_WATCH_MAX) tubes,
//! it registers in the waiting list of each tube; one that watches more would pay for every tube on
//! every wait, so it is kept in one [`Line`](super::line::Line) of wide clients, and each tube knows its wide watchers.
//! A job that becomes ready goes to the client that has waited longest: the head of its tube's waiting list, or the first
//! wide client in the line that watches the tube. In pools of workers that watch the same many tubes it is the first
//! in the line.
//!
//! A client that waits cannot change what it watches, so a tube need not look at it twice: it remembers the last turn up to
//! which none of the line watches it. However many jobs become ready, each wait is looked at once for each tube. A search
//! that takes more steps than are left goes on later, from there: the tube is served by background work until then, like
//! one with very many jobs and waiting clients.

use super::background::{Limit, Work};
use super::client::{Clients, Wait};
use super::engine::{Engine, Notice, Reserved};
use crate::ids::{ClientKey, ClientSlot, JobKey, TubeSlot, WatchKey};
use crate::limits::{BACKGROUND_STEPS, SAFETY_MARGIN};
use crate::time::{Span, Time};

/// A tube with up to this many wide watchers looks at them, and not at the line, if they are fewer.
const WATCHERS_LOOKED_AT_MAX: usize = (BACKGROUND_STEPS / 4) as usize;

/// What a search for a client has led to.
enum Search {
    Found(ClientSlot),
    Nobody,
    /// The steps have been spent. It goes on where it stopped.
    Unfinished,
}

impl Engine {
    /// Gives the client the most urgent job of the tubes that it watches, or lets it wait for up to
    /// `patience` (`None`: for ever).
    pub fn reserve(&mut self, client: ClientKey, patience: Option<Span>, now: Time) -> Reserved {
        let client = self.clients.slot(client);
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
        self.stop_waiting(self.clients.slot(client));
    }

    pub(super) fn stop_waiting(&mut self, client: ClientSlot) {
        let Clients { slab, watches, line, .. } = &mut self.clients;
        let record = &mut slab[client.0];
        let Some(wait) = record.wait.take() else { return };
        self.totals.waiting -= 1;
        if record.is_wide() {
            return line.remove(wait.turn);
        }
        for &WatchKey(watch) in &record.watches {
            let tube = &mut self.tubes[watches[watch].tube];
            tube.waiting.remove(watches, watch);
        }
    }

    /// Gives ready jobs of the tube to clients that wait for them, as far as the limit allows. The rest is left to
    /// background work.
    pub(super) fn serve(&mut self, tube: TubeSlot, limit: Limit, now: Time) {
        let record = &self.tubes[tube];
        if record.serving || (record.waiting.is_empty() && record.wide.is_empty()) {
            return;
        }
        // At least one job, so that it goes on however little is left.
        let mut may_serve = true;
        while self.tubes[tube].listed {
            let client = match self.longest_waiting(tube, limit) {
                Search::Found(client) if may_serve => client,
                Search::Nobody => return,
                Search::Found(_) | Search::Unfinished => return self.serve_later(tube),
            };
            let job = JobKey(self.tubes[tube].ready.min().expect("a servable tube has a ready job"));
            self.stop_waiting(client);
            self.take(job, client, now);
            self.notices.push_back(Notice::Reserved(self.clients[client].conn, job));
            self.steps += 1;
            may_serve = !self.is_spent(limit);
        }
    }

    fn serve_later(&mut self, tube: TubeSlot) {
        let record = &mut self.tubes[tube];
        record.pins += 1;
        record.serving = true;
        self.work.push_back(Work::Serve { tube: self.tubes.key(tube) });
    }

    /// A ready job goes to the client.
    pub(super) fn take(&mut self, job: JobKey, client: ClientSlot, now: Time) {
        let since = self.leave_ready(job);
        self.hold(job, client, Some(since), now);
    }

    /// The timer of a client, set to when it must be looked at next.
    pub(super) fn rearm_client(&mut self, client: ClientSlot) {
        let record = &self.clients[client];
        let soonest = self.soonest_held(client);
        let margin = soonest.map(|deadline| deadline.back(SAFETY_MARGIN)).filter(|_| record.is_waiting());
        let end = record.wait.and_then(|wait| wait.until);
        if let Some(at) = [soonest, margin, end].into_iter().flatten().min() {
            self.timers.arm(record.timer, at);
        }
    }

    fn begin_wait(&mut self, client: ClientSlot, until: Option<Time>) {
        self.turns += 1;
        self.totals.waiting += 1;
        let Clients { slab, watches, line, .. } = &mut self.clients;
        let record = &mut slab[client.0];
        record.wait = Some(Wait { turn: self.turns, until });
        if record.is_wide() {
            line.push(self.turns, client);
        } else {
            for &WatchKey(watch) in &record.watches {
                let tube = &mut self.tubes[watches[watch].tube];
                tube.waiting.push_back(watches, watch);
            }
        }
        self.rearm_client(client);
    }

    /// The most urgent ready job of the watched tubes that are not paused: looks at the watched tubes or
    /// at those with ready jobs, whichever are fewer.
    fn best_ready(&mut self, client: ClientSlot, may_overtake: bool) -> Option<JobKey> {
        let watches = &self.clients[client].watches;
        let candidate = |tube: TubeSlot| {
            let tube = &self.tubes[tube];
            let job = tube.ready.min().filter(|_| tube.listed && (may_overtake || !tube.serving))?;
            let record = self.jobs.get(JobKey(job));
            Some((record.pri, record.id, JobKey(job)))
        };
        let servable = self.tubes.servable.len();
        let (best, looked) = if watches.len() <= servable {
            let tubes = watches.iter().map(|watch| self.clients.watches[watch.0].tube);
            (tubes.filter_map(candidate).min(), watches.len())
        } else {
            let tubes = self.tubes.servable.iter(&self.tubes.slab).map(TubeSlot);
            let watched = tubes.filter(|&tube| self.clients.is_watching(client, tube));
            (watched.filter_map(candidate).min(), servable)
        };
        self.steps += looked as u32;
        best.map(|(_, _, job)| job)
    }

    /// The client that has waited longest for a job of this tube.
    fn longest_waiting(&mut self, tube: TubeSlot, limit: Limit) -> Search {
        let record = &self.tubes[tube];
        let narrow = record.waiting.front().map(|watch| self.clients.watches[watch].client);
        let narrow_turn = narrow.map_or(u64::MAX, |client| self.clients.turn(client));
        if !record.wide.is_empty() && self.clients.line.count_after(record.seen) > 0 {
            match self.longest_waiting_wide(tube, narrow_turn, limit) {
                Search::Nobody => {}
                found_or_unfinished => return found_or_unfinished,
            }
        }
        narrow.map_or(Search::Nobody, Search::Found)
    }

    /// The wide client that has waited longest for a job of this tube, if its turn comes before `end`.
    fn longest_waiting_wide(&mut self, tube: TubeSlot, end: u64, limit: Limit) -> Search {
        let Self { clients, tubes, steps, .. } = self;
        let record = &mut tubes[tube];
        if *steps >= limit.0 {
            return Search::Unfinished;
        }
        let watchers = record.wide.len();
        if watchers <= WATCHERS_LOOKED_AT_MAX && watchers < clients.line.count_after(record.seen) {
            *steps += watchers as u32;
            let watching = record.wide.iter(&clients.watches).map(|watch| clients.watches[watch].client);
            let waiting = watching.filter_map(|client| Some((clients[client].wait?.turn, client)));
            let longest = waiting.min_by_key(|&(turn, _)| turn);
            record.seen = longest.map_or(self.turns, |(turn, _)| turn - 1);
            let found = longest.filter(|&(turn, _)| turn < end);
            return found.map_or(Search::Nobody, |(_, client)| Search::Found(client));
        }
        for place in clients.line.after(record.seen).take_while(|place| place.turn < end) {
            if *steps >= limit.0 {
                return Search::Unfinished;
            }
            *steps += 1;
            if let Some(client) = place.client.filter(|&client| clients.is_watching(client, tube)) {
                return Search::Found(client);
            }
            record.seen = place.turn;
        }
        Search::Nobody
    }
}
