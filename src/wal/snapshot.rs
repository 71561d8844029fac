//! A whole queue as records, for a log that is written in one go.

use super::Recovered;
use super::record::{JobRecord, Record};
use crate::queue::Engine;
use crate::time::Time;
use crate::values::ids::{JobId, JobKey};

/// Returns the records of everything in the queue. Kept keys, jobs and schedules come from the queue, and pauses and rules from what recovery
/// has found.
pub fn snapshot<'a>(
    engine: &'a Engine,
    recovered: &'a Recovered,
    now: Time,
) -> impl Iterator<Item = Record<'a>> {
    let mut jobs: Vec<(JobId, JobKey)> = engine.jobs().iter().map(|(key, job)| (job.id, key)).collect();
    jobs.sort_unstable();
    let kept = engine.kept_keys().map(Record::KeptKey);
    let jobs = jobs.into_iter().map(|(_, key)| Record::Job(JobRecord::of(key, engine)));
    let pauses = recovered.pauses().filter(move |pause| pause.until > now).map(Record::Paused);
    let schedules = engine.schedules_after(None).map(|schedule| Box::new(schedule.logged(engine.bodies())));
    let others = pauses.chain(recovered.rules().map(Record::Rule)).chain(schedules.map(Record::Schedule));
    kept.chain(jobs).chain(others)
}
