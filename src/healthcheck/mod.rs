//! `beanring healthcheck`: checks that a server with the same flags and environment replies.

mod probe;
#[cfg(feature = "tls")]
mod tls;

use std::error::Error;
use std::time::Duration;

use self::probe::Probe;
use crate::cli::Healthcheck;
use crate::config::settings::Settings;
use crate::config::{ConfigError, address};
use crate::io::socket::Address;

/// A cheap command that changes no job or tube. Every new connection gets this reply.
const PROBE: Probe = Probe { command: b"list-tube-used\r\n", reply: b"USING default\r\n" };

/// The same after a PROXY header with the command LOCAL, for a listener that expects one.
const PROXIED: Probe =
    Probe { command: b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00list-tube-used\r\n", reply: PROBE.reply };

/// Checks the server that these settings describe. The flags of the tool itself are among them.
///
/// # Errors
/// If the address is invalid, or the server does not reply as expected.
pub fn run(tool: &Healthcheck, mut settings: Settings) -> Result<(), Box<dyn Error>> {
    let timeout = Duration::from_secs(tool.timeout.into());
    if let Some(address) = with_tls(&mut settings)? {
        #[cfg(feature = "tls")]
        return Ok(tls::run(&address, tool.tls_ca.as_deref(), PROBE, timeout)?);
        #[cfg(not(feature = "tls"))]
        return Err(format!("{address}: this beanring was built without TLS").into());
    }
    if tool.tls_ca.is_some() {
        return Err("--tls-ca has no effect at an address without TLS; use -l beanstalks://HOST".into());
    }
    let (address, _) = address::listen(settings.take("listen"), settings.take("port"))?.unwrap_or_default();
    let listeners = settings.all("proxy-protocol").iter().map(|setting| setting.value.to_string_lossy());
    let is_proxied = listeners.into_iter().any(|names| names.split(',').any(|name| name == "listen"));
    Ok(probe::run(&address, if is_proxied { PROXIED } else { PROBE }, timeout)?)
}

/// Returns the address for TLS: that of `-l beanstalks://HOST`, or, if the server listens nowhere else, that of `--tls-listen`.
fn with_tls(settings: &mut Settings) -> Result<Option<Address>, ConfigError> {
    let Some(listen) = settings.get("listen").cloned() else { return Ok(None) };
    let text = listen.value.to_string_lossy();
    if text.contains("://") {
        let remote = address::remote(&listen)?;
        if remote.is_tls {
            return Ok(Some(remote.address));
        }
    }
    if text != "none" {
        return Ok(None);
    }
    let endpoint = settings.take("tls-listen").map(|listen| address::tls_endpoint(&listen)).transpose()?;
    Ok(endpoint.map(|(address, _)| address))
}
