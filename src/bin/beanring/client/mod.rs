//! The client: `beanring stats`, `beanring put` and the other verbs. They speak the beanstalk protocol to any server, over
//! blocking sockets. Of the server in this program they use only the table of rights.

mod connection;
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
mod reserve;
mod schedules;
mod sections;
mod target;
#[cfg(feature = "tls")]
mod tls;
mod top;
mod tube_actions;
mod tube_config;
mod tubes;
mod watch;
mod work;

use std::process::ExitCode;

use beanring::replies::{
    ClientError, Follows, Kind, ReadError, Refusal, Reply, Stats, Untrusted, Value, escaped, escaped_lines,
    items, json, split, units, unquoted,
};

use self::connection::Connection;
pub use self::failure::print_failure;
use self::fields::Object;
use self::output::{Align, Color, Fields, Output, Table, say};
use self::target::ServerTarget;
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
