//! The client: `beanring stats`, `beanring put` and the other verbs. They speak the beanstalk protocol to any server, over
//! blocking sockets, and use nothing of the server in this program.

mod connection;
mod error;
mod escape;
mod failure;
mod fields;
mod hold;
mod inspect;
mod interrupt;
mod jobs;
mod listing;
mod output;
mod put;
mod relocate;
mod reply;
mod reserve;
mod schedules;
mod sections;
mod stats;
mod target;
#[cfg(feature = "tls")]
mod tls;
mod tls_problem;
pub mod top;
mod tube_actions;
mod tube_config;
mod tubes;
pub mod units;
pub mod untrusted;
mod watch;
mod work;

use std::process::ExitCode;

pub use self::connection::{Connection, Receiver, Sender};
pub use self::error::{ClientError, Refusal};
pub use self::escape::{escaped, escaped_lines, json};
pub use self::failure::print_failure;
use self::fields::Object;
pub use self::output::{Align, Output, Table, say};
use self::output::{Color, Fields};
pub use self::reply::{Follows, ReadError, Reply, items};
pub use self::stats::{Kind, Stats, Value};
use self::target::ServerTarget;
pub use self::tls_problem::TlsProblem;
use self::untrusted::Untrusted;
use crate::cli::verbs::{Common, Verb};

/// Runs a verb, and returns the exit code.
///
/// # Errors
/// If the server cannot be reached or refuses.
pub fn run(verb: Verb) -> Result<ExitCode, ClientError> {
    let done = match verb {
        Verb::Stats(common) => inspect::stats(&common),
        Verb::Tubes(verb) => tubes::run(&verb),
        Verb::Tube(verb) => inspect::tube(&verb),
        Verb::Group(verb) => inspect::group(&verb),
        Verb::Job(verb) => inspect::job(&verb),
        Verb::Jobs(verb) => listing::run(&verb),
        Verb::Put(verb) => return put::run(&verb),
        Verb::Peek(verb) => reserve::peek(&verb),
        Verb::Reserve(verb) => reserve::run(&verb),
        Verb::Kick(verb) => return jobs::kick(&verb),
        Verb::Bury(verb) => return jobs::bury(&verb),
        Verb::Delete(verb) => return jobs::delete(&verb),
        Verb::Release(verb) => return jobs::release(&verb),
        Verb::Touch(verb) => return hold::touch(&verb),
        Verb::Wait(verb) => return jobs::wait(&verb),
        Verb::Pause(verb) => tube_actions::pause(&verb),
        Verb::TubeConfig(verb) => tube_config::run(&verb),
        Verb::Flush(verb) => return tube_actions::flush(&verb),
        Verb::Schedule(verb) => schedules::run(&verb),
        Verb::Drain(common) => tube_actions::drain(&common),
        Verb::Undrain(common) => tube_actions::undrain(&common),
        Verb::Watch(verb) => watch::run(&verb),
        Verb::Work(verb) => return work::run(&verb),
        Verb::Move(verb) => return relocate::run(&verb),
        Verb::Top(verb) => return top::run(&verb),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// What `NOT_FOUND` means in the reply to a command for a tube.
const NO_TUBE: &str = "there is no such tube";

/// Opens the connection that a verb asks for.
fn connect(common: &Common) -> Result<Connection, ClientError> {
    ServerTarget::new(&common.server)?.connect()
}
