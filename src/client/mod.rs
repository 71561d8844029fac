//! The client: `beanring stats`, `beanring put` and the other verbs. They speak the beanstalk protocol to any server, over
//! blocking sockets, and use nothing of the server in this program.

mod connection;
mod error;
mod escape;
mod inspect;
mod jobs;
mod output;
mod peek;
mod put;
mod reply;
mod stats;
mod tubes;
pub mod units;

use std::io::ErrorKind;
use std::process::ExitCode;

pub use self::connection::{Connection, Receiver, Sender};
pub use self::error::{ClientError, Refusal};
pub use self::escape::{escaped, escaped_lines};
pub use self::output::{Align, Output, Table};
pub use self::reply::Reply;
pub use self::stats::{Kind, Stats, Value};
use crate::cli::verbs::{Common, Verb};

/// Runs a verb, and returns the exit code.
///
/// # Errors
/// If the server cannot be reached or refuses.
pub fn run(verb: Verb) -> Result<ExitCode, ClientError> {
    match dispatch(verb) {
        // The reader of stdout has closed it, and wants no more.
        Err(ClientError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        result => result,
    }
}

fn dispatch(verb: Verb) -> Result<ExitCode, ClientError> {
    let done = match verb {
        Verb::Stats(verb) => inspect::stats(&verb),
        Verb::Tubes(verb) => tubes::run(&verb),
        Verb::Tube(verb) => inspect::tube(&verb),
        Verb::Job(verb) => inspect::job(&verb),
        Verb::Put(verb) => return put::run(&verb),
        Verb::Peek(verb) => peek::run(&verb),
        Verb::Kick(verb) => return jobs::kick(&verb),
        Verb::Delete(verb) => return jobs::delete(&verb),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// Opens the connection that a verb asks for.
fn connect(common: &Common) -> Result<Connection, ClientError> {
    Connection::open(&common.address()?)
}
