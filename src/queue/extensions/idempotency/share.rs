//! The share of memory of kept idempotency keys, and of keys that jobs promise to keep.
//!
//! A `put` with a time to live promises that its key is kept once the job is deleted, and a deletion cannot be refused. So a
//! promised key takes its place in the share with the `put`, which is refused if the share has none.

use super::{IdpKey, IdpKeys, Owner};
use crate::intrusive::Ranked;
use crate::queue::effects::Effects;
use crate::queue::store::Store;
use crate::queue::store::names::allocated_bytes;
use crate::time::Time;
use crate::values::ids::{ClientKey, JobKey, TagsKey};
use crate::values::limits::KEY_TTL_SHORT_SECONDS;
use crate::values::tags::Idp;
use crate::values::tube_name::TubeName;

/// What a kept key takes beside its name: itself, its piece of the hash table, and its two places in the job log.
pub const KEPT_KEY_BYTES: usize = size_of::<Option<IdpKey>>() + INDEX_BYTES + KEPT_KEY_LOG_BYTES;

/// A hash table that has just doubled has two entries for each key.
const INDEX_BYTES: usize = 2 * size_of::<u32>();

/// The part of [`KEPT_KEY_BYTES`] that the job log takes.
pub const KEPT_KEY_LOG_BYTES: usize = 96;

/// The part of the share in use, and the number of refusals.
pub(super) struct KeyShare {
    bytes_max: usize,
    kept_bytes: usize,
    promised_bytes: usize,
    refusals: u64,
    drops: u64,
}

/// Counts of idempotency keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyStats {
    /// Keys of deleted jobs.
    pub kept: usize,
    /// Their memory.
    pub kept_bytes: usize,
    /// The memory of keys that will be kept once their jobs are deleted.
    pub promised_bytes: usize,
    /// Commands refused because the share had no room for their keys.
    pub refusals: u64,
    /// Keys that were not kept although they were promised: recovery has found more than the share has room for.
    pub drops: u64,
}

impl KeyShare {
    pub const UNLIMITED: Self =
        Self { bytes_max: usize::MAX, kept_bytes: 0, promised_bytes: 0, refusals: 0, drops: 0 };

    /// Takes the place of a key with its present owner.
    pub fn add(&mut self, key: &IdpKey) {
        if let Some(bytes) = self.taken_by(key.owner) {
            *bytes += bytes_of_name(key.name.len());
        }
    }

    /// Frees the place of a key with its present owner.
    pub fn remove(&mut self, key: &IdpKey) {
        if let Some(bytes) = self.taken_by(key.owner) {
            *bytes -= bytes_of_name(key.name.len());
        }
    }

    fn taken_by(&mut self, owner: Owner) -> Option<&mut usize> {
        match owner {
            Owner::Job { ttl: 0, .. } => None,
            Owner::Job { .. } => Some(&mut self.promised_bytes),
            Owner::Deleted(_) => Some(&mut self.kept_bytes),
        }
    }

    /// Whether there is room for a promised key, or for the growth of one. Those that would be kept for long leave the second
    /// half to the others.
    const fn has_room(&self, bytes: usize, ttl: u32) -> bool {
        // mutant idp-long-keys-take-the-whole-share: self.bytes_max / 2 => self.bytes_max
        let max = if ttl <= KEY_TTL_SHORT_SECONDS { self.bytes_max } else { self.bytes_max / 2 };
        self.kept_bytes.saturating_add(self.promised_bytes).saturating_add(bytes) <= max
    }

    /// Whether the key of a job that is being deleted can be kept. It can, unless recovery has found more promises than the
    /// share has room for. If not, the key counts as dropped.
    pub fn can_keep(&mut self, name_length: usize) -> bool {
        let can_keep = self.kept_bytes + bytes_of_name(name_length) <= self.bytes_max;
        self.drops += u64::from(!can_keep);
        can_keep
    }

    pub fn check<'a>(&self, keys: impl Iterator<Item = &'a IdpKey>) {
        let mut counted = Self::UNLIMITED;
        // Bounded by its caller: a test.
        keys.for_each(|key| counted.add(key));
        assert_eq!(self.kept_bytes, counted.kept_bytes, "the memory of kept keys is counted");
        assert_eq!(self.promised_bytes, counted.promised_bytes, "the memory of promised keys is counted");
    }
}

/// What a kept key takes whose tube and key have names of these lengths.
pub const fn kept_key_bytes(tube_bytes: usize, key_bytes: usize) -> usize {
    KEPT_KEY_BYTES + allocated_bytes(tube_bytes + 1 + key_bytes)
}

const fn bytes_of_name(length: usize) -> usize {
    KEPT_KEY_BYTES + allocated_bytes(length)
}

impl IdpKeys {
    /// Sets the size of the share.
    pub const fn set_bytes_max(&mut self, bytes_max: usize) {
        self.share.bytes_max = bytes_max;
    }

    pub const fn stats(&self) -> KeyStats {
        let KeyShare { kept_bytes, promised_bytes, refusals, drops, .. } = self.share;
        KeyStats { kept: self.kept.len(), kept_bytes, promised_bytes, refusals, drops }
    }

    pub fn admits(&mut self, client: ClientKey, tags_key: TagsKey, store: &Store) -> bool {
        let Some(idp) = store.jobs.tags[tags_key.0].tags(&store.bodies).idp() else { return true };
        let bytes = key_growth(store.used(client).name(), idp);
        self.admits_promise(bytes, idp.ttl)
    }

    pub fn admits_all(
        &mut self,
        client: ClientKey,
        tags_keys: impl Iterator<Item = TagsKey>,
        now: Time,
        store: &Store,
    ) -> bool {
        let (mut bytes, mut ttl_max) = (0, 0);
        // Bounded by BATCH_JOBS_MAX: the jobs of one batch.
        for tags_key in tags_keys {
            let Some(idp) = store.jobs.tags[tags_key.0].tags(&store.bodies).idp().filter(|idp| idp.ttl > 0)
            else {
                continue;
            };
            let tube = store.used(client).name();
            if self.is_free(tube, idp.key, now, store) {
                bytes += key_growth(tube, idp);
                ttl_max = ttl_max.max(idp.ttl);
            }
        }
        self.admits_promise(bytes, ttl_max)
    }

    fn admits_promise(&mut self, bytes: usize, ttl: u32) -> bool {
        let share = &mut self.share;
        let is_admitted = bytes == 0 || share.has_room(bytes, ttl);
        share.refusals += u64::from(!is_admitted);
        is_admitted
    }

    /// Whether the share has room for the promised key of the job with the name of another tube.
    pub fn has_room_for(&self, job: JobKey, name: TubeName<'_>, store: &Store) -> bool {
        let Some(key) = store.jobs.idp_of(job).map(|slot| &self.table[slot.0]) else { return true };
        let Owner::Job { ttl, .. } = key.owner else { unreachable!("a job has the key") };
        let before = store.tube_of(job).as_bytes().len();
        let key_bytes = key.name.len() - before - 1;
        let bytes = |tube_bytes| kept_key_bytes(tube_bytes, key_bytes);
        let growth = bytes(name.as_bytes().len()).saturating_sub(bytes(before));
        ttl == 0 || growth == 0 || self.share.has_room(growth, ttl)
    }

    /// Drops kept keys beyond the share. Those that would be forgotten first stay.
    // Bounded by recovery: no client is connected.
    pub(super) fn drop_beyond_share(&mut self, store: &mut Store, effects: &mut Effects) {
        let KeyShare { bytes_max, kept_bytes, .. } = self.share;
        if kept_bytes <= bytes_max {
            return;
        }
        let mut slots = Vec::with_capacity(self.kept.len());
        self.kept.for_each(&self.table, |slot| slots.push(slot));
        slots.sort_unstable_by_key(|&slot| Ranked::key(&self.table[slot]));
        let mut kept_bytes = 0;
        for slot in slots {
            kept_bytes += bytes_of_name(self.table[slot].name.len());
            if kept_bytes > bytes_max {
                self.share.drops += 1;
                self.forget(slot, store, effects);
            }
        }
    }
}

fn key_growth(tube: TubeName<'_>, idp: Idp<'_>) -> usize {
    match idp.ttl {
        0 => 0,
        _ => kept_key_bytes(tube.as_bytes().len(), idp.key.as_bytes().len()),
    }
}
