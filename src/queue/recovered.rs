//! Reservations that recovery has restored. The clients that had reserved the jobs are gone, so a client of the engine's own
//! holds them until their time to run ends. It has no connection, watches nothing and never leaves.
//!
//! Any client may release, bury, touch or delete such a job. It takes over the reservation, and goes on as the client that has
//! reserved the job. If reservations are not kept, the jobs are returned instead, as those of a client that disconnects.

use super::engine::Engine;
use super::job::JobState;
use super::work::Work;
use crate::time::Time;
use crate::values::ids::{ClientKey, ClientSlot, ConnId, JobId, JobKey};

/// The connection that the client of recovered reservations names. No notice goes there.
const NO_CONNECTION: ConnId = ConnId { slot: u32::MAX, generation: u32::MAX };

impl Engine {
    /// Whether the job has been reserved since before the start, so that any client may finish it.
    // Apart from the commands that call it: only a job of another client, or of none, gets here.
    #[cold]
    pub fn is_recovered(&self, job: JobKey) -> bool {
        let Some(ClientKey { slot, .. }) = self.recovered.filter(|_| self.keeps_reservations()) else {
            return false;
        };
        // mutant replica-reservation-of-a-lost-client-for-no-other: self.store.jobs.holder(self.store.jobs.get(job)) == Some(slot) => false
        self.store.jobs.holder(self.store.jobs.get(job)) == Some(slot)
    }

    /// Whether recovery has restored a reservation.
    pub const fn has_recovered(&self) -> bool {
        self.recovered.is_some()
    }

    /// Returns the jobs of recovered reservations if reservations are not kept. Background work does it.
    pub fn settle_reservations(&mut self) {
        if let Some(client) = self.recovered.filter(|_| !self.keeps_reservations()) {
            self.store.clients.get_mut(client).is_disconnecting = true;
            self.effects.work.push_back(Work::Disconnect { client });
        }
    }

    /// Gives the client the recovered reservation of the job with this id, if it has one.
    #[cold]
    pub(super) fn take_over(&mut self, client: ClientSlot, id: JobId) -> Option<JobKey> {
        let job = self.store.jobs.find(id).filter(|&job| self.is_recovered(job))?;
        let key = self.store.jobs.lifecycle_key(job);
        let from = self.store.jobs.lifecycles[key].take_holder();
        let from = &mut self.store.clients[from];
        from.reserved.remove(&mut self.store.jobs.lifecycles, key);
        from.reserved_order.remove(&mut self.store.jobs.slab, job.0);
        self.store.give_to(client, job, key);
        // The order of a tube is that in which its jobs came to their holders.
        let tube = self.store.jobs.get(job).tube;
        let order = &mut self.store.tubes[tube].reserved;
        order.remove(&mut self.store.jobs.lifecycles, key);
        order.push(&mut self.store.jobs.lifecycles, key);
        Some(job)
    }

    /// Reserves restored jobs again until the times at which their reservations end. The client timer ends those that are over.
    ///
    /// A reservation becomes no longer than a time to run from now: the job log may have times far ahead of a clock that was set
    /// back since.
    pub(super) fn settle_reserved(&mut self, jobs: Vec<(Time, JobId, JobKey)>, now: Time) {
        if jobs.is_empty() {
            return;
        }
        let holder = self.store.clients.add(NO_CONNECTION, self.store.default_tube, &mut self.store.timers);
        self.recovered = Some(holder);
        let mut reserved: Vec<_> = jobs
            .into_iter()
            .map(|(until, id, job)| {
                let ttr = self.store.jobs.ttr(job).span();
                // mutant reservation-over-gets-its-time-again: until.min(now + ttr) =>
                //     if until < now { now + ttr } else { until }
                let until = until.min(now + ttr);
                (until.back(ttr), id, job, until)
            })
            .collect();
        reserved.sort_unstable();
        // Bounded by recovery: no client is connected.
        for (since, _, job, until) in reserved {
            let record = self.enter(job, JobState::Reserved);
            let (tube, tags_key) = (record.tube, record.tags_key());
            let key = self.store.jobs.lifecycle_key(job);
            let lifecycle = &mut self.store.jobs.lifecycles[key];
            (lifecycle.deadline, lifecycle.since) = (until, since);
            self.store.give_to(holder.slot, job, key);
            self.store.tubes[tube].reserved.push(&mut self.store.jobs.lifecycles, key);
            if let Some(tags_key) = tags_key {
                self.cons.count_reserved(tags_key, &self.store.jobs);
            }
        }
    }
}
