//! Idempotency keys: which job of a tube has which key, and which keys of deleted jobs are kept.
//!
//! A tube has at most one job of a key. Keys are found by the names of tube and key, because a kept key outlives its tube.
//! The key of a job whose tag has a time to live is kept for that time after the deletion of the job.

mod flush;
mod share;

pub use self::flush::{FlushedKey, KeyFlush};
use self::share::KeyShare;
pub use self::share::{KEPT_KEY_BYTES, KEPT_KEY_LOG_BYTES, KeyStats, kept_key_bytes};
use crate::bodies::Bodies;
use crate::intrusive::{Heap, Links, Table, intrusive};
use crate::queue::effects::{Change, Effects};
use crate::queue::store::Store;
use crate::queue::store::job::JobState;
use crate::queue::store::names::{Name, named};
use crate::queue::store::timers::{TimerKey, Timers};
use crate::time::{Span, Time};
use crate::values::budget::{Budget, Cost, Limit};
use crate::values::ids::{IdpSlot, JobId, JobKey, TagsKey, TubeSlot};
use crate::values::tags::Idp;
use crate::values::tube_name::TubeName;

/// All keys.
pub struct IdpKeys {
    table: Table<IdpKey>,
    /// Kept keys by the time at which they are forgotten.
    kept: Heap,
    /// Fires at the first of these times.
    timer: TimerKey,
    share: KeyShare,
}

struct IdpKey {
    /// The name of the tube, a space, and the key.
    name: Name,
    owner: Owner,
    /// In the heap of kept keys.
    links: Links,
    rank: u8,
}

#[derive(Clone, Copy)]
enum Owner {
    /// The job, and the time to live of its tag, in seconds.
    Job {
        job: JobKey,
        ttl: u32,
    },
    Deleted(Deleted),
}

#[derive(Clone, Copy)]
struct Deleted {
    id: JobId,
    /// When the key is forgotten.
    until: Time,
    /// The time to live of the tag, in seconds.
    ttl: u32,
}

/// The first job of a key in a tube.
pub enum First {
    Job(JobKey),
    Deleted(JobId),
}

/// The first job of a key that a `put` has repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repeated {
    /// Its id.
    pub id: JobId,
    /// Its state, or `None` if it was deleted.
    pub state: Option<JobState>,
    /// Its new priority, if the repeat has raised that.
    pub pri: Option<u32>,
}

/// The key of a deleted job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct KeptKey<'a> {
    pub id: JobId,
    pub tube: TubeName<'a>,
    pub key: TubeName<'a>,
    /// When the key is forgotten.
    pub until: Time,
    /// The time to live of the tag, in seconds.
    pub ttl: u32,
}

impl IdpKeys {
    /// No keys. `seed` keeps clients from choosing keys that collide.
    pub fn new(seed: u64, timers: &mut Timers) -> Self {
        let timer = timers.add();
        timers.set_owner(timer, crate::queue::store::timers::Owner::IdpKeys);
        Self { table: Table::new(seed), kept: Heap::new(), timer, share: KeyShare::UNLIMITED }
    }

    pub const fn bytes(&self) -> usize {
        self.table.bytes()
    }

    /// The number of keys, of jobs and kept ones.
    pub const fn len(&self) -> usize {
        self.table.len()
    }

    /// What a job with this key in this tube adds to [`bytes`](Self::bytes).
    pub fn growth(&mut self, tube: TubeName<'_>, idp: Option<Idp<'_>>, bodies: &Bodies) -> usize {
        let Some(idp) = idp else { return 0 };
        self.table.growth_with_name(tube.as_bytes().len() + 1 + idp.key.as_bytes().len(), bodies)
    }

    fn find(&self, tube: TubeName<'_>, key: TubeName<'_>, bodies: &Bodies) -> Option<u32> {
        self.table.find_name(&[tube.as_bytes(), b" ", key.as_bytes()], bodies)
    }

    /// Adds the key with this name of both.
    fn insert(&mut self, name: &[u8], owner: Owner, bodies: &mut Bodies) -> u32 {
        let name = Name::store(name, self.table.seed(), bodies);
        let key = IdpKey { name, owner, links: Links::NONE, rank: 0 };
        self.share.add(&key);
        self.table.insert(key)
    }

    fn set_owner(&mut self, slot: u32, owner: Owner) {
        let key = &mut self.table[slot];
        self.share.remove(key);
        key.owner = owner;
        self.share.add(key);
    }

    /// Removes a key that is not in the heap. Its name is still to be freed.
    fn remove(&mut self, slot: u32) -> IdpKey {
        let key = self.table.remove(slot);
        self.share.remove(&key);
        key
    }

    /// Keeps the key of a deleted job.
    fn keep(&mut self, slot: u32, deleted: Deleted, timers: &mut Timers) {
        self.set_owner(slot, Owner::Deleted(deleted));
        self.kept.insert(&mut self.table, slot);
        timers.arm(self.timer, deleted.until);
    }

    /// Removes a kept key. Returns the id of its job, and its name, which is still to be freed.
    fn remove_kept(&mut self, slot: IdpSlot) -> (JobId, Name) {
        self.kept.remove(&mut self.table, slot.0);
        let key = self.remove(slot.0);
        (key.deleted().id, key.name)
    }

    /// Finds the first job of the announced job's key in a tube. There is none if the announced job is the first.
    pub fn first(
        &mut self,
        tube: TubeSlot,
        tags_key: TagsKey,
        now: Time,
        store: &mut Store,
        effects: &mut Effects,
    ) -> Option<First> {
        let idp = store.jobs.tags[tags_key.0].tags(&store.bodies).idp()?;
        let slot = self.find(store.tubes[tube].name(), idp.key, &store.bodies)?;
        match self.table[slot].owner {
            Owner::Job { job, .. } => Some(First::Job(job)),
            Owner::Deleted(Deleted { id, until, .. }) if until > now => Some(First::Deleted(id)),
            Owner::Deleted(_) => {
                self.forget(slot, store, effects);
                None
            }
        }
    }

    /// Gives the job its key, if it has one that no other job of the tube has.
    pub fn claim(&mut self, job: JobKey, tags_key: TagsKey, store: &mut Store) {
        let tube = store.tubes[store.jobs.get(job).tube].name();
        let Some(idp) = store.jobs.tags[tags_key.0].tags(&store.bodies).idp() else { return };
        let owner = Owner::Job { job, ttl: idp.ttl };
        let slot = match self.find(tube, idp.key, &store.bodies) {
            None => self.insert(&joined(tube, idp.key), owner, &mut store.bodies),
            Some(slot) if matches!(self.table[slot].owner, Owner::Deleted(_)) => {
                self.kept.remove(&mut self.table, slot);
                self.set_owner(slot, owner);
                slot
            }
            Some(_) => return,
        };
        store.jobs.tags[tags_key.0].idp = Some(IdpSlot(slot));
    }

    /// Takes the key from a job that is being deleted. Returns the key if it is kept.
    pub fn give_up(
        &mut self,
        job: JobKey,
        tags_key: TagsKey,
        now: Time,
        store: &mut Store,
    ) -> Option<IdpSlot> {
        let tags = &store.jobs.tags[tags_key.0];
        let key = tags.idp?;
        let ttl = tags.tags(&store.bodies).idp().expect("a job with a key has the tag").ttl;
        if ttl == 0 || !self.share.can_keep(self.table[key.0].name.len()) {
            let key = self.remove(key.0);
            key.name.free(&mut store.bodies);
            return None;
        }
        // mutant idp-time-from-the-put: now => store.jobs.get(job).created
        let deleted = Deleted { id: store.jobs.get(job).id, until: now + Span::from_secs(ttl), ttl };
        self.keep(key.0, deleted, &mut store.timers);
        Some(key)
    }

    /// Returns true unless another job of the tube of this name has the key of the job, or the tube keeps that key.
    pub fn is_free_for(&self, job: JobKey, tube: TubeName<'_>, now: Time, store: &Store) -> bool {
        store
            .jobs
            .idp_of(job)
            .is_none_or(|slot| self.is_free(tube, self.table[slot.0].key(&store.bodies), now, store))
    }

    /// Returns true unless a job of the tube of this name has the key, or the tube keeps it.
    fn is_free(&self, tube: TubeName<'_>, key: TubeName<'_>, now: Time, store: &Store) -> bool {
        self.find(tube, key, &store.bodies).is_none_or(|slot| match self.table[slot].owner {
            Owner::Job { .. } => false,
            Owner::Deleted(Deleted { until, .. }) => until <= now,
        })
    }

    /// Sets the tube of a job, where its key must be [free](Self::is_free_for). The key moves with the job.
    pub fn set_tube(
        &mut self,
        job: JobKey,
        to: TubeSlot,
        now: Time,
        store: &mut Store,
        effects: &mut Effects,
    ) {
        let key = store.jobs.idp_of(job);
        if let Some(slot) = key {
            let kept =
                self.find(store.tubes[to].name(), self.table[slot.0].key(&store.bodies), &store.bodies);
            if let Some(kept) = kept {
                assert!(self.table[kept].deleted().until <= now, "the key is free");
                self.forget(kept, store, effects);
            }
            let key = self.remove(slot.0);
            key.name.free(&mut store.bodies);
        }
        let record = store.jobs.get_mut(job);
        record.tube = to;
        if let Some(tags_key) = record.tags_key().filter(|_| key.is_some()) {
            self.claim(job, tags_key, store);
        }
    }

    pub fn kept_key<'a>(&self, slot: IdpSlot, bodies: &'a Bodies) -> Option<KeptKey<'a>> {
        let entry = self.table.get(slot.0)?;
        let Owner::Deleted(Deleted { id, until, ttl }) = entry.owner else { return None };
        let (tube, key) = entry.names(bodies);
        Some(KeptKey { id, tube, key, until, ttl })
    }

    pub fn kept_keys<'a>(&self, bodies: &'a Bodies) -> impl Iterator<Item = KeptKey<'a>> {
        // Bounded by its caller: an iterator, for tools that read a job log.
        self.table.iter().filter_map(|(slot, _)| self.kept_key(IdpSlot(slot), bodies))
    }

    pub fn restore(&mut self, kept: &KeptKey<'_>, store: &mut Store) -> IdpSlot {
        let &KeptKey { id, tube, key, until, ttl } = kept;
        let deleted = Deleted { id, until, ttl };
        let slot = match self.find(tube, key, &store.bodies) {
            Some(slot) => {
                self.kept.remove(&mut self.table, slot);
                slot
            }
            None => self.insert(&joined(tube, key), Owner::Deleted(deleted), &mut store.bodies),
        };
        self.keep(slot, deleted, &mut store.timers);
        IdpSlot(slot)
    }

    /// Forgets a restored key, if it is kept.
    pub fn drop_restored(&mut self, slot: IdpSlot, store: &mut Store, effects: &mut Effects) {
        if self.kept_key(slot, &store.bodies).is_some() {
            self.forget(slot.0, store, effects);
        }
    }

    /// Forgets kept keys whose time is over or that pass the share, and keeps none for longer than its time to live from now
    /// on.
    // Bounded by recovery: no client is connected.
    pub fn settle(&mut self, now: Time, store: &mut Store, effects: &mut Effects) {
        let slots: Vec<u32> = self.table.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            let Owner::Deleted(mut deleted) = self.table[slot].owner else { continue };
            if deleted.until <= now {
                self.forget(slot, store, effects);
            } else {
                deleted.until = deleted.until.min(now + Span::from_secs(deleted.ttl));
                self.kept.remove(&mut self.table, slot);
                self.keep(slot, deleted, &mut store.timers);
            }
        }
        self.drop_beyond_share(store, effects);
    }

    /// Forgets keys whose time is over, up to the limit.
    pub fn handle_timer(
        &mut self,
        now: Time,
        limit: Limit,
        store: &mut Store,
        effects: &mut Effects,
        budget: &mut Budget,
    ) {
        while let Some(first) = self.kept.min() {
            let until = self.table[first].deleted().until;
            if until > now || budget.is_reached(limit) {
                return store.timers.arm(self.timer, until);
            }
            budget.charge(Cost::STEP);
            self.forget(first, store, effects);
        }
    }

    fn forget(&mut self, slot: u32, store: &mut Store, effects: &mut Effects) {
        let (_, name) = self.remove_kept(IdpSlot(slot));
        name.free(&mut store.bodies);
        effects.changes.push(Change::KeyForgotten(IdpSlot(slot)));
    }

    // Bounded by its caller: a test.
    pub fn check(&self, store: &Store) {
        store.jobs.tags.check();
        self.table.check(0);
        self.kept.check(&self.table);
        let kept = self.table.iter().filter(|(_, entry)| matches!(entry.owner, Owner::Deleted(_))).count();
        assert_eq!(self.kept.len(), kept, "the keys of deleted jobs are in the heap");
        self.share.check(self.table.iter().map(|(_, entry)| entry));
        if let Some(first) = self.kept.min() {
            let until = self.table[first].deleted().until;
            assert!(store.timers.armed(self.timer).is_some_and(|at| at <= until), "a kept key has a timer");
        }
        for (slot, entry) in self.table.iter() {
            let Owner::Job { job, ttl } = entry.owner else { continue };
            let tags = store.jobs.tags_of(job).expect("a job with a key has tags");
            assert_eq!(tags.idp, Some(IdpSlot(slot)), "a job and its key name each other");
            assert_eq!(tags.tags(&store.bodies).idp(), Some(Idp { key: entry.key(&store.bodies), ttl }));
            assert_eq!(store.tube_of(job), entry.names(&store.bodies).0);
        }
        let with_key = store.jobs.iter().filter_map(|(job, _)| store.jobs.idp_of(job)).count();
        assert_eq!(with_key + self.kept.len(), self.table.len(), "every key has an owner");
    }
}

impl IdpKey {
    fn is_of(&self, tube: &[u8], bodies: &Bodies) -> bool {
        self.name.text(bodies).strip_prefix(tube).is_some_and(|rest| rest.first() == Some(&b' '))
    }

    /// The names of the tube and the key.
    fn names<'a>(&self, bodies: &'a Bodies) -> (TubeName<'a>, TubeName<'a>) {
        names(self.name.text(bodies))
    }

    fn key<'a>(&self, bodies: &'a Bodies) -> TubeName<'a> {
        self.names(bodies).1
    }

    fn deleted(&self) -> Deleted {
        match self.owner {
            Owner::Deleted(deleted) => deleted,
            Owner::Job { .. } => panic!("a kept key is that of a deleted job"),
        }
    }
}

/// The name of the tube, a space, and the key.
fn joined(tube: TubeName<'_>, key: TubeName<'_>) -> Vec<u8> {
    [tube.as_bytes(), b" ", key.as_bytes()].concat()
}

/// The names of the tube and the key in the name of both.
fn names(name: &[u8]) -> (TubeName<'_>, TubeName<'_>) {
    let space = memchr::memchr(b' ', name).expect("a space ends the name of the tube");
    (TubeName::checked_before(&name[..space]), TubeName::checked_before(&name[space + 1..]))
}

named!(IdpKey);
// The hash distinguishes keys of one id, which a damaged log may have.
intrusive!(IdpKey: in heaps by (Time, JobId, u64), |key| {
    let Deleted { id, until, .. } = key.deleted();
    (until, id, key.name.hash)
});
