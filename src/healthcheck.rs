//! `beanring healthcheck`: checks that a server with the same flags and environment replies.

use std::error::Error;
use std::time::Duration;

use crate::cli::Healthcheck;
use crate::config;
use crate::io::probe::{self, Probe};

/// A cheap command that changes no job or tube. Every new connection gets this reply.
const PROBE: Probe = Probe { command: b"list-tube-used\r\n", reply: b"USING default\r\n" };

/// Checks the server. `listen` and `port` are the flags of the server itself. Those of the tool take precedence.
///
/// # Errors
/// If the address is invalid, or the server does not reply as expected.
pub fn run(tool: Healthcheck, listen: Option<String>, port: Option<String>) -> Result<(), Box<dyn Error>> {
    let address = config::address(tool.listen.or(listen), tool.port.or(port))?.unwrap_or_default();
    let timeout = Duration::from_secs(tool.timeout.into());
    Ok(probe::run(&address, PROBE, timeout)?)
}
