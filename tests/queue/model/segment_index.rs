//! The state that a job log could rebuild: the changes of the engine, applied to plain maps.

use std::collections::BTreeMap;

use beanring::queue::{Change, Counts, Engine, JobState, Lifecycle, LoggedState};
use beanring::time::{Seconds, Time};
use beanring::values::ids::{IdpSlot, JobKey};
use beanring::values::tube_name::TubeName;
use beanring::values::tube_rules::{RuleKey, RuleValue};

use beanring_testkit::naive::{Job, Kept, Model, Place, Tube};

#[derive(Default)]
pub struct SegmentIndex {
    jobs: BTreeMap<u64, Entry>,
    /// Ends of pauses by tube name.
    pauses: BTreeMap<String, Time>,
    kept: BTreeMap<IdpSlot, Kept>,
    /// Values of rules as text, by tube name and key.
    rules: BTreeMap<(String, RuleKey), String>,
    burials: u64,
}

struct Entry {
    tube: String,
    /// The group that it was put to wait for.
    after: Option<String>,
    pri: u32,
    ttr: Seconds,
    created: Time,
    body: Vec<u8>,
    delay: Seconds,
    place: LoggedState,
    counts: Counts,
    /// The times and texts of its notes.
    notes: Vec<(Time, Vec<u8>)>,
}

impl SegmentIndex {
    pub fn fold(&mut self, engine: &mut Engine) {
        let mut changes = Vec::new();
        engine.take_changes(&mut changes);
        for change in changes {
            self.apply(engine, change);
        }
    }

    fn apply(&mut self, engine: &Engine, change: Change) {
        let key = match change {
            Change::GroupDone(name) => {
                let name = String::from_utf8_lossy(&name).into_owned();
                for entry in self.jobs.values_mut().filter(|entry| entry.after.as_ref() == Some(&name)) {
                    if let LoggedState::Held(until) = entry.place {
                        entry.place = LoggedState::Delayed(until);
                    }
                }
                return;
            }
            Change::Deleted(_, id) => {
                self.jobs.remove(&id.0).expect("what is deleted was put");
                return;
            }
            Change::DeletedKeepingKey(_, slot) => {
                let kept = engine.kept_key(slot).expect("the key is kept");
                self.jobs.remove(&kept.id.0).expect("what is deleted was put");
                let kept = Kept::all_of(engine).into_iter().find(|found| found.id == kept.id.0);
                self.kept.insert(slot, kept.expect("the key is kept"));
                return;
            }
            Change::KeyForgotten(slot) | Change::KeyFlushed(slot, _) => {
                self.kept.remove(&slot).expect("it was kept");
                return;
            }
            Change::Paused { tube, until } => {
                self.pauses.insert(engine.tubes().get(tube).name().as_str().into(), until);
                return;
            }
            Change::PausedGone(name) => {
                let name = String::from_utf8_lossy(&name);
                self.pauses.remove(&*name).expect("it was paused");
                return;
            }
            Change::ScheduleSet(_) | Change::ScheduleGone(_) | Change::LeftOut(_) => {
                unreachable!("the model has no schedules")
            }
            Change::RuleSet(name, key) => {
                let id = (String::from_utf8_lossy(&name).into_owned(), key);
                let rules = engine.rules_of(TubeName::new(&name).expect("a valid name"));
                match rules.map_or(RuleValue::None, |(rules, _)| rules.get(key)) {
                    RuleValue::None => _ = self.rules.remove(&id),
                    RuleValue::Number(number) => _ = self.rules.insert(id, key.shown(number).to_string()),
                    RuleValue::Tube(tube) => _ = self.rules.insert(id, tube.as_str().to_owned()),
                }
                return;
            }
            Change::Put(key)
            | Change::Ran(key, _)
            | Change::Reserved(key)
            | Change::Released(key)
            | Change::TimedOut(key)
            | Change::Returned(key)
            | Change::Buried(key)
            | Change::TakenOut(key)
            | Change::Moved(key)
            | Change::Kicked(key)
            | Change::Noted(key)
            | Change::Reprioritized(key) => key,
        };
        let job = engine.jobs().get(key);
        let lifecycle = engine.jobs().lifecycle(key);
        // A job that a worker has reserved since then was ready.
        let (delay, place) = match lifecycle {
            Some(cycle) if job.state == JobState::Delayed => {
                (cycle.delay(), LoggedState::Delayed(cycle.deadline))
            }
            Some(cycle) if job.state == JobState::Held => (cycle.delay(), LoggedState::Held(cycle.deadline)),
            _ => (Seconds::ZERO, LoggedState::Ready),
        };
        if let Change::Put(_) | Change::Ran(..) = change {
            let entry = Entry {
                tube: engine.tube_of(key).as_str().into(),
                after: engine.tags(key).aft().map(|name| name.as_str().to_owned()),
                pri: job.pri,
                ttr: engine.jobs().ttr(key),
                created: job.created,
                body: engine.body(key).into(),
                delay,
                place,
                counts: Counts::default(),
                notes: Vec::new(),
            };
            assert!(self.jobs.insert(job.id.0, entry).is_none(), "an id is used once");
            return;
        }
        let entry = self.jobs.get_mut(&job.id.0).expect("a job is put first");
        match change {
            Change::Released(_) => {
                entry.note_attempts(lifecycle);
                (entry.pri, entry.delay, entry.place) = (job.pri, delay, place);
            }
            Change::Buried(_) => {
                entry.counts.buries += 1;
                entry.note_attempts(lifecycle);
                self.burials += 1;
                (entry.pri, entry.place) = (job.pri, LoggedState::Buried(self.burials));
            }
            Change::Reserved(_) => {
                // Of a reserved job it is a touch.
                entry.counts.reserves += u32::from(!matches!(entry.place, LoggedState::Reserved(_)));
                let lifecycle = lifecycle.expect("a reserved job has a lifecycle");
                entry.place = LoggedState::Reserved(lifecycle.deadline);
            }
            Change::TimedOut(_) => {
                entry.note_attempts(lifecycle);
                entry.note_retry(delay, place);
            }
            Change::Kicked(_) => {
                entry.counts.kicks += 1;
                entry.place = LoggedState::Ready;
            }
            Change::Reprioritized(_) => entry.pri = job.pri,
            Change::Moved(_) => {
                entry.pri = job.pri;
                entry.note_attempts(lifecycle);
                entry.tube = engine.tube_of(key).as_str().into();
                match &mut entry.place {
                    LoggedState::Buried(turn) => {
                        self.burials += 1;
                        *turn = self.burials;
                    }
                    // Its last attempt has ended.
                    place @ LoggedState::Reserved(_) => *place = LoggedState::Ready,
                    _ => {}
                }
            }
            Change::Returned(_) => {
                entry.note_attempts(lifecycle);
                entry.note_retry(delay, place);
            }
            Change::Noted(_) => entry.notes = notes_of(engine, key),
            other => unreachable!("{other:?} was seen above, or reservations are not kept"),
        }
    }

    /// Asserts that the maps have the state of the model.
    pub fn check(&mut self, model: &Model, tube_name: impl Fn(u16) -> String, body: impl Fn(u64) -> Vec<u8>) {
        assert_eq!(self.jobs.len(), model.jobs.len(), "the changes include every job");
        for job in &model.jobs {
            let entry = &self.jobs[&job.id];
            assert_eq!(entry.tube, tube_name(job.tube), "job {}", job.id);
            let figures = (entry.pri, entry.ttr, entry.created, entry.delay, entry.counts);
            assert_eq!(figures, (job.pri, job.ttr, job.created, job.delay, job.counts), "job {}", job.id);
            assert_eq!(entry.body, body(job.id), "job {}", job.id);
            assert_eq!(entry.notes, job.notes, "job {}", job.id);
            let agrees = match (entry.place, job.place) {
                (LoggedState::Ready, Place::Ready) => true,
                (LoggedState::Reserved(until), Place::Reserved { until: expected, .. }) => until == expected,
                (LoggedState::Delayed(until), Place::Ready) => until <= model.now,
                (LoggedState::Delayed(until), Place::Delayed { until: expected }) => until == expected,
                (LoggedState::Buried(_), Place::Buried { .. }) => true,
                (LoggedState::Held(until), Place::Held { until: expected, .. }) => until == expected,
                _ => false,
            };
            assert!(agrees, "the changes rebuild the state of job {}, {:?}", job.id, job.place);
        }
        let mut kept: Vec<Kept> = self.kept.values().copied().collect();
        kept.sort();
        assert_eq!(kept, model.kept_keys(), "the changes rebuild the kept keys");
        let burials = |job: &Job| match (self.jobs[&job.id].place, job.place) {
            (LoggedState::Buried(turn), Place::Buried { turn: expected }) => Some((expected, turn)),
            _ => None,
        };
        let mut buried: Vec<_> = model.jobs.iter().filter_map(burials).collect();
        buried.sort();
        assert!(buried.is_sorted_by_key(|&(_, turn)| turn), "the changes rebuild the order of buried jobs");
        // A tube that is removed loses its pause, without a change.
        let exists = |name: &String| model.tubes.iter().any(|tube| tube_name(tube.name) == *name);
        self.pauses.retain(|name, until| *until > model.now && exists(name));
        let paused = |tube: &Tube| Some((tube_name(tube.name), tube.pause?.0));
        let expected: BTreeMap<_, _> = model.tubes.iter().filter_map(paused).collect();
        assert_eq!(self.pauses, expected, "the changes rebuild the pauses");
        let mut expected = BTreeMap::new();
        for (&tube, ruled) in &model.rules {
            let values = ruled.values.iter().map(|(&key, value)| (key, value.text(key, &tube_name)));
            expected.extend(values.map(|(key, text)| ((tube_name(tube), key), text)));
        }
        assert_eq!(self.rules, expected, "the changes rebuild the rules");
    }
}

/// The notes of a job, the oldest first.
pub fn notes_of(engine: &Engine, job: JobKey) -> Vec<(Time, Vec<u8>)> {
    engine.notes(job).iter().map(|note| (note.at, note.text.to_vec())).collect()
}

impl Entry {
    /// The last attempt of a job has no other change than its end.
    fn note_attempts(&mut self, lifecycle: Option<&Lifecycle>) {
        let Some(lifecycle) = lifecycle else { return };
        let Counts { timeouts, releases, losses, .. } = lifecycle.counts.get();
        self.counts = Counts { timeouts, releases, losses, ..self.counts };
    }

    /// A job that has failed is ready, and its delay stays, unless a rule delays it.
    fn note_retry(&mut self, delay: Seconds, place: LoggedState) {
        if let LoggedState::Delayed(_) = place {
            self.delay = delay;
        }
        self.place = place;
    }
}
