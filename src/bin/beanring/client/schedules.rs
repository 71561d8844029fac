//! `beanring schedule`: adds, lists, shows, deletes and runs schedules.

use std::os::unix::ffi::OsStrExt;

use beanring::replies::units::Seconds;
use beanring::values::limits::{PAGE_SCHEDULES_MAX, SCHEDULE_BYTES_MAX};
use serde_json::json;

use super::put::{limits_found, read_whole};
use super::{
    Align, ClientError, Connection, Fields, Follows, Kind, Object, Output, Refusal, Stats, Table, Untrusted,
    Value, inspect, say,
};
use crate::cli::verbs::{Common, OneSchedule, Schedule, ScheduleAdd};

/// Pages that are read at most: a server has up to 20,000 schedules, and shows as few as 15 at a time while its memory is full.
const PAGES_MAX: usize = 2000;

/// A name, tube or time that is longer does not widen the rows of other schedules.
const TEXT_COLUMNS_MAX: usize = 40;

const ABSENT: &str = "there is no such schedule; see beanring schedule list";

pub(super) fn run(verb: &Schedule) -> Result<(), ClientError> {
    match verb {
        Schedule::Add(verb) => add(verb),
        Schedule::List(common) => list(common),
        Schedule::Show(verb) => show(verb),
        Schedule::Rm(verb) => remove(verb),
        Schedule::Run(verb) => run_now(verb),
    }
}

fn add(verb: &ScheduleAdd) -> Result<(), ClientError> {
    let ScheduleAdd { name, pri, delay, ttr, when, missed, no_overlap, .. } = verb;
    let body = body(verb)?;
    let mut connection = super::connect(&verb.common)?;
    // A server that does not know schedules would take the body for commands.
    let replaced = if_seen(statistics(&mut connection, name))?;
    connection.require_decimals([*delay, *ttr])?;
    let (bytes, tube) = (body.len(), verb.tube());
    let overlap = if *no_overlap { " overlap:no" } else { "" };
    let missed = missed.word();
    let line =
        format!("schedule-put {name} {pri} {delay} {ttr} {bytes} {tube} {when} missed:{missed}{overlap}");
    let reply = connection.ask_with_body(&line, &body)?;
    reply.expect("SCHEDULED", &subject(name)).map_err(explained)?;
    let done = if replaced.is_some() { "replaced" } else { "scheduled" };
    let stats = statistics(&mut connection, name)?;
    let (next, left) = (stats.text("next-run"), Seconds(stats.number("next-run-left")));
    let line = format!("{done} {name}; the next run is at {next}, in {left}");
    Output::result(&verb.common, &Object::of(Kind::Schedule, &stats), &line)?;
    warn_of_file(name, replaced.as_ref());
    Ok(())
}

/// The body of the jobs, as the command line gives it.
fn body(verb: &ScheduleAdd) -> Result<Vec<u8>, ClientError> {
    let body = match &verb.body {
        Some(body) => body.as_bytes().to_vec(),
        None => read_whole(verb.file.as_deref(), SCHEDULE_BYTES_MAX.into(), verb.allow_empty)?,
    };
    if body.len() > SCHEDULE_BYTES_MAX as usize {
        return Err(ClientError::Usage(format!(
            "the body has more than {SCHEDULE_BYTES_MAX} bytes, the most for a schedule; shorten it, or store the data elsewhere"
        )));
    }
    Ok(body)
}

/// A schedule of the configuration file returns with the next start of the server.
fn warn_of_file(name: &str, stats: Option<&Stats>) {
    if stats.is_some_and(|stats| stats.get("configured") == Some(&Value::Switch(true))) {
        say(format_args!(
            "beanring: warning: the server's configuration file has schedule {name}, and the next start puts it back; change \
             the file"
        ));
    }
}

fn list(common: &Common) -> Result<(), ClientError> {
    let mut connection = super::connect(common)?;
    let schedules = all(&mut connection)?;
    let objects = schedules.iter().map(|schedule| Object::of(Kind::Schedule, schedule));
    Output::list(common, objects, || table(&schedules))
}

/// Returns the statistics of all schedules, page by page. A schedule that has disappeared is left out.
fn all(connection: &mut Connection) -> Result<Vec<Stats>, ClientError> {
    let (mut schedules, mut after): (Vec<Stats>, Option<Untrusted>) = (Vec::new(), None);
    for _ in 0..PAGES_MAX {
        let (names, next) = page(connection, after.as_ref())?;
        connection.ask_all(
            Follows::Statistics,
            &names,
            |name| [b"schedule-stats ", name.bytes()].concat(),
            |name, reply| {
                if !is_unseen(reply.word()) {
                    let data = reply.into_ok(&format!("schedule {name}")).map_err(explained)?;
                    schedules.push(Stats::parse(Kind::Schedule, &data)?);
                }
                Ok(())
            },
        )?;
        if next.is_none() {
            return Ok(schedules);
        }
        after = next;
    }
    Err(ClientError::Unreadable(after.unwrap_or_default()))
}

/// Returns the names of a page, and the name after which the next page begins.
fn page(
    connection: &mut Connection,
    after: Option<&Untrusted>,
) -> Result<(Vec<Untrusted>, Option<Untrusted>), ClientError> {
    let mut command = format!("list-schedules {PAGE_SCHEDULES_MAX}").into_bytes();
    if let Some(after) = after {
        command.extend([b" ", after.bytes()].concat());
    }
    let data = connection.ask_for(Follows::List, command)?.into_ok("list-schedules").map_err(explained)?;
    let stats = Stats::parse(Kind::Schedule, &data)?;
    let Some(Value::List(names)) = stats.get("schedules") else {
        return Err(ClientError::Unreadable(data));
    };
    let next = stats.text("next");
    // Pages are in the order of the names, so that they end.
    let goes_on = next.tube_name().is_some() && after.is_none_or(|after| after < next);
    match next.is_empty() {
        true => Ok((names.clone(), None)),
        false if goes_on => Ok((names.clone(), Some(next.clone()))),
        false => Err(ClientError::Unreadable(data)),
    }
}

fn table(schedules: &[Stats]) -> Table {
    let mut table = Table::new(&[
        ("SCHEDULE", Align::Left),
        ("TUBE", Align::Left),
        ("WHEN", Align::Left),
        ("NEXT RUN IN", Align::Right),
        ("LAST RUN AGO", Align::Right),
        ("RUNS", Align::Right),
        ("SKIPS", Align::Right),
        ("REFUSALS", Align::Right),
    ]);
    table.pad_to(TEXT_COLUMNS_MAX);
    for schedule in schedules {
        let text = |key| schedule.text(key).to_string();
        let time = |key| match schedule.get(key) {
            Some(_) => Seconds(schedule.number(key)).to_string(),
            None => "-".to_owned(),
        };
        let [next, last] = ["next-run-left", "last-run-age"].map(time);
        let [runs, skips, refusals] =
            ["runs", "skips", "refusals"].map(|key| schedule.number(key).to_string());
        table.row([text("name"), text("tube"), text("when"), next, last, runs, skips, refusals]);
    }
    table
}

fn show(verb: &OneSchedule) -> Result<(), ClientError> {
    let stats = statistics(&mut super::connect(&verb.common)?, &verb.name)?;
    inspect::print(&verb.common, Kind::Schedule, &stats, false)
}

fn remove(verb: &OneSchedule) -> Result<(), ClientError> {
    let OneSchedule { name, common } = verb;
    let mut connection = super::connect(common)?;
    // Where the right is missing, the refusal of the deletion names those that suffice.
    let stats = inspect::if_permitted(statistics(&mut connection, name))?;
    let reply = connection.ask(format!("schedule-delete {name}"))?;
    reply.expect("DELETED", &subject(name)).map_err(explained)?;
    let fields = Fields(vec![("name", json!(name)), ("deleted", json!(true))]);
    Output::result(common, &fields, &format!("deleted {name}"))?;
    warn_of_file(name, stats.as_ref());
    Ok(())
}

fn run_now(verb: &OneSchedule) -> Result<(), ClientError> {
    let OneSchedule { name, common } = verb;
    let mut connection = super::connect(common)?;
    let reply = connection.ask(format!("schedule-run {name}"))?;
    let reply = reply.expect("INSERTED", &subject(name)).map_err(|refusal| {
        let limits = (refusal.word() == "OUT_OF_MEMORY").then(|| limits(&mut connection, name)).flatten();
        let refusal = explained(refusal)
            .meaning("DRAINING", "the server accepts no new jobs; run beanring undrain first")
            .meaning(
                "OUT_OF_MEMORY",
                "a limit is reached: a rule of its tube (beanring tube-config TUBE), memory (--max-memory), tubes (--max-tubes), or \
                 the disk of the job log; delete jobs, raise that limit, or make room on the disk",
            )
            .meaning("JOB_TOO_BIG", "a segment of the job log has no space for the job; raise -s of the server");
        match limits {
            Some(limits) => {
                refusal.meaning("OUT_OF_MEMORY", format!("limits that refuse jobs here: {limits}"))
            }
            None => refusal,
        }
    })?;
    let id = reply.count()?;
    Output::result(common, &Fields(vec![("id", json!(id)), ("schedule", json!(name))]), &id.to_string())
}

/// Returns the limits that refuse the jobs of a schedule, as far as the server tells them.
fn limits(connection: &mut Connection, name: &str) -> Option<String> {
    let stats = statistics(connection, name).ok()?;
    limits_found(connection, stats.text("tube").tube_name()?).ok()?
}

fn statistics(connection: &mut Connection, name: &str) -> Result<Stats, ClientError> {
    let reply = connection.ask_for(Follows::Statistics, format!("schedule-stats {name}"))?;
    let data = reply.into_ok(&subject(name)).map_err(explained)?;
    Stats::parse(Kind::Schedule, &data)
}

/// Returns nothing if there is no such schedule, or the user of the client may not see it.
fn if_seen(stats: Result<Stats, ClientError>) -> Result<Option<Stats>, ClientError> {
    match stats {
        Err(ClientError::Refused(refusal)) if is_unseen(refusal.word()) => Ok(None),
        stats => stats.map(Some),
    }
}

/// Whether this is the reply for a schedule that does not exist, or that the user of the client may not see.
fn is_unseen(word: &str) -> bool {
    matches!(word, "NOT_FOUND" | "FORBIDDEN")
}

fn subject(name: &str) -> String {
    format!("schedule {name}")
}

fn explained(refusal: Refusal) -> Refusal {
    refusal
        .meaning("NOT_FOUND", ABSENT)
        .meaning(
            "UNKNOWN_COMMAND",
            "the server does not know schedules: it is beanstalkd, or an older beanring",
        )
        .meaning(
            "BAD_FORMAT",
            "the server does not know the time zone, or its clock finds no time in the next four years; correct WHEN",
        )
        .meaning(
            "JOB_TOO_BIG",
            "the body is larger than the server or a segment of its job log accepts; shorten it, or raise -z or -s of the \
             server",
        )
        .meaning(
            "OUT_OF_MEMORY",
            "a limit is reached: 10,000 schedules, memory (--max-memory), or the disk of the job log; delete schedules or \
             jobs, raise --max-memory, or make room on the disk",
        )
}
