//! Restoring the persistent state during recovery.
//!
//! Bounded by recovery: no client is connected.

use super::Engine;
use crate::queue::extensions::idempotency::KeptKey;
use crate::queue::extensions::rules::BURIAL_TIMES_MIN;
use crate::queue::extensions::schedules::LoggedSchedule;
use crate::queue::logged::{LoggedState, PersistedState, Restored};
use crate::queue::long_work::Work;
use crate::queue::store::job::{Counts, Job, JobState, NewJob, PackedCounts};
use crate::queue::store::names::store_text;
use crate::queue::store::tube::Pause;
use crate::time::{Seconds, Span, Time};
use crate::values::ids::{IdpSlot, JobId, JobKey, TubeKey, TubeSlot};
use crate::values::notes::{Note, Notes};
use crate::values::schedules::Progress;
use crate::values::tube_name::TubeName;

impl Engine {
    /// Restores the key of a deleted job, for at most its time to live from now on.
    pub fn restore_key(&mut self, kept: &KeptKey<'_>) -> IdpSlot {
        self.idps.restore(kept, &mut self.store)
    }

    /// Finds the tube of this name, or creates it. It goes with the last restored job that is in it.
    pub fn restore_tube(&mut self, name: TubeName<'_>) -> TubeKey {
        let tube = self.find_or_create_tube(name);
        self.store.tubes.key(tube)
    }

    /// Restores a job outside of all containers, so that no command finds it ready before
    /// [`settle_restored`](Self::settle_restored). There must be no clients yet.
    ///
    /// # Panics
    /// If a job has this id.
    pub fn restore(&mut self, restored: Restored<'_>) -> JobKey {
        let Restored { id, created, ttr, tube, tags, notes, state, body } = restored;
        let tags_key = self.store_tags(tags);
        let new = NewJob { id, pri: state.pri, delay: state.delay, ttr, body, tags_key };
        let tube = self.store.tubes.slot(tube);
        self.store.pin(tube);
        let job = self.store.jobs.insert(new, tube, created);
        self.keep_ids_above(id);
        self.restore_state(job, &state);
        self.restore_notes(job, &notes);
        job
    }

    /// Replaces the notes of a restored job.
    pub fn restore_notes(&mut self, job: JobKey, notes: &Notes<'_>) {
        self.notes.forget(job, &mut self.store);
        notes.iter().for_each(|note| self.restore_note(job, note));
    }

    /// Adds a note of a restored job.
    pub fn restore_note(&mut self, job: JobKey, note: Note<'_>) {
        let text = store_text(&mut self.store.bodies, &[note.text, b"\r\n"].concat());
        self.notes.add(job, note.at, text, &mut self.store);
    }

    /// Moves a restored job that is not settled to another tube.
    pub fn restore_tube_of(&mut self, job: JobKey, tube: TubeKey) {
        let tube = self.store.tubes.slot(tube);
        self.store.pin(tube);
        let before = std::mem::replace(&mut self.store.jobs.get_mut(job).tube, tube);
        self.store.unpin(before, &mut self.effects.changes);
    }

    /// Replaces the persistent state of a restored job that is not settled.
    pub fn restore_state(&mut self, job: JobKey, kept: &PersistedState) {
        let &PersistedState { pri, delay, state, counts } = kept;
        let record = self.store.jobs.get_mut(job);
        record.pri = pri;
        record.state = match state {
            LoggedState::Ready => JobState::Ready,
            LoggedState::Delayed(_) => JobState::Delayed,
            LoggedState::Buried(_) => JobState::Buried,
            LoggedState::Held(_) => JobState::Held,
            LoggedState::Reserved(_) => JobState::Reserved,
        };
        let is_plain = delay == Seconds::ZERO && state == LoggedState::Ready && counts == Counts::default();
        if is_plain && self.store.jobs.lifecycle(job).is_none() {
            return;
        }
        let lifecycle = self.store.jobs.lifecycle_mut(job);
        lifecycle.set_delay(delay);
        lifecycle.counts = PackedCounts::of(&counts);
        match state {
            LoggedState::Ready => {}
            LoggedState::Delayed(until) | LoggedState::Held(until) | LoggedState::Reserved(until) => {
                lifecycle.deadline = until;
            }
            LoggedState::Buried(burial) => lifecycle.set_burial(burial),
        }
    }

    /// Restores a schedule, or replaces that of the same name. It runs from [`settle_restored`](Self::settle_restored) on.
    pub fn restore_schedule(&mut self, logged: &LoggedSchedule<'_>) {
        let body = store_text(&mut self.store.bodies, logged.body);
        self.schedules.restore(logged, body, &mut self.store);
    }

    /// Removes a restored schedule.
    pub fn drop_schedule(&mut self, name: TubeName<'_>) {
        self.schedules.delete(name, &mut self.store.bodies);
    }

    /// Takes how far a restored schedule is, if it is there.
    pub fn restore_progress(&mut self, name: TubeName<'_>, progress: Progress) {
        self.schedules.restore_progress(name, progress);
    }

    /// Releases a restored job that is not settled, if it is held: its group is done.
    pub fn release_restored(&mut self, job: JobKey) {
        let record = self.store.jobs.get_mut(job);
        if record.state == JobState::Held {
            record.state = JobState::Delayed;
        }
    }

    /// Deletes a restored job that is not settled.
    pub fn drop_restored(&mut self, job: JobKey) {
        let tube = self.store.jobs.get(job).tube;
        self.notes.forget(job, &mut self.store);
        self.store.jobs.remove(job, &mut self.store.bodies);
        self.store.unpin(tube, &mut self.effects.changes);
    }

    /// Forgets the restored key of a deleted job, if its time is not over.
    pub fn drop_restored_key(&mut self, slot: IdpSlot) {
        self.idps.drop_restored(slot, &mut self.store, &mut self.effects);
    }

    /// Moves all restored jobs to the containers of their states, and gives them their idempotency keys. No delay becomes longer than it was at first: the job log may
    /// have times far ahead of a clock that was set back since.
    pub fn settle_restored(&mut self, now: Time) {
        let jobs: Vec<JobKey> = self.store.jobs.iter().map(|(job, _)| job).collect();
        self.idps.settle(now, &mut self.store, &mut self.effects);
        self.schedules.settle(now, &mut self.store.timers);
        for &job in &jobs {
            if let Some(tags_key) = self.store.jobs.get(job).tags_key() {
                self.idps.claim(job, tags_key, &mut self.store);
                self.cons.join(job, tags_key, &mut self.store);
                self.groups.join(job, tags_key, &mut self.store);
            }
        }
        let (mut ready, mut delayed) = (Vec::new(), Vec::new());
        let (mut buried, mut held, mut reserved) = (Vec::new(), Vec::new(), Vec::new());
        for job in jobs {
            let Job { id, state, created, tube, .. } = *self.store.jobs.get(job);
            let body_bytes = self.store.body_bytes(job);
            let record = &mut self.store.tubes[tube];
            record.body_bytes += body_bytes;
            // It enters a container below.
            record.pins -= 1;
            let is_held = state == JobState::Held && self.store.tags(job).aft().is_some();
            match (state, self.store.jobs.lifecycle(job)) {
                (_, Some(lifecycle)) if is_held => {
                    let latest = now + lifecycle.delay().span();
                    self.store.jobs.lifecycle_mut(job).deadline = lifecycle.deadline.min(latest);
                    held.push((id, job));
                }
                (JobState::Delayed, Some(lifecycle)) if lifecycle.deadline > now => {
                    let latest = now + lifecycle.delay().span();
                    delayed.push((lifecycle.deadline.min(latest), id, job));
                }
                (JobState::Buried, Some(lifecycle)) => buried.push((lifecycle.burial(), id, job)),
                (JobState::Reserved, Some(lifecycle)) => reserved.push((lifecycle.deadline, id, job)),
                (JobState::Delayed, Some(lifecycle)) => ready.push((lifecycle.deadline, id, job)),
                (_, None) if created <= now => ready.push((created, id, job)),
                // With tags or a fraction of a second it has a lifecycle that shows no event.
                (_, Some(lifecycle))
                    if created <= now
                        && lifecycle.delay() == Seconds::ZERO
                        && lifecycle.counts == PackedCounts::default() =>
                {
                    ready.push((created, id, job));
                }
                // The job log does not have the time at which the job became ready, or it lies ahead. The lifecycle keeps `now`.
                _ => {
                    self.store.jobs.lifecycle_mut(job);
                    ready.push((now, id, job));
                }
            }
        }
        // Before the ready jobs: those of a full concurrency key enter a shut lane.
        self.settle_reserved(reserved, now);
        // By id where times are equal: the order in the job log is another one after compaction.
        ready.sort_unstable();
        ready.into_iter().for_each(|(since, _, job)| self.enter_ready(job, since));
        delayed.sort_unstable();
        delayed.into_iter().for_each(|(until, _, job)| self.enter_delayed(job, until));
        self.settle_buried(buried, now);
        self.settle_held(held);
        let tubes: Vec<TubeSlot> = self.store.tubes.iter().map(|(tube, _)| tube.slot).collect();
        tubes.into_iter().for_each(|tube| self.store.remove_if_unreferenced(tube, &mut self.effects.changes));
    }

    /// Reserves restored jobs again until the times at which their reservations end. The client timer ends those that are over.
    fn settle_reserved(&mut self, jobs: Vec<(Time, JobId, JobKey)>, now: Time) {
        for (since, _, job, until) in self.recovered.settle(jobs, &mut self.store, now) {
            let holder = self.recovered.client.expect("a reservation was recovered");
            self.enter(job, JobState::Reserved);
            self.store.restore_reserved(job, holder.slot, since, until);
            if let Some(tags_key) = self.store.jobs.get(job).tags_key() {
                self.cons.count_reserved(tags_key, &self.store.jobs);
            }
        }
    }

    /// Buries restored jobs with their numbers, in this order. A job from a log without times was buried before the next one.
    fn settle_buried(&mut self, mut jobs: Vec<(u64, JobId, JobKey)>, now: Time) {
        jobs.sort_unstable();
        let mut at = now;
        let mut times: Vec<Time> = Vec::with_capacity(jobs.len());
        for &(burial, ..) in jobs.iter().rev() {
            if burial >= BURIAL_TIMES_MIN {
                at = at.min(Time::from_nanos(burial));
            }
            times.push(at);
        }
        for ((burial, _, job), at) in jobs.into_iter().zip(times.into_iter().rev()) {
            self.enter_buried(job, at);
            self.store.jobs.lifecycle_mut(job).set_burial(burial);
            self.store.burials = self.store.burials.max(burial + 1);
        }
    }

    /// Holds restored jobs again, in the order of their ids.
    fn settle_held(&mut self, mut jobs: Vec<(JobId, JobKey)>) {
        // mutant grp-order-of-slots-after-a-restart: removed
        jobs.sort_unstable();
        let jobs = jobs.into_iter().map(|(_, job)| job);
        for (job, group) in self.groups.settle(jobs, &mut self.store, &mut self.effects) {
            self.enter_held(job, group);
        }
    }

    /// Returns the jobs of recovered reservations if reservations are not kept. Background work does it.
    pub fn settle_reservations(&mut self) {
        if let Some(client) = self.recovered.client.filter(|_| !self.keeps_reservations()) {
            let record = self.store.clients.get_mut(client);
            // A restart of the server is no failure of a job.
            (record.is_disconnecting, record.has_quit) = (true, true);
            self.effects.work.push_back(Work::Disconnect { client });
        }
    }

    /// Restores the pause of a tube, if the tube exists. The pause ends no later than `length` from now.
    pub fn restore_pause(&mut self, name: TubeName<'_>, until: Time, length: Span, now: Time) {
        let until = until.min(now + length);
        if let Some(key) = self.store.tubes.find_slot(name).filter(|_| until > now) {
            let tube = &mut self.store.tubes[key];
            tube.pause = Some(Pause { until, length });
            self.store.timers.arm(tube.timer, until);
            self.store.refresh(key);
        }
    }

    /// Keeps new jobs from getting this id or a smaller one.
    pub fn keep_ids_above(&mut self, id: JobId) {
        self.store.next_id = self.store.next_id.max(id.0 + 1);
    }
}
