//! Idempotency keys: which job of a tube has which key, and which keys of deleted jobs are kept.
//!
//! A tube has at most one job of a key. Keys are found by the names of tube and key, because a kept key outlives its tube.
//! The key of a job whose tag has a time to live is kept for that time after the deletion of the job.

use super::change::Change;
use super::engine::Engine;
use super::job::JobState;
use super::key_share::KeyShare;
use super::names::{Name, named};
use super::timers::{TimerKey, Timers};
use crate::bodies::Bodies;
use crate::intrusive::{Heap, Links, Ranked, Table, intrusive};
use crate::time::{Span, Time};
use crate::values::budget::{Cost, Limit};
use crate::values::ids::{ClientKey, IdpSlot, JobId, JobKey, TagsKey, TubeSlot};
use crate::values::tags::Idp;
use crate::values::tube_name::TubeName;

/// All keys.
pub(super) struct IdpKeys {
    table: Table<IdpKey>,
    /// Kept keys by the time at which they are forgotten.
    kept: Heap,
    /// Fires at the first of these times.
    timer: TimerKey,
    pub(super) share: KeyShare,
}

pub(super) struct IdpKey {
    /// The name of the tube, a space, and the key.
    name: Name,
    owner: Owner,
    /// In the heap of kept keys.
    links: Links,
    rank: u8,
}

#[derive(Clone, Copy)]
pub(super) enum Owner {
    /// The job, and the time to live of its tag, in seconds.
    Job {
        job: JobKey,
        ttl: u32,
    },
    Deleted(Deleted),
}

#[derive(Clone, Copy)]
pub(super) struct Deleted {
    pub(super) id: JobId,
    /// When the key is forgotten.
    until: Time,
    /// The time to live of the tag, in seconds.
    ttl: u32,
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
    pub(super) fn new(seed: u64, timers: &mut Timers) -> Self {
        let timer = timers.add();
        timers.set_owner(timer, super::timers::Owner::IdpKeys);
        Self { table: Table::new(seed), kept: Heap::new(), timer, share: KeyShare::UNLIMITED }
    }

    pub(super) const fn bytes(&self) -> usize {
        self.table.bytes()
    }

    /// The number of keys, of jobs and kept ones.
    pub(super) const fn len(&self) -> usize {
        self.table.len()
    }

    /// What a job with this key in this tube adds to [`bytes`](Self::bytes).
    pub(super) fn growth(&mut self, tube: TubeName<'_>, idp: Option<Idp<'_>>, bodies: &Bodies) -> usize {
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

    pub(super) fn get(&self, slot: IdpSlot) -> &IdpKey {
        &self.table[slot.0]
    }

    pub(super) fn find_slot(&self, slot: IdpSlot) -> Option<&IdpKey> {
        self.table.get(slot.0)
    }

    /// A number above every slot in use.
    pub(super) fn slots_end(&self) -> u32 {
        self.table.keys_end()
    }

    /// Removes a kept key. Returns the id of its job, and its name, which is still to be freed.
    pub(super) fn remove_kept(&mut self, slot: IdpSlot) -> (JobId, Name) {
        self.kept.remove(&mut self.table, slot.0);
        let key = self.remove(slot.0);
        (key.deleted().id, key.name)
    }

    /// The number of kept keys.
    pub(super) const fn kept(&self) -> usize {
        self.kept.len()
    }

    /// All kept keys. The one that is forgotten first comes first.
    pub(super) fn kept_by_time(&self) -> Vec<IdpSlot> {
        let mut kept = Vec::with_capacity(self.kept.len());
        // Bounded by recovery: no client is connected.
        self.kept.for_each(&self.table, |slot| kept.push(slot));
        kept.sort_unstable_by_key(|&slot| Ranked::key(&self.table[slot]));
        kept.into_iter().map(IdpSlot).collect()
    }

    // Bounded by its caller: a test.
    pub(super) fn check(&self, timers: &Timers) {
        self.table.check(0);
        self.kept.check(&self.table);
        let kept = self.table.iter().filter(|(_, entry)| matches!(entry.owner, Owner::Deleted(_))).count();
        assert_eq!(self.kept.len(), kept, "the keys of deleted jobs are in the heap");
        self.share.check(self.table.iter().map(|(_, entry)| entry));
        if let Some(first) = self.kept.min() {
            let until = self.table[first].deleted().until;
            assert!(timers.armed(self.timer).is_some_and(|at| at <= until), "a kept key has a timer");
        }
    }
}

impl IdpKey {
    pub(super) const fn owner(&self) -> Owner {
        self.owner
    }

    /// The length of the name of the tube, a space, and the key.
    pub(super) fn name_length(&self) -> usize {
        self.name.len()
    }

    pub(super) fn is_of(&self, tube: &[u8], bodies: &Bodies) -> bool {
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
pub(super) fn names(name: &[u8]) -> (TubeName<'_>, TubeName<'_>) {
    let space = memchr::memchr(b' ', name).expect("a space ends the name of the tube");
    (TubeName::checked_before(&name[..space]), TubeName::checked_before(&name[space + 1..]))
}

impl Engine {
    /// Returns the first job of the announced job's key in the tube that the client uses, and raises its priority to `pri` if
    /// that is more urgent. Returns `None` if the announced job is the first.
    pub fn repeat(&mut self, client: ClientKey, tags_key: TagsKey, pri: u32, now: Time) -> Option<Repeated> {
        let idp = self.store.jobs.tags[tags_key.0].tags(&self.store.bodies).idp()?;
        let tube = self.store.tubes[self.store.clients.get(client).used].name();
        let slot = self.idps.find(tube, idp.key, &self.store.bodies)?;
        let repeated = match self.idps.table[slot].owner {
            Owner::Deleted(Deleted { id, until, .. }) if until > now => {
                Repeated { id, state: None, pri: None }
            }
            Owner::Deleted(_) => {
                self.forget(slot);
                return None;
            }
            Owner::Job { job, .. } => {
                let record = self.store.jobs.get(job);
                let (id, state, is_raised) = (record.id, record.state, pri < record.pri);
                if is_raised {
                    self.set_priority(job, pri);
                    self.effects.changes.push(Change::Reprioritized(job));
                }
                Repeated { id, state: Some(state), pri: is_raised.then_some(pri) }
            }
        };
        self.store.totals.repeats += 1;
        Some(repeated)
    }

    /// Gives the job its key, if it has one that no other job of the tube has.
    pub(super) fn claim_key(&mut self, job: JobKey, tags_key: TagsKey) {
        let tube = self.store.tubes[self.store.jobs.get(job).tube].name();
        let Some(idp) = self.store.jobs.tags[tags_key.0].tags(&self.store.bodies).idp() else { return };
        let owner = Owner::Job { job, ttl: idp.ttl };
        let slot = match self.idps.find(tube, idp.key, &self.store.bodies) {
            None => self.idps.insert(&joined(tube, idp.key), owner, &mut self.store.bodies),
            Some(slot) if matches!(self.idps.table[slot].owner, Owner::Deleted(_)) => {
                self.idps.kept.remove(&mut self.idps.table, slot);
                self.idps.set_owner(slot, owner);
                slot
            }
            Some(_) => return,
        };
        self.store.jobs.tags[tags_key.0].idp = Some(IdpSlot(slot));
    }

    /// Takes the key from a job that is being deleted. Returns the key if it is kept.
    pub(super) fn give_up_key(&mut self, job: JobKey, tags_key: TagsKey, now: Time) -> Option<IdpSlot> {
        let tags = &self.store.jobs.tags[tags_key.0];
        let key = tags.idp?;
        let ttl = tags.tags(&self.store.bodies).idp().expect("a job with a key has the tag").ttl;
        if ttl == 0 || !self.idps.share.can_keep(self.idps.table[key.0].name_length()) {
            let key = self.idps.remove(key.0);
            key.name.free(&mut self.store.bodies);
            return None;
        }
        // mutant idp-time-from-the-put: now => self.store.jobs.get(job).created
        let deleted = Deleted { id: self.store.jobs.get(job).id, until: now + Span::from_secs(ttl), ttl };
        self.idps.keep(key.0, deleted, &mut self.store.timers);
        Some(key)
    }

    /// Returns true unless another job of the tube of this name has the key of the job, or the tube keeps that key.
    pub(super) fn is_key_free_in(&self, tube: TubeName<'_>, job: JobKey, now: Time) -> bool {
        self.key_of(job)
            .is_none_or(|slot| self.is_key_free(tube, self.idps.table[slot.0].key(&self.store.bodies), now))
    }

    /// Returns true unless a job of the tube of this name has the key, or the tube keeps it.
    pub(super) fn is_key_free(&self, tube: TubeName<'_>, key: TubeName<'_>, now: Time) -> bool {
        self.idps.find(tube, key, &self.store.bodies).is_none_or(|slot| match self.idps.table[slot].owner {
            Owner::Job { .. } => false,
            Owner::Deleted(Deleted { until, .. }) => until <= now,
        })
    }

    /// Sets the tube of a job, where its key must be [free](Self::is_key_free_in). The key moves with the job.
    pub(super) fn move_key(&mut self, job: JobKey, to: TubeSlot, now: Time) {
        let key = self.key_of(job);
        if let Some(slot) = key {
            let kept = self.idps.find(
                self.store.tubes[to].name(),
                self.idps.table[slot.0].key(&self.store.bodies),
                &self.store.bodies,
            );
            if let Some(kept) = kept {
                assert!(self.idps.table[kept].deleted().until <= now, "the key is free");
                self.forget(kept);
            }
            let key = self.idps.remove(slot.0);
            key.name.free(&mut self.store.bodies);
        }
        let record = self.store.jobs.get_mut(job);
        record.tube = to;
        if let Some(tags_key) = record.tags_key().filter(|_| key.is_some()) {
            self.claim_key(job, tags_key);
        }
    }

    pub(super) fn key_of(&self, job: JobKey) -> Option<IdpSlot> {
        self.store.jobs.tags_of(job)?.idp
    }

    /// The key in this slot, if it is that of a deleted job.
    pub fn kept_key(&self, slot: IdpSlot) -> Option<KeptKey<'_>> {
        let entry = self.idps.table.get(slot.0)?;
        let Owner::Deleted(Deleted { id, until, ttl }) = entry.owner else { return None };
        let (tube, key) = entry.names(&self.store.bodies);
        Some(KeptKey { id, tube, key, until, ttl })
    }

    /// All keys of deleted jobs, in no order.
    pub fn kept_keys(&self) -> impl Iterator<Item = KeptKey<'_>> {
        // Bounded by its caller: an iterator, for tools that read a job log.
        self.idps.table.iter().filter_map(|(slot, _)| self.kept_key(IdpSlot(slot)))
    }

    /// Restores the key of a deleted job, for at most its time to live from now on.
    pub fn restore_key(&mut self, kept: &KeptKey<'_>) -> IdpSlot {
        let &KeptKey { id, tube, key, until, ttl } = kept;
        let deleted = Deleted { id, until, ttl };
        let slot = match self.idps.find(tube, key, &self.store.bodies) {
            Some(slot) => {
                self.idps.kept.remove(&mut self.idps.table, slot);
                slot
            }
            None => self.idps.insert(&joined(tube, key), Owner::Deleted(deleted), &mut self.store.bodies),
        };
        self.idps.keep(slot, deleted, &mut self.store.timers);
        IdpSlot(slot)
    }

    /// Forgets kept keys whose time is over or that pass the share, and keeps none for longer than its time to live from now
    /// on.
    // Bounded by recovery: no client is connected.
    pub(super) fn settle_keys(&mut self, now: Time) {
        let slots: Vec<u32> = self.idps.table.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            let Owner::Deleted(mut deleted) = self.idps.table[slot].owner else { continue };
            if deleted.until <= now {
                self.forget(slot);
            } else {
                deleted.until = deleted.until.min(now + Span::from_secs(deleted.ttl));
                self.idps.kept.remove(&mut self.idps.table, slot);
                self.idps.keep(slot, deleted, &mut self.store.timers);
            }
        }
        self.drop_keys_beyond_share();
    }

    /// Forgets keys whose time is over, up to the limit.
    pub(super) fn handle_key_timer(&mut self, now: Time, limit: Limit) {
        while let Some(first) = self.idps.kept.min() {
            let until = self.idps.table[first].deleted().until;
            if until > now || self.budget.is_reached(limit) {
                return self.store.timers.arm(self.idps.timer, until);
            }
            self.budget.charge(Cost::STEP);
            self.forget(first);
        }
    }

    pub(super) fn forget(&mut self, slot: u32) {
        let (_, name) = self.idps.remove_kept(IdpSlot(slot));
        name.free(&mut self.store.bodies);
        self.effects.changes.push(Change::KeyForgotten(IdpSlot(slot)));
    }

    // Bounded by its caller: a test.
    pub(super) fn check_keys(&self) {
        self.store.jobs.tags.check();
        self.idps.check(&self.store.timers);
        for (slot, entry) in self.idps.table.iter() {
            let Owner::Job { job, ttl } = entry.owner else { continue };
            let tags = self.store.jobs.tags_of(job).expect("a job with a key has tags");
            assert_eq!(tags.idp, Some(IdpSlot(slot)), "a job and its key name each other");
            assert_eq!(
                tags.tags(&self.store.bodies).idp(),
                Some(Idp { key: entry.key(&self.store.bodies), ttl })
            );
            assert_eq!(self.store.tube_of(job), entry.names(&self.store.bodies).0);
        }
        let with_key = self.store.jobs.iter().filter_map(|(job, _)| self.key_of(job)).count();
        assert_eq!(with_key + self.idps.kept.len(), self.idps.table.len(), "every key has an owner");
    }
}

named!(IdpKey);
// The hash distinguishes keys of one id, which a damaged log may have.
intrusive!(IdpKey: in heaps by (Time, JobId, u64), |key| {
    let Deleted { id, until, .. } = key.deleted();
    (until, id, key.name.hash)
});
