//! What `schedule-stats` says.

use super::LOOK_AHEAD;
use super::model::Schedule;
use super::times::SECOND;
use super::world::date;

/// Returns the lines for a schedule by this time of the system clock. Those of a next run that is far away are left out.
pub fn lines(name: &str, schedule: &Schedule, system: u64) -> Vec<String> {
    let plan = &schedule.plan;
    let age = |since: u64| system.saturating_sub(since) / SECOND;
    let mut lines = vec![
        format!("name: \"{name}\""),
        format!("tube: \"{}\"", plan.tube),
        format!("when: \"{}\"", plan.times.text),
        format!("pri: {}", plan.pri),
        format!("delay: {}", plan.delay),
        format!("ttr: {}", plan.ttr),
        format!("size: {}", plan.body.len()),
        format!("missed: {}", plan.missed.word()),
        format!("overlap: {}", if plan.overlaps { "yes" } else { "no" }),
        "configured: false".to_owned(),
        format!("age: {}", age(schedule.created)),
    ];
    if let Some(next) = schedule.next(system + LOOK_AHEAD) {
        lines.push(format!("next-run: {}", date(next)));
        lines.push(format!("next-run-left: {}", next.saturating_sub(system) / SECOND));
    }
    if let Some((due, ran, job)) = schedule.last {
        lines.push(format!("last-run: {}", date(due)));
        lines.push(format!("last-run-age: {}", age(ran)));
        lines.push(format!("last-run-late: {}", (ran - due) / SECOND));
        lines.push(format!("last-job: {job}"));
    }
    let counted = schedule.counted;
    lines.push(format!("runs: {}", counted.runs));
    lines.push(format!("skips: {}", counted.skips));
    lines.push(format!("refusals: {}", counted.refusals));
    lines.push(format!("gaps: {}", counted.gaps));
    lines
}
