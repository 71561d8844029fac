//! Tags of jobs, and the idempotency keys of deleted jobs.

use beanring::queue::{Engine, Repeated, kept_key_bytes};
use beanring::time::{Span, Time};
use beanring::values::ids::JobId;
use beanring::values::tube_name::TubeName;

use super::{Conn, Job, KeyShare, Model, Name};

/// The tags of a job. Their keys are numbers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tags {
    /// Key and time to live.
    pub idp: Option<(u8, u32)>,
    /// Key and limit.
    pub con: Option<(u8, u32)>,
    /// The group of the job.
    pub grp: Option<u8>,
    /// The group that it waits for.
    pub aft: Option<u8>,
}

/// The key of a deleted job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Kept {
    pub tube: Name,
    pub key: u8,
    pub id: u64,
    pub until: Time,
}

/// Returns the number in a key, or in the name of a group.
pub fn number_of_key(name: TubeName<'_>) -> u8 {
    name.as_str()[1..].parse().expect("a key is a letter and a number")
}

/// Returns the number in the name of a tube. That of `default` is 0.
pub fn number_of_tube(name: TubeName<'_>) -> Name {
    match name.as_str() {
        "default" => 0,
        name => name.strip_prefix("tube-").and_then(|number| number.parse().ok()).expect("a name of a test"),
    }
}

impl Kept {
    /// Returns the keys of deleted jobs that an engine keeps, sorted.
    pub fn all_of(engine: &Engine) -> Vec<Self> {
        let kept = engine.kept_keys().map(|kept| Self {
            tube: number_of_tube(kept.tube),
            key: number_of_key(kept.key),
            id: kept.id.0,
            until: kept.until,
        });
        let mut kept: Vec<Self> = kept.collect();
        kept.sort();
        kept
    }
}

impl Tags {
    /// Reads the text of tags.
    pub fn of(text: beanring::values::tags::Tags<'_>) -> Self {
        Self {
            idp: text.idp().map(|idp| (number_of_key(idp.key), idp.ttl)),
            con: text.con().map(|con| (number_of_key(con.key), con.limit.get())),
            grp: text.grp().map(number_of_key),
            aft: text.aft().map(number_of_key),
        }
    }

    /// Returns the text of the tags, as in the line of a `put`.
    pub fn text(self) -> String {
        let idp = self.idp.map(|(key, ttl)| format!("idp:k{key}:{ttl}"));
        let con = self.con.map(|(key, limit)| format!("con:c{key}:{limit}"));
        let grp = self.grp.map(|group| format!("grp:g{group}"));
        let aft = self.aft.map(|group| format!("aft:g{group}"));
        [idp, con, grp, aft].into_iter().flatten().collect::<Vec<_>>().join(" ")
    }
}

impl Model {
    /// Returns what a put repeats, and raises the priority of that job.
    pub(super) fn repeat(&mut self, conn: Conn, pri: u32, tags: Tags) -> Option<Repeated> {
        let (key, _) = tags.idp?;
        let tube = self.get(conn).used;
        let owns = |job: &&mut Job| job.tube == tube && job.tags.idp.is_some_and(|(own, _)| own == key);
        let (now, owner) = (self.now, self.jobs.iter_mut().find(owns));
        let repeated = match owner {
            Some(job) => {
                let is_raised = pri < job.pri;
                job.pri = job.pri.min(pri);
                let (id, state) = (JobId(job.id), Some(job.state()));
                Repeated { id, state, pri: is_raised.then_some(pri) }
            }
            None => {
                self.kept.retain(|kept| kept.until > now);
                let kept = self.kept.iter().find(|kept| (kept.tube, kept.key) == (tube, key))?;
                Repeated { id: JobId(kept.id), state: None, pri: None }
            }
        };
        self.totals.repeats += 1;
        Some(repeated)
    }

    /// Whether the share has room for the key of a new job. A refusal is counted.
    pub(super) fn admits_key(&mut self, conn: Conn, tags: Tags) -> bool {
        let Some((key, ttl)) = tags.idp.filter(|&(_, ttl)| ttl > 0) else { return true };
        let is_admitted = self.has_key_room(self.key_bytes(self.get(conn).used, key), ttl);
        self.key_refusals += u64::from(!is_admitted);
        is_admitted
    }

    /// Whether the share has room for the key of a job in another tube.
    pub(super) fn has_key_room_in(&self, tube: Name, job: &Job) -> bool {
        let Some((key, ttl)) = job.tags.idp.filter(|&(_, ttl)| ttl > 0) else { return true };
        let growth = self.key_bytes(tube, key).saturating_sub(self.key_bytes(job.tube, key));
        growth == 0 || self.has_key_room(growth, ttl)
    }

    fn has_key_room(&self, bytes: usize, ttl: u32) -> bool {
        let Some(KeyShare { bytes_max: max, .. }) = self.key_share else { return true };
        let (kept, promised) = self.keys_bytes();
        kept + promised + bytes <= if ttl > 3600 { max / 2 } else { max }
    }

    /// The memory of kept keys, and of keys that jobs promise to keep.
    pub fn keys_bytes(&self) -> (usize, usize) {
        let kept = self.kept_keys().into_iter().map(|kept| self.key_bytes(kept.tube, kept.key));
        let promise = |job: &Job| Some((job.tube, job.tags.idp.filter(|&(_, ttl)| ttl > 0)?.0));
        let promised = self.jobs.iter().filter_map(promise);
        (kept.sum(), promised.map(|(tube, key)| self.key_bytes(tube, key)).sum())
    }

    fn key_bytes(&self, tube: Name, key: u8) -> usize {
        let key = format!("k{key}").len();
        self.key_share.map_or(0, |share| kept_key_bytes((share.name_bytes)(tube), key))
    }

    /// Keeps the key of a job that is deleted.
    pub(super) fn keep_key(&mut self, job: &Job) {
        if let Some((key, ttl)) = job.tags.idp.filter(|&(_, ttl)| ttl > 0) {
            let (tube, id, until) = (job.tube, job.id, self.now + Span::from_secs(ttl));
            self.kept.push(Kept { tube, key, id, until });
        }
    }

    /// Whether neither a job of the tube nor a deleted one has the key of this job.
    pub(super) fn is_key_free_in(&self, tube: Name, job: &Job) -> bool {
        let Some((key, _)) = job.tags.idp else { return true };
        let is_it = |other: &Job| other.tube == tube && other.tags.idp.is_some_and(|(own, _)| own == key);
        let is_kept = self.kept_keys().iter().any(|kept| (kept.tube, kept.key) == (tube, key));
        !is_kept && !self.jobs.iter().any(is_it)
    }

    /// Forgets the kept keys of a tube. Returns their number.
    pub fn flush_keys(&mut self, name: Name) -> u32 {
        let now = self.now;
        self.kept.retain(|kept| kept.until > now);
        let before = self.kept.len();
        self.kept.retain(|kept| kept.tube != name);
        (before - self.kept.len()) as u32
    }

    /// The keys of deleted jobs, sorted.
    pub fn kept_keys(&self) -> Vec<Kept> {
        let mut kept: Vec<Kept> = self.kept.iter().filter(|kept| kept.until > self.now).copied().collect();
        kept.sort();
        kept
    }
}
