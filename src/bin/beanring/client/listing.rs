//! `beanring jobs`: the jobs of a tube in one state, in a table.

use beanring::replies::units::{Bytes, Seconds};
use beanring::values::job_state::JobState;
use beanring::values::limits::PAGE_JOBS_MAX;

use super::{
    Align, ClientError, Connection, Follows, Kind, NO_TUBE, Object, Output, Stats, Table, items, split,
};
use crate::cli::verbs;

pub(super) fn run(verb: &verbs::Jobs) -> Result<(), ClientError> {
    let mut connection = super::connect(&verb.common)?;
    let (mut jobs, mut after) = (Vec::new(), verb.after.map_or(0, |id| id.0));
    while jobs.len() < verb.limit as usize {
        let limit = (verb.limit - jobs.len() as u32).min(PAGE_JOBS_MAX);
        let page = page(&mut connection, verb, after, limit)?;
        let Some(last) = page.last() else { break };
        after = last.number("id");
        jobs.extend(page);
    }
    let object = |job| {
        let mut object = Object::of(Kind::Job, job);
        object.text("tube", &verb.tube);
        object.text("state", verb.state.word());
        object
    };
    Output::list(&verb.common, jobs.iter().map(object), || table(verb.state, &jobs))
}

/// Returns the jobs of a page, each with the keys of its line.
fn page(
    connection: &mut Connection,
    verb: &verbs::Jobs,
    after: u64,
    limit: u32,
) -> Result<Vec<Stats>, ClientError> {
    let verbs::Jobs { tube, state, .. } = verb;
    let command = format!("list-jobs {tube} {} {after} {limit}", state.word());
    let reply = connection.ask_for(Follows::List, command)?;
    let data = reply.into_ok(&format!("tube {tube}")).map_err(|refusal| {
        refusal.meaning("NOT_FOUND", NO_TUBE).meaning(
            "UNKNOWN_COMMAND",
            "the server does not know list-jobs; beanring peek shows the next job of a state",
        )
    })?;
    let job = |line: &[u8]| {
        let entries = line.strip_prefix(b"{")?.strip_suffix(b"}")?;
        Stats::of_entries(Kind::Job, split(entries, b", "))
    };
    items(&data, job)
}

fn table(state: JobState, jobs: &[Stats]) -> Table {
    let time = match state {
        JobState::Ready => Some(("READY FOR", "ready-age")),
        JobState::Reserved => Some(("TIMES OUT IN", "time-left")),
        JobState::Delayed => Some(("READY IN", "time-left")),
        JobState::Buried | JobState::Held => None,
    };
    let titles = ["ID", "PRI", "AGE", "SIZE"].into_iter().chain(time.map(|(title, _)| title));
    let mut table = Table::new(&titles.map(|title| (title, Align::Right)).collect::<Vec<_>>());
    for job in jobs {
        let seconds = |key| Seconds(job.number(key)).to_string();
        let size = Bytes(job.number("size")).to_string();
        let cells = [job.number("id").to_string(), job.number("pri").to_string(), seconds("age"), size];
        table.row(cells.into_iter().chain(time.map(|(_, key)| seconds(key))));
    }
    table
}
