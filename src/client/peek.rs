//! `beanring peek`: a job without a reservation, and how a job is printed.

use std::io;

use super::NO_TUBE;
use super::error::ClientError;
use super::inspect;
use super::output::{JsonJob, Output};
use super::reply::Follows;
use super::units::Bytes;
use super::untrusted::Untrusted;
use crate::cli::verbs;
use crate::values::ids::JobId;

pub(super) fn run(verb: &verbs::Peek) -> Result<(), ClientError> {
    let mut connection = super::connect(&verb.common)?;
    let (reply, subject, absent) = match verb.id {
        Some(id) => {
            let reply = connection.ask_for(Follows::Job, format!("peek {id}"))?;
            (reply, format!("job {id}"), "there is no such job".to_owned())
        }
        None => {
            let (tube, state) = (&verb.tube, verb.state.word());
            let subject = format!("tube {tube}");
            // `use` would create it.
            inspect::of_tube(&mut connection, tube, NO_TUBE)?;
            connection.use_tube(tube)?;
            let reply = connection.ask_for(Follows::Job, format!("peek-{state}"))?;
            (reply, subject, format!("the tube has no {state} job"))
        }
    };
    let (id, body) = reply.into_job(&subject).map_err(|refusal| {
        let unknown = "the server does not know peek-reserved";
        refusal.meaning("NOT_FOUND", absent).meaning("UNKNOWN_COMMAND", unknown)
    })?;
    let mut output = Output::new(&verb.common);
    print(&mut output, id, &body, verb.body)?;
    Ok(output.flush()?)
}

/// Prints a job: a line with id and size, and the body; or only the body.
pub(super) fn print(output: &mut Output, id: JobId, body: &Untrusted, is_body_alone: bool) -> io::Result<()> {
    if output.is_json() {
        return output.json(&JsonJob::new(id, body));
    }
    if !is_body_alone {
        output.line(&format!("job {id}, {}:", Bytes(body.bytes().len() as u64)))?;
    }
    output.body(body)?;
    // A line for itself, unless the bytes must stay as they are.
    if !is_body_alone && !output.is_terminal() && !body.bytes().ends_with(b"\n") {
        output.line("")
    } else {
        Ok(())
    }
}
