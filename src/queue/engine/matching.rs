//! Which client gets which job: reserves, and the clients that wait. A client that finds no job waits: see `reserving/waits.rs`.

use super::{Engine, Reserved};
use crate::queue::effects::Notice;
use crate::queue::extensions::job_waits::JobAwaited;
use crate::queue::long_work::{BACKGROUND_STEPS, FollowUp, Work};
use crate::queue::reserving::batch::{BatchRoom, Turns};
use crate::queue::reserving::search::Look;
use crate::queue::reserving::waits::Longest;
use crate::queue::store::heads::HEADS_PER_STEP;
use crate::queue::store::job::JobState;
use crate::time::{Span, Time};
use crate::values::budget::{Cost, Limit, Quota};
use crate::values::ids::{ClientKey, ClientSlot, ConSlot, JobId, JobKey, TubeSlot};

/// The last second of a reservation. A client with such a job is not made to wait for another one (protocol.txt,
/// `DEADLINE_SOON`).
pub(super) const SAFETY_MARGIN: Span = Span::from_secs(1);

impl Engine {
    /// Reserves a job of the watched tubes: the most urgent one, unless the client has another
    /// [`ReserveMode`](crate::values::reserve_mode::ReserveMode). If there is none, the client waits for up to `timeout`, or
    /// without limit if that is `None`. It also waits as long as background work has to find out whether there is one.
    pub fn reserve(&mut self, client: ClientKey, timeout: Option<Span>, now: Time) -> Reserved {
        let client = self.store.clients.slot(client);
        self.store.mark_worker(client);
        if !self.shut_full_lanes_for(client, self.budget.within(BACKGROUND_STEPS)) {
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

    /// Reserves the job with this id, which may be ready, delayed or buried, but not held, unless its concurrency key is at its
    /// limit. A pause of its tube does not matter.
    pub fn reserve_job(&mut self, client: ClientKey, id: JobId, now: Time) -> Option<JobKey> {
        self.store.jobs.find(id).filter(|&job| !self.cons.is_at_limit(job, &self.store.jobs))?;
        self.take_job(client, id, now)
    }

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
        // Apart from that limit: else the draws of a large batch would use up what shuts the lanes that are in its way.
        let mut shutting = Quota::of(BACKGROUND_STEPS);
        let shut_limit = shutting.limit(&self.budget);
        if most == 0 || !self.shut_full_lanes_for(client, shut_limit) {
            return;
        }
        shutting.settle(shut_limit, &self.budget);
        // Bounded by BATCH_JOBS_MAX: the jobs of one batch.
        let mut bytes: u64 = jobs.iter().map(|&job| self.store.body_bytes(job)).sum();
        let mut turns = self.turns(client, most, may_overtake);
        while jobs.len() < room.jobs {
            let look = Look::new(&self.store, client, may_overtake);
            let Some(turn) = turns.next(&mut self.rng, look, &mut self.budget) else { break };
            let shut_limit = shutting.limit(&self.budget);
            // A job of this batch may have taken the last place of the key of the next one.
            // mutant con-batch-beyond-the-limit: removed
            self.shut_full_lanes(turn.tube, shut_limit);
            shutting.settle(shut_limit, &self.budget);
            let next = turn.next_job(Look::new(&self.store, client, may_overtake));
            // mutant batch-without-the-tubes-left-out: turns.is_cut() => turns.is_cut() && jobs.is_empty()
            if next.is_none() && turns.is_cut() {
                // A tube that was left out may have a more urgent job than the next one of this tube.
                if self.budget.is_reached(limit) {
                    break;
                }
                turns = self.turns(client, room.jobs - jobs.len(), may_overtake);
                continue;
            }
            if let Some(job) = next {
                bytes += self.store.body_bytes(job);
                if bytes > room.body_bytes {
                    break;
                }
                self.budget.charge(Cost::STEP);
                self.hand_out(job, client, now);
                jobs.push(job);
            }
            turns.end(&turn, Look::new(&self.store, client, may_overtake), &mut self.budget);
        }
    }

    /// Ends the wait of the client for a job to reserve or for the end of a job, if it waits.
    pub fn end_wait(&mut self, client: ClientKey) {
        let client = self.store.clients.slot(client);
        self.waits.stop(client, &mut self.store);
        self.job_waits.stop(client, &mut self.store);
    }

    /// Has the client wait until the job is deleted or buried, for up to `timeout`.
    pub fn wait_job(&mut self, client: ClientKey, id: JobId, timeout: Span, now: Time) -> JobAwaited {
        let client = self.store.clients.slot(client);
        let Some(job) = self.store.jobs.find(id) else { return JobAwaited::NotFound };
        if self.store.jobs.get(job).state == JobState::Buried {
            return JobAwaited::Buried;
        }
        if timeout == Span::ZERO {
            return JobAwaited::TimedOut;
        }
        self.job_waits.start(client, job, now + timeout, &mut self.store);
        self.arm_client_timer(client);
        JobAwaited::Waiting
    }

    /// The most urgent ready job of the used tube whose concurrency key is not at its limit. `None` as long as background work
    /// has to find it.
    pub fn peek_ready(&mut self, client: ClientKey) -> Option<JobKey> {
        self.shut_full_lanes(self.store.clients.get(client).used, self.budget.within(BACKGROUND_STEPS));
        let tube = self.store.used(client);
        tube.ready.min().filter(|_| !tube.shutting).map(JobKey)
    }

    /// Finds the job that the client gets: the most urgent one, unless its mode leaves that to chance.
    pub(super) fn search(&mut self, client: ClientSlot, may_overtake: bool) -> Option<JobKey> {
        let look = Look::new(&self.store, client, may_overtake);
        if look.client().mode.is_weighted() {
            self.rng.draw_job(look, &mut self.budget)
        } else {
            look.most_urgent(&mut self.budget)
        }
    }

    /// Has background work search for a client that waits, because lanes of full concurrency keys are to be shut first.
    pub(super) fn search_later(&mut self, client: ClientSlot) {
        let record = &mut self.store.clients[client];
        record.is_searching = true;
        if !std::mem::replace(&mut record.has_search, true) {
            self.effects.work.push_back(Work::Search { client: self.store.clients.key(client) });
        }
    }

    /// Continues [`Work::Search`]. Returns true if it is finished.
    pub(super) fn continue_search_for(&mut self, key: ClientKey, limit: Limit, now: Time) -> bool {
        let Some(client) = self.store.clients.find(key) else { return true };
        if self.store.clients[client].is_searching
            && !self.cons.shut_loose(limit, &mut self.store, &mut self.budget)
        {
            return false;
        }
        let record = &mut self.store.clients[client];
        record.has_search = false;
        if std::mem::take(&mut record.is_searching)
            && let Some(job) = self.search(client, false)
        {
            self.waits.stop(client, &mut self.store);
            self.hand_out(job, client, now);
            self.effects.notices.push_back(Notice::Reserved(self.store.clients[client].conn, job));
        }
        true
    }

    /// Returns true while the search for the client's job is unfinished.
    pub(super) fn is_search_unfinished(&mut self, client: ClientSlot) -> bool {
        let record = &self.store.clients[client];
        if record.is_searching || !self.cons.is_shutting_any() {
            return record.is_searching;
        }
        self.budget.charge(Cost::visits(record.watch_count().div_ceil(HEADS_PER_STEP)));
        // Bounded by HEADS_PER_STEP: the watches, which are paid above.
        record.watches.iter().any(|watched| self.store.tubes.heads.get(watched.tube).is_shutting())
    }

    fn start_waiting(&mut self, client: ClientSlot, until: Option<Time>) {
        self.waits.start(client, until, &mut self.store);
        self.arm_client_timer(client);
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
        while self.has_job(tube, limit) && self.waits.may_have(tube, &self.store) {
            if self.budget.is_reached(limit) {
                return self.assign_later(tube);
            }
            let client = match self.waits.longest(tube, limit, &mut self.store, &mut self.budget) {
                Longest::None => return,
                Longest::Unfinished => return self.assign_later(tube),
                Longest::Found(client) => client,
            };
            // The client is served even if the search took all steps. Otherwise a search that always does would never end.
            self.budget.charge(Cost::STEP);
            let job = JobKey(self.store.tubes[tube].ready.min().expect("a reservable tube has a ready job"));
            self.waits.stop(client, &mut self.store);
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
        self.store.pin(tube);
        self.store.tubes.set_assigning(tube, true);
        self.effects.work.push_back(Work::Assign { tube: self.store.tubes.key(tube) });
    }

    /// Moves a ready job to the client.
    pub(super) fn reserve_ready(&mut self, job: JobKey, client: ClientSlot, now: Time) {
        let since = self.leave_ready(job);
        self.enter_reserved(job, client, Some(since), now);
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

    /// Shuts lanes of full keys in a tube, up to the limit.
    #[inline]
    pub(super) fn shut_full_lanes(&mut self, tube: TubeSlot, limit: Limit) {
        self.cons.shut_full(tube, limit, &mut self.store, &mut self.effects, &mut self.budget);
    }

    /// Continues [`Work::Shut`]. Clients that wait get the jobs that it has looked for.
    pub(super) fn run_shut(&mut self, tube: TubeSlot, limit: Limit, now: Time) {
        self.cons.continue_shut(tube, limit, &mut self.store, &mut self.effects, &mut self.budget);
        self.assign_jobs(tube, limit, now);
        self.store.unpin(tube, &mut self.effects.changes);
    }

    /// Opens lanes of a key that may not be full any more, and assigns their jobs to waiting clients. Removes a key without
    /// jobs.
    #[inline]
    pub(super) fn reopen(&mut self, con: Option<ConSlot>, limit: Limit, now: Time) {
        let Some(con) = con else { return };
        self.with_quota(FollowUp::Lanes, |engine, share| {
            // mutant lanes-with-fresh-steps-each: share.min(limit) =>
            //     engine.budget.within(crate::queue::BACKGROUND_STEPS)
            engine.continue_reopen(con, share.min(limit), now);
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
        self.open_lanes(con, limit.max(self.budget.within(1)), now);
    }

    fn open_lanes(&mut self, con: ConSlot, limit: Limit, now: Time) {
        // Bounded by ConKeys::open_next: it takes a step of the budget for each lane.
        while let Some(tube) =
            self.cons.open_next(con, limit, &mut self.store, &mut self.effects, &mut self.budget)
        {
            self.assign_jobs(tube, limit, now);
        }
    }

    /// Continues [`Work::Reopen`].
    pub(super) fn run_reopen(&mut self, con: ConSlot, limit: Limit, now: Time) {
        self.cons.begin_reopen(con);
        self.continue_reopen(con, limit, now);
    }

    #[inline]
    fn shut_full_lanes_for(&mut self, client: ClientSlot, limit: Limit) -> bool {
        self.cons.shut_full_for(client, limit, &mut self.store, &mut self.effects, &mut self.budget)
    }

    fn turns(&mut self, client: ClientSlot, most: usize, may_overtake: bool) -> Turns {
        Turns::new(Look::new(&self.store, client, may_overtake), most, &mut self.budget)
    }
}
