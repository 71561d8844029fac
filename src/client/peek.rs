//! `beanring peek`: a job without a reservation, and how a job is printed.

use std::io;

use super::error::ClientError;
use super::output::{JsonJob, Output};
use super::units::Bytes;
use crate::cli::verbs;
use crate::ids::JobId;

pub(super) fn run(verb: &verbs::Peek) -> Result<(), ClientError> {
    let mut connection = super::connect(&verb.common)?;
    let (reply, subject, absent) = match verb.id {
        Some(id) => (connection.ask(format!("peek {id}"))?, format!("job {id}"), "there is no such job"),
        None => {
            connection.ask(format!("use {}", verb.tube))?.expect("USING", &verb.tube)?;
            let state = verb.state.name();
            let reply = connection.ask(format!("peek-{state}"))?;
            (reply, format!("tube {}", verb.tube), "the tube has no job in this state")
        }
    };
    let (id, body) = reply.into_job(&subject).map_err(|refusal| {
        refusal.meaning("NOT_FOUND", absent).meaning("UNKNOWN_COMMAND", "the server has no peek-reserved")
    })?;
    let mut output = Output::new(&verb.common);
    print(&mut output, id, &body, verb.body)?;
    Ok(output.flush()?)
}

/// Prints a job: a line with id and size, and the body; or only the body.
pub(super) fn print(output: &mut Output, id: JobId, body: &[u8], is_body_alone: bool) -> io::Result<()> {
    if output.is_json() {
        return output.json(&JsonJob::new(id, body));
    }
    if !is_body_alone {
        output.line(&format!("job {id}, {}:", Bytes(body.len() as u64)))?;
    }
    output.body(body)?;
    // A line for itself, unless the bytes must stay as they are.
    if !is_body_alone && !output.is_terminal() && !body.ends_with(b"\n") { output.line("") } else { Ok(()) }
}
