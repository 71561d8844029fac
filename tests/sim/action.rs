//! What can happen in a run, and a run as text: one action a line.

use std::fmt::{self, Display, Formatter};

/// One thing that happens. What cannot happen when its turn comes is passed over, so that a script stays one when
/// lines are taken out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// A client connects. Clients have numbers in this order, from 0 in each life of the server.
    Connect,
    /// It sends bytes, which are on their way from then on.
    Say { client: usize, bytes: Vec<u8> },
    /// So many of them arrive, where they belong if `direct` and the server wants that.
    Deliver { client: usize, bytes: usize, direct: bool },
    /// A send begins; or the one under way ends, and took so many bytes.
    Take { client: usize, bytes: usize },
    /// The client sends nothing more.
    HalfClose { client: usize },
    /// The connection breaks.
    Cut { client: usize },
    /// The driver calls the server.
    Turn,
    /// An operation of the disk ends.
    Disk { seed: u64 },
    /// Time passes, and the driver is never late.
    Pass { ns: u64 },
    /// Everything that can happen at this moment does, and everything is compared.
    Settle,
    /// SIGUSR1.
    Drain,
    /// There is space for so many segments from now on.
    Room { segments: usize },
    /// The next operation of the disk fails.
    Fail,
    /// SIGTERM, and a start on what is left.
    Stop,
    /// SIGKILL, and a start on what is left.
    Kill { seed: u64 },
    /// The power fails, and there is a start on what is left.
    PowerCut { seed: u64 },
}

impl Display for Action {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect => write!(f, "connect"),
            Self::Say { client, bytes } => write!(f, "say {client} {}", escape(bytes)),
            Self::Deliver { client, bytes, direct } => {
                write!(f, "deliver {client} {bytes}{}", if *direct { " direct" } else { "" })
            }
            Self::Take { client, bytes } => write!(f, "take {client} {bytes}"),
            Self::HalfClose { client } => write!(f, "half-close {client}"),
            Self::Cut { client } => write!(f, "cut {client}"),
            Self::Turn => write!(f, "turn"),
            Self::Disk { seed } => write!(f, "disk {seed}"),
            Self::Pass { ns } => write!(f, "pass {ns}"),
            Self::Settle => write!(f, "settle"),
            Self::Drain => write!(f, "drain"),
            Self::Room { segments } => write!(f, "room {segments}"),
            Self::Fail => write!(f, "fail"),
            Self::Stop => write!(f, "stop"),
            Self::Kill { seed } => write!(f, "kill {seed}"),
            Self::PowerCut { seed } => write!(f, "power-cut {seed}"),
        }
    }
}

impl Action {
    /// Whether it can happen to a server that cannot go on.
    pub const fn is_possible_at_the_end(&self) -> bool {
        matches!(self, Self::Take { .. } | Self::Stop | Self::Kill { .. } | Self::PowerCut { .. })
    }

    /// A line of a script.
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
                let text = line.splitn(3, ' ').nth(2).expect("something is said");
                Self::Say { client, bytes: unescape(text) }
            }
            "deliver" => {
                let (client, bytes) = (number() as usize, number() as usize);
                Self::Deliver { client, bytes, direct: line.ends_with("direct") }
            }
            "take" => Self::Take { client: number() as usize, bytes: number() as usize },
            "half-close" => Self::HalfClose { client: number() as usize },
            "cut" => Self::Cut { client: number() as usize },
            "turn" => Self::Turn,
            "disk" => Self::Disk { seed: number() },
            "pass" => Self::Pass { ns: number() },
            "settle" => Self::Settle,
            "drain" => Self::Drain,
            "room" => Self::Room { segments: number() as usize },
            "fail" => Self::Fail,
            "stop" => Self::Stop,
            "kill" => Self::Kill { seed: number() },
            "power-cut" => Self::PowerCut { seed: number() },
            other => panic!("{other} is not an action"),
        }
    }
}

/// A byte that comes more often than this in a row is written once, with a number.
const RUN_MIN: usize = 8;

/// `\r` and the like, and `\{20000*x}` for a run of a byte.
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
        let kind = rest.chars().next().expect("something is escaped");
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
fn a_run_is_text() {
    let said =
        b"put 0 0 1 30\r\n\"\\\t\x00\xff'\r\rxxxxxxxxxxxxxxxxxxx\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\r\n";
    let actions = [
        Action::Connect,
        Action::Say { client: 3, bytes: said.to_vec() },
        Action::Deliver { client: 0, bytes: 7, direct: true },
        Action::Deliver { client: 0, bytes: 7, direct: false },
        Action::Pass { ns: u64::MAX },
        Action::PowerCut { seed: 5 },
    ];
    for action in actions {
        assert_eq!(Action::parse(&action.to_string()), action);
    }
}
