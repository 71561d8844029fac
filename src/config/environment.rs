//! Settings in environment variables. One that begins with `BEANRING_` and is not known is an error, unless Kubernetes or Docker
//! has set it to describe another service.

use std::ffi::{OsStr, OsString};

use super::settings::{Origin, Setting, Settings};
use super::{ConfigError, suggestion};
use crate::flags::{FLAGS, Flag, Sources, VARIABLE_PREFIX, variable};
use crate::io::reexec;

/// The prefix of variables for tests of the server, which it ignores.
const FOR_TESTS: &str = "BEANRING_TEST_";

/// Variables of the client, and those that it sets for the commands of `beanring work`.
const FOR_CLIENTS: [&str; 8] = [
    "BEANRING_ADDR",
    "BEANRING_TLS_CA",
    "BEANRING_TLS_CLIENT_CERT",
    "BEANRING_TLS_CLIENT_KEY",
    "BEANRING_TLS_NAME",
    "BEANRING_TOKEN_FILE",
    "BEANRING_TUBE",
    "BEANRING_JOB_",
];

/// Reads the settings from variables. An empty one counts as unset.
///
/// # Errors
/// If a variable is not known, or two of them set the same thing.
pub fn read(variables: impl Iterator<Item = (OsString, OsString)>) -> Result<Settings, ConfigError> {
    let mut settings = Settings::default();
    let mut own: Vec<(String, OsString)> = variables
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, value)| name.starts_with(VARIABLE_PREFIX) && !is_for_others(name, value))
        .collect();
    own.sort();
    for (name, value) in own {
        let has_name = |flag: &&Flag| variable(flag.name) == name;
        let Some(flag) = Flag::of(Sources::Variable).find(has_name) else {
            if let Some(flag) = FLAGS.iter().find(has_name) {
                return Err(ConfigError::OnlyOnCommandLine { name, flag });
            }
            // Without the prefix, which would make any two variables similar.
            let own = |name: &str| name.strip_prefix(VARIABLE_PREFIX).unwrap_or(name).to_owned();
            let settings = Flag::of(Sources::Variable).map(|flag| variable(flag.name));
            let known = settings.chain([FOR_CLIENTS[0].to_owned()]).map(|name| own(&name));
            let suggestion = suggestion(&own(&name), known).map(|own| format!("{VARIABLE_PREFIX}{own}"));
            return Err(ConfigError::UnknownVariable { suggestion, name });
        };
        if value.is_empty() {
            continue;
        }
        settings.set(flag, Setting { origin: Origin::Variable(name), value });
    }
    settings.refuse_alternatives()?;
    Ok(settings)
}

/// Whether a variable is not a setting.
fn is_for_others(name: &str, value: &OsStr) -> bool {
    let is_for_clients =
        |known: &str| if known.ends_with('_') { name.starts_with(known) } else { name == known };
    name.starts_with(FOR_TESTS)
        || FOR_CLIENTS.into_iter().any(is_for_clients)
        || reexec::VARIABLES.contains(&name)
        || is_of_a_service(&name[VARIABLE_PREFIX.len()..], &value.to_string_lossy())
}

/// Whether Kubernetes or a Docker link has set a variable, because a service or a container has a name that begins with
/// `beanring`. `name` lacks the prefix.
///
/// | name | value |
/// |---|---|
/// | `SERVICE_HOST`, `SERVICE_PORT`, `SERVICE_PORT_BEANSTALK` | an address, a port |
/// | `PORT` | `tcp://10.0.0.1:11300` |
/// | `PORT_11300_TCP`, with `_ADDR`, `_PORT` or `_PROTO` behind it | parts of that |
/// | `NAME`, `ENV_PATH` | of a Docker link: `/app/beanring`, a variable of the other container |
fn is_of_a_service(name: &str, value: &str) -> bool {
    // A service beanring-metrics has BEANRING_METRICS_SERVICE_HOST.
    let marked = format!("_{name}");
    let is_address = marked.ends_with("_PORT") && value.contains("://");
    let is_link = name == "NAME" && value.starts_with('/') || name.starts_with("ENV_");
    is_address || is_link || marked.contains("_SERVICE_") || has_port_number(&marked)
}

/// Whether `_PORT_`, a number and `_` are in the name.
fn has_port_number(name: &str) -> bool {
    name.split("_PORT_").skip(1).any(|rest| {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        digits > 0 && rest[digits..].starts_with('_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let pairs = variables.iter().map(|(name, value)| (name.into(), value.into()));
        read(pairs).map_err(|error| error.to_string())
    }

    #[test]
    fn variables_of_others_are_ignored() {
        let settings = read_all(&[
            ("HOME", "/root"),
            ("BEANRING_TEST_SEED", "1"),
            ("BEANRING_RESTART_OF", "1:2"),
            ("BEANRING_ADDR", "127.0.0.1:11300"),
            ("BEANRING_TUBE", "default"),
            ("BEANRING_JOB_ID", "7"),
            ("BEANRING_PORT", "tcp://10.0.0.1:11300"),
            ("BEANRING_SERVICE_HOST", "10.0.0.1"),
            ("BEANRING_SERVICE_PORT", "11300"),
            ("BEANRING_SERVICE_PORT_BEANSTALK", "11300"),
            ("BEANRING_PORT_11300_TCP", "tcp://10.0.0.1:11300"),
            ("BEANRING_PORT_11300_TCP_ADDR", "10.0.0.1"),
            ("BEANRING_PORT_11300_TCP_PORT", "11300"),
            ("BEANRING_PORT_11300_TCP_PROTO", "tcp"),
            ("BEANRING_METRICS_SERVICE_HOST", "10.0.0.2"),
            ("BEANRING_METRICS_PORT", "tcp://10.0.0.2:9100"),
            ("BEANRING_METRICS_PORT_9100_TCP_ADDR", "10.0.0.2"),
            ("BEANRING_NAME", "/app/beanring"),
            ("BEANRING_ENV_PATH", "/bin"),
        ]);
        assert_eq!(settings.unwrap().rest(), None);
        assert_eq!(read_all(&[("BEANRING_PORT", "7")]).unwrap().take("port").unwrap().value, "7");
    }

    #[test]
    fn an_unknown_variable_is_an_error() {
        for (name, error) in [
            ("BEANRING_ADRR", "BEANRING_ADRR: no such variable; did you mean BEANRING_ADDR?"),
            ("BEANRING_WALDIR", "BEANRING_WALDIR: no such variable; did you mean BEANRING_WAL_DIR?"),
            (
                "BEANRING_COLOR_OF_DOOR",
                "BEANRING_COLOR_OF_DOOR: no such variable; remove it, or see beanring --help",
            ),
            ("BEANRING_PORTS", "BEANRING_PORTS: no such variable; did you mean BEANRING_PORT?"),
        ] {
            assert_eq!(read_all(&[(name, "")]).unwrap_err(), error);
        }
    }

    #[test]
    fn two_variables_of_the_same_thing_are_an_error() {
        for (one, other, switch) in [
            ("BEANRING_SYNC_INTERVAL", "BEANRING_NO_SYNC", "yes"),
            ("BEANRING_LOG_LEVEL", "BEANRING_VERBOSE", "1"),
        ] {
            let error = format!("{one} and {other} set the same thing; remove one of them");
            assert_eq!(read_all(&[(one, "50"), (other, switch)]).unwrap_err(), error);
            let mut settings = read_all(&[(one, "50"), (other, "No")]).unwrap();
            let left = settings.take("sync-interval").or_else(|| settings.take("log-level"));
            assert_eq!(left.unwrap().value, "50");
            assert_eq!(settings.rest(), None);
        }
    }
}
