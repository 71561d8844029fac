//! The checked configuration of the server.

pub mod address;
mod environment;
mod error;
mod file;
mod given;
pub mod passwords;
mod replicate;
mod rules;
mod schedules;
pub mod settings;
pub mod size;
mod tls;

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::ValueEnum;

pub use self::error::{ConfigError, Problem};
pub use self::given::{Given, SettingError};
pub use self::replicate::{PORT_FORWARD, Replicate};
pub use self::rules::in_unit;
use self::settings::{Origin, Setting, Settings};
use self::size::{Size, SizeError};
pub use self::tls::{Proxied, Tls};
use crate::flags::{Flag, Kind};
use crate::io::driver::Choice;
use crate::io::lost_peers::Keepalive;
use crate::io::socket::{Address, SocketAccess};
use crate::logging::{LogFormat, LogLevel};
use crate::server::Hosts;
use crate::time::Span;
use crate::values::limits::{
    JOB_BYTES_DEFAULT, JOB_BYTES_MAX, MEMORY_BYTES_MIN, METRICS_PREFIX_DEFAULT, METRICS_TUBES_DEFAULT,
    TUBE_NAME_BYTES_MAX, WAL_FILE_BYTES_DEFAULT,
};
use crate::values::schedules::ConfiguredSchedule;
use crate::values::tags::Tags;
use crate::values::tube_rules::TubeRules;
use crate::wal::batch::BLOCK_BYTES;
use crate::wal::record::job_record_bytes;
use crate::wal::segment::HEADER_BYTES;
use crate::wal::{self, Durability, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};

/// The interval between syncs of the job log without `-f`: that of beanstalkd.
const SYNC_INTERVAL_MS_DEFAULT: u32 = 50;

/// Memory of job bodies that may be registered with the kernel without `--zero-copy-memory`. Registered memory is locked
/// and is not given back.
pub const ZERO_COPY_BYTES_DEFAULT: u64 = 64 * 1024 * 1024;

/// At most this part of `--max-memory` may be registered, because it is not given back.
const ZERO_COPY_SHARE: u64 = 4;

/// Maximum number of tubes without `--max-tubes`: far more than applications have, and some 60 MB. Bytes per tube:
///
/// - 312 for the record
/// - 40 for the timer
/// - 32 for a short name
/// - 12 for the place in the order of tubes and in the hash index
/// - 24 for its entry in the table that a search reads
/// - 48 for one watch
/// - 180 for latency counters
const TUBES_DEFAULT: u32 = 100_000;

/// Maximum number of watches of a connection without `--max-watches`: some 3.1 MB. Bytes per watch:
///
/// - 32 for the record
/// - 12 for the entry in the client's vector
/// - 4 for the entry in the hash index
const WATCHES_DEFAULT: u32 = 65_536;

const _: () =
    assert!(SEGMENT_BYTES_MIN <= WAL_FILE_BYTES_DEFAULT && WAL_FILE_BYTES_DEFAULT <= SEGMENT_BYTES_MAX);
const _: () = assert!(JOB_BYTES_DEFAULT <= JOB_BYTES_MAX);

/// Seconds of silence before the first probe without `--tcp-keepalive`.
const KEEPALIVE_S_DEFAULT: u32 = 60;

/// The most verbose level of `verbose` as a variable or a key.
const VERBOSE_MAX: u8 = 2;

/// How similar a known name must be to be suggested for an unknown one, from 0 to 1.
const SIMILARITY_MIN: f64 = 0.6;

/// A configuration that can be used as it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerConfig {
    /// The address to listen on, if it is set.
    pub listen: Option<Address>,
    /// `-l none`: there is no listener without TLS.
    pub listens_only_with_tls: bool,
    /// Who may connect to the address to listen on, if it is a UNIX socket.
    pub listen_access: SocketAccess,
    /// The address of the HTTP listener, if it is set.
    pub http: Option<Address>,
    /// Who may connect to the HTTP listener, if it is a UNIX socket.
    pub http_access: SocketAccess,
    /// The settings of TLS, if there are some.
    pub tls: Option<Tls>,
    /// Which listeners are for load balancers.
    pub proxied: Proxied,
    /// Host names that HTTP requests may have, besides those of the machine.
    pub http_hosts: Vec<String>,
    /// The file with the token that requests of the HTTP API need.
    pub http_token: Option<PathBuf>,
    /// The file of users.
    pub auth: Option<PathBuf>,
    /// Without a token, clients on this machine may change jobs over HTTP.
    pub http_allow_writes: bool,
    /// Serve connections that begin with a request of another protocol like any other.
    pub allow_foreign_protocols: bool,
    /// Accept and show thousandths of a second in times of jobs and waits.
    pub sub_second: bool,
    /// The prefix of metric names.
    pub metrics_prefix: String,
    /// The maximum number of tubes that `/metrics` shows.
    pub metrics_tubes: u32,
    /// The user to run as, if it is set.
    pub user: Option<String>,
    /// The I/O driver.
    pub io: Choice,
    /// Maximum memory registered with the kernel for zero-copy sends, in bytes.
    pub zero_copy_bytes_max: u64,
    /// Seconds of silence after which the peer of a TCP connection is probed; 0 is never.
    pub tcp_keepalive_s: u32,
    /// Maximum size of a job body.
    pub job_bytes_max: u32,
    /// Memory limit in bytes, if there is one. New jobs beyond it are refused.
    pub max_memory_bytes: Option<u64>,
    /// Maximum number of connections, if there is one.
    pub max_connections: Option<u32>,
    /// Maximum number of tubes, if there is one.
    pub max_tubes: Option<u32>,
    /// Maximum number of tubes that a connection watches, if there is one.
    pub max_watches: Option<u32>,
    /// Rules of tubes by their names.
    pub tube_rules: BTreeMap<String, TubeRules>,
    /// Schedules.
    pub schedules: Vec<ConfiguredSchedule>,
    /// The file of `--config`, if there was one.
    pub file: Option<PathBuf>,
    /// The directory of the job log, if there is one.
    pub wal_dir: Option<PathBuf>,
    /// The job log in a database, if there is one.
    pub replicate: Option<Replicate>,
    /// The options of the job log.
    pub wal: wal::WalConfig,
    /// The level of the lines on stderr.
    pub log_level: LogLevel,
    /// The format on stderr.
    pub log_format: LogFormat,
    /// Where the settings came from that only the system can check.
    pub given: Given,
    /// Warnings to be logged once logging is set up.
    pub warnings: Vec<Warning>,
}

/// A problem of the settings that does not keep the server from starting.
// docs/RUNBOOK.md lists these messages.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Warning {
    #[error("{setting}: above the maximum of {max}; the server uses {max}", max = Size(JOB_BYTES_MAX.into()))]
    JobBytesClamped { setting: Setting },
    #[error("{setting}: below the minimum of {min}; the server uses {min}", min = Size(SEGMENT_BYTES_MIN))]
    SegmentTooSmall { setting: Setting },
    /// `-z` was not given, and jobs of the default size do not fit. `bytes` is the maximum that does.
    #[error(
        "the maximum job size is {bytes} bytes, because a segment of the job log (-s) holds no larger job; set -s to {} or more \
        to accept {JOB_BYTES_DEFAULT} bytes",
        segment_bytes_for(JOB_BYTES_DEFAULT)
    )]
    JobBytesOfSegment { bytes: u32 },
    #[error("{flag}: this flag has no effect any more; remove it")]
    Obsolete { flag: &'static str },
    #[error("{origin} has no effect without -b/--wal-dir; remove it, or set -b")]
    WithoutWalDir { origin: Origin },
    #[error("{origin} has no effect with --replicate; remove it")]
    WithReplicate { origin: Origin },
    #[error("{origin} has no effect without --http; remove it, or set --http")]
    WithoutHttp { origin: Origin },
    /// `--proxy-protocol` names a listener that there is not. `name` is the long name of its flag.
    #[error("{origin} {name} has no effect without --{name}; remove it, or set --{name}")]
    WithoutListener { origin: Origin, name: &'static str },
    #[error("{origin} has no effect with --http-token; remove one of them")]
    WithToken { origin: Origin },
}

impl ServerConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// If one is not valid.
    ///
    /// # Panics
    /// If there is a setting of a flag that is not checked here.
    pub fn check(mut settings: Settings) -> Result<Self, ConfigError> {
        let sources = Given::of(&settings);
        let without_effect = without_effect(&settings);
        let given = &mut settings;
        let mut warnings: Vec<Warning> =
            given.obsolete.iter().map(|&flag| Warning::Obsolete { flag }).collect();
        let replicate = replicate::replicate(given)?;
        let wal = wal_config(given, &mut warnings)?;
        let wal_dir = given.take("wal-dir").map(|dir| dir.refuse_empty("a directory")).transpose()?;
        let wal_dir = wal_dir.map(|dir| dir.path().to_owned());
        let io = choice(given, "io")?;
        let max_memory_bytes = memory_limit(given)?;
        let job_bytes_max =
            given.take("max-job-size").map(|given| job_bytes(given, &mut warnings)).transpose()?;
        let job_bytes_max = if wal_dir.is_some() || replicate.is_some() {
            job_bytes_in_wal(job_bytes_max, wal.segment_bytes, &mut warnings)?
        } else {
            job_bytes_max.map_or(JOB_BYTES_DEFAULT, |(bytes, _)| bytes)
        };
        check_bodies(given, job_bytes_max)?;
        warnings.extend(without_effect);
        let listens_only_with_tls = address::take_none(given)?;
        let (listen, listen_access) = address::listen(given.take("listen"), given.take("port"))?.unzip();
        let (http, http_access) = http(given, listen.clone().unwrap_or_default())?.unzip();
        let tls = tls::tls(given)?;
        let has_tls_listener = tls.as_ref().is_some_and(|tls| tls.listen.is_some());
        let has = [!listens_only_with_tls, has_tls_listener, http.is_some()];
        let proxied = tls::proxied(given.take_list("proxy-protocol"), has, &mut warnings)?;
        let config = Self {
            listen,
            listens_only_with_tls,
            tls,
            proxied,
            listen_access: listen_access.unwrap_or_default(),
            http,
            http_access: http_access.unwrap_or_default(),
            http_hosts: http_hosts(given.take_list("http-host"))?,
            http_token: http_token(given)?,
            auth: file(given.take("auth"))?,
            http_allow_writes: switch(given, "http-allow-writes")?,
            allow_foreign_protocols: switch(given, "allow-foreign-protocols")?,
            sub_second: switch(given, "sub-second")?,
            metrics_prefix: metrics_prefix(given.take("metrics-prefix"))?,
            metrics_tubes: count(given, "metrics-tubes", METRICS_TUBES_DEFAULT, u32::MAX)?,
            user: user(given.take("user"))?,
            io,
            zero_copy_bytes_max: zero_copy_memory(given, max_memory_bytes)?,
            tcp_keepalive_s: count(given, "tcp-keepalive", KEEPALIVE_S_DEFAULT, Keepalive::S_MAX)?,
            job_bytes_max,
            max_memory_bytes,
            max_connections: maximum(given, "max-connections", 0)?,
            max_tubes: maximum(given, "max-tubes", TUBES_DEFAULT)?,
            max_watches: maximum(given, "max-watches", WATCHES_DEFAULT)?,
            tube_rules: std::mem::take(&mut given.rules),
            schedules: std::mem::take(&mut given.schedules),
            file: given.take("config").map(|file| file.path().to_owned()),
            wal_dir,
            replicate,
            wal,
            log_level: log_level(given)?,
            log_format: choice(given, "log-format")?,
            given: sources,
            warnings,
        };
        assert_eq!(settings.rest(), None, "every setting is checked");
        Ok(config)
    }

    /// The address of the listener without TLS, unless there is none.
    pub fn clear_address(&self) -> Option<Address> {
        (!self.listens_only_with_tls).then(|| self.listen.clone().unwrap_or_default())
    }
}

impl Setting {
    fn text(&self) -> Result<&str, ConfigError> {
        self.value.to_str().ok_or_else(|| self.error(Problem::NotUtf8))
    }

    /// Refuses an empty value, such as that of a shell variable that is not set. `what` must be named instead.
    fn refuse_empty(self, what: &'static str) -> Result<Self, ConfigError> {
        if self.value.is_empty() { Err(self.error(Problem::Empty(what))) } else { Ok(self) }
    }

    /// Refuses a value that names no file. One that may be a secret is not shown in the error.
    fn for_file(self) -> Result<Self, ConfigError> {
        let is_secret = self.value.to_str().is_some_and(passwords::may_be_secret);
        if is_secret && !self.path().exists() {
            return Err(ConfigError::SecretForFile { origin: self.origin });
        }
        self.refuse_empty("a file")
    }

    fn error(&self, problem: Problem) -> ConfigError {
        ConfigError::Value { setting: self.clone(), problem }
    }
}

/// Refuses schedules of the file whose jobs could not be put.
fn check_bodies(settings: &Settings, job_bytes_max: u32) -> Result<(), ConfigError> {
    let too_large = settings.schedules.iter().find(|one| one.body_bytes() > job_bytes_max as usize);
    too_large.map_or(Ok(()), |one| {
        let path = settings.get("config").map(|file| file.path().to_owned()).unwrap_or_default();
        let (name, bytes) = (one.name.clone(), one.body_bytes());
        Err(ConfigError::ScheduleBody { path, name, bytes, max: job_bytes_max })
    })
}

/// The flags that need `--http`.
const OF_HTTP: [&str; 7] = [
    "http-host",
    "http-token",
    "http-tls",
    "http-allow-writes",
    "metrics-prefix",
    "metrics-tubes",
    "advertise-http",
];

/// Settings that were given and change nothing.
fn without_effect(settings: &Settings) -> Vec<Warning> {
    let is_on = |name: &&str| {
        let is_switch = Flag::find(name).is_some_and(|flag| flag.kind == Kind::Switch);
        settings.get(name).is_some_and(|given| !is_switch || given.as_switch() != Some(false))
    };
    let origins = |needed: &str, names: &'static [&'static str]| -> Vec<Origin> {
        let is_missing = settings.get(needed).is_none();
        let without = names.iter().copied().filter(|name| is_missing && is_on(name));
        without.filter_map(|name| Some(settings.get(name)?.origin.clone())).collect()
    };
    // A job log in a database has segments too, and keeps reservations.
    let is_replicated = settings.get("replicate").is_some();
    let of_wal = &["sync-interval", "no-sync", "wal-segment-size", "keep-reservations"];
    let of_wal = origins("wal-dir", if is_replicated { &of_wal[..2] } else { of_wal });
    let of_http = origins("http", &OF_HTTP);
    let has_token = settings.get("http-token").is_some();
    let writes = settings.get("http-allow-writes").filter(|_| has_token && is_on(&"http-allow-writes"));
    let of_token = writes.map(|given| Warning::WithToken { origin: given.origin.clone() });
    let of_wal = of_wal.into_iter().map(|origin| match is_replicated {
        true => Warning::WithReplicate { origin },
        false => Warning::WithoutWalDir { origin },
    });
    let of_http = of_http.into_iter().map(|origin| Warning::WithoutHttp { origin });
    of_wal.chain(of_http).chain(of_token).collect()
}

/// Returns the known name that is most similar to `name`, if one is similar.
pub fn suggestion(name: &str, known: impl Iterator<Item = String>) -> Option<String> {
    let similarity = |known: &String| strsim::normalized_damerau_levenshtein(name, known);
    let scored = known.map(|known| (similarity(&known), known));
    let best = scored.max_by(|(one, _), (other, _)| one.total_cmp(other));
    best.filter(|(similarity, _)| *similarity >= SIMILARITY_MIN).map(|(_, known)| known)
}

fn number(given: Setting, max: u64) -> Result<u64, ConfigError> {
    let text = given.text()?;
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(number) if is_plain && number <= max => Ok(number),
        _ => Err(given.error(Problem::Number { max })),
    }
}

/// Returns a size of at most `max` bytes.
fn size(given: &Setting, max: Option<u64>) -> Result<u64, ConfigError> {
    let error = match size::parse(given.text()?) {
        Ok(bytes) if max.is_none_or(|max| bytes <= max) => return Ok(bytes),
        result => result.err(),
    };
    Err(given.error(Problem::Size { error, max }))
}

fn switch(given: &mut Settings, name: &str) -> Result<bool, ConfigError> {
    let Some(given) = given.take(name) else { return Ok(false) };
    given.as_switch().ok_or_else(|| given.error(Problem::Switch))
}

fn choice<T: ValueEnum + Default>(given: &mut Settings, name: &str) -> Result<T, ConfigError> {
    let Some(given) = given.take(name) else { return Ok(T::default()) };
    let words = match Flag::find(name).map(|flag| flag.kind) {
        Some(Kind::Choice(_, words)) => words,
        kind => unreachable!("{name} is a choice, not {kind:?}"),
    };
    T::from_str(given.text()?, true).map_err(|_| given.error(Problem::Choice(words)))
}

fn count(given: &mut Settings, name: &str, default: u32, max: u32) -> Result<u32, ConfigError> {
    given.take(name).map_or(Ok(default), |given| Ok(number(given, max.into())? as u32))
}

/// How many there may be of something; none for 0.
fn maximum(given: &mut Settings, name: &str, default: u32) -> Result<Option<u32>, ConfigError> {
    Ok(Some(count(given, name, default, u32::MAX)?).filter(|&max| max > 0))
}

fn user(given: Option<Setting>) -> Result<Option<String>, ConfigError> {
    given.map(|user| Ok(user.refuse_empty("a user")?.text()?.to_owned())).transpose()
}

fn log_level(given: &mut Settings) -> Result<LogLevel, ConfigError> {
    let verbose = given.take("verbose").map(|given| {
        // beanstalkd accepts any number of -V.
        let max = if let Origin::CommandLine(_) = given.origin { u8::MAX } else { VERBOSE_MAX };
        number(given, max.into())
    });
    let verbose = verbose.transpose()?;
    let level = choice(given, "log-level")?;
    Ok(match verbose.unwrap_or_default() {
        0 => level,
        1 => LogLevel::Debug,
        2.. => LogLevel::Trace,
    })
}

fn memory_limit(given: &mut Settings) -> Result<Option<u64>, ConfigError> {
    let Some(given) = given.take("max-memory") else { return Ok(None) };
    match size(&given, None)? {
        0 => Ok(None),
        bytes if bytes >= MEMORY_BYTES_MIN => Ok(Some(bytes)),
        _ => Err(given.error(Problem::MemoryTooSmall)),
    }
}

fn zero_copy_memory(given: &mut Settings, limit: Option<u64>) -> Result<u64, ConfigError> {
    let bytes = given.take("zero-copy-memory");
    let bytes = bytes.map_or(Ok(ZERO_COPY_BYTES_DEFAULT), |given| size(&given, None))?;
    Ok(limit.map_or(bytes, |limit| bytes.min(limit / ZERO_COPY_SHARE)))
}

fn http(given: &mut Settings, clients: Address) -> Result<Option<(Address, SocketAccess)>, ConfigError> {
    let Some(given) = given.take("http") else { return Ok(None) };
    let (address, access) = address::endpoint_to_listen(&given, 0, None)?;
    if address.overlaps(&clients) {
        Err(given.error(Problem::HttpTaken))
    } else {
        Ok(Some((address, access)))
    }
}

fn http_hosts(given: Vec<Setting>) -> Result<Vec<String>, ConfigError> {
    let mut hosts = Vec::new();
    for setting in given {
        for name in setting.text()?.split(',') {
            if name.is_empty() && setting.value != name {
                return Err(setting.error(Problem::HttpHostMissing));
            }
            if !Hosts::is_name(name) {
                let value = name.into();
                return Err(Setting { value, ..setting }.error(Problem::HttpHost));
            }
            hosts.push(name.to_owned());
        }
    }
    Ok(hosts)
}

/// With users, each has a token of its own.
fn http_token(given: &mut Settings) -> Result<Option<PathBuf>, ConfigError> {
    let token = given.take("http-token").map(Setting::for_file).transpose()?;
    match token {
        Some(token) if given.get("auth").is_some() => Err(token.error(Problem::TokenBesideUsers)),
        token => Ok(token.map(|token| token.path().to_owned())),
    }
}

fn file(given: Option<Setting>) -> Result<Option<PathBuf>, ConfigError> {
    given.map(|file| Ok(file.for_file()?.path().to_owned())).transpose()
}

/// Follows the data model of Prometheus, without the colon, which is reserved for rules.
fn metrics_prefix(given: Option<Setting>) -> Result<String, ConfigError> {
    let Some(given) = given else { return Ok(METRICS_PREFIX_DEFAULT.to_owned()) };
    let prefix = given.text()?;
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let begins_well = prefix.bytes().next().is_some_and(|first| !first.is_ascii_digit());
    if begins_well && prefix.bytes().all(is_word) {
        Ok(prefix.to_owned())
    } else {
        Err(given.error(Problem::MetricsPrefix))
    }
}

/// Checks the options of the job log even if there is no job log, so that a mistake shows before one is added.
fn wal_config(given: &mut Settings, warnings: &mut Vec<Warning>) -> Result<wal::WalConfig, ConfigError> {
    let is_never_synced = switch(given, "no-sync")?;
    let interval = match given.take("sync-interval") {
        Some(given) => {
            let max = u32::MAX.into();
            number(given.clone(), max).map_err(|_| given.error(Problem::Milliseconds { max }))? as u32
        }
        None => SYNC_INTERVAL_MS_DEFAULT,
    };
    let durability = match interval {
        _ if is_never_synced => Durability::Never,
        0 => Durability::Always,
        ms => Durability::Within(Span::from_millis(ms)),
    };
    let bytes = match given.take("wal-segment-size") {
        Some(given) => {
            let bytes = size(&given, Some(SEGMENT_BYTES_MAX))?;
            // beanstalkd starts with any size.
            if bytes < SEGMENT_BYTES_MIN {
                warnings.push(Warning::SegmentTooSmall { setting: given });
            }
            bytes
        }
        None => WAL_FILE_BYTES_DEFAULT,
    };
    let segment_bytes = bytes.max(SEGMENT_BYTES_MIN).next_multiple_of(BLOCK_BYTES as u64);
    let keep_reservations = switch(given, "keep-reservations")?;
    Ok(wal::WalConfig {
        durability,
        segment_bytes,
        destination: wal::Destination::Directory,
        keep_reservations,
    })
}

/// Returns the maximum job size, and the setting for an error that the job log may cause.
fn job_bytes(given: Setting, warnings: &mut Vec<Warning>) -> Result<(u32, Setting), ConfigError> {
    let bytes = match size::parse(given.text()?) {
        Ok(bytes) => u32::try_from(bytes).ok().filter(|&bytes| bytes <= JOB_BYTES_MAX),
        Err(SizeError::TooLarge) => None,
        Err(error) => {
            let max = Some(JOB_BYTES_MAX.into());
            return Err(given.error(Problem::Size { error: Some(error), max }));
        }
    };
    // beanstalkd also takes the maximum instead.
    if bytes.is_none() {
        warnings.push(Warning::JobBytesClamped { setting: given.clone() });
    }
    Ok((bytes.unwrap_or(JOB_BYTES_MAX), given))
}

/// The maximum job size of a server with a job log: every job of this size fits into a segment, whatever its tube's name.
fn job_bytes_in_wal(
    given: Option<(u32, Setting)>,
    segment_bytes: u64,
    warnings: &mut Vec<Warning>,
) -> Result<u32, ConfigError> {
    let bytes = given.as_ref().map_or(JOB_BYTES_DEFAULT, |(bytes, _)| *bytes);
    let needed = segment_bytes_for(bytes);
    if needed <= segment_bytes {
        return Ok(bytes);
    }
    if let Some((_, setting)) = given {
        return Err(setting.error(Problem::JobLargerThanSegment { segment_bytes: needed }));
    }
    // The needed size is rounded up to whole blocks, so the difference is too large by less than a block.
    let bytes = (bytes - (needed - segment_bytes) as u32..)
        .take_while(|&bytes| segment_bytes_for(bytes) <= segment_bytes);
    let bytes = bytes.last().expect("the smallest segment holds more");
    warnings.push(Warning::JobBytesOfSegment { bytes });
    Ok(bytes)
}

/// The smallest segment of the job log that holds a job of this size in a tube with the longest name.
pub fn segment_bytes_for(job_bytes: u32) -> u64 {
    let record = job_record_bytes(TUBE_NAME_BYTES_MAX, Tags::NONE, job_bytes as usize + 2);
    (HEADER_BYTES + record as u64).next_multiple_of(BLOCK_BYTES as u64)
}
