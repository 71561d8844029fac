//! `reserve`: which client gets which job.
//!
//! A client that finds no job waits. A narrow client, one of up to
//! [`NARROW_WATCH_MAX`](super::client::NARROW_WATCH_MAX) tubes, waits in the list of each tube that it watches. For a wide
//! client, one of more tubes, that would cost too much per wait. It waits in one table of wide clients
//! ([`WideWaiters`](super::wide_waiters::WideWaiters)), and each tube lists the wide clients that watch it.
//!
//! A job that becomes ready goes to the client that has waited longest: the first in its tube's list, or the first in the
//! table that watches the tube. If all workers of a pool watch the same tubes, that is the first in the table.
//!
//! A client that waits cannot change its watches. So a tube checks each entry of the table at most once, however many jobs
//! become ready: it remembers the sequence number through which it has searched. A search that runs out of steps resumes
//! there in background work, as does the assignment of very many jobs.

use super::background::{BACKGROUND_STEPS, FollowUp};
use super::client::{Clients, Wait, Watched};
use super::engine::{Engine, Notice, Reserved};
use super::store::Store;
use super::work::Work;
use crate::time::{Span, Time};
use crate::values::budget::{Cost, Limit};
use crate::values::ids::{ClientKey, ClientSlot, ConSlot, JobKey, TubeSlot};

/// The last second of a reservation. A client with such a job is not made to wait for another one (protocol.txt,
/// `DEADLINE_SOON`).
pub(super) const SAFETY_MARGIN: Span = Span::from_secs(1);

/// A tube checks its wide watches instead of the table of wide clients if they are fewer, and at most this many.
const WATCHES_CHECKED_MAX: usize = (BACKGROUND_STEPS / 4) as usize;

/// The result of a search for a waiting client.
enum Search {
    Found(ClientSlot),
    None,
    /// The search ran out of steps. The next one resumes where it stopped.
    Unfinished,
}

impl Engine {
    /// Reserves a job of the watched tubes: the most urgent one, unless the client has another
    /// [`ReserveMode`](crate::values::reserve_mode::ReserveMode). If there is none, the client waits for up to `timeout`, or
    /// without limit if that is `None`. It also waits as long as background work has to find out whether there is one.
    pub fn reserve(&mut self, client: ClientKey, timeout: Option<Span>, now: Time) -> Reserved {
        let client = self.store.clients.slot(client);
        self.store.mark_worker(client);
        if !self.cons.shut_full_for(
            client,
            self.budget.within(BACKGROUND_STEPS),
            &mut self.store,
            &mut self.effects.work,
            &mut self.budget,
        ) {
            self.start_waiting(client, timeout.map(|span| now + span));
            self.search_later(client);
            return Reserved::Waiting;
        }
        // While background work assigns a tube's jobs, a client that can wait must not overtake those that do.
        if let Some(job) = self.search(client, timeout == Some(Span::ZERO)) {
            self.hand_out(job, client, now);
            let is_drawn = self.store.clients[client].mode.is_weighted();
            return if is_drawn { Reserved::Drawn(job) } else { Reserved::Job(job) };
        }
        if self.store.first_deadline(client).is_some_and(|deadline| deadline.back(SAFETY_MARGIN) <= now) {
            return Reserved::DeadlineSoon;
        }
        // mutant search-answers-too-early: !self.is_search_unfinished(client) => true
        if timeout == Some(Span::ZERO) && !self.is_search_unfinished(client) {
            return Reserved::TimedOut;
        }
        self.start_waiting(client, timeout.map(|span| now + span));
        Reserved::Waiting
    }

    /// Ends the wait of the client for a job to reserve or for the end of a job, if it waits.
    pub fn end_wait(&mut self, client: ClientKey) {
        let client = self.store.clients.slot(client);
        self.stop_waiting(client);
        self.stop_waiting_for_job(client);
    }

    pub(super) fn stop_waiting(&mut self, client: ClientSlot) {
        let Clients { slab, watches, wide_waiters, .. } = &mut self.store.clients;
        let record = &mut slab[client.0];
        let Some(wait) = record.wait.take() else { return };
        record.is_searching = false;
        self.store.totals.waiting -= 1;
        if record.is_wide() {
            return wide_waiters.remove(wait.seq);
        }
        // Bounded by NARROW_WATCH_MAX: the watches of a narrow client.
        for &Watched { tube, watch, .. } in &record.watches {
            self.store.tubes[tube].narrow_waiters.remove(watches, watch.0);
        }
    }

    /// Assigns ready jobs of the tube to waiting clients, up to the limit. The rest is left to background work.
    // Inlined: usually no client waits.
    #[inline(always)]
    pub(super) fn assign_jobs(&mut self, tube: TubeSlot, limit: Limit, now: Time) {
        if self.has_waiting(tube) {
            self.assign_to_waiting(tube, limit, now);
        }
    }

    /// Whether clients may wait for jobs of the tube, and no work assigns these already.
    #[inline(always)]
    pub(super) fn has_waiting(&self, tube: TubeSlot) -> bool {
        let record = &self.store.tubes[tube];
        let has_waiters = !record.narrow_waiters.is_empty() || !record.wide_watches.is_empty();
        has_waiters && !record.assigning
    }

    #[inline(never)]
    fn assign_to_waiting(&mut self, tube: TubeSlot, limit: Limit, now: Time) {
        while self.has_job(tube, limit) && self.may_have_waiter(tube) {
            if self.budget.is_reached(limit) {
                return self.assign_later(tube);
            }
            let client = match self.longest_waiting(tube, limit) {
                Search::None => return,
                Search::Unfinished => return self.assign_later(tube),
                Search::Found(client) => client,
            };
            // The client is served even if the search took all steps. Otherwise a search that always does would never end.
            self.budget.charge(Cost::STEP);
            let job = JobKey(self.store.tubes[tube].ready.min().expect("a reservable tube has a ready job"));
            self.stop_waiting(client);
            self.hand_out(job, client, now);
            self.effects.notices.push_back(Notice::Reserved(self.store.clients[client].conn, job));
        }
    }

    /// Whether the tube has a job that a waiting client can get.
    fn has_job(&mut self, tube: TubeSlot, limit: Limit) -> bool {
        self.shut_full_lanes(tube, limit);
        self.store.tubes[tube].in_reservable
    }

    fn assign_later(&mut self, tube: TubeSlot) {
        self.store.tubes[tube].pins += 1;
        self.store.tubes.set_assigning(tube, true);
        self.effects.work.push_back(Work::Assign { tube: self.store.tubes.key(tube) });
    }

    /// Moves a ready job to the client.
    pub(super) fn reserve_ready(&mut self, job: JobKey, client: ClientSlot, now: Time) {
        let since = self.leave_ready(job);
        self.enter_reserved(job, client, Some(since), now);
    }

    /// Arms the timer of a client for its next deadline.
    pub(super) fn arm_client_timer(&mut self, client: ClientSlot) {
        if let Some(at) = self.client_deadline(client) {
            self.store.timers.arm(self.store.clients[client].timer, at);
        }
    }

    pub(super) fn client_deadline(&self, client: ClientSlot) -> Option<Time> {
        let record = &self.store.clients[client];
        let soonest = self.store.first_deadline(client);
        let margin = soonest.map(|deadline| deadline.back(SAFETY_MARGIN)).filter(|_| record.is_waiting());
        let end = record.wait.and_then(|wait| wait.until);
        let job_wait_end = record.job_wait.map(|wait| self.job_waits.until(wait));
        [soonest, margin, end, job_wait_end].into_iter().flatten().min()
    }

    fn start_waiting(&mut self, client: ClientSlot, until: Option<Time>) {
        self.waits_begun += 1;
        self.store.totals.waiting += 1;
        let Clients { slab, watches, wide_waiters, .. } = &mut self.store.clients;
        let record = &mut slab[client.0];
        record.wait = Some(Wait { seq: self.waits_begun, until });
        if record.is_wide() {
            wide_waiters.push(self.waits_begun, client);
        } else {
            // Bounded by NARROW_WATCH_MAX: the watches of a narrow client.
            for &Watched { tube, watch, .. } in &record.watches {
                self.store.tubes[tube].narrow_waiters.push_back(watches, watch.0);
            }
        }
        self.arm_client_timer(client);
    }

    /// Whether a client that waits may watch the tube.
    fn may_have_waiter(&self, tube: TubeSlot) -> bool {
        !self.store.tubes[tube].narrow_waiters.is_empty() || self.may_have_wide_waiter(tube)
    }

    fn may_have_wide_waiter(&self, tube: TubeSlot) -> bool {
        let record = &self.store.tubes[tube];
        !record.wide_watches.is_empty()
            && self.store.clients.wide_waiters.count_after(record.searched_through) > 0
    }

    /// Finds the client that has waited longest for a job of this tube.
    fn longest_waiting(&mut self, tube: TubeSlot, limit: Limit) -> Search {
        let record = &self.store.tubes[tube];
        let narrow = record.narrow_waiters.front().map(|watch| self.store.clients.watches[watch].client);
        let narrow_seq = narrow.map_or(u64::MAX, |client| self.store.clients.wait_seq(client));
        if self.may_have_wide_waiter(tube) {
            match self.longest_waiting_wide(tube, narrow_seq, limit) {
                Search::None => {}
                found_or_unfinished => return found_or_unfinished,
            }
        }
        narrow.map_or(Search::None, Search::Found)
    }

    /// Finds the wide client that has waited longest for a job of this tube, if the sequence number of its wait is below
    /// `end`.
    fn longest_waiting_wide(&mut self, tube: TubeSlot, end: u64, limit: Limit) -> Search {
        let Self { store: Store { clients, tubes, .. }, budget, .. } = self;
        let record = &mut tubes[tube];
        let watchers = record.wide_watches.len();
        if watchers <= WATCHES_CHECKED_MAX
            && watchers < clients.wide_waiters.count_after(record.searched_through)
        {
            budget.charge(Cost::visits(watchers));
            // Bounded by WATCHES_CHECKED_MAX: the watches of the tube.
            let watching =
                record.wide_watches.iter(&clients.watches).map(|watch| clients.watches[watch].client);
            let waiting = watching.filter_map(|client| Some((clients[client].wait?.seq, client)));
            let longest = waiting.min_by_key(|&(seq, _)| seq);
            record.searched_through = longest.map_or(self.waits_begun, |(seq, _)| seq - 1);
            let found = longest.filter(|&(seq, _)| seq < end);
            return found.map_or(Search::None, |(_, client)| Search::Found(client));
        }
        for place in clients.wide_waiters.after(record.searched_through).take_while(|place| place.seq < end) {
            if !budget.spend(Cost::STEP, limit) {
                return Search::Unfinished;
            }
            if let Some(client) = place.client.filter(|&client| clients.is_watching(client, tube)) {
                return Search::Found(client);
            }
            record.searched_through = place.seq;
        }
        Search::None
    }

    /// Shuts lanes of full keys in a tube: see [`ConKeys::shut_full`](super::concurrency::ConKeys::shut_full).
    #[inline]
    pub(super) fn shut_full_lanes(&mut self, tube: TubeSlot, limit: Limit) {
        self.cons.shut_full(tube, limit, &mut self.store, &mut self.effects.work, &mut self.budget);
    }

    /// Continues [`Work::Shut`]. Clients that wait get the jobs that it has looked for.
    pub(super) fn run_shut(&mut self, tube: TubeSlot, limit: Limit, now: Time) {
        self.cons.continue_shut(tube, limit, &mut self.store, &mut self.effects.work, &mut self.budget);
        self.assign_jobs(tube, limit, now);
        self.unpin(tube);
    }

    /// Opens lanes of a key that may not be full any more, and assigns their jobs to waiting clients. Removes a key without
    /// jobs.
    #[inline]
    pub(super) fn reopen(&mut self, con: Option<ConSlot>, limit: Limit, now: Time) {
        let Some(con) = con else { return };
        self.with_quota(FollowUp::Lanes, |engine, share| {
            // mutant lanes-with-fresh-steps-each: share.or_before(limit) =>
            //     engine.budget.within(crate::queue::BACKGROUND_STEPS)
            engine.continue_reopen(con, share.or_before(limit), now);
        });
    }

    /// Opens lanes of a key whose limit a put may have raised, as [`reopen`](Self::reopen) does, but none beyond the share.
    #[cold]
    pub(super) fn reopen_raised(&mut self, con: ConSlot, now: Time) {
        self.with_quota(FollowUp::Lanes, |engine, limit| engine.open_lanes(con, limit, now));
    }

    /// Opens at least one lane, and others up to the limit. The rest is left to background work.
    fn continue_reopen(&mut self, con: ConSlot, limit: Limit, now: Time) {
        // Unless background work opens them, the end of each reservation opens a lane, however many end at once: else lanes would be
        // opened more slowly than shut.
        self.open_lanes(con, limit.or_after(self.budget.within(1)), now);
    }

    fn open_lanes(&mut self, con: ConSlot, limit: Limit, now: Time) {
        // Bounded by ConKeys::open_next: it takes a step of the budget for each lane.
        while let Some(tube) =
            self.cons.open_next(con, limit, &mut self.store, &mut self.effects.work, &mut self.budget)
        {
            self.assign_jobs(tube, limit, now);
        }
    }

    /// Continues [`Work::Reopen`].
    pub(super) fn run_reopen(&mut self, con: ConSlot, limit: Limit, now: Time) {
        self.cons.begin_reopen(con);
        self.continue_reopen(con, limit, now);
    }

    /// Gives a ready job to a client that has asked for any job of its tubes.
    #[inline]
    pub(super) fn hand_out(&mut self, job: JobKey, client: ClientSlot, now: Time) {
        self.reserve_ready(job, client, now);
        let tube = self.store.jobs.get(job).tube;
        if let Some(rules) = self.store.tubes[tube].rules() {
            self.rules.take_token(tube, rules, now, &mut self.store);
        }
    }
}
