//! What the job log has of a job, and the reservations that recovery has restored.
//!
//! The clients that had reserved these jobs are gone, so a client of the engine's own holds them until their time to run ends. It has
//! no connection, watches nothing and never leaves.
//!
//! Any client may release, bury, touch or delete such a job. It takes over the reservation, and goes on as the client that has
//! reserved the job. If reservations are not kept, the jobs are returned instead, as those of a client that disconnects.

use super::store::Store;
use super::store::job::Counts;
use crate::bodies::Slot;
use crate::time::{Seconds, Time};
use crate::values::ids::{ClientKey, ClientSlot, ConnId, JobId, JobKey, TubeKey};
use crate::values::notes::Notes;
use crate::values::tags::Tags;

/// The part of a job's persistent state that can change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct PersistedState {
    pub pri: u32,
    /// The delay of the last put or release.
    pub delay: Seconds,
    pub state: LoggedState,
    pub counts: Counts,
}

/// The persistent state of a job. Unless reservations are kept, a reserved job counts as ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoggedState {
    /// Ready.
    Ready,
    /// Delayed until this time.
    Delayed(Time),
    /// Buried. Of two jobs in a tube, the one with the smaller number was buried first. The number is the time in nanoseconds. In
    /// logs of earlier versions and of beanstalkd it is a small number that counted burials.
    Buried(u64),
    /// Held until a group is done, and then delayed until this time.
    Held(Time),
    /// Reserved until this time.
    Reserved(Time),
}

/// A job to be restored.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Restored<'a> {
    pub id: JobId,
    pub created: Time,
    pub ttr: Seconds,
    pub tube: TubeKey,
    pub tags: Tags<'a>,
    pub notes: Notes<'a>,
    pub state: PersistedState,
    /// The body with its CR LF.
    pub body: Slot,
}

/// The connection that the client of recovered reservations names. No notice goes there.
const NO_CONNECTION: ConnId = ConnId { slot: u32::MAX, generation: u32::MAX };

/// The client that holds the jobs whose reservation was recovered.
#[derive(Default)]
pub struct Recovered {
    pub client: Option<ClientKey>,
}

impl Recovered {
    /// Whether the client holds the job.
    // Apart from the commands that call it: only a job of another client, or of none, gets here.
    #[cold]
    pub fn holds(&self, job: JobKey, store: &Store) -> bool {
        let Some(ClientKey { slot, .. }) = self.client else { return false };
        // mutant replica-reservation-of-a-lost-client-for-no-other: store.jobs.holder(store.jobs.get(job)) == Some(slot) => false
        store.jobs.holder(store.jobs.get(job)) == Some(slot)
    }

    /// Gives a client the reservation of a job that the client of recovered reservations [holds](Self::holds).
    pub fn hand_over(&self, job: JobKey, client: ClientSlot, store: &mut Store) {
        let key = store.jobs.lifecycle_key(job);
        let from = store.jobs.lifecycles[key].take_holder();
        let from = &mut store.clients[from];
        from.reserved.remove(&mut store.jobs.lifecycles, key);
        from.reserved_order.remove(&mut store.jobs.slab, job.0);
        store.give_to(client, job, key);
        // The order of a tube is that in which its jobs came to their holders.
        let tube = store.jobs.get(job).tube;
        let order = &mut store.tubes[tube].reserved;
        order.remove(&mut store.jobs.lifecycles, key);
        order.push(&mut store.jobs.lifecycles, key);
    }

    /// Notes that this client was removed.
    pub fn forget(&mut self, client: ClientKey) -> bool {
        let is_it = self.client == Some(client);
        if is_it {
            self.client = None;
        }
        is_it
    }

    /// Adds the client. Returns it, and the jobs in the order of their reservations, each with the times at which it begins and ends.
    ///
    /// A reservation becomes no longer than a time to run from now: the job log may have times far ahead of a clock that was set
    /// back since.
    pub fn settle(
        &mut self,
        jobs: Vec<(Time, JobId, JobKey)>,
        store: &mut Store,
        now: Time,
    ) -> Vec<(Time, JobId, JobKey, Time)> {
        if jobs.is_empty() {
            return Vec::new();
        }
        self.client = Some(store.clients.add(NO_CONNECTION, store.default_tube, &mut store.timers));
        let mut reserved: Vec<_> = jobs
            .into_iter()
            .map(|(until, id, job)| {
                let ttr = store.jobs.ttr(job).span();
                // mutant reservation-over-gets-its-time-again: until.min(now + ttr) =>
                //     if until < now { now + ttr } else { until }
                let until = until.min(now + ttr);
                (until.back(ttr), id, job, until)
            })
            .collect();
        reserved.sort_unstable();
        reserved
    }
}
