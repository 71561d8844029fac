//! Errors of a configuration. Each is one line: the source of the value, the problem, and the remedy.

use std::fmt;
use std::path::PathBuf;

use super::address::UNIX_PATH_BYTES_MAX;
use super::settings::{Origin, Setting};
use super::size::{Size, SizeError};
use crate::flags::{Flag, Sources, variable};
use crate::io::named_file::FileError;
use crate::values::limits::MEMORY_BYTES_MIN;

/// Why a server with this configuration does not start.
#[derive(Debug)]
pub enum ConfigError {
    /// A value is not valid.
    Value {
        /// The value.
        setting: Setting,
        /// The problem with it.
        problem: Problem,
    },
    /// The value for a file is none, and may be a secret, so it is not shown.
    SecretForFile {
        /// Where it was given.
        origin: Origin,
    },
    /// A variable begins like those of the server, and is none of them.
    UnknownVariable {
        /// The variable.
        name: String,
        /// The one that may be meant.
        suggestion: Option<String>,
    },
    /// A key of the file is not known.
    UnknownKey {
        /// The key.
        origin: Origin,
        /// The one that may be meant.
        suggestion: Option<String>,
    },
    /// The file has a flag that it cannot set.
    NotInFile {
        /// The key.
        origin: Origin,
        /// The flag.
        flag: &'static Flag,
    },
    /// A variable is named like a flag that only the command line sets.
    OnlyOnCommandLine {
        /// The variable.
        name: String,
        /// The flag.
        flag: &'static Flag,
    },
    /// One source has two settings of the same thing, and no order that would tell which one counts.
    Alternatives {
        /// One of them.
        one: Origin,
        /// The other.
        other: Origin,
    },
    /// The file cannot be read.
    Unreadable {
        /// The path of the file.
        setting: Setting,
        /// The error of the system.
        error: FileError,
    },
    /// A line of the file is not valid.
    Syntax {
        /// The path of the file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// The number of the character in the line, from 1.
        column: usize,
        /// The line.
        text: String,
        /// The problem with it, and the remedy.
        problem: String,
    },
}

/// A problem with a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Problem {
    /// It is not UTF-8.
    NotUtf8,
    /// It is empty. This must be named instead.
    Empty(&'static str),
    /// It is not a number, or too large.
    Number {
        /// The maximum. The minimum is 0.
        max: u64,
    },
    /// It is 0 or too large; the maximum.
    Positive(u64),
    /// It is not a size, or not in its range.
    Size {
        /// Why it is not a size, if it is none.
        error: Option<SizeError>,
        /// The largest valid size, if there is a limit.
        max: Option<u64>,
    },
    /// It is a size, and too small for a memory limit.
    MemoryTooSmall,
    /// A switch is neither on nor off.
    Switch,
    /// It is not one of these words.
    Choice(&'static [&'static str]),
    /// It is not a number of milliseconds.
    Milliseconds {
        /// The maximum. The minimum is 0.
        max: u64,
    },
    /// A token for HTTP is given beside a file of users.
    TokenBesideUsers,
    /// It is not the address of a host.
    Host,
    /// It lacks the path of a UNIX socket.
    UnixPathMissing,
    /// It is a path without `unix:` before it.
    UnixPathAlone {
        /// The path.
        path: String,
    },
    /// It is the address of a host and a port.
    HostWithPort {
        /// The port.
        port: String,
    },
    /// A UNIX socket cannot have this path.
    UnixPathTooLong,
    /// A UNIX socket has no such option.
    SocketOption {
        /// The option.
        option: String,
    },
    /// It is there twice.
    SocketOptionTwice {
        /// Its name.
        name: String,
    },
    /// No group is named.
    SocketGroupMissing,
    /// A comma without an option ends the path of a UNIX socket.
    SocketCommaAtEnd,
    /// Not the mode of a UNIX socket.
    SocketMode {
        /// What was given.
        mode: String,
    },
    /// An option of a UNIX socket that is not listened on.
    SocketOptionOfServer,
    /// A link-local address of IPv6 without its interface.
    InterfaceMissing {
        /// The address.
        address: String,
    },
    /// It is not an address with a port.
    Endpoint,
    /// The same, to connect to: it may be a URL, too.
    Remote,
    /// After a scheme there is no host with or without a port.
    SchemeAddress {
        /// Whether the scheme is that of TLS.
        is_tls: bool,
    },
    /// It is an address without a port.
    PortMissing {
        /// The address.
        host: String,
    },
    /// Its port is too large, or 0 for an address to connect to.
    PortOutOfRange {
        /// The smallest one.
        least: u16,
    },
    /// A setting of TLS without a certificate.
    CertificateMissing,
    /// A certificate that no listener uses.
    TlsListenerMissing,
    /// There is no listener at all.
    NoListener,
    /// A port, and no address.
    PortOfNone,
    /// A setting of a replicated job log, and none is.
    ReplicateMissing,
    /// A directory for the job log beside a database.
    WalDirBesideReplicate,
    /// An address for standbys, which do not forward.
    AdvertiseWithoutForward,
    /// A port alone or every address, where other machines connect.
    AdvertisedHostMissing,
    /// It is not where a browser reaches the console.
    AdvertisedHttp,
    /// The program was built without this feature.
    NotBuilt(&'static str),
    /// The address for HTTP is the one for clients.
    HttpTaken,
    /// It is not a host name.
    HttpHost,
    /// A name between two commas is empty.
    HttpHostMissing,
    /// The file has NUL bytes.
    Nul,
    /// It is not a valid prefix of metric names.
    MetricsPrefix,
    /// A job of this size does not fit into a segment of the job log.
    JobLargerThanSegment {
        /// The smallest segment that holds such a job.
        segment_bytes: u64,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value { setting, problem } => write!(f, "{setting}: {problem}"),
            Self::SecretForFile { origin } => {
                write!(
                    f,
                    "{origin}: there is no such file, and the value may be a secret; name the file that contains it"
                )
            }
            Self::UnknownVariable { name, suggestion: Some(meant) } => {
                write!(f, "{name}: no such variable; did you mean {meant}?")
            }
            Self::UnknownVariable { name, suggestion: None } => {
                write!(f, "{name}: no such variable; remove it, or see beanring --help")
            }
            Self::UnknownKey { origin, suggestion: Some(meant) } => {
                write!(f, "{origin}: no such key; did you mean {meant}?")
            }
            Self::UnknownKey { origin, suggestion: None } => {
                write!(f, "{origin}: no such key; the keys are the long flags of beanring --help")
            }
            Self::NotInFile { origin, flag } if flag.sources == Sources::Variable => {
                let (flag, variable) = (flag.name, variable(flag.name));
                write!(f, "{origin}: this is set only on the command line (--{flag}), or by {variable}")
            }
            Self::NotInFile { origin, flag } => {
                write!(f, "{origin}: this is set only on the command line (--{})", flag.name)
            }
            Self::OnlyOnCommandLine { name, flag } => {
                write!(f, "{name}: this is set only on the command line (--{})", flag.name)
            }
            Self::Alternatives { one, other } => {
                write!(f, "{one} and {} set the same thing; remove one of them", other.beside())
            }
            Self::Unreadable { setting, error } => write!(f, "{setting}: {error}"),
            Self::Syntax { path, line, column, text, problem } => {
                let text = if text.is_empty() { String::new() } else { format!("{text}: ") };
                write!(f, "{}:{line}:{column}: {text}{problem}", path.display())
            }
        }
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotUtf8 => write!(f, "must be UTF-8 text"),
            Self::Empty(what) => write!(f, "the value is empty; name {what}, or remove the setting"),
            Self::Number { max } => write!(f, "must be a number from 0 to {max}"),
            Self::Positive(max) => write!(f, "must be a number from 1 to {max}"),
            Self::Size { error: Some(SizeError::Ambiguous(unit)), .. } => write_ambiguous(f, *unit),
            Self::Size { max, .. } => {
                write!(f, "must be a size such as 65536, 64k, 10m or 2g")?;
                max.map_or(Ok(()), |max| write!(f, ", at most {}", Size(max)))
            }
            Self::MemoryTooSmall => {
                let min = Size(MEMORY_BYTES_MIN);
                write!(f, "must be at least {min}, such as 512m or 2g, or 0 for no limit")
            }
            Self::Switch => write!(f, "must be yes or no"),
            Self::CertificateMissing => write!(f, "TLS needs a certificate; set --tls-cert and --tls-key"),
            Self::TlsListenerMissing => {
                write!(f, "no listener has TLS; set --tls-listen or --http-tls, or remove this setting")
            }
            Self::NoListener => write!(f, "no client could connect; set --tls-listen, or name an address"),
            Self::PortOfNone => write!(f, "has no effect with -l none; remove it"),
            Self::ReplicateMissing => write!(f, "has no effect without --replicate; set it, or remove this"),
            Self::WalDirBesideReplicate => {
                write!(
                    f,
                    "cannot be combined with --replicate, which keeps the job log in a database; remove one"
                )
            }
            Self::AdvertiseWithoutForward => {
                write!(f, "has no effect with --no-forward; remove one")
            }
            Self::AdvertisedHostMissing => {
                write!(
                    f,
                    "must name the host that other servers reach this one by, as in 10.0.0.5 or HOST:PORT; a name has the server \
                     listen on every address"
                )
            }
            Self::AdvertisedHttp => {
                write!(
                    f,
                    "must be where browsers reach the console of this server: HOST:PORT, or a URL such as \
                     https://queue.example/one/"
                )
            }
            Self::NotBuilt(feature) => {
                write!(f, "this program was built without the feature \"{feature}\"; use another one")
            }
            Self::Choice(words) => {
                let (last, others) = words.split_last().expect("a choice has words");
                write!(f, "must be {} or {last}", others.join(", "))
            }
            Self::Milliseconds { max } => {
                write!(f, "must be a number of milliseconds from 0 to {max}, without a unit")
            }
            Self::TokenBesideUsers => {
                write!(f, "cannot be used with --auth; remove it, and give a user of --auth this token")
            }
            Self::Host => write!(f, "must be an IP address, a host name or unix:PATH"),
            Self::UnixPathMissing => {
                write!(
                    f,
                    "the path of the socket is missing; write unix:PATH, such as unix:/run/beanring/socket"
                )
            }
            Self::UnixPathAlone { path } => {
                write!(f, "a path needs unix: before it; write unix:{path}")
            }
            Self::HostWithPort { port } => {
                write!(f, "must be an address without a port; set the port with -p {port}")
            }
            Self::UnixPathTooLong => {
                write!(
                    f,
                    "the path of a UNIX socket has at most {UNIX_PATH_BYTES_MAX} bytes; choose a shorter one"
                )
            }
            Self::SocketOption { option } => {
                write!(f, "{option} is no option of a UNIX socket; write unix:PATH,mode=0660,group=NAME")
            }
            Self::SocketOptionTwice { name } => write!(f, "{name}= is there twice"),
            Self::SocketGroupMissing => f.write_str("group= must name a group, such as group=www-data"),
            Self::SocketCommaAtEnd => {
                f.write_str("ends with a comma; leave it out, or write an option behind it")
            }
            Self::SocketMode { mode } => {
                write!(f, "mode={mode} must have octal digits from 0 to 0777, such as mode=0660")
            }
            Self::SocketOptionOfServer => {
                write!(
                    f,
                    "mode= and group= are for the address that a server listens on; leave them out here"
                )
            }
            Self::InterfaceMissing { address } => {
                write!(f, "a link-local address needs its network interface, as in {address}%eth0")
            }
            Self::Endpoint => write!(f, "must be PORT, HOST:PORT, [IPV6]:PORT or unix:PATH"),
            Self::Remote => {
                write!(f, "must be PORT, HOST:PORT, [IPV6]:PORT, unix:PATH, or for TLS beanstalks://HOST")
            }
            Self::SchemeAddress { is_tls } => {
                let scheme = if *is_tls { "beanstalks" } else { "beanstalk" };
                write!(f, "must be {scheme}://HOST, {scheme}://HOST:PORT or {scheme}://[IPV6]:PORT")
            }
            Self::PortMissing { host } => {
                write!(f, "the port is missing; write {host}:PORT")
            }
            Self::PortOutOfRange { least } => {
                write!(f, "the port must be a number from {least} to {}", u16::MAX)
            }
            Self::HttpTaken => write!(f, "clients connect to this address (-l, -p); choose another port"),
            Self::HttpHost => write!(f, "must be a host name without a port, *.NAME or *"),
            Self::HttpHostMissing => write!(f, "a name is empty; remove the comma"),
            Self::Nul => write!(f, "the file has NUL bytes; save it as UTF-8 text"),
            Self::MetricsPrefix => {
                write!(f, "must consist of letters, digits and _, and not begin with a digit")
            }
            Self::JobLargerThanSegment { segment_bytes } => write!(
                f,
                "such a job does not fit into a segment of the job log; set -s to {} or more, or -z lower",
                Size(*segment_bytes)
            ),
        }
    }
}

/// `unit` is the first letter of KB, MB or GB.
fn write_ambiguous(f: &mut fmt::Formatter<'_>, unit: char) -> fmt::Result {
    let (unit, short) = (unit.to_ascii_uppercase(), unit.to_ascii_lowercase());
    let bytes = match unit {
        'K' => "1024",
        'M' => "1024^2",
        _ => "1024^3",
    };
    write!(f, "{unit}B is not a unit here; write {unit}iB or {short} for {bytes} bytes")
}
