//! Where the database is. The URL is one that `psql` takes.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, LoadBalanceHosts, SslMode, TargetSessionAttrs};

use super::extent::Extent;
use super::password;
use super::tls::{Connector, Verification};

/// The number of the log in the tables: each queue has a database or schema of its own.
pub const LOG: i32 = 1;

/// What `pg_stat_activity` calls the sessions of a server.
pub const APPLICATION: &str = "beanring";

/// What it calls the session of a server that watches the leader.
pub(super) const WATCHER: &str = "beanring watch";

/// After this time without a reply to a connection attempt, the next host is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// After this time without a sign of life, a session is lost.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Parameters of `psql` that change nothing here.
const IGNORED: [&str; 7] = [
    "application_name",
    "client_encoding",
    "fallback_application_name",
    "gssencmode",
    "keepalives_count",
    "sslcompression",
    "sslsni",
];

/// How to reach the database.
#[derive(Clone)]
pub struct Settings {
    pub(super) config: Config,
    pub(super) connector: Connector,
    /// The files that a later [`parse`](Self::parse) reads.
    pub files: Vec<PathBuf>,
    /// As it was given, maybe with a password.
    given: String,
    url: String,
    /// Commits need no standby: the storage of the database is replicated.
    pub(super) trusts_storage: bool,
    /// What the program before has known of the log.
    pub(super) seen: Extent,
}

/// A URL that names no database that can be used.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum UrlError {
    #[error("the URL must begin with postgres://")]
    Scheme,
    #[error("the URL of the database is not valid: {0}")]
    Malformed(String),
    #[error("the URL of the database names no host; write postgres://USER@HOST/DATABASE")]
    NoHost,
    #[error("{0} in the URL of the database must be {1}")]
    Value(&'static str, &'static str),
    #[error("{0} in the URL of the database: {1}")]
    File(PathBuf, String),
}

/// The parameters that are not passed to `tokio-postgres`.
#[derive(Default)]
struct Own {
    verification: Verification,
    ca: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    passfile: Option<PathBuf>,
    has_attrs: bool,
}

impl Settings {
    /// Parses a URL. A password that it lacks comes from `PGPASSWORD` or the password file, as with `psql`.
    ///
    /// # Errors
    /// If the URL is not valid, or names a file that cannot be read.
    pub fn parse(url: &str) -> Result<Self, UrlError> {
        let (rest, own) = Own::split(url)?;
        let mut config = rest.parse::<Config>().map_err(|error| UrlError::Malformed(reason(&error)))?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(UrlError::NoHost);
        }
        if config.get_user().is_none() {
            config.user(std::env::var("PGUSER").unwrap_or_else(|_| crate::io::privileges::current_user()));
        }
        if config.get_password().is_none()
            && let Some(found) = password::find(&config, own.passfile.as_deref())
        {
            config.password(found);
        }
        if !own.has_attrs {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(SILENCE_MAX);
        }
        // The default of two hours shows that none was given.
        if config.get_keepalives_idle() > Duration::from_secs(3600) {
            config.keepalives_idle(Duration::from_secs(2));
            config.keepalives_interval(Duration::from_secs(1));
            config.keepalives_retries(3);
        }
        config.application_name(APPLICATION);
        let named = [&own.ca, &own.certificate, &own.key].into_iter().flatten().cloned();
        let files = named.chain(password::file(own.passfile.as_deref())).collect();
        let identity = own.certificate.map(|path| (path.clone(), own.key.unwrap_or(path)));
        let uses_tls = config.get_ssl_mode() != SslMode::Disable;
        let connector = Connector::new(own.verification, own.ca.as_deref(), identity, uses_tls)?;
        let (given, url) = (url.to_owned(), shown(&config));
        let (trusts_storage, seen) = (false, Extent::default());
        Ok(Self { config, connector, files, given, url, trusts_storage, seen })
    }

    /// The same, for a database whose storage is replicated.
    #[must_use]
    pub fn trusting(self, trusts_storage: bool) -> Self {
        Self { trusts_storage, ..self }
    }

    /// The same, and a program that ran in this process before has known this of the log.
    #[must_use]
    pub fn knowing(self, known: &str) -> Self {
        Self { seen: known.parse().unwrap_or_default(), ..self }
    }

    /// The same for each host of the URL alone. None if it has one, or says in a parameter which hosts or ports it has.
    pub(super) fn each_host(&self) -> Vec<Self> {
        let begin = self.given.find("://").map_or(0, |at| at + 3);
        let begin = self.given.find('@').map_or(begin, |at| at + 1);
        let end = self.given[begin..].find(['/', '?']).map_or(self.given.len(), |at| begin + at);
        let (hosts, rest) = (&self.given[begin..end], &self.given[end..]);
        if !hosts.contains(',') || ["host=", "hostaddr=", "port="].iter().any(|name| rest.contains(name)) {
            return Vec::new();
        }
        let alone = |host| {
            let parsed = Self::parse(&format!("{}{host}{rest}", &self.given[..begin]));
            parsed.map(|settings| Self { seen: self.seen, ..settings })
        };
        // A certificate that has just been removed may be missing.
        hosts.split(',').filter_map(|host| alone(host).ok()).collect()
    }

    /// The same with the hosts tried in any order.
    pub(super) fn shuffled(&self) -> Self {
        let mut shuffled = self.clone();
        shuffled.config.load_balance_hosts(LoadBalanceHosts::Random);
        shuffled
    }

    /// The same for a session that `pg_stat_activity` calls otherwise.
    pub(super) fn named(&self, name: &str) -> Self {
        let mut named = self.clone();
        named.config.application_name(name);
        named
    }
}

impl fmt::Display for Settings {
    /// Writes the URL without its password and parameters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

impl Own {
    /// Takes the parameters out of the URL that `tokio-postgres` does not know as `psql` does.
    fn split(url: &str) -> Result<(String, Self), UrlError> {
        let scheme = ["postgres://", "postgresql://"].into_iter().find(|scheme| url.starts_with(scheme));
        let scheme = scheme.ok_or(UrlError::Scheme)?;
        let after_user = url.find('@').map_or(scheme.len(), |at| at + 1);
        let Some(mark) = url[after_user..].find('?').map(|mark| after_user + mark) else {
            return Ok((url.to_owned(), Self::default()));
        };
        let mut own = Self::default();
        let mut rest = String::new();
        for pair in url[mark + 1..].split('&').filter(|pair| !pair.is_empty()) {
            if let Some(kept) = own.take(pair)? {
                rest.push(if rest.is_empty() { '?' } else { '&' });
                rest.push_str(kept);
            }
        }
        Ok((format!("{}{rest}", &url[..mark]), own))
    }

    /// Takes one parameter. Returns what remains of it.
    fn take<'a>(&mut self, pair: &'a str) -> Result<Option<&'a str>, UrlError> {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = percent_decode_str(value).decode_utf8_lossy();
        match name {
            "sslmode" => {
                let (verification, kept) = match &*value {
                    "disable" => (Verification::None, "sslmode=disable"),
                    "allow" | "prefer" => (Verification::None, "sslmode=prefer"),
                    "require" => (Verification::None, "sslmode=require"),
                    "verify-ca" => (Verification::Authority, "sslmode=require"),
                    "verify-full" => (Verification::Full, "sslmode=require"),
                    _ => {
                        let modes = "disable, prefer, require, verify-ca or verify-full";
                        return Err(UrlError::Value("sslmode", modes));
                    }
                };
                self.verification = verification;
                return Ok(Some(kept));
            }
            "sslrootcert" if value == "system" => self.verification = Verification::Full,
            "sslrootcert" => self.ca = Some(value.into_owned().into()),
            "sslcert" => self.certificate = Some(value.into_owned().into()),
            "sslkey" => self.key = Some(value.into_owned().into()),
            "passfile" => self.passfile = Some(value.into_owned().into()),
            "target_session_attrs" => {
                self.has_attrs = true;
                // The primary is the only server that can be written to.
                return Ok(Some(if value == "primary" { "target_session_attrs=read-write" } else { pair }));
            }
            name if IGNORED.contains(&name) => {}
            _ => return Ok(Some(pair)),
        }
        Ok(None)
    }
}

fn shown(config: &Config) -> String {
    let user = config.get_user().unwrap_or_default();
    let database = config.get_dbname().unwrap_or(user);
    format!("postgres://{user}@{}/{database}", places(config))
}

/// The hosts with their ports.
pub(super) fn places(config: &Config) -> String {
    let port_of = |at: usize| config.get_ports().get(at).or(config.get_ports().first()).copied();
    let named = config.get_hosts().iter().map(|host| match host {
        Host::Tcp(name) if name.contains(':') => format!("[{name}]"),
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.display().to_string().replace('/', "%2F"),
    });
    let mut hosts: Vec<String> = named.collect();
    if hosts.is_empty() {
        hosts.extend(config.get_hostaddrs().iter().map(ToString::to_string));
    }
    for (at, host) in hosts.iter_mut().enumerate() {
        if let Some(port) = port_of(at).filter(|&port| port != 5432) {
            host.push_str(&format!(":{port}"));
        }
    }
    hosts.join(",")
}

fn reason(error: &tokio_postgres::Error) -> String {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    cause.unwrap_or_else(|| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_shown_without_its_password() {
        let check = |url: &str, shown: &str| {
            let settings = Settings::parse(url).expect("it is valid");
            assert_eq!(settings.to_string(), shown);
            assert!(!format!("{settings:?}").contains("secret"), "{settings:?}");
        };
        check("postgres://me:secret@db/queue", "postgres://me@db/queue");
        check("postgresql://me:se%40cret@a:5433,b/queue?connect_timeout=1", "postgres://me@a:5433,b/queue");
        check("postgres://me@db/queue?password=secret", "postgres://me@db/queue");
        check("postgres://me@%2Frun%2Fpg:5433/queue", "postgres://me@%2Frun%2Fpg:5433/queue");
        check("postgres://me@[::1]/queue", "postgres://me@[::1]/queue");
    }

    #[test]
    fn hosts_are_found_in_a_url() {
        let check = |url: &str, hosts: &[&str]| {
            let found = Settings::parse(url).expect("it is valid").each_host();
            assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), hosts, "{url}");
        };
        check(
            "postgres://me:secret@a:1,[::1],c:3/q?connect_timeout=1",
            &["postgres://me@a:1/q", "postgres://me@[::1]/q", "postgres://me@c:3/q"],
        );
        check("postgres://a,b?user=me&dbname=q", &["postgres://me@a/q", "postgres://me@b/q"]);
        check("postgres://me@a/q", &[]);
        check("postgres://me@a,b/q?port=1,2", &[]);
    }

    #[test]
    fn defaults_find_the_primary_and_a_lost_machine() {
        let settings = Settings::parse("postgres://me@a,b/queue").expect("it is valid");
        let config = &settings.config;
        assert_eq!(config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
        assert_eq!(config.get_connect_timeout(), Some(&CONNECT_TIMEOUT));
        assert_eq!(config.get_keepalives_idle(), Duration::from_secs(2));
        assert_eq!(config.get_hosts().len(), 2);
        let given = "postgres://me@a/queue?target_session_attrs=any&connect_timeout=9&keepalives_idle=60";
        let given = Settings::parse(given).expect("it is valid").config;
        assert_eq!(given.get_target_session_attrs(), TargetSessionAttrs::Any);
        assert_eq!(given.get_connect_timeout(), Some(&Duration::from_secs(9)));
        assert_eq!(given.get_keepalives_idle(), Duration::from_secs(60));
    }

    #[test]
    fn modes_of_tls_are_those_of_psql() {
        let mode =
            |mode: &str| Settings::parse(&format!("postgres://me@a/q?sslmode={mode}&gssencmode=disable"));
        assert_eq!(mode("disable").expect("it is valid").config.get_ssl_mode(), SslMode::Disable);
        assert_eq!(mode("prefer").expect("it is valid").config.get_ssl_mode(), SslMode::Prefer);
        assert_eq!(mode("require").expect("it is valid").config.get_ssl_mode(), SslMode::Require);
        assert!(matches!(mode("full").unwrap_err(), UrlError::Value("sslmode", _)));
        let missing =
            Settings::parse("postgres://me@a/q?sslmode=verify-full&sslrootcert=/no/such.crt").unwrap_err();
        assert!(matches!(missing, UrlError::File(..)), "{missing}");
    }

    #[test]
    fn wrong_urls_say_what_is_wrong() {
        assert_eq!(Settings::parse("mysql://a/b").unwrap_err(), UrlError::Scheme);
        assert_eq!(Settings::parse("postgres:///queue").unwrap_err(), UrlError::NoHost);
        let check = |url: &str, text: &str| {
            let error = Settings::parse(url).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        };
        check("postgres://a:port/b", "port");
        check("postgres://a/b?colour=red", "colour");
    }
}
