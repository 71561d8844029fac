//! `beanring peek` and `reserve`, which print a job. `reserve` takes the next one of some tubes, and deletes, holds or releases it.

use std::io::{self, ErrorKind};
use std::time::Duration;

use beanring::replies::units::{self, Bytes};
use beanring::time::Seconds;
use beanring::values::ids::JobId;

use super::connection::REPLY_PATIENCE;
use super::hold::{self, Held};
use super::output::JsonJob;
use super::{ClientError, Connection, Follows, NO_TUBE, Output, Untrusted, inspect, say};
use crate::cli::verbs;

/// The longest time that a server accepts in one command.
pub(super) const TIMEOUT_MAX: Seconds = Seconds::whole(i32::MAX as u32);

pub(super) fn peek(verb: &verbs::Peek) -> Result<(), ClientError> {
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
fn print(output: &mut Output, id: JobId, body: &Untrusted, is_body_alone: bool) -> io::Result<()> {
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

pub(super) fn run(verb: &verbs::Reserve) -> Result<(), ClientError> {
    let mut connection = super::connect(&verb.common)?;
    watch(&mut connection, &verb.tube)?;
    connection.require_decimals(verb.timeout)?;
    let timeout = verb.timeout.map(|time| time.min(TIMEOUT_MAX));
    let command = match timeout {
        None => "reserve".to_owned(),
        Some(time) => format!("reserve-with-timeout {time}"),
    };
    connection.set_patience(timeout.map(patience));
    let reply = connection.ask_for(Follows::Job, command)?;
    let (id, body) = reply.into_job("reserve").map_err(|refusal| {
        let waited = timeout.unwrap_or_default();
        let meaning = if waited == Seconds::default() {
            "no job is ready".to_owned()
        } else {
            format!("no job became ready within {}", units::time(waited))
        };
        refusal.meaning("TIMED_OUT", meaning)
    })?;
    connection.set_patience(Some(REPLY_PATIENCE));
    let mut output = Output::new(&verb.common);
    print(&mut output, id, &body, verb.body)?;
    output.flush()?;
    if output.is_closed() {
        // The body may not have been read, so the job is ready again.
        connection.quit();
        return Err(ClientError::Output(ErrorKind::BrokenPipe.into()));
    }
    if verb.delete {
        connection.ask(format!("delete {id}"))?.expect("DELETED", &format!("job {id}"))?;
    } else if verb.hold {
        say(format_args!("beanring: job {id} stays reserved until this command ends"));
        let stats = inspect::of_job(&mut connection, id)?;
        hold::until_signal(&mut connection, &[Held { id, stats }], None)?;
    } else {
        say(format_args!(
            "beanring: job {id} is released now; --delete deletes it, --hold keeps it reserved"
        ));
    }
    // The job that it may hold has not failed.
    connection.quit();
    Ok(())
}

/// How long to wait for the reply to a command that waits for this time.
pub(super) fn patience(timeout: Seconds) -> Duration {
    REPLY_PATIENCE + Duration::from_nanos(timeout.span().as_nanos())
}

/// Watches these tubes and no others.
pub(super) fn watch(connection: &mut Connection, tubes: &[String]) -> Result<(), ClientError> {
    for tube in tubes {
        connection.watch_tube(tube)?;
    }
    if !tubes.iter().any(|tube| tube == "default") {
        connection.ask("ignore default")?.expect("WATCHING", "tube default")?;
    }
    Ok(())
}
