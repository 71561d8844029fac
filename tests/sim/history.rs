//! What should outlive the server: how it came to be, step by step, and which of the steps may be missing after a
//! crash. What comes back is the state after some of them, in their order, from the first on.

use std::collections::{BTreeMap, BTreeSet};

use beanring::queue::{Counts, Engine, Standing};
use beanring::time::{Span, Time};

use super::names::number_of;
use beanring_testkit::naive::{Job, Model, Name, Place};

/// A job as far as it outlives the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lasting {
    pub tube: Name,
    pub pri: u32,
    pub delay: u32,
    pub ttr: u32,
    pub created: Time,
    /// How often it was reserved is only as good as the last change of something else.
    pub counts: Counts,
    pub standing: Standing,
}

/// All jobs, and the tubes that are paused: until when, and how long in all.
#[derive(Clone, Default, Debug)]
pub struct State {
    pub jobs: BTreeMap<u64, Lasting>,
    pub pauses: BTreeMap<Name, (Time, Span)>,
}

/// What one command has changed, or the passing of time.
struct Step {
    at: Time,
    jobs: Changes<u64, Lasting>,
    pauses: Changes<Name, (Time, Span)>,
}

/// What is there from then on, or gone.
type Changes<K, V> = Vec<(K, Option<V>)>;

#[derive(Default)]
pub struct History {
    base: State,
    /// No id up to this may be given again.
    base_id: u64,
    steps: Vec<Step>,
    latest: State,
    /// Somebody has been told what follows from so many steps.
    told: usize,
}

/// What the end of a server leaves of what it has done.
#[derive(Clone, Copy, Debug)]
pub enum Promise {
    /// All that anybody was told.
    Told,
    /// All that had happened by then.
    Until(Time),
    /// All that has happened.
    All,
    /// Nothing.
    None,
}

impl History {
    pub fn from(state: State, last_id: u64) -> Self {
        Self { base: state.clone(), base_id: last_id, latest: state, ..Self::default() }
    }

    /// Notes what has changed, and returns how many steps there have been.
    pub fn note(&mut self, model: &Model) -> usize {
        let state = State::of(model);
        let jobs = differences(&self.latest.jobs, &state.jobs);
        let pauses = differences(&self.latest.pauses, &state.pauses);
        if !jobs.is_empty() || !pauses.is_empty() {
            self.steps.push(Step { at: model.now, jobs, pauses });
            self.latest = state;
        }
        self.steps.len()
    }

    pub fn was_told(&mut self, steps: usize) {
        self.told = self.told.max(steps);
    }

    /// Finds what came back among what may have, and returns it.
    pub fn find(&self, engine: &Engine, promise: Promise, now: Time) -> State {
        let found = State::found_in(engine);
        let count = self.steps.len();
        let safe = match promise {
            Promise::Told => self.told,
            Promise::Until(time) => self.steps.iter().take_while(|step| step.at <= time).count(),
            Promise::All => count,
            Promise::None => 0,
        };
        let mut state = self.base.clone();
        let mut last_id = self.base_id;
        for step in &self.steps[..safe] {
            step.apply(&mut state);
            last_id = state.jobs.keys().next_back().copied().unwrap_or(0).max(last_id);
        }
        assert!(engine.upcoming_id().0 > last_id, "job {} was there before", engine.upcoming_id());
        let canonical = found.canonical(now);
        let mut next = self.steps[safe..].iter();
        while !state.may_be(next.as_slice().first(), &canonical, now) {
            let Some(step) = next.next() else {
                let wrong = differences(&state.canonical(now).jobs, &canonical.jobs);
                let pauses = (state.canonical(now).pauses, canonical.pauses);
                panic!(
                    "no state between steps {safe} and {count} came back; from the last one differ {wrong:?}, {pauses:?}"
                );
            };
            step.apply(&mut state);
        }
        found
    }
}

impl Step {
    fn apply(&self, state: &mut State) {
        apply(&mut state.jobs, &self.jobs);
        apply(&mut state.pauses, &self.pauses);
    }
}

impl State {
    fn of(model: &Model) -> Self {
        let jobs = model.jobs.iter().map(|job| (job.id, lasting(job)));
        let pauses = model.tubes.iter().filter_map(|tube| Some((tube.name, tube.pause?)));
        Self { jobs: jobs.collect(), pauses: pauses.collect() }
    }

    fn found_in(engine: &Engine) -> Self {
        let jobs = engine.jobs().iter().map(|(key, job)| {
            let kept = engine.kept(key);
            let lasting = Lasting {
                tube: number_of(engine.tube_of(key).as_bytes()),
                pri: kept.pri,
                delay: kept.delay,
                ttr: job.ttr,
                created: job.created,
                counts: kept.counts,
                standing: kept.standing,
            };
            (job.id.0, lasting)
        });
        let pauses = engine.tubes().iter().filter_map(|(_, tube)| {
            let pause = tube.pause?;
            Some((number_of(tube.name().as_bytes()), (pause.until, pause.length)))
        });
        Self { jobs: jobs.collect(), pauses: pauses.collect() }
    }

    /// Without what nobody can see: delays and pauses that are over, pauses of tubes that go without clients, the
    /// numbers of burials but for their order, and how often jobs were reserved.
    fn canonical(&self, now: Time) -> Self {
        let mut state = self.clone();
        let mut burials: Vec<u64> = state.jobs.values().filter_map(burial).collect();
        burials.sort_unstable();
        for job in state.jobs.values_mut() {
            job.counts.reserves = 0;
            job.standing = match job.standing {
                Standing::Delayed(until) if until <= now => Standing::Ready,
                Standing::Buried(number) => {
                    Standing::Buried(burials.partition_point(|&other| other < number) as u64)
                }
                standing => standing,
            };
        }
        let tubes: BTreeSet<Name> = state.jobs.values().map(|job| job.tube).chain([0]).collect();
        state.pauses.retain(|tube, (until, _)| *until > now && tubes.contains(tube));
        state
    }

    /// Whether this was found, where what the next step changes may have changed already, each by itself: a record
    /// is written for each.
    fn may_be(&self, next: Option<&Step>, found: &Self, now: Time) -> bool {
        let mut mixed = self.clone();
        if let Some(step) = next {
            let is_done = |(id, after): &&(u64, Option<Lasting>)| match (after, found.jobs.get(id)) {
                (Some(after), Some(job)) => is_like(after, job, now),
                (after, job) => after.is_none() == job.is_none(),
            };
            let jobs: Vec<_> = step.jobs.iter().filter(is_done).cloned().collect();
            apply(&mut mixed.jobs, &jobs);
            let is_done = |(tube, after): &&(Name, _)| found.pauses.get(tube) == Option::as_ref(after);
            let pauses: Vec<_> = step.pauses.iter().filter(is_done).copied().collect();
            apply(&mut mixed.pauses, &pauses);
        }
        let mixed = mixed.canonical(now);
        mixed.jobs == found.jobs && mixed.pauses == found.pauses
    }
}

fn lasting(job: &Job) -> Lasting {
    let &Job { tube, pri, delay, ttr, created, counts, place, .. } = job;
    let standing = match place {
        Place::Ready | Place::Reserved { .. } => Standing::Ready,
        Place::Delayed { until } => Standing::Delayed(until),
        Place::Buried { turn } => Standing::Buried(turn),
    };
    Lasting { tube, pri, delay, ttr, created, counts, standing }
}

fn burial(job: &Lasting) -> Option<u64> {
    match job.standing {
        Standing::Buried(number) => Some(number),
        _ => None,
    }
}

/// Whether they are the same but for what [`State::canonical`] leaves out.
fn is_like(one: &Lasting, other: &Lasting, now: Time) -> bool {
    let alone =
        |job: &Lasting| State { jobs: [(0, job.clone())].into(), ..State::default() }.canonical(now).jobs;
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
