//! `beanring wait`: waits until a job is deleted or buried.

use std::process::ExitCode;
use std::time::Duration;

use super::connection::REPLY_PATIENCE;
use super::error::ClientError;
use super::jobs::Results;
use super::reserve::TIMEOUT_SECONDS_MAX;
use crate::cli::verbs;

/// Succeeds only if the job is deleted: that is how a worker finishes it.
pub(super) fn run(verb: &verbs::Wait) -> Result<ExitCode, ClientError> {
    let verbs::Wait { id, timeout, common } = verb;
    let mut results = Results::new(common);
    let mut connection = super::connect(common)?;
    let seconds = timeout.map_or(TIMEOUT_SECONDS_MAX, |seconds| seconds.min(TIMEOUT_SECONDS_MAX));
    connection.set_patience(timeout.map(|_| REPLY_PATIENCE + Duration::from_secs(seconds.into())))?;
    let reply = connection.ask(format!("wait-job {id} {seconds}"))?;
    let result = reply.expect("DELETED", &format!("job {id}")).map_err(|refusal| {
        refusal
            .meaning("BURIED", "the job is buried; look at it, then kick or delete it")
            .meaning("TIMED_OUT", format!("the job was neither deleted nor buried within {seconds} s"))
            .meaning("NOT_FOUND", "there is no such job; it may have been deleted before")
            .meaning("UNKNOWN_COMMAND", "the server has no wait-job; look at the job by beanring job")
    });
    results.add(*id, "DELETED", result)?;
    results.finish()
}
