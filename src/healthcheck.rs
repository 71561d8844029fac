//! `beanring healthcheck`: whether a server that was started with the same flags and environment serves.

use std::error::Error;
use std::time::Duration;

use crate::cli::Healthcheck;
use crate::config;
use crate::io::probe::{self, Question};

/// Cheap, and no job or tube is touched. The answer is that of a client that has just come.
const QUESTION: Question = Question { command: b"list-tube-used\r\n", answer: b"USING default\r\n" };

/// Asks the server. `listen` and `port` are those of its own flags and environment; what was given to the tool comes
/// before them.
pub fn run(tool: Healthcheck, listen: Option<String>, port: Option<String>) -> Result<(), Box<dyn Error>> {
    let address = config::address(tool.listen.or(listen), tool.port.or(port))?.unwrap_or_default();
    let timeout = Duration::from_secs(tool.timeout.into());
    Ok(probe::ask(&address, QUESTION, timeout)?)
}
