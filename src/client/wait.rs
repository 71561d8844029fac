//! `beanring wait`: waits until a job is deleted or buried.

use std::process::ExitCode;

use super::error::{ClientError, Refusal};
use super::jobs::Results;
use super::reserve::{TIMEOUT_MAX, patience};
use super::units;
use crate::cli::verbs;

/// Succeeds only if the job is deleted: that is how a worker finishes it.
pub(super) fn run(verb: &verbs::Wait) -> Result<ExitCode, ClientError> {
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
