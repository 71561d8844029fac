//! The durable state of the server, as a sequence of steps. A crash may lose the last steps, but recovery must restore the
//! state after a prefix of the sequence.

use std::collections::{BTreeMap, BTreeSet};

use beanring::queue::{Counts, Engine, JobState, LoggedState};
use beanring::time::{Seconds, Span, Time};
use beanring::values::tube_name::TubeName;
use beanring::values::tube_rules::RuleKey;

use super::checker::kept_keys;
use super::names::number_of;
use beanring_testkit::naive::{Job, Kept, Model, Name, Place, RECOVERED, Tags, Value};

/// The durable part of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DurableJob {
    pub tube: Name,
    pub tags: Tags,
    pub pri: u32,
    pub delay: Seconds,
    pub ttr: Seconds,
    pub created: Time,
    /// The number of reserves may be older than the rest, unless reservations are kept: it is written with the next other change.
    pub counts: Counts,
    pub state: LoggedState,
}

/// All jobs, all paused tubes with the end and the length of the pause, all keys of deleted jobs, and all rules.
#[derive(Clone, Default, Debug)]
pub struct DurableState {
    pub jobs: BTreeMap<u64, DurableJob>,
    pub pauses: BTreeMap<Name, (Time, Span)>,
    pub kept: BTreeMap<(Name, u8), Kept>,
    pub rules: BTreeMap<(Name, RuleKey), Value>,
}

/// The durable changes of one command, or of the passing of time.
struct Step {
    at: Time,
    jobs: Changes<u64, DurableJob>,
    pauses: Changes<Name, (Time, Span)>,
    kept: Changes<(Name, u8), Kept>,
    rules: Changes<(Name, RuleKey), Value>,
}

/// New values by key. `None` removes the key.
type Changes<K, V> = Vec<(K, Option<V>)>;

#[derive(Default)]
pub struct History {
    base: DurableState,
    /// No id up to this may be given again.
    base_id: u64,
    steps: Vec<Step>,
    latest: DurableState,
    /// Number of steps that replies have revealed.
    revealed: usize,
}

/// The steps that must survive the end of a server.
#[derive(Clone, Copy, Debug)]
pub enum Promise {
    /// All steps that a reply has revealed.
    Replied,
    /// All steps up to this time.
    Until(Time),
    /// All steps.
    All,
    /// No step.
    None,
}

impl History {
    pub fn from(state: DurableState, last_id: u64) -> Self {
        Self { base: state.clone(), base_id: last_id, latest: state, ..Self::default() }
    }

    /// Appends a step for the changes of the model. Returns the number of steps.
    pub fn add_step(&mut self, model: &Model) -> usize {
        let state = DurableState::of(model);
        let jobs = differences(&self.latest.jobs, &state.jobs);
        let pauses = differences(&self.latest.pauses, &state.pauses);
        let kept = differences(&self.latest.kept, &state.kept);
        let rules = differences(&self.latest.rules, &state.rules);
        if !jobs.is_empty() || !pauses.is_empty() || !kept.is_empty() || !rules.is_empty() {
            self.steps.push(Step { at: model.now, jobs, pauses, kept, rules });
            self.latest = state;
        }
        self.steps.len()
    }

    pub fn reveal(&mut self, steps: usize) {
        self.revealed = self.revealed.max(steps);
    }

    /// Returns the recovered state, which must be one of the permitted ones.
    pub fn find(&self, engine: &Engine, promise: Promise, now: Time) -> DurableState {
        let found = DurableState::found_in(engine);
        let count = self.steps.len();
        let kept = match promise {
            Promise::Replied => self.revealed,
            Promise::Until(time) => self.steps.iter().take_while(|step| step.at <= time).count(),
            Promise::All => count,
            Promise::None => 0,
        };
        let mut state = self.base.clone();
        let mut last_id = self.base_id;
        for step in &self.steps[..kept] {
            step.apply(&mut state);
            last_id = state.jobs.keys().next_back().copied().unwrap_or(0).max(last_id);
        }
        assert!(engine.upcoming_id().0 > last_id, "job id {} was used before", engine.upcoming_id());
        let canonical = found.canonical(now);
        let mut next = self.steps[kept..].iter();
        while !state.may_be(next.as_slice().first(), &canonical, now) {
            let Some(step) = next.next() else {
                let wrong = differences(&state.canonical(now).jobs, &canonical.jobs);
                let pauses = (state.canonical(now).pauses, canonical.pauses);
                let keys = (state.canonical(now).kept, canonical.kept);
                let rules = (state.rules, canonical.rules);
                panic!(
                    "the recovered state matches none between steps {kept} and {count}; differences from the last one: {wrong:?}, {pauses:?}, {keys:?}, {rules:?}"
                );
            };
            step.apply(&mut state);
        }
        found
    }
}

impl Step {
    fn apply(&self, state: &mut DurableState) {
        apply(&mut state.jobs, &self.jobs);
        apply(&mut state.pauses, &self.pauses);
        apply(&mut state.kept, &self.kept);
        apply(&mut state.rules, &self.rules);
    }
}

impl DurableState {
    fn of(model: &Model) -> Self {
        let jobs = model.jobs.iter().map(|job| (job.id, durable(job, model.keeps_reservations)));
        let pauses = model.tubes.iter().filter_map(|tube| Some((tube.name, tube.pause?)));
        let rules = model
            .rules
            .iter()
            .flat_map(|(&tube, ruled)| ruled.values.iter().map(move |(&key, &value)| ((tube, key), value)));
        let kept = by_key(model.kept_keys());
        Self { jobs: jobs.collect(), pauses: pauses.collect(), kept, rules: rules.collect() }
    }

    fn found_in(engine: &Engine) -> Self {
        let jobs = engine.jobs().iter().map(|(key, job)| {
            let kept = engine.persisted_state(key);
            let state = match (job.state, engine.jobs().lifecycle(key)) {
                // The new server need not keep the reservations that it finds.
                (JobState::Reserved, Some(lifecycle)) => LoggedState::Reserved(lifecycle.deadline),
                _ => kept.state,
            };
            let durable = DurableJob {
                tube: number_of(engine.tube_of(key).as_bytes()),
                tags: Tags::of(engine.tags(key)),
                pri: kept.pri,
                delay: kept.delay,
                ttr: engine.jobs().ttr(key),
                created: job.created,
                counts: kept.counts,
                state,
            };
            (job.id.0, durable)
        });
        let pauses = engine.tubes().iter().filter_map(|(_, tube)| {
            let pause = tube.pause?;
            Some((number_of(tube.name().as_bytes()), (pause.until, pause.length)))
        });
        let number = |name: TubeName<'_>| number_of(name.as_bytes());
        let rules = engine.ruled_tubes().flat_map(|(tube, rules)| {
            let value = move |(key, value)| Some(((number(tube), key), Value::of(value, number)?));
            rules.iter().filter_map(value)
        });
        let kept = by_key(kept_keys(engine));
        Self { jobs: jobs.collect(), pauses: pauses.collect(), kept, rules: rules.collect() }
    }

    /// Removes everything that no client can observe after recovery: delays, pauses and kept keys that are over, pauses of tubes without
    /// jobs, the numbers of burials except for their order, and the number of reserves of a job whose reservation is not kept.
    fn canonical(&self, now: Time) -> Self {
        let groups: BTreeSet<u8> = self.jobs.values().filter_map(|job| job.tags.grp).collect();
        self.canonical_with(now, |group| groups.contains(&group))
    }

    /// The same, with groups that have members or not. The jobs of a group without members are released again after recovery.
    fn canonical_with(&self, now: Time, has_members: impl Fn(u8) -> bool) -> Self {
        let mut state = self.clone();
        let mut burials: Vec<u64> = state.jobs.values().filter_map(burial).collect();
        burials.sort_unstable();
        for job in state.jobs.values_mut() {
            if !matches!(job.state, LoggedState::Reserved(_)) {
                job.counts.reserves = 0;
            }
            let is_held = job.tags.aft.is_some_and(&has_members);
            job.state = match job.state {
                LoggedState::Held(until) if is_held => LoggedState::Held(until.max(now)),
                LoggedState::Held(until) if until > now => LoggedState::Delayed(until),
                LoggedState::Held(_) => LoggedState::Ready,
                LoggedState::Delayed(until) if until <= now => LoggedState::Ready,
                LoggedState::Buried(number) => {
                    LoggedState::Buried(burials.partition_point(|&other| other < number) as u64)
                }
                state => state,
            };
        }
        let tubes: BTreeSet<Name> = state.jobs.values().map(|job| job.tube).chain([0]).collect();
        state.pauses.retain(|tube, (until, _)| *until > now && tubes.contains(tube));
        state.kept.retain(|_, kept| kept.until > now);
        state
    }

    /// Whether `found` is this state, with any subset of the changes of the next step: each change has a record of its own.
    fn may_be(&self, next: Option<&Step>, found: &Self, now: Time) -> bool {
        let mut mixed = self.clone();
        if let Some(step) = next {
            let is_done = |(id, after): &&(u64, Option<DurableJob>)| match (after, found.jobs.get(id)) {
                (Some(after), Some(job)) => is_like(after, job, now),
                (after, job) => after.is_none() == job.is_none(),
            };
            let jobs: Vec<_> = step.jobs.iter().filter(is_done).cloned().collect();
            apply(&mut mixed.jobs, &jobs);
            let is_done = |(tube, after): &&(Name, _)| found.pauses.get(tube) == Option::as_ref(after);
            let pauses: Vec<_> = step.pauses.iter().filter(is_done).copied().collect();
            apply(&mut mixed.pauses, &pauses);
            let is_done = |(key, after): &&(_, Option<Kept>)| found.kept.get(key) == Option::as_ref(after);
            let kept: Vec<_> = step.kept.iter().filter(is_done).copied().collect();
            apply(&mut mixed.kept, &kept);
            let is_done = |(key, after): &&(_, Option<Value>)| found.rules.get(key) == Option::as_ref(after);
            let rules: Vec<_> = step.rules.iter().filter(is_done).copied().collect();
            apply(&mut mixed.rules, &rules);
        }
        let mixed = mixed.canonical(now);
        let has_rest = mixed.pauses == found.pauses && mixed.kept == found.kept && mixed.rules == found.rules;
        mixed.jobs == found.jobs && has_rest
    }
}

fn durable(job: &Job, keeps_reservations: bool) -> DurableJob {
    let &Job { tube, tags, pri, delay, ttr, created, counts, place, .. } = job;
    let state = match place {
        Place::Reserved { by, until, .. } if keeps_reservations || by == RECOVERED => {
            LoggedState::Reserved(until)
        }
        Place::Ready | Place::Reserved { .. } => LoggedState::Ready,
        Place::Delayed { until } => LoggedState::Delayed(until),
        Place::Buried { turn } => LoggedState::Buried(turn),
        Place::Held { until, is_free: true, .. } => LoggedState::Delayed(until),
        Place::Held { until, .. } => LoggedState::Held(until),
    };
    DurableJob { tube, tags, pri, delay, ttr, created, counts, state }
}

fn by_key(kept: Vec<Kept>) -> BTreeMap<(Name, u8), Kept> {
    kept.into_iter().map(|kept| ((kept.tube, kept.key), kept)).collect()
}

fn burial(job: &DurableJob) -> Option<u64> {
    match job.state {
        LoggedState::Buried(number) => Some(number),
        _ => None,
    }
}

/// Whether two jobs are equal except for what [`DurableState::canonical`] removes.
fn is_like(one: &DurableJob, other: &DurableJob, now: Time) -> bool {
    let alone = |job: &DurableJob| {
        let state = DurableState { jobs: [(0, job.clone())].into(), ..DurableState::default() };
        state.canonical_with(now, |_| true).jobs
    };
    alone(one) == alone(other)
}

fn apply<K: Ord + Copy, V: Clone>(state: &mut BTreeMap<K, V>, changes: &Changes<K, V>) {
    for (key, value) in changes {
        match value {
            Some(value) => _ = state.insert(*key, value.clone()),
            None => _ = state.remove(key),
        }
    }
}

fn differences<K: Ord + Copy, V: Clone + PartialEq>(
    before: &BTreeMap<K, V>,
    after: &BTreeMap<K, V>,
) -> Changes<K, V> {
    let changed = after.iter().filter(|&(key, value)| before.get(key) != Some(value));
    let gone = before.keys().filter(|key| !after.contains_key(key));
    changed.map(|(&key, value)| (key, Some(value.clone()))).chain(gone.map(|&key| (key, None))).collect()
}
