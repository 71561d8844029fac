//! `beanring flush`: deletes the jobs of a tube, or forgets the idempotency keys of deleted ones.

use std::io::{self, BufRead, IsTerminal, Write};
use std::process::ExitCode;

use serde_json::json;

use super::NO_TUBE;
use super::connection::Connection;
use super::error::ClientError;
use super::failure::JsonFailure;
use super::output::{Fields, Output, say};
use super::stats::Stats;
use super::{inspect, units};
use crate::cli::verbs::{self, Common};

/// Asks first, for which the answer must come from a terminal.
pub(super) fn run(verb: &verbs::Flush) -> Result<ExitCode, ClientError> {
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
    let flushed = flush(&mut connection, tube)?;
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
    let plural = if flushed == 1 { "" } else { "s" };
    print(common, tube, flushed, &format!("forgot {flushed} key{plural} of {tube}"))
}

fn print(common: &Common, tube: &str, flushed: u64, line: &str) -> Result<ExitCode, ClientError> {
    Output::result(common, &Fields(vec![("tube", json!(tube)), ("flushed", json!(flushed))]), line)?;
    Ok(ExitCode::SUCCESS)
}

fn flush(connection: &mut Connection, tube: &str) -> Result<u64, ClientError> {
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
