//! The checked configuration of the server.

use std::fmt;
use std::num::IntErrorKind;
use std::path::PathBuf;

use crate::cli::{Arguments, LogFormat, LogLevel};
use crate::io::driver::Choice;
use crate::io::socket::Address;
use crate::limits::{
    JOB_BYTES_DEFAULT, JOB_BYTES_MAX, MEMORY_BYTES_MIN, METRICS_PREFIX_DEFAULT, METRICS_TUBES_DEFAULT,
    TUBE_NAME_BYTES_MAX, WAL_FILE_BYTES_DEFAULT,
};
use crate::server::Hosts;
use crate::time::Span;
use crate::wal::batch::BLOCK_BYTES;
use crate::wal::record::job_record_bytes;
use crate::wal::segment::HEADER_BYTES;
use crate::wal::{self, Durability, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};

/// The interval between syncs of the job log without `-f`: that of beanstalkd.
const SYNC_INTERVAL_MS_DEFAULT: u32 = 50;

/// Memory of job bodies that may be registered with the kernel without `--registered-memory`. Registered memory is locked
/// and is not given back.
const REGISTERED_BYTES_DEFAULT: u64 = 64 * 1024 * 1024;

/// At most this part of `--max-memory` may be registered, because it is not given back.
const REGISTERED_SHARE: u64 = 4;

/// Maximum number of tubes without `--max-tubes`: far more than applications have, and some 57 MB. Bytes per tube:
///
/// - 264 for the record
/// - 40 for the timer
/// - 32 for a short name
/// - 12 for the place in the order of tubes and in the hash index
/// - 40 for one watch
/// - 180 for latency counters
const TUBES_DEFAULT: u32 = 100_000;

/// Maximum number of watches of a connection without `--max-watches`: some 2.6 MB. Bytes per watch:
///
/// - 32 for the record
/// - 4 for the entry in the client's vector
/// - 4 for the entry in the hash index
const WATCHES_DEFAULT: u32 = 65_536;

const _: () =
    assert!(SEGMENT_BYTES_MIN <= WAL_FILE_BYTES_DEFAULT && WAL_FILE_BYTES_DEFAULT <= SEGMENT_BYTES_MAX);
const _: () = assert!(JOB_BYTES_DEFAULT <= JOB_BYTES_MAX);

/// A configuration that can be used as it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerConfig {
    /// The address to listen on, if it is set.
    pub listen: Option<Address>,
    /// The address of the HTTP listener, if it is set.
    pub http: Option<Address>,
    /// Host names that HTTP requests may have, besides those of the machine.
    pub http_hosts: Vec<String>,
    /// Serve connections that begin with a request of another protocol like any other.
    pub allow_foreign_requests: bool,
    /// The prefix of metric names.
    pub metrics_prefix: String,
    /// The maximum number of tubes that `/metrics` shows.
    pub metrics_tubes: u32,
    /// The user to run as, if it is set.
    pub user: Option<String>,
    /// The I/O driver.
    pub io: Choice,
    /// Maximum memory registered with the kernel, in bytes.
    pub registered_bytes: u64,
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
    /// The file of `--config`, if there was one.
    pub file: Option<PathBuf>,
    /// The directory of the job log, if there is one.
    pub log_dir: Option<PathBuf>,
    /// The options of the job log.
    pub log: wal::WalConfig,
    /// The level of the lines on stderr.
    pub log_level: LogLevel,
    /// The format on stderr.
    pub log_format: LogFormat,
    /// Warnings to be logged once logging is set up.
    pub warnings: Vec<Warning>,
}

/// A problem of the options that does not keep the server from starting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Warning {
    /// `-z` was above its maximum.
    JobBytesClamped,
    /// `-z` was not given, and a file of the job log is too small for jobs of the default size.
    JobBytesOfSegment {
        /// The maximum job size that fits.
        bytes: u32,
    },
    /// A flag of older servers was given.
    Obsolete {
        /// The flag.
        flag: &'static str,
    },
}

/// A problem of the options that keeps the server from starting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// A value is not a number or is out of its range.
    Number {
        /// The option.
        flag: &'static str,
        /// The value as given.
        given: String,
        /// The maximum. The minimum is 0.
        max: u64,
    },
    /// The memory limit is not a number of bytes, or is too low.
    Memory {
        /// The value as given.
        given: String,
    },
    /// A job as large as `-z` allows does not fit into a file of the job log.
    JobBytes {
        /// The maximum job size.
        given: u32,
        /// The smallest `-s` that holds such a job.
        segment_bytes: u64,
    },
    /// The address to listen on is empty.
    NoAddress,
    /// Not an address for HTTP.
    Http {
        /// The value as given.
        given: String,
    },
    /// Not a host name.
    HttpHost {
        /// The value as given.
        given: String,
    },
    /// Not a valid prefix of metric names.
    MetricsPrefix {
        /// The value as given.
        given: String,
    },
}

impl ServerConfig {
    /// Checks the options.
    ///
    /// # Errors
    /// If an option is not valid.
    pub fn check(arguments: Arguments) -> Result<Self, ConfigError> {
        let mut warnings = Vec::new();
        for (flag, given) in [("-c", arguments.compact), ("-n", arguments.no_compact)] {
            if given {
                warnings.push(Warning::Obsolete { flag });
            }
        }
        let log = log_config(&arguments)?;
        let registered_bytes = match arguments.registered_memory {
            Some(given) => number("--registered-memory (BEANRING_REGISTERED_MEMORY)", given, u64::MAX)?,
            None => REGISTERED_BYTES_DEFAULT,
        };
        let max_memory_bytes = arguments.max_memory.map(max_memory).transpose()?.flatten();
        let registered_share = max_memory_bytes.map_or(u64::MAX, |max| max / REGISTERED_SHARE);
        let job_bytes_max =
            arguments.max_job_size.map(|given| job_bytes(given, &mut warnings)).transpose()?;
        let job_bytes_max = match arguments.log_dir {
            Some(_) => job_bytes_in_log(job_bytes_max, log.segment_bytes, &mut warnings)?,
            None => job_bytes_max.unwrap_or(JOB_BYTES_DEFAULT),
        };
        let max_connections =
            maximum("--max-connections (BEANRING_MAX_CONNECTIONS)", arguments.max_connections, 0)?;
        let max_tubes = maximum("--max-tubes (BEANRING_MAX_TUBES)", arguments.max_tubes, TUBES_DEFAULT)?;
        let max_watches =
            maximum("--max-watches (BEANRING_MAX_WATCHES)", arguments.max_watches, WATCHES_DEFAULT)?;
        Ok(Self {
            listen: address(arguments.listen, arguments.port)?,
            http: arguments.http.map(http_address).transpose()?,
            http_hosts: http_hosts(arguments.http_host)?,
            allow_foreign_requests: arguments.allow_foreign_requests,
            metrics_prefix: metrics_prefix(arguments.metrics_prefix)?,
            metrics_tubes: metrics_tubes(arguments.metrics_tubes)?,
            user: arguments.user,
            io: arguments.io.unwrap_or_default(),
            registered_bytes: registered_bytes.min(registered_share),
            job_bytes_max,
            max_memory_bytes,
            max_connections,
            max_tubes,
            max_watches,
            file: arguments.config,
            log_dir: arguments.log_dir,
            log,
            log_level: match arguments.verbose {
                0 => arguments.log_level.unwrap_or_default(),
                1 => LogLevel::Debug,
                2.. => LogLevel::Trace,
            },
            log_format: arguments.log_format.unwrap_or_default(),
            warnings,
        })
    }
}

/// Combines `-l` and `-p` into the address to listen on. Returns `None` if neither is set.
///
/// # Errors
/// If one of them is not valid.
pub fn address(listen: Option<String>, port: Option<String>) -> Result<Option<Address>, ConfigError> {
    if listen.is_none() && port.is_none() {
        return Ok(None);
    }
    let Address::Tcp { host: default_host, port: default_port } = Address::default() else {
        unreachable!("the default is a port")
    };
    let port = match port {
        None => default_port,
        Some(given) => number("-p/--port (BEANRING_PORT)", given, u16::MAX.into())? as u16,
    };
    let host = listen.unwrap_or(default_host);
    if let Some(path) = host.strip_prefix("unix:") {
        return if path.is_empty() {
            Err(ConfigError::NoAddress)
        } else {
            Ok(Some(Address::Unix(PathBuf::from(path))))
        };
    }
    let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&host);
    if host.is_empty() {
        return Err(ConfigError::NoAddress);
    }
    Ok(Some(Address::Tcp { host: host.to_owned(), port }))
}

/// A port without a host is one of the loopback address, which other machines cannot reach.
fn http_address(given: String) -> Result<Address, ConfigError> {
    if let Some(path) = given.strip_prefix("unix:").filter(|path| !path.is_empty()) {
        return Ok(Address::Unix(PathBuf::from(path)));
    }
    let (host, port) = given.rsplit_once(':').unwrap_or(("127.0.0.1", &given));
    let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    // Without brackets, the last colon of an IPv6 address such as ::1 would look like the one before a port.
    let is_clear = bracketed.is_some() || !host.contains(':');
    let host = bracketed.unwrap_or(if host.is_empty() { "127.0.0.1" } else { host });
    match port.parse() {
        Ok(port) if is_clear && port_is_plain(&given) => Ok(Address::Tcp { host: host.to_owned(), port }),
        _ => Err(ConfigError::Http { given }),
    }
}

fn http_hosts(given: Vec<String>) -> Result<Vec<String>, ConfigError> {
    match given.iter().find(|name| !Hosts::is_name(name)) {
        Some(name) => Err(ConfigError::HttpHost { given: name.clone() }),
        None => Ok(given),
    }
}

/// Refuses a sign, which the standard library would accept before a number.
fn port_is_plain(given: &str) -> bool {
    given.bytes().last().is_some_and(|byte| byte.is_ascii_digit()) && !given.contains('+')
}

/// Follows the data model of Prometheus, without the colon, which is reserved for rules.
fn metrics_prefix(given: Option<String>) -> Result<String, ConfigError> {
    let prefix = given.unwrap_or_else(|| METRICS_PREFIX_DEFAULT.to_owned());
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let begins_well = prefix.bytes().next().is_some_and(|first| !first.is_ascii_digit());
    if begins_well && prefix.bytes().all(is_word) {
        Ok(prefix)
    } else {
        Err(ConfigError::MetricsPrefix { given: prefix })
    }
}

fn metrics_tubes(given: Option<String>) -> Result<u32, ConfigError> {
    let flag = "--metrics-tubes (BEANRING_METRICS_TUBES)";
    given.map_or(Ok(METRICS_TUBES_DEFAULT), |given| Ok(number(flag, given, u32::MAX.into())? as u32))
}

/// Checks the options of the job log even if there is no job log, so that a mistake shows before one is added.
fn log_config(arguments: &Arguments) -> Result<wal::WalConfig, ConfigError> {
    let interval = match arguments.sync_interval.clone() {
        Some(given) => number("-f/--sync-interval (BEANRING_SYNC_INTERVAL)", given, u32::MAX.into())? as u32,
        None => SYNC_INTERVAL_MS_DEFAULT,
    };
    let durability = match interval {
        _ if arguments.no_sync => Durability::Never,
        0 => Durability::Always,
        ms => Durability::Within(Span::from_millis(ms)),
    };
    let bytes = match arguments.log_file_size.clone() {
        Some(given) => number("-s/--log-file-size (BEANRING_LOG_FILE_SIZE)", given, SEGMENT_BYTES_MAX)?,
        None => WAL_FILE_BYTES_DEFAULT,
    };
    let segment_bytes = bytes.max(SEGMENT_BYTES_MIN).next_multiple_of(BLOCK_BYTES as u64);
    Ok(wal::WalConfig { durability, segment_bytes })
}

fn job_bytes(given: String, warnings: &mut Vec<Warning>) -> Result<u32, ConfigError> {
    let clamped = match given.parse::<u32>() {
        Ok(bytes) if bytes <= JOB_BYTES_MAX => return Ok(bytes),
        Ok(_) => true,
        Err(error) => *error.kind() == IntErrorKind::PosOverflow,
    };
    if !clamped {
        return Err(ConfigError::Number {
            flag: "-z/--max-job-size (BEANRING_MAX_JOB_SIZE)",
            given,
            max: JOB_BYTES_MAX.into(),
        });
    }
    warnings.push(Warning::JobBytesClamped);
    Ok(JOB_BYTES_MAX)
}

/// The maximum job size of a server with a job log: every job of this size fits into a file, whatever its tube's name.
/// If the default does not fit, it is lowered. A size that was set is refused.
fn job_bytes_in_log(
    given: Option<u32>,
    segment_bytes: u64,
    warnings: &mut Vec<Warning>,
) -> Result<u32, ConfigError> {
    let bytes = given.unwrap_or(JOB_BYTES_DEFAULT);
    let needed = segment_bytes_for(bytes);
    if needed <= segment_bytes {
        return Ok(bytes);
    }
    if given.is_some() {
        return Err(ConfigError::JobBytes { given: bytes, segment_bytes: needed });
    }
    // The needed size is rounded up to whole blocks, so the difference is too large by less than a block.
    let bytes = (bytes - (needed - segment_bytes) as u32..)
        .take_while(|&bytes| segment_bytes_for(bytes) <= segment_bytes);
    let bytes = bytes.last().expect("the smallest file holds more");
    warnings.push(Warning::JobBytesOfSegment { bytes });
    Ok(bytes)
}

/// The smallest file of the job log that holds a job of this size in a tube with the longest name.
fn segment_bytes_for(job_bytes: u32) -> u64 {
    let record = job_record_bytes(TUBE_NAME_BYTES_MAX, job_bytes as usize + 2);
    (HEADER_BYTES + record as u64).next_multiple_of(BLOCK_BYTES as u64)
}

/// Parses the memory limit. Returns `None` for 0.
fn max_memory(given: String) -> Result<Option<u64>, ConfigError> {
    let digits = given.trim_end_matches(|last: char| last.is_ascii_alphabetic());
    let unit = match &given[digits.len()..] {
        "" => Some(1),
        "k" | "K" => Some(1 << 10),
        "m" | "M" => Some(1 << 20),
        "g" | "G" => Some(1 << 30),
        _ => None,
    };
    let number =
        digits.parse::<u64>().ok().filter(|_| digits.starts_with(|first: char| first.is_ascii_digit()));
    match number.zip(unit).and_then(|(number, unit)| number.checked_mul(unit)) {
        Some(0) => Ok(None),
        Some(bytes) if bytes >= MEMORY_BYTES_MIN => Ok(Some(bytes)),
        _ => Err(ConfigError::Memory { given }),
    }
}

/// How many there may be of something; none for 0.
fn maximum(flag: &'static str, given: Option<String>, default: u32) -> Result<Option<u32>, ConfigError> {
    let max = match given {
        None => default,
        Some(given) => number(flag, given, u32::MAX.into())? as u32,
    };
    Ok(Some(max).filter(|&max| max > 0))
}

fn number(flag: &'static str, given: String, max: u64) -> Result<u64, ConfigError> {
    match given.parse() {
        Ok(number) if number <= max => Ok(number),
        _ => Err(ConfigError::Number { flag, given, max }),
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::JobBytesClamped => write!(f, "-z: the maximum job size is set to {JOB_BYTES_MAX}"),
            Self::JobBytesOfSegment { bytes } => {
                write!(f, "-s: the maximum job size is set to {bytes}, which fits into a file of the job log")
            }
            Self::Obsolete { flag } => write!(f, "{flag} has no meaning any more and is ignored"),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number { flag, given, max } => {
                write!(f, "{flag} {given:?}: must be a number from 0 to {max}")
            }
            Self::JobBytes { given, segment_bytes } => write!(
                f,
                "-z/--max-job-size (BEANRING_MAX_JOB_SIZE) {given}: a file of the job log does not hold such a job; \
                 start with -s {segment_bytes} or more, or with a smaller -z"
            ),
            Self::Memory { given } => write!(
                f,
                "--max-memory (BEANRING_MAX_MEMORY) {given:?}: must be a number of bytes, with k, m or g for 1024, \
                 1024^2 or 1024^3 of them: {}m at least, or 0 for no limit",
                MEMORY_BYTES_MIN >> 20
            ),
            Self::Http { given } => {
                write!(
                    f,
                    "--http (BEANRING_HTTP) \"{given}\": must be PORT, HOST:PORT, [IPV6]:PORT or unix:PATH"
                )
            }
            Self::HttpHost { given } => write!(
                f,
                "--http-host (BEANRING_HTTP_HOST) \"{given}\": must be a host name without a port, *.NAME or *"
            ),
            Self::MetricsPrefix { given } => write!(
                f,
                "--metrics-prefix (BEANRING_METRICS_PREFIX) \"{given}\": must be letters, digits and _, and not begin \
                 with a digit"
            ),
            Self::NoAddress => write!(f, "-l/--listen: must be an address, a host name or unix:PATH"),
        }
    }
}

impl std::error::Error for ConfigError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str) -> Result<ServerConfig, ConfigError> {
        let words = ["beanring"].into_iter().chain(line.split_whitespace());
        ServerConfig::check(Arguments::from_words(words).expect("the command line is valid"))
    }

    fn tcp(host: &str, port: u16) -> Option<Address> {
        Some(Address::Tcp { host: host.to_owned(), port })
    }

    #[test]
    fn addresses() {
        for (line, expected) in [
            ("", None),
            ("-p 1", tcp("0.0.0.0", 1)),
            ("-p 65535", tcp("0.0.0.0", 65_535)),
            ("-l ::1", tcp("::1", 11300)),
            ("-l [::1] -p 0", tcp("::1", 0)),
            ("-l localhost", tcp("localhost", 11300)),
            ("-l unix:/a/b -p 7", Some(Address::Unix("/a/b".into()))),
        ] {
            assert_eq!(check(line).unwrap().listen, expected, "{line}");
        }
        for line in ["-l unix:", "-l []"] {
            assert_eq!(check(line), Err(ConfigError::NoAddress), "{line}");
        }
    }

    #[test]
    fn numbers_name_their_flag_and_its_range() {
        for (line, message) in [
            ("-p 65536", "-p/--port (BEANRING_PORT) \"65536\": must be a number from 0 to 65535"),
            ("-p 70000", "-p/--port (BEANRING_PORT) \"70000\": must be a number from 0 to 65535"),
            ("-p http", "-p/--port (BEANRING_PORT) \"http\": must be a number from 0 to 65535"),
            (
                "-z x",
                "-z/--max-job-size (BEANRING_MAX_JOB_SIZE) \"x\": must be a number from 0 to 1073741824",
            ),
            (
                "-z -1",
                "-z/--max-job-size (BEANRING_MAX_JOB_SIZE) \"-1\": must be a number from 0 to 1073741824",
            ),
            (
                "-f 1s",
                "-f/--sync-interval (BEANRING_SYNC_INTERVAL) \"1s\": must be a number from 0 to 4294967295",
            ),
            (
                "-s big",
                "-s/--log-file-size (BEANRING_LOG_FILE_SIZE) \"big\": must be a number from 0 to 1099511627776",
            ),
        ] {
            assert_eq!(check(line).unwrap_err().to_string(), message, "{line}");
        }
    }

    #[test]
    fn job_sizes_at_each_boundary() {
        for (line, bytes, warnings) in [
            ("", 65_535, 0),
            ("-z 0", 0, 0),
            ("-z 1073741824", JOB_BYTES_MAX, 0),
            ("-z 1073741825", JOB_BYTES_MAX, 1),
            ("-z 99999999999999999999999", JOB_BYTES_MAX, 1),
        ] {
            let config = check(line).unwrap();
            assert_eq!((config.job_bytes_max, config.warnings.len()), (bytes, warnings), "{line}");
        }
    }

    #[test]
    fn the_largest_job_fits_into_a_file_of_the_log() {
        let needed = segment_bytes_for(JOB_BYTES_MAX);
        for (line, bytes) in [
            ("-b /tmp", 65_535),
            ("-s 65536", 65_535),
            ("-b /tmp -s 65536", 61_146),
            ("-b /tmp -s 65536 -z 61146", 61_146),
            ("-b /tmp -s 69632", 65_242),
            ("-b /tmp -s 73728", 65_535),
            ("-b /tmp -z 10481370", 10_481_370),
            ("-z 10481371", 10_481_371),
            (&format!("-b /tmp -z 1073741824 -s {needed}"), JOB_BYTES_MAX),
        ] {
            let config = check(line).unwrap_or_else(|error| panic!("{line}: {error}"));
            assert_eq!(config.job_bytes_max, bytes, "{line}");
            let is_lowered = !line.contains("-z") && bytes < JOB_BYTES_DEFAULT;
            let warning = Warning::JobBytesOfSegment { bytes };
            assert_eq!(config.warnings.contains(&warning), is_lowered, "{line}");
        }
        for (line, given, segment_bytes) in [
            ("-b /tmp -s 65536 -z 61147", 61_147, 69_632),
            ("-b /tmp -z 10481371", 10_481_371, 10_489_856),
            ("-b /tmp -z 1073741824", JOB_BYTES_MAX, needed),
            ("-b /tmp -z 99999999999", JOB_BYTES_MAX, needed),
        ] {
            assert_eq!(check(line), Err(ConfigError::JobBytes { given, segment_bytes }), "{line}");
        }
    }

    #[test]
    fn ceilings() {
        let memory =
            |given: &str| check(&format!("--max-memory {given}")).map(|config| config.max_memory_bytes);
        assert_eq!(check("").unwrap().max_memory_bytes, None);
        for (given, bytes) in [
            ("0", None),
            ("0g", None),
            ("16777216", Some(16 << 20)),
            ("16384k", Some(16 << 20)),
            ("256m", Some(256 << 20)),
            ("256M", Some(256 << 20)),
            ("2G", Some(2 << 30)),
            ("18446744073709551615", Some(u64::MAX)),
        ] {
            assert_eq!(memory(given), Ok(bytes), "{given}");
        }
        for given in ["16777215", "16383k", "15m", "1t", "m", "256mb", "-1", "1.5g", "+17m", "17179869184g"] {
            assert_eq!(memory(given), Err(ConfigError::Memory { given: given.to_owned() }), "{given}");
        }
        assert_eq!(check("").unwrap().registered_bytes, REGISTERED_BYTES_DEFAULT);
        assert_eq!(check("--max-memory 64m").unwrap().registered_bytes, 16 << 20);
        let connections = |line| check(line).unwrap().max_connections;
        assert_eq!(connections(""), None);
        assert_eq!(connections("--max-connections 0"), None);
        assert_eq!(connections("--max-connections 7"), Some(7));
        assert!(check("--max-connections x").is_err());
        let tubes = |line| check(line).map(|config| (config.max_tubes, config.max_watches));
        assert_eq!(tubes(""), Ok((Some(100_000), Some(65_536))));
        assert_eq!(tubes("--max-tubes 0 --max-watches 0"), Ok((None, None)));
        assert_eq!(tubes("--max-tubes 1 --max-watches 4294967295"), Ok((Some(1), Some(u32::MAX))));
        for (line, flag) in [
            ("--max-tubes x", "--max-tubes (BEANRING_MAX_TUBES) \"x\""),
            ("--max-watches -1", "--max-watches (BEANRING_MAX_WATCHES) \"-1\""),
        ] {
            let message = check(line).unwrap_err().to_string();
            assert_eq!(message, format!("{flag}: must be a number from 0 to 4294967295"));
        }
    }

    #[test]
    fn monitors() {
        let http = |given: &str| check(&format!("--http {given}")).map(|config| config.http);
        let tcp = |host: &str, port| Ok(Some(Address::Tcp { host: host.to_owned(), port }));
        assert_eq!(check("").unwrap().http, None);
        for (given, host, port) in [
            ("9100", "127.0.0.1", 9100),
            (":9100", "127.0.0.1", 9100),
            ("0.0.0.0:0", "0.0.0.0", 0),
            ("[::1]:80", "::1", 80),
            ("host.example:80", "host.example", 80),
        ] {
            assert_eq!(http(given), tcp(host, port), "{given}");
        }
        assert_eq!(http("unix:/a"), Ok(Some(Address::Unix("/a".into()))));
        for given in ["unix:", "host", "host:", "65536", "1:+80", "+80"] {
            assert_eq!(http(given), Err(ConfigError::Http { given: given.to_owned() }), "{given}");
        }
        let hosts = |line: &str| check(line).map(|config| config.http_hosts);
        assert_eq!(hosts(""), Ok(vec![]));
        let several = ["a.b", "*.c", "*"].map(str::to_owned).to_vec();
        assert_eq!(hosts("--http-host a.b,*.c --http-host *"), Ok(several));
        for given in ["a:1", "a/b", "*x"] {
            let error = ConfigError::HttpHost { given: given.to_owned() };
            assert_eq!(hosts(&format!("--http-host x,{given}")), Err(error));
        }
        let prefix =
            |given: &str| check(&format!("--metrics-prefix {given}")).map(|config| config.metrics_prefix);
        assert_eq!(check("").unwrap().metrics_prefix, "beanring");
        assert_eq!(prefix("my_Queue2"), Ok("my_Queue2".to_owned()));
        let tubes = |line: &str| check(line).map(|config| config.metrics_tubes);
        assert_eq!(["", "--metrics-tubes 0"].map(tubes), [Ok(1000), Ok(0)]);
        assert!(tubes("--metrics-tubes all").is_err());
        for given in ["2queue", "my-queue", "a:b", "é"] {
            assert_eq!(prefix(given), Err(ConfigError::MetricsPrefix { given: given.to_owned() }), "{given}");
        }
    }

    #[test]
    fn flags_of_the_log() {
        let log = |line| check(line).unwrap().log;
        assert_eq!(check("-b /tmp").unwrap().log_dir, Some("/tmp".into()));
        assert_eq!(check("").unwrap().log_dir, None);
        for (line, durability) in [
            ("", Durability::Within(Span::from_millis(50))),
            ("-f 0", Durability::Always),
            ("-f 7", Durability::Within(Span::from_millis(7))),
            ("-F", Durability::Never),
        ] {
            assert_eq!(log(line).durability, durability, "{line}");
        }
        for (line, bytes) in
            [("", 10_485_760), ("-s 1", 65_536), ("-s 65537", 69_632), ("-s 1048576", 1_048_576)]
        {
            assert_eq!(log(line).segment_bytes, bytes, "{line}");
        }
    }

    #[test]
    fn log_levels() {
        let level = |line| check(line).unwrap().log_level;
        for (line, expected) in [
            ("", LogLevel::Info),
            ("--log-level error", LogLevel::Error),
            ("-V", LogLevel::Debug),
            ("-VV", LogLevel::Trace),
            ("--log-level warn -V", LogLevel::Debug),
            ("-VV --log-level warn", LogLevel::Warn),
            ("-V --log-level warn -V", LogLevel::Trace),
        ] {
            assert_eq!(level(line), expected, "{line}");
        }
    }

    #[test]
    fn obsolete_flags_warn() {
        let obsolete = |flag| Warning::Obsolete { flag };
        assert_eq!(check("-c -n").unwrap().warnings, [obsolete("-c"), obsolete("-n")]);
    }
}
