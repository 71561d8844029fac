//! Verbs for a tube or the whole server: `beanring pause`, `flush`, `drain` and `undrain`.

use std::io::{self, BufRead, IsTerminal, Write};
use std::process::ExitCode;

use beanring::time::Seconds;
use serde_json::json;

use super::failure::JsonFailure;
use super::{ClientError, Connection, Fields, NO_TUBE, Output, Stats, inspect, say, units};
use crate::cli::verbs::{self, Common};

pub(super) fn pause(verb: &verbs::Pause) -> Result<(), ClientError> {
    let verbs::Pause { tube, time, common } = verb;
    let line = pause_tube(&mut super::connect(common)?, tube, *time)?;
    Output::result(common, &Fields(vec![("tube", json!(tube)), ("seconds", json!(time))]), &line)
}

/// Pauses a tube, and returns what it has done.
pub(super) fn pause_tube(
    connection: &mut Connection,
    tube: &str,
    time: Seconds,
) -> Result<String, ClientError> {
    connection.require_decimals([time])?;
    let reply =
        connection.ask(format!("pause-tube {tube} {time}"))?.expect("PAUSED", &format!("tube {tube}"));
    reply.map_err(|refusal| refusal.meaning("NOT_FOUND", NO_TUBE))?;
    Ok(match time {
        Seconds::ZERO => format!("resumed {tube}"),
        time => format!("paused {tube} for {}", units::time(time)),
    })
}

/// Deletes the jobs of a tube, or forgets the idempotency keys of deleted ones. It asks first, for which the answer must come
/// from a terminal.
pub(super) fn flush(verb: &verbs::Flush) -> Result<ExitCode, ClientError> {
    let verbs::Flush { tube, yes, keys, common } = verb;
    if *keys {
        return flush_keys(tube, common);
    }
    if !yes && !io::stdin().is_terminal() {
        let problem =
            format!("flush deletes jobs and cannot ask without a terminal; add --yes to flush {tube}");
        return Err(ClientError::Usage(problem));
    }
    let mut connection = super::connect(common)?;
    if !yes {
        let stats = inspect::of_tube(&mut connection, tube, NO_TUBE)?;
        if !is_confirmed(tube, &stats)? {
            say(format_args!("beanring: nothing is deleted"));
            let mut output = Output::new(common);
            if output.is_json() {
                output.json(&JsonFailure::new("cancelled", "nothing is deleted"))?;
            }
            output.flush()?;
            return Ok(ExitCode::FAILURE);
        }
    }
    let flushed = flush_jobs(&mut connection, tube)?;
    let line = format!("deleted {} of {tube}", units::jobs(flushed));
    print(common, tube, flushed, &line)
}

fn flush_keys(tube: &str, common: &Common) -> Result<ExitCode, ClientError> {
    let mut connection = super::connect(common)?;
    let reply = connection.ask(format!("flush-keys {tube}"))?.expect("FLUSHED", &format!("tube {tube}"));
    let reply = reply.map_err(|refusal| {
        refusal.meaning(
            "UNKNOWN_COMMAND",
            "the server does not know flush-keys: it is beanstalkd, or an older beanring",
        )
    })?;
    let flushed = reply.count()?;
    print(common, tube, flushed, &format!("forgot {} of {tube}", units::counted(flushed, "key")))
}

fn print(common: &Common, tube: &str, flushed: u64, line: &str) -> Result<ExitCode, ClientError> {
    Output::result(common, &Fields(vec![("tube", json!(tube)), ("flushed", json!(flushed))]), line)?;
    Ok(ExitCode::SUCCESS)
}

fn flush_jobs(connection: &mut Connection, tube: &str) -> Result<u64, ClientError> {
    let reply = connection.ask(format!("flush-tube {tube}"))?.expect("FLUSHED", &format!("tube {tube}"));
    let reply = reply.map_err(|refusal| {
        refusal.meaning("NOT_FOUND", NO_TUBE).meaning(
            "UNKNOWN_COMMAND",
            format!("the server does not know flush-tube; beanring work -t {tube} --until-empty -- true deletes ready jobs"),
        )
    })?;
    reply.count()
}

fn is_confirmed(tube: &str, stats: &Stats) -> Result<bool, ClientError> {
    let [ready, delayed, buried, held] =
        ["ready", "delayed", "buried", "held"].map(|state| stats.number(&format!("current-jobs-{state}")));
    let mut stderr = io::stderr().lock();
    write!(stderr, "delete {ready} ready, {delayed} delayed")?;
    match held {
        0 => write!(stderr, " and {buried} buried")?,
        _ => write!(stderr, ", {buried} buried and {held} held")?,
    }
    write!(stderr, " jobs of {tube}? [y/N] ")?;
    stderr.flush()?;
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).map_err(|error| ClientError::File { path: None, error })?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

pub(super) fn drain(common: &Common) -> Result<(), ClientError> {
    let reply = super::connect(common)?.ask("drain")?;
    reply.expect("DRAINING", "drain").map_err(|refusal| {
        refusal.meaning("UNKNOWN_COMMAND", "the server does not know drain; send it SIGUSR1")
    })?;
    Output::result(
        common,
        &json!({ "draining": true }),
        "drain mode is on: new jobs are refused. End it with beanring undrain",
    )
}

pub(super) fn undrain(common: &Common) -> Result<(), ClientError> {
    let reply = super::connect(common)?.ask("undrain")?;
    reply.expect("NOT_DRAINING", "undrain").map_err(|refusal| {
        refusal.meaning("UNKNOWN_COMMAND", "the server does not know undrain; a restart ends its drain mode")
    })?;
    Output::result(common, &json!({ "draining": false }), "the server accepts new jobs")
}
