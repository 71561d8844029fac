//! Verbs for jobs by their ids: `beanring kick`, `bury`, `delete`, `release` and `wait`.

use std::process::ExitCode;

use beanring::values::ids::JobId;
use serde::Serialize;
use serde_json::json;

use super::connection::ASKED_MAX;
use super::failure::JsonFailure;
use super::reserve::{TIMEOUT_MAX, patience};
use super::{
    ClientError, Connection, Fields, Follows, Kind, NO_TUBE, Output, Refusal, Reply, Stats, hold, inspect,
    say, units,
};
use crate::cli::verbs::{self, Common};

/// What a look at a refused job says that would not be refused now.
const CHANGED: &str = "its state has changed just now; try again";

pub(super) fn kick(verb: &verbs::Kick) -> Result<ExitCode, ClientError> {
    if !verb.ids.is_empty() {
        return each(&verb.common, &verb.ids, "kick-job", "KICKED", |stats| {
            match stats.text("state").bytes() {
                b"reserved" => hold::reserved(stats, "release"),
                b"ready" => "it is ready already".to_owned(),
                _ => CHANGED.to_owned(),
            }
        });
    }
    let kicked = kick_tube(&mut super::connect(&verb.common)?, verb)?;
    let line = format!("kicked {}", units::jobs(kicked));
    Output::result(
        &verb.common,
        &Fields(vec![("tube", json!(verb.tube)), ("kicked", json!(kicked))]),
        &line,
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Kicks jobs of a tube that exists: `use` would create it. The command takes delayed jobs if none is buried, so for all buried
/// jobs it gets their number, and is not sent if there are none.
fn kick_tube(connection: &mut Connection, verb: &verbs::Kick) -> Result<u64, ClientError> {
    let verbs::Kick { tube, all, count, .. } = verb;
    let stats = inspect::of_tube(connection, tube, NO_TUBE);
    let count = if *all {
        stats.map_err(without_inspect)?.number("current-jobs-buried").min(u32::MAX.into())
    } else {
        inspect::if_permitted(stats)?;
        count.unwrap_or(1).into()
    };
    if count == 0 {
        return Ok(0);
    }
    connection.use_tube(tube)?;
    connection.ask(format!("kick {count}"))?.expect("KICKED", &format!("tube {tube}"))?.count()
}

/// Says why `--all` needs a right that the command itself does not need.
fn without_inspect(error: ClientError) -> ClientError {
    let meaning = "--all asks how many jobs are buried, and needs the right inspect on the tube; use --count";
    match error {
        ClientError::Refused(refusal) => refusal.meaning("FORBIDDEN", meaning).into(),
        error => error,
    }
}

pub(super) fn delete(verb: &verbs::Delete) -> Result<ExitCode, ClientError> {
    each(&verb.common, &verb.ids, "delete", "DELETED", |stats| match stats.text("state").bytes() {
        b"reserved" => hold::reserved(stats, "delete"),
        _ => CHANGED.to_owned(),
    })
}

/// A job that is not reserved is reserved first, because the protocol buries and releases only such jobs.
pub(super) fn bury(verb: &verbs::Bury) -> Result<ExitCode, ClientError> {
    one_by_one(&verb.common, &verb.ids, "BURIED", |connection, id| {
        let stats = hold::take(connection, id, "bury")?;
        let pri = verb.pri.map_or(stats.number("pri"), u64::from);
        connection.ask(format!("bury {id} {pri}"))
    })
}

pub(super) fn release(verb: &verbs::Release) -> Result<ExitCode, ClientError> {
    let mut is_checked = false;
    one_by_one(&verb.common, &verb.ids, "RELEASED", |connection, id| {
        if !std::mem::replace(&mut is_checked, true) {
            connection.require_decimals([verb.delay])?;
        }
        let stats = hold::take(connection, id, "release")?;
        let pri = verb.pri.map_or(stats.number("pri"), u64::from);
        connection.ask(format!("release {id} {pri} {}", verb.delay))
    })
}

/// Succeeds only if the job is deleted: that is how a worker finishes it.
pub(super) fn wait(verb: &verbs::Wait) -> Result<ExitCode, ClientError> {
    let verbs::Wait { id, timeout, common } = verb;
    let mut results = Results::new(common);
    let mut connection = super::connect(common)?;
    connection.require_decimals(*timeout)?;
    let time = timeout.map_or(TIMEOUT_MAX, |time| time.min(TIMEOUT_MAX));
    connection.set_patience(timeout.map(|_| patience(time)));
    let reply = connection.ask(format!("wait-job {id} {time}"))?;
    let result = reply.expect("DELETED", &format!("job {id}")).map_err(|refusal| {
        refusal
            .meaning("BURIED", "the job is buried; look at it, then kick or delete it")
            .meaning(
                "TIMED_OUT",
                format!("the job was neither deleted nor buried within {}", units::time(time)),
            )
            .meaning("NOT_FOUND", "there is no such job; it may have been deleted before")
            .meaning(
                "UNKNOWN_COMMAND",
                format!("the server does not know wait-job; beanring job {id} shows the job"),
            )
    });
    let code = result.as_ref().err().and_then(exit_code);
    results.add(*id, "DELETED", result)?;
    results.finish().map(|finished| code.unwrap_or(finished))
}

/// The exit code that only `wait` has, for an end that a script tells from others.
fn exit_code(refusal: &Refusal) -> Option<ExitCode> {
    let code = match refusal.word() {
        "BURIED" => 4,
        "TIMED_OUT" => 5,
        "NOT_FOUND" => 6,
        _ => return None,
    };
    Some(ExitCode::from(code))
}

/// Does something to each job that takes several commands.
fn one_by_one(
    common: &Common,
    ids: &[JobId],
    done: &str,
    mut act: impl FnMut(&mut Connection, JobId) -> Result<Reply, ClientError>,
) -> Result<ExitCode, ClientError> {
    let mut results = Results::new(common);
    let mut connection = super::connect(common)?;
    for &id in ids {
        let result = match act(&mut connection, id) {
            Ok(reply) => reply.expect(done, &format!("job {id}")),
            Err(ClientError::Refused(refusal)) => Err(refusal),
            Err(error) => return Err(error),
        };
        results.add(id, done, result)?;
    }
    results.finish()
}

/// Sends a command for each job. Prints what was done, and on stderr what was refused. `why` explains why a job was not found
/// that exists.
fn each(
    common: &Common,
    ids: &[JobId],
    command: &str,
    done: &str,
    why: impl Fn(&Stats) -> String,
) -> Result<ExitCode, ClientError> {
    let mut results = Results::new(common);
    let mut connection = super::connect(common)?;
    for some in ids.chunks(ASKED_MAX) {
        let mut replies = Vec::new();
        let sent = connection.ask_all(
            Follows::Nothing,
            some,
            |id| format!("{command} {id}"),
            |id, reply| {
                replies.push((*id, reply.expect(done, &format!("job {id}"))));
                Ok(())
            },
        );
        let explained = sent.and_then(|()| explain(&mut connection, &mut replies, &why));
        for (id, result) in replies {
            results.add(id, done, result)?;
        }
        explained?;
    }
    results.finish()
}

/// Looks at the jobs that were not found, and explains the refusals of those that exist.
fn explain(
    connection: &mut Connection,
    replies: &mut [(JobId, Result<Reply, Refusal>)],
    why: impl Fn(&Stats) -> String,
) -> Result<(), ClientError> {
    for (id, result) in replies {
        let Err(refusal) = result else { continue };
        if refusal.word() != "NOT_FOUND" {
            continue;
        }
        let reply = connection.ask_for(Follows::Statistics, format!("stats-job {id}"))?;
        if let Ok(data) = reply.into_ok("") {
            refusal.explain(why(&Stats::parse(Kind::Job, &data)?));
        }
    }
    Ok(())
}

#[derive(Serialize)]
struct JsonResult<'a> {
    id: u64,
    done: bool,
    reply: &'a str,
    #[serde(flatten)]
    failure: Option<JsonFailure>,
}

/// What became of several jobs.
pub(super) struct Results {
    output: Output,
    refused: usize,
}

impl Results {
    pub(super) fn new(common: &Common) -> Self {
        Self { output: Output::new(common), refused: 0 }
    }

    /// Prints the result of one job.
    pub(super) fn add(
        &mut self,
        id: JobId,
        done: &str,
        result: Result<Reply, Refusal>,
    ) -> Result<(), ClientError> {
        let (word, refusal) = match result {
            Ok(_) => (done.to_owned(), None),
            Err(refusal) => (refusal.word().to_owned(), Some(refusal)),
        };
        if self.output.is_json() {
            let failure = refusal.as_ref().map(JsonFailure::from);
            self.output.json(&JsonResult { id: id.0, done: refusal.is_none(), reply: &word, failure })?;
        } else if refusal.is_none() {
            self.output.line(&format!("{id} {}", word.to_ascii_lowercase()))?;
        }
        if let Some(refusal) = refusal {
            self.refused += 1;
            say(format_args!("beanring: {refusal}"));
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<ExitCode, ClientError> {
        self.output.flush()?;
        Ok(if self.refused == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
