//! Rules of tubes.

use std::collections::BTreeMap;

use beanring::queue::{FullBy, JobEnd, JobState, RuleCounts};
use beanring::time::{Seconds, Span, Time};
use beanring::values::tube_name::TubeName;
use beanring::values::tube_rules::{RuleKey, RuleValue};

use super::{Conn, Job, Model, Name, Place};

/// The value of a rule. Names of tubes are numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    Number(u64),
    Tube(Name),
}

/// The rules of a tube, which may not exist.
#[derive(Clone, Default, Debug)]
pub struct Ruled {
    pub values: BTreeMap<RuleKey, Value>,
    /// When each token that was taken comes back.
    taken: Vec<Time>,
    /// The tube hands out no job until this time.
    pub closed_until: Option<Time>,
    pub counts: RuleCounts,
}

impl Ruled {
    pub(super) const fn is_throttled(&self) -> bool {
        self.closed_until.is_some()
    }

    fn number(&self, key: RuleKey) -> Option<u64> {
        match self.values.get(&key)? {
            Value::Number(number) => Some(*number),
            Value::Tube(_) => None,
        }
    }
}

impl Value {
    /// Reads a value. `None` removes the rule.
    pub fn of(value: RuleValue<'_>, number_of: impl Fn(TubeName<'_>) -> Name) -> Option<Self> {
        match value {
            RuleValue::None => None,
            RuleValue::Number(number) => Some(Self::Number(number)),
            RuleValue::Tube(tube) => Some(Self::Tube(number_of(tube))),
        }
    }

    /// Returns the text of the value, as in a `tube-config`.
    pub fn text(self, key: RuleKey, name_of: impl Fn(Name) -> String) -> String {
        match self {
            Self::Number(number) => key.shown(number).to_string(),
            Self::Tube(tube) => name_of(tube),
        }
    }
}

impl Model {
    /// Sets a rule, or removes it. A new rate begins with all its tokens.
    pub fn set_rule(&mut self, tube: Name, key: RuleKey, value: Option<Value>) {
        let ruled = self.rules.entry(tube).or_default();
        match value {
            Some(value) => _ = ruled.values.insert(key, value),
            None => _ = ruled.values.remove(&key),
        }
        if key == RuleKey::Rate {
            ruled.taken.clear();
            let was_closed = ruled.closed_until.take().is_some();
            if was_closed && self.tubes.iter().any(|there| there.name == tube) {
                self.serve_tube(tube);
            }
        }
        self.rules.retain(|_, ruled| !ruled.values.is_empty());
        self.drop_tubes();
    }

    fn rule(&self, tube: Name, key: RuleKey) -> Option<Value> {
        self.rules.get(&tube)?.values.get(&key).copied()
    }

    pub(super) fn number(&self, tube: Name, key: RuleKey) -> Option<u64> {
        self.rules.get(&tube)?.number(key)
    }

    /// Counts something for a tube with rules.
    pub(super) fn count(&mut self, tube: Name, add: impl Fn(&mut RuleCounts)) {
        let ruled = self.rules.get_mut(&tube).expect("the tube has rules");
        [&mut ruled.counts, &mut self.rule_totals].into_iter().for_each(add);
    }

    // Puts.

    pub(super) fn ttr_of_put(&self, tube: Name, ttr: Seconds) -> Seconds {
        let default = self.number(tube, RuleKey::DefaultTtr).map_or(1, |seconds| seconds as u32);
        if ttr == Seconds::ZERO { default.into() } else { ttr }
    }

    /// Whether a client may put this many jobs with bodies of this size together. A refusal is counted.
    pub fn admits(&mut self, conn: Conn, jobs: usize, bytes: u64) -> Result<(), FullBy> {
        let tube = self.get(conn).used;
        self.admits_to(tube, jobs, bytes)
    }

    pub(super) fn admits_to(&mut self, tube: Name, jobs: usize, bytes: u64) -> Result<(), FullBy> {
        let Some(rule) = self.full_by(tube, jobs, bytes) else { return Ok(()) };
        self.count(tube, |counts| counts.refusals += 1);
        Err(rule)
    }

    /// Returns the rule that a tube would exceed with these further jobs, if there is one. `bytes` is the size of all their bodies.
    pub(super) fn full_by(&self, tube: Name, jobs: usize, bytes: u64) -> Option<FullBy> {
        let there = || self.jobs.iter().filter(|job| job.tube == tube);
        let (count, size) = (there().count() + jobs, there().map(|job| job.bytes).sum::<u64>() + bytes);
        let full = |rule, then: u64| {
            self.number(tube, rule).filter(|&max| then > max).map(|limit| FullBy { rule, limit })
        };
        full(RuleKey::MaxJobs, count as u64).or_else(|| full(RuleKey::MaxBytes, size))
    }

    // Attempts.

    /// Whether a timeout may bury or delay a job.
    pub(super) fn may_retire(&self) -> bool {
        let keys = [RuleKey::MaxAttempts, RuleKey::RetryFor, RuleKey::RetryDelay];
        self.rules.values().any(|ruled| keys.iter().any(|key| ruled.values.contains_key(key)))
    }

    /// Moves a reserved job to the tube of dead letters, or buries it if its key is taken there.
    pub(super) fn retire(&mut self, at: usize) {
        self.note_lapse(at);
        let Job { id, tube: from, tags, .. } = self.jobs[at];
        self.count(from, |counts| counts.dead_letters += 1);
        let to = match self.rule(from, RuleKey::DeadLetter) {
            Some(Value::Tube(to)) => Some(to),
            _ => None,
        };
        let has_room =
            |&to: &Name| self.is_key_free_in(to, &self.jobs[at]) && self.has_key_room_in(to, &self.jobs[at]);
        match to.filter(has_room) {
            None => {
                self.bury_at(at);
                self.end_job(id, JobEnd::Buried);
            }
            Some(to) => {
                self.make_tube(to);
                let (now, turn) = (self.now, self.next_turn());
                let job = &mut self.jobs[at];
                (job.tube, job.place, job.since, job.entered) = (to, Place::Ready, now, turn);
                self.serve_tube(to);
            }
        }
        self.serve_key(tags.con);
        self.drop_tubes();
    }

    // Rate.

    /// Whether reserves get no job of the tube, because of a pause or its rate.
    pub(super) fn is_closed(&self, name: Name) -> bool {
        let is_paused = self.tubes.iter().any(|tube| tube.name == name && tube.pause.is_some());
        is_paused || self.is_throttled(name)
    }

    pub(super) fn is_throttled(&self, name: Name) -> bool {
        self.rules.get(&name).is_some_and(Ruled::is_throttled)
    }

    /// Gives a job to a client that has asked for any job.
    pub(super) fn hand_out(&mut self, at: usize, conn: Conn) -> u64 {
        let (tube, now) = (self.jobs[at].tube, self.now);
        let id = self.hold(at, conn);
        let Some(rate) = self.number(tube, RuleKey::Rate) else { return id };
        let ruled = self.rules.get_mut(&tube).expect("the tube has a rate");
        let interval = Span::from_nanos(1_000_000_000_u64.div_ceil(rate));
        // Each token that was taken comes back an interval after the one before it.
        ruled.taken.retain(|&back| back > now);
        let last = ruled.taken.last().copied().unwrap_or(now);
        ruled.taken.push(last + interval);
        let burst = (rate / 10).max(1) as usize;
        if ruled.taken.len() >= burst {
            ruled.closed_until = Some(ruled.taken[ruled.taken.len() - burst]);
            self.count(tube, |counts| counts.rate_waits += 1);
        }
        id
    }

    /// Hands out jobs of a tube again if it has a token.
    pub(super) fn throttle_due(&mut self, name: Name) {
        let now = self.now;
        let Some(ruled) = self.rules.get_mut(&name) else { return };
        if ruled.closed_until.take_if(|until| *until <= now).is_some() {
            self.serve_tube(name);
        }
    }

    // Retention.

    /// When the job of the tube that was buried first is deleted.
    fn first_expiry(&self, tube: Name) -> Option<(Time, usize)> {
        let seconds = self.number(tube, RuleKey::Retention)?;
        let at = self.oldest_buried(tube)?;
        Some((self.jobs[at].since + Span::from_secs(seconds as u32), at))
    }

    /// Deletes the buried jobs of a tube that have expired, the longest burial first.
    pub(super) fn expiry_due(&mut self, name: Name) {
        while let Some((_, at)) = self.first_expiry(name).filter(|&(until, _)| until <= self.now) {
            self.count(name, |counts| counts.expiries += 1);
            self.remove(at);
        }
    }

    /// All times at which a rule has an effect by itself.
    pub(super) fn rule_deadlines(&self) -> impl Iterator<Item = Time> {
        let closed = self.rules.values().filter_map(|ruled| ruled.closed_until);
        let expiries = self.rules.keys().filter_map(|&tube| self.first_expiry(tube));
        closed.chain(expiries.map(|(until, _)| until))
    }

    /// Buries a job that no client holds any more.
    pub(super) fn bury_at(&mut self, at: usize) {
        let turn = self.next_turn();
        self.totals.buries += 1;
        let job = &mut self.jobs[at];
        (job.place, job.since, job.entered) = (Place::Buried { turn }, self.now, turn);
        job.counts.buries += 1;
        let tube = job.tube;
        self.tube(tube).buries += 1;
    }

    /// Deletes a job.
    pub(super) fn remove(&mut self, at: usize) {
        if self.jobs[at].state() == JobState::Reserved {
            self.note_lapse(at);
        }
        let job = self.jobs.remove(at);
        self.keep_key(&job);
        self.tube(job.tube).deletes += 1;
        self.totals.deletes += 1;
        self.end_job(job.id, JobEnd::Deleted);
        self.serve_key(job.tags.con);
        self.release_held();
        self.drop_tubes();
    }
}
