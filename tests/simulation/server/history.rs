//! The durable state of the server, as a sequence of steps. A crash may lose the last steps, but recovery must restore the
//! state after a prefix of the sequence.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use beanring::queue::{Counts, Engine, JobState, LoggedState};
use beanring::time::{Seconds, Span, Time};
use beanring::values::ids::JobKey;
use beanring::values::tube_rules::RuleKey;

use beanring_testkit::naive::{Job, Kept, Model, Name, Place, RECOVERED, Tags, Tube, Value, number_of_tube};

/// The durable part of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DurableJob {
    pub tube: Name,
    pub tags: Tags,
    pub pri: u32,
    pub delay: Seconds,
    pub ttr: Seconds,
    pub created: Time,
    /// The number of reserves may be older than the rest, unless reservations are kept: it is written with the next other change.
    pub counts: Counts,
    /// The hash of its notes.
    pub notes: u64,
    pub state: LoggedState,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Key {
    Job(u64),
    Pause(Name),
    Kept(Name, u8),
    Rule(Name, RuleKey),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fact {
    Job(DurableJob),
    /// The end of a pause and its length.
    Pause(Time, Span),
    /// The key of a deleted job.
    Kept(Kept),
    Rule(Value),
}

pub type DurableState = BTreeMap<Key, Fact>;

/// New values by key. `None` removes the key.
type Changes = Vec<(Key, Option<Fact>)>;

/// The durable changes of one command, or of the passing of time.
struct Step {
    at: Time,
    changes: Changes,
}

#[derive(Default)]
pub struct History {
    base: DurableState,
    /// No id up to this may be given again.
    base_id: u64,
    steps: Vec<Step>,
    latest: DurableState,
    /// Numbers of steps that replies have revealed, each with the time of the first such reply.
    revealed: Vec<(Time, usize)>,
}

/// The steps that must survive the end of a server.
#[derive(Clone, Copy, Debug)]
pub enum Promise {
    /// All steps that a reply has revealed.
    Replied,
    /// All steps that a reply has revealed by this time.
    RepliedBy(Time),
    /// All steps before this time. A power cut at the moment in which a sync must end may come before its end.
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
        let facts = facts_of(model);
        if !self.latest.iter().eq(facts.iter().map(|(key, fact)| (key, fact))) {
            let state = facts.into_iter().collect();
            self.steps.push(Step { at: model.now, changes: differences(&self.latest, &state) });
            self.latest = state;
        }
        self.steps.len()
    }

    pub fn reveal(&mut self, steps: usize, now: Time) {
        if self.revealed_by(now) < steps {
            self.revealed.push((now, steps));
        }
    }

    fn revealed_by(&self, time: Time) -> usize {
        self.revealed.iter().rfind(|&&(at, _)| at <= time).map_or(0, |&(_, steps)| steps)
    }

    /// Returns the recovered state, which must be one of the permitted ones.
    pub fn find(&self, engine: &Engine, promise: Promise, now: Time) -> DurableState {
        let found = found_in(engine);
        let count = self.steps.len();
        let kept = match promise {
            Promise::Replied => self.revealed_by(now),
            Promise::RepliedBy(time) => self.revealed_by(time),
            Promise::Until(time) => self.steps.iter().take_while(|step| step.at < time).count(),
            Promise::All => count,
            Promise::None => 0,
        };
        let mut state = self.base.clone();
        let mut last_id = self.base_id;
        for step in &self.steps[..kept] {
            apply(&mut state, &step.changes);
            last_id = jobs_of(&state).map(|(id, _)| id).max().unwrap_or(0).max(last_id);
        }
        assert!(engine.upcoming_id().0 > last_id, "job id {} was used before", engine.upcoming_id());
        let expected = canonical(&found, now);
        let mut next = self.steps[kept..].iter();
        while !may_be(&state, next.as_slice().first(), &expected, now) {
            let Some(step) = next.next() else {
                let wrong = differences(&canonical(&state, now), &expected);
                panic!(
                    "the recovered state matches none between steps {kept} and {count}; differences from the last one: {wrong:?}"
                );
            };
            apply(&mut state, &step.changes);
        }
        found
    }
}

fn jobs_of(state: &DurableState) -> impl Iterator<Item = (u64, &DurableJob)> {
    state.iter().filter_map(|entry| match entry {
        (&Key::Job(id), Fact::Job(job)) => Some((id, job)),
        _ => None,
    })
}

/// Returns the durable state of the model, sorted.
fn facts_of(model: &Model) -> Vec<(Key, Fact)> {
    let job = |job: &Job| (Key::Job(job.id), Fact::Job(durable(job, model.keeps_reservations)));
    let pause =
        |tube: &Tube| tube.pause.map(|(until, length)| (Key::Pause(tube.name), Fact::Pause(until, length)));
    let rules = model.rules.iter().flat_map(|(&tube, ruled)| {
        ruled.values.iter().map(move |(&key, &value)| (Key::Rule(tube, key), Fact::Rule(value)))
    });
    let kept = model.kept_keys().into_iter().map(fact_of_kept);
    let jobs = model.jobs.iter().map(job);
    let mut facts: Vec<_> =
        jobs.chain(model.tubes.iter().filter_map(pause)).chain(kept).chain(rules).collect();
    facts.sort_by_key(|&(key, _)| key);
    facts
}

fn found_in(engine: &Engine) -> DurableState {
    let jobs = engine.jobs().iter().map(|(key, job)| {
        let kept = engine.persisted_state(key);
        let state = match (job.state, engine.jobs().lifecycle(key)) {
            // The new server need not keep the reservations that it finds.
            (JobState::Reserved, Some(lifecycle)) => LoggedState::Reserved(lifecycle.deadline),
            _ => kept.state,
        };
        let durable = DurableJob {
            tube: number_of_tube(engine.tube_of(key)),
            tags: Tags::of(engine.tags(key)),
            pri: kept.pri,
            delay: kept.delay,
            ttr: engine.jobs().ttr(key),
            created: job.created,
            counts: kept.counts,
            notes: digest(&notes_of(engine, key)),
            state,
        };
        (Key::Job(job.id.0), Fact::Job(durable))
    });
    let pauses = engine.tubes().iter().filter_map(|(_, tube)| {
        tube.pause
            .map(|pause| (Key::Pause(number_of_tube(tube.name())), Fact::Pause(pause.until, pause.length)))
    });
    let rules = engine.ruled_tubes().flat_map(|(tube, rules)| {
        let rule = move |(key, value)| {
            Some((Key::Rule(number_of_tube(tube), key), Fact::Rule(Value::of(value, number_of_tube)?)))
        };
        rules.iter().filter_map(rule)
    });
    let kept = Kept::all_of(engine).into_iter().map(fact_of_kept);
    jobs.chain(pauses).chain(kept).chain(rules).collect()
}

fn fact_of_kept(kept: Kept) -> (Key, Fact) {
    (Key::Kept(kept.tube, kept.key), Fact::Kept(kept))
}

/// Removes everything that no client can observe after recovery: delays, pauses and kept keys that are over, pauses of tubes without
/// jobs, the numbers of burials except for their order, and the number of reserves of a job whose reservation is not kept.
fn canonical(state: &DurableState, now: Time) -> DurableState {
    let groups: BTreeSet<u8> = jobs_of(state).filter_map(|(_, job)| job.tags.grp).collect();
    let tubes: BTreeSet<Name> = jobs_of(state).map(|(_, job)| job.tube).chain([0]).collect();
    let mut burials: Vec<u64> = jobs_of(state).filter_map(|(_, job)| burial(job)).collect();
    burials.sort_unstable();
    let place = |number| burials.partition_point(|&other| other < number) as u64;
    let mut state = state.clone();
    state.retain(|&key, fact| match (key, fact) {
        (_, Fact::Job(job)) => {
            *job = canonical_job(job, now, |group| groups.contains(&group), place);
            true
        }
        (Key::Pause(tube), Fact::Pause(until, _)) => *until > now && tubes.contains(&tube),
        (_, Fact::Kept(kept)) => kept.until > now,
        _ => true,
    });
    state
}

/// The same for a job. The jobs of a group without members are released again after recovery.
fn canonical_job(
    job: &DurableJob,
    now: Time,
    has_members: impl Fn(u8) -> bool,
    place: impl Fn(u64) -> u64,
) -> DurableJob {
    let is_held = job.tags.aft.is_some_and(has_members);
    let state = match job.state {
        LoggedState::Held(until) if is_held => LoggedState::Held(until.max(now)),
        LoggedState::Held(until) if until > now => LoggedState::Delayed(until),
        LoggedState::Held(_) => LoggedState::Ready,
        LoggedState::Delayed(until) if until <= now => LoggedState::Ready,
        LoggedState::Buried(number) => LoggedState::Buried(place(number)),
        state => state,
    };
    let is_reserved = matches!(state, LoggedState::Reserved(_));
    let reserves = if is_reserved { job.counts.reserves } else { 0 };
    DurableJob { state, counts: Counts { reserves, ..job.counts }, ..*job }
}

/// Whether `found` is this state, with any subset of the changes of the next step: each change has a record of its own.
fn may_be(state: &DurableState, next: Option<&Step>, found: &DurableState, now: Time) -> bool {
    let mut mixed = state.clone();
    if let Some(step) = next {
        let alone = |job: &DurableJob| canonical_job(job, now, |_| true, |_| 0);
        let is_done = |(key, after): &&(Key, Option<Fact>)| match (after, found.get(key)) {
            (Some(Fact::Job(after)), Some(Fact::Job(job))) => alone(after) == alone(job),
            (after, there) => after.as_ref() == there,
        };
        let done: Changes = step.changes.iter().filter(is_done).copied().collect();
        apply(&mut mixed, &done);
    }
    canonical(&mixed, now) == *found
}

fn durable(job: &Job, keeps_reservations: bool) -> DurableJob {
    let &Job { tube, tags, pri, delay, ttr, created, counts, place, ref notes, .. } = job;
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
    DurableJob { tube, tags, pri, delay, ttr, created, counts, notes: digest(notes), state }
}

/// The notes of a job, the oldest first.
pub fn notes_of(engine: &Engine, job: JobKey) -> Vec<(Time, Vec<u8>)> {
    engine.notes(job).iter().map(|note| (note.at, note.text.to_vec())).collect()
}

fn digest(notes: &[(Time, Vec<u8>)]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (at, text) in notes {
        (at.as_nanos(), text).hash(&mut hasher);
    }
    hasher.finish()
}

fn burial(job: &DurableJob) -> Option<u64> {
    match job.state {
        LoggedState::Buried(number) => Some(number),
        _ => None,
    }
}

fn apply(state: &mut DurableState, changes: &Changes) {
    for &(key, fact) in changes {
        match fact {
            Some(fact) => _ = state.insert(key, fact),
            None => _ = state.remove(&key),
        }
    }
}

fn differences(before: &DurableState, after: &DurableState) -> Changes {
    let changed = after.iter().filter(|&(key, fact)| before.get(key) != Some(fact));
    let gone = before.keys().filter(|key| !after.contains_key(key));
    changed.map(|(&key, &fact)| (key, Some(fact))).chain(gone.map(|&key| (key, None))).collect()
}
