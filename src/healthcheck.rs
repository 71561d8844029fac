//! `beanring healthcheck`: checks that a server with the same flags and environment replies.

use std::error::Error;
use std::time::Duration;

use crate::cli::Healthcheck;
use crate::config::address;
use crate::config::settings::Settings;
use crate::io::probe::{self, Probe};

/// A cheap command that changes no job or tube. Every new connection gets this reply.
const PROBE: Probe = Probe { command: b"list-tube-used\r\n", reply: b"USING default\r\n" };

/// Checks the server that these settings describe. The flags of the tool itself are among them.
///
/// # Errors
/// If the address is invalid, or the server does not reply as expected.
pub fn run(tool: &Healthcheck, mut settings: Settings) -> Result<(), Box<dyn Error>> {
    let (address, _) = address::listen(settings.take("listen"), settings.take("port"))?.unwrap_or_default();
    let timeout = Duration::from_secs(tool.timeout.into());
    Ok(probe::run(&address, PROBE, timeout)?)
}
