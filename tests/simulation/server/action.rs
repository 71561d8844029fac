//! The actions of a run, and a run as text with one action per line.

use std::fmt::{self, Display, Formatter};

/// One action. An action that is impossible when its turn comes is skipped, so a script stays valid when lines are removed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// A client connects. Clients are numbered in this order, from 0 in each life of the server.
    Connect,
    /// A client sends bytes, which are in transit from then on.
    Send { client: usize, bytes: Vec<u8> },
    /// Bytes in transit arrive: directly in the slot of a body if `direct` is set and the server offers one.
    Deliver { client: usize, bytes: usize, direct: bool },
    /// A send begins, or the current send ends after it took `bytes` bytes.
    Transmit { client: usize, bytes: usize },
    /// The client ends its side of the connection.
    HalfClose { client: usize },
    /// The connection breaks.
    Break { client: usize },
    /// The driver runs an event-loop iteration.
    Turn,
    /// A disk operation ends.
    Disk { seed: u64 },
    /// Time passes, and the driver meets every deadline.
    Pass { ns: u64 },
    /// Everything that can happen at this moment happens, then all state is compared.
    Settle,
    /// SIGUSR1.
    Drain,
    /// The disk has space for this many segments from now on.
    Space { segments: usize },
    /// The next disk operation fails.
    Fail,
    /// SIGTERM, and a start from what the disk has.
    Stop,
    /// SIGKILL, and a start from what the disk has.
    Kill { seed: u64 },
    /// A power failure, and a start from what the disk has.
    PowerCut { seed: u64 },
}

impl Display for Action {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect => write!(f, "connect"),
            Self::Send { client, bytes } => write!(f, "say {client} {}", escape(bytes)),
            Self::Deliver { client, bytes, direct } => {
                write!(f, "deliver {client} {bytes}{}", if *direct { " direct" } else { "" })
            }
            Self::Transmit { client, bytes } => write!(f, "take {client} {bytes}"),
            Self::HalfClose { client } => write!(f, "half-close {client}"),
            Self::Break { client } => write!(f, "cut {client}"),
            Self::Turn => write!(f, "turn"),
            Self::Disk { seed } => write!(f, "disk {seed}"),
            Self::Pass { ns } => write!(f, "pass {ns}"),
            Self::Settle => write!(f, "settle"),
            Self::Drain => write!(f, "drain"),
            Self::Space { segments } => write!(f, "room {segments}"),
            Self::Fail => write!(f, "fail"),
            Self::Stop => write!(f, "stop"),
            Self::Kill { seed } => write!(f, "kill {seed}"),
            Self::PowerCut { seed } => write!(f, "power-cut {seed}"),
        }
    }
}

impl Action {
    /// Whether it is possible after the server has failed.
    pub const fn is_possible_after_failure(&self) -> bool {
        matches!(self, Self::Transmit { .. } | Self::Stop | Self::Kill { .. } | Self::PowerCut { .. })
    }

    /// Parses a line of a script.
    pub fn parse(line: &str) -> Self {
        let mut words = line.split(' ');
        let name = words.next().expect("a line has a word");
        let mut number = || -> u64 {
            let word = words.next().unwrap_or_else(|| panic!("{line}: a number is missing"));
            word.parse().unwrap_or_else(|_| panic!("{line}: {word} is not a number"))
        };
        match name {
            "connect" => Self::Connect,
            "say" => {
                let client = number() as usize;
                let text = line.splitn(3, ' ').nth(2).expect("the line has bytes");
                Self::Send { client, bytes: unescape(text) }
            }
            "deliver" => {
                let (client, bytes) = (number() as usize, number() as usize);
                Self::Deliver { client, bytes, direct: line.ends_with("direct") }
            }
            "take" => Self::Transmit { client: number() as usize, bytes: number() as usize },
            "half-close" => Self::HalfClose { client: number() as usize },
            "cut" => Self::Break { client: number() as usize },
            "turn" => Self::Turn,
            "disk" => Self::Disk { seed: number() },
            "pass" => Self::Pass { ns: number() },
            "settle" => Self::Settle,
            "drain" => Self::Drain,
            "room" => Self::Space { segments: number() as usize },
            "fail" => Self::Fail,
            "stop" => Self::Stop,
            "kill" => Self::Kill { seed: number() },
            "power-cut" => Self::PowerCut { seed: number() },
            other => panic!("{other} is not an action"),
        }
    }
}

/// A longer run of one byte is written as the byte and its count.
const RUN_MIN: usize = 8;

/// Escapes bytes as in Rust, and a run of one byte as `\{20000*x}`.
fn escape(bytes: &[u8]) -> String {
    let mut text = String::new();
    for run in bytes.chunk_by(|one, other| one == other) {
        let byte = run[0].escape_ascii();
        if run.len() > RUN_MIN {
            text.push_str(&format!("\\{{{}*{byte}}}", run.len()));
        } else {
            text.push_str(&byte.to_string().repeat(run.len()));
        }
    }
    text
}

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        rest = &rest[first.len_utf8()..];
        if first != '\\' {
            bytes.push(first as u8);
            continue;
        }
        let kind = rest.chars().next().expect("a character follows the backslash");
        rest = &rest[kind.len_utf8()..];
        match kind {
            'r' => bytes.push(b'\r'),
            'n' => bytes.push(b'\n'),
            't' => bytes.push(b'\t'),
            'x' => {
                bytes.push(u8::from_str_radix(&rest[..2], 16).expect("two digits"));
                rest = &rest[2..];
            }
            '{' => {
                let (count, after) = rest.split_once('*').expect("a run has a length");
                let (byte, after) = after.split_once('}').expect("a run has an end");
                let run = unescape(byte).repeat(count.parse().expect("a number"));
                bytes.extend(run);
                rest = after;
            }
            other => bytes.push(other as u8),
        }
    }
    bytes
}

#[test]
fn actions_survive_the_conversion_to_text() {
    let bytes =
        b"put 0 0 1 30\r\n\"\\\t\x00\xff'\r\rxxxxxxxxxxxxxxxxxxx\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\r\n";
    let actions = [
        Action::Connect,
        Action::Send { client: 3, bytes: bytes.to_vec() },
        Action::Deliver { client: 0, bytes: 7, direct: true },
        Action::Deliver { client: 0, bytes: 7, direct: false },
        Action::Pass { ns: u64::MAX },
        Action::PowerCut { seed: 5 },
    ];
    for action in actions {
        assert_eq!(Action::parse(&action.to_string()), action);
    }
}
