//! Errors of a configuration. Each is one line: the source of the value, the problem, and the remedy.

use std::path::PathBuf;

use super::address::UNIX_PATH_BYTES_MAX;
use super::settings::{Origin, Setting};
use super::size::{Size, SizeError};
use crate::flags::{Flag, Sources, variable};
use crate::io::named_file::FileError;
use crate::values::limits::MEMORY_BYTES_MIN;

/// Why a server with this configuration does not start.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ConfigError {
    #[error("{setting}: {problem}")]
    Value { setting: Setting, problem: Problem },
    #[error("{origin}: there is no such file, and the value may be a secret; name the file that contains it")]
    SecretForFile { origin: Origin },
    #[error("{name}: no such variable; {}", meant_or(.suggestion, "remove it, or see beanring --help"))]
    UnknownVariable { name: String, suggestion: Option<String> },
    #[error("{origin}: no such key; {}", meant_or(.suggestion, "the keys are the long flags of beanring --help"))]
    UnknownKey { origin: Origin, suggestion: Option<String> },
    #[error("{origin}: this is set only on the command line (--{}){}", .flag.name, or_variable(.flag))]
    NotInFile { origin: Origin, flag: &'static Flag },
    #[error("{name}: this is set only on the command line (--{})", .flag.name)]
    OnlyOnCommandLine { name: String, flag: &'static Flag },
    /// One source has two settings of the same thing, and no order that would tell which one counts.
    #[error("{one} and {} set the same thing; remove one of them", .other.beside())]
    Alternatives { one: Origin, other: Origin },
    #[error(
        "{}: schedule {name}: its body has {bytes} bytes, and the maximum job size is {max}; shorten it, or raise -z and -s",
        .path.display()
    )]
    ScheduleBody { path: PathBuf, name: String, bytes: usize, max: u32 },
    #[error("{setting}: {error}")]
    Unreadable { setting: Setting, error: FileError },
    #[error("{path}:{line}:{column}: {}{problem}", with_colon(.text))]
    Syntax { path: PathBuf, line: usize, column: usize, text: String, problem: String },
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Problem {
    #[error("must be UTF-8 text")]
    NotUtf8,
    #[error("the value is empty; name {0}, or remove the setting")]
    Empty(&'static str),
    #[error("must be a number from 0 to {max}")]
    Number { max: u64 },
    #[error("must be a number from 1 to {0}")]
    Positive(u64),
    #[error("{}", must_be_size(.error, .max))]
    Size { error: Option<SizeError>, max: Option<u64> },
    #[error("must be at least {}, such as 512m or 2g, or 0 for no limit", Size(MEMORY_BYTES_MIN))]
    MemoryTooSmall,
    #[error("must be yes or no")]
    Switch,
    #[error("must be {}", alternatives(.0))]
    Choice(&'static [&'static str]),
    #[error("must be a number of milliseconds from 0 to {max}, without a unit")]
    Milliseconds { max: u64 },
    #[error("cannot be used with --auth; remove it, and give a user of --auth this token")]
    TokenBesideUsers,
    #[error("must be an IP address, a host name or unix:PATH")]
    Host,
    #[error("the path of the socket is missing; write unix:PATH, such as unix:/run/beanring/socket")]
    UnixPathMissing,
    #[error("a path needs unix: before it; write unix:{path}")]
    UnixPathAlone { path: String },
    #[error("must be an address without a port; set the port with -p {port}")]
    HostWithPort { port: String },
    #[error("the path of a UNIX socket has at most {UNIX_PATH_BYTES_MAX} bytes; choose a shorter one")]
    UnixPathTooLong,
    #[error("{option} is no option of a UNIX socket; write unix:PATH,mode=0660,group=NAME")]
    SocketOption { option: String },
    #[error("{name}= is there twice")]
    SocketOptionTwice { name: String },
    #[error("group= must name a group, such as group=www-data")]
    SocketGroupMissing,
    #[error("ends with a comma; leave it out, or write an option behind it")]
    SocketCommaAtEnd,
    #[error("mode={mode} must have octal digits from 0 to 0777, such as mode=0660")]
    SocketMode { mode: String },
    #[error("mode= and group= are for the address that a server listens on; leave them out here")]
    SocketOptionOfServer,
    #[error("a link-local address needs its network interface, as in {address}%eth0")]
    InterfaceMissing { address: String },
    #[error("must be PORT, HOST:PORT, [IPV6]:PORT or unix:PATH")]
    Endpoint,
    #[error("must be PORT, HOST:PORT, [IPV6]:PORT, unix:PATH, or for TLS beanstalks://HOST")]
    Remote,
    #[error("must be {0}://HOST, {0}://HOST:PORT or {0}://[IPV6]:PORT", if *.is_tls { "beanstalks" } else { "beanstalk" })]
    SchemeAddress { is_tls: bool },
    #[error("the port is missing; write {host}:PORT")]
    PortMissing { host: String },
    #[error("the port must be a number from {least} to {}", u16::MAX)]
    PortOutOfRange { least: u16 },
    #[error("TLS needs a certificate; set --tls-cert and --tls-key")]
    CertificateMissing,
    #[error("no listener has TLS; set --tls-listen or --http-tls, or remove this setting")]
    TlsListenerMissing,
    #[error("no client could connect; set --tls-listen, or name an address")]
    NoListener,
    #[error("has no effect with -l none; remove it")]
    PortOfNone,
    #[error("has no effect without --replicate; set it, or remove this")]
    ReplicateMissing,
    #[error("cannot be combined with --replicate, which keeps the job log in a database; remove one")]
    WalDirBesideReplicate,
    #[error("has no effect with --no-forward; remove one")]
    AdvertiseWithoutForward,
    #[error(
        "must name the host that other servers reach this one by, as in 10.0.0.5 or HOST:PORT; a name has the server \
        listen on every address"
    )]
    AdvertisedHostMissing,
    #[error(
        "must be where browsers reach the console of this server: HOST:PORT, or a URL such as https://queue.example/one/"
    )]
    AdvertisedHttp,
    #[error("this program was built without the feature \"{0}\"; use another one")]
    NotBuilt(&'static str),
    #[error("clients connect to this address (-l, -p); choose another port")]
    HttpTaken,
    #[error("must be a host name without a port, *.NAME or *")]
    HttpHost,
    #[error("a name is empty; remove the comma")]
    HttpHostMissing,
    #[error("the file has NUL bytes; save it as UTF-8 text")]
    Nul,
    #[error("must consist of letters, digits and _, and not begin with a digit")]
    MetricsPrefix,
    #[error("such a job does not fit into a segment of the job log; set -s to {} or more, or -z lower", Size(*.segment_bytes))]
    JobLargerThanSegment { segment_bytes: u64 },
}

fn meant_or(suggestion: &Option<String>, advice: &str) -> String {
    suggestion.as_ref().map_or(advice.to_owned(), |meant| format!("did you mean {meant}?"))
}

fn or_variable(flag: &Flag) -> String {
    match flag.sources {
        Sources::Variable => format!(", or by {}", variable(flag.name)),
        _ => String::new(),
    }
}

fn with_colon(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{text}: ") }
}

fn alternatives(words: &[&str]) -> String {
    let (last, others) = words.split_last().expect("a choice has words");
    format!("{} or {last}", others.join(", "))
}

fn must_be_size(error: &Option<SizeError>, max: &Option<u64>) -> String {
    if let Some(SizeError::Ambiguous(unit)) = error {
        return ambiguous(*unit);
    }
    let limit = max.map_or(String::new(), |max| format!(", at most {}", Size(max)));
    format!("must be a size such as 65536, 64k, 10m or 2g{limit}")
}

/// `unit` is the first letter of KB, MB or GB.
fn ambiguous(unit: char) -> String {
    let (unit, short) = (unit.to_ascii_uppercase(), unit.to_ascii_lowercase());
    let bytes = match unit {
        'K' => "1024",
        'M' => "1024^2",
        _ => "1024^3",
    };
    format!("{unit}B is not a unit here; write {unit}iB or {short} for {bytes} bytes")
}
