//! What the job log may have after a crash: the state after any of the last changes. A run and its job are one change.

use beanring::queue::Engine;
use beanring::values::schedules::{Missed as Policy, Progress};
use beanring::values::tube_name::TubeName;

use super::model::{Change, Counted, Missed, Schedule, State};

/// The state now, and the changes since one that no crash can undo.
#[derive(Default)]
pub struct History {
    pub state: State,
    base: State,
    changes: Vec<Change>,
    /// Changes that survive the end of the process, and that of the power.
    pub written: usize,
    pub synced: usize,
}

impl History {
    pub fn add(&mut self, change: Change) {
        self.state.apply(&change);
        self.changes.push(change);
    }

    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Forgets changes that no crash can undo.
    pub fn settle(&mut self) {
        let count = self.synced.min(self.written);
        self.changes.drain(..count).for_each(|change| self.base.apply(&change));
        (self.written, self.synced) = (self.written - count, self.synced - count);
    }

    /// A server has started with these jobs and schedules. At least `kept` changes must be there. Returns how many are lost.
    ///
    /// # Panics
    /// If they are not those after a sequence of changes.
    pub fn restarted(&mut self, engine: &Engine, kept: usize, system: u64) -> usize {
        let mut state = std::mem::take(&mut self.base);
        let mut changes = std::mem::take(&mut self.changes).into_iter();
        changes.by_ref().take(kept).for_each(|change| state.apply(&change));
        let mut first = None;
        while let Err(difference) = compare_restored(&state, engine, system) {
            let first = first.get_or_insert_with(|| difference.clone());
            let Some(change) = changes.next() else {
                panic!(
                    "no sequence of changes leads here: after the kept ones {first}, after all {difference}"
                );
            };
            state.apply(&change);
        }
        for (name, schedule) in &mut state.schedules {
            let is_it = |one: &Schedule| compare_schedule(name, one, engine, system).is_ok();
            let started = started(schedule, system).into_iter().find(is_it).expect("it was found before");
            *schedule = started;
        }
        state.search_again();
        (self.base, self.state) = (state.clone(), state);
        (self.written, self.synced) = (0, 0);
        changes.len()
    }
}

/// The schedules that a start may make of this one.
fn started(schedule: &Schedule, system: u64) -> Vec<Schedule> {
    let mut logged = schedule.logged.clone();
    logged.created.insert(schedule.created);
    logged.handled.insert(schedule.handled);
    let mut all = Vec::new();
    for &created in &logged.created {
        for &handled in &logged.handled {
            let mut started = Schedule { created, handled, logged: logged.clone(), ..schedule.clone() };
            started.set_clock(system);
            all.push(started);
        }
    }
    all
}

fn compare_restored(state: &State, engine: &Engine, system: u64) -> Result<(), String> {
    compare_jobs(state, engine)?;
    compare_names(state, engine)?;
    let mut schedules = state.schedules.iter();
    schedules.try_for_each(|(name, schedule)| {
        let tried =
            started(schedule, system).into_iter().map(|one| compare_schedule(name, &one, engine, system));
        tried.reduce(Result::or).expect("there is one")
    })
}

/// Compares everything with what the server has.
pub fn compare(state: &State, engine: &Engine, system: u64) -> Result<(), String> {
    compare_jobs(state, engine)?;
    compare_names(state, engine)?;
    let mut schedules = state.schedules.iter();
    schedules.try_for_each(|(name, schedule)| compare_schedule(name, schedule, engine, system))
}

fn compare_names(state: &State, engine: &Engine) -> Result<(), String> {
    let found: Vec<String> =
        engine.schedules_after(None).map(|schedule| schedule.name().as_str().to_owned()).collect();
    let expected: Vec<&String> = state.schedules.keys().collect();
    is_same("the schedules", &expected, &found.iter().collect())
}

fn compare_jobs(state: &State, engine: &Engine) -> Result<(), String> {
    if state.jobs.len() != engine.jobs().len() {
        let found: Vec<u64> = engine.jobs().iter().map(|(_, job)| job.id.0).collect();
        let lost = state.jobs.iter().find(|(id, _)| !found.contains(id));
        let more: Vec<&u64> = found.iter().filter(|id| !state.jobs.contains_key(id)).collect();
        return Err(format!("the server lacks the job {lost:?}, and has too many: {more:?}"));
    }
    for (key, job) in engine.jobs().iter() {
        let id = job.id.0;
        let Some(expected) = state.jobs.get(&id) else { return Err(format!("job {id} is not expected")) };
        let body = engine.body(key);
        let is_same = engine.tube_of(key).as_str() == expected.tube
            && engine.jobs().ttr(key).as_whole() == expected.ttr
            && body.strip_suffix(b"\r\n") == Some(expected.body.as_bytes());
        if !is_same {
            let body = String::from_utf8_lossy(body);
            return Err(format!("job {id} is {:?} {body:?}, not {expected:?}", engine.tube_of(key)));
        }
    }
    Ok(())
}

fn is_same<T: PartialEq + std::fmt::Debug>(what: &str, expected: &T, found: &T) -> Result<(), String> {
    if expected == found { Ok(()) } else { Err(format!("{what}: {found:?} instead of {expected:?}")) }
}

pub fn tube_name(name: &str) -> TubeName<'_> {
    TubeName::new(name.as_bytes()).expect("it is a name")
}

/// How far the server says a schedule is.
pub fn counted(progress: &Progress) -> Counted {
    let &Progress { runs, skips, refusals, gaps, .. } = progress;
    Counted { runs, skips, refusals, gaps }
}

fn compare_schedule(name: &str, expected: &Schedule, engine: &Engine, system: u64) -> Result<(), String> {
    find_difference(name, expected, engine, system)
        .map_err(|difference| format!("{name} ({}): {difference}", expected.plan.times.text))
}

fn find_difference(name: &str, expected: &Schedule, engine: &Engine, system: u64) -> Result<(), String> {
    let Some(found) = engine.schedule(tube_name(name)) else { return Err("it is gone".to_owned()) };
    let (progress, plan) = (&found.progress, &found.plan);
    is_same("times", &expected.plan.times.text.as_str(), &plan.when.as_str())?;
    let body = engine.bodies().bytes(&found.body).strip_suffix(b"\r\n").unwrap_or_default();
    is_same("the body", &expected.plan.body.as_bytes(), &body)?;
    is_same("the tube", &expected.plan.tube, &found.tube().as_str())?;
    let missed = match plan.missed {
        Policy::Once => Missed::Once,
        Policy::Skip => Missed::Skip,
        Policy::All => Missed::All,
    };
    let numbers = (plan.pri, plan.delay.as_whole(), plan.ttr.as_whole(), missed, plan.overlaps);
    let plan = &expected.plan;
    is_same("the plan", &(plan.pri, plan.delay, plan.ttr, plan.missed, plan.overlaps), &numbers)?;
    is_same("the counts", &expected.counted, &counted(progress))?;
    let last =
        (progress.job.0 > 0).then(|| (progress.due.as_nanos(), progress.ran.as_nanos(), progress.job.0));
    is_same("the last run", &expected.last, &last)?;
    is_same("the beginning", &expected.created, &found.created.as_nanos())?;
    is_same("what is handled", &expected.handled, &progress.handled.as_nanos())?;
    is_same("the runs caught up", &expected.caught_up, &u32::from(progress.caught_up))?;
    let next = found.next().map(|next| next.as_nanos());
    let (next, until) = (next.unwrap_or(u64::MAX), next.unwrap_or(0).max(system));
    // A next time that is far away is not searched.
    let until = until.min(system + super::LOOK_AHEAD);
    is_same("the next time", &expected.next(until), &Some(next).filter(|&next| next <= until))
}
