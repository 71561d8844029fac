//! The content of a conversation file. `tests/conversations/README.md` has the grammar.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::pattern::Pattern;
use super::repository;

/// The content of one file.
#[derive(Debug)]
pub struct Conversation {
    /// Path of the file, relative to the repository.
    pub path: PathBuf,
    /// Its pauses are too long, or too exact, for real time.
    pub needs_virtual_time: bool,
    /// Why every version of beanstalkd replies differently.
    pub not_reference: Option<String>,
    /// The first version of beanstalkd that replies so.
    pub beanstalkd_from: Option<Version>,
    /// The last version of beanstalkd that replies so. beanring does not.
    pub beanstalkd_until: Option<Version>,
    /// Why beanstalkd usually replies as expected, but not always.
    pub unsteady_reference: Option<String>,
    /// The server's limit of a job body, in bytes.
    pub max_job_size: Option<u32>,
    /// The server's memory limit, in bytes.
    pub max_memory: Option<u64>,
    /// Whether the server accepts requests of other protocols.
    pub allow_foreign_protocols: bool,
    /// Whether the server accepts times with decimals.
    pub sub_second: bool,
    /// Names of the connections, in the order of their first use.
    pub connections: Vec<String>,
    pub steps: Vec<Step>,
}

/// One line of a conversation.
#[derive(Debug)]
pub struct Step {
    /// The line number, from 1.
    pub line: usize,
    /// The text of the line.
    pub text: String,
    pub action: Action,
}

/// The meaning of a line. `conn` is an index into [`Conversation::connections`].
#[derive(Debug)]
pub enum Action {
    Open { conn: usize },
    Send { conn: usize, bytes: Vec<u8> },
    Expect { conn: usize, pattern: Pattern },
    ExpectData { conn: usize, kind: DataKind, lines: Vec<String> },
    Nothing { conn: usize },
    Closed { conn: usize },
    HalfClose { conn: usize },
    Close { conn: usize },
    Advance(Duration),
    Drain,
}

/// How the lines below an expected data reply compare with its body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataKind {
    /// `{some}`: the body contains all of them, in this order.
    Some,
    /// `{first}`: they are the first lines of the body.
    First,
    /// `{set}`: they are all lines of the body, in any order.
    Set,
}

/// The first two numbers of a version of beanstalkd.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Version(pub u32, pub u32);

impl Conversation {
    /// Returns every conversation with beanring, sorted by name.
    ///
    /// # Panics
    /// If a file cannot be read or parsed.
    pub fn all() -> Vec<Self> {
        Self::of_any_server().into_iter().filter(|each| each.beanstalkd_until.is_none()).collect()
    }

    /// Returns every conversation, including those with only some versions of beanstalkd.
    ///
    /// # Panics
    /// If a file cannot be read or parsed.
    pub fn of_any_server() -> Vec<Self> {
        let root = repository();
        let entries = fs::read_dir(root.join("tests/conversations")).expect("tests/conversations exists");
        let mut paths: Vec<PathBuf> = entries
            .map(|entry| entry.expect("a directory entry").path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
            .collect();
        paths.sort();
        paths
            .iter()
            .map(|path| {
                let text = fs::read_to_string(path).expect("a conversation is UTF-8 text");
                let shown = path.strip_prefix(root).expect("below the package");
                Self::parse(shown, &text).unwrap_or_else(|problem| panic!("{problem}"))
            })
            .collect()
    }

    /// Parses the text of a file. An error begins with `file:line`.
    pub fn parse(path: &Path, text: &str) -> Result<Self, String> {
        let mut conversation = Self {
            path: path.to_owned(),
            needs_virtual_time: false,
            not_reference: None,
            beanstalkd_from: None,
            beanstalkd_until: None,
            unsteady_reference: None,
            max_job_size: None,
            max_memory: None,
            allow_foreign_protocols: false,
            sub_second: false,
            connections: Vec::new(),
            steps: Vec::new(),
        };
        for (i, line) in text.lines().enumerate() {
            conversation.add(i + 1, line).map_err(|why| format!("{}:{}: {why}", path.display(), i + 1))?;
        }
        Ok(conversation)
    }

    fn add(&mut self, number: usize, line: &str) -> Result<(), String> {
        if line.trim().is_empty() {
            return Ok(());
        }
        if let Some(comment) = line.strip_prefix('#') {
            return self.header(comment.trim());
        }
        if line.starts_with(' ') {
            return match self.steps.last_mut().map(|step| &mut step.action) {
                Some(Action::ExpectData { lines, .. }) => {
                    lines.push(line.trim_start().to_owned());
                    Ok(())
                }
                _ => Err("indented, but not under an expected data reply".to_owned()),
            };
        }
        let action = self.action(line)?;
        self.steps.push(Step { line: number, text: line.to_owned(), action });
        Ok(())
    }

    fn header(&mut self, comment: &str) -> Result<(), String> {
        match comment.split_once(':').map(|(key, value)| (key, value.trim())) {
            Some(("needs", "virtual-time")) => self.needs_virtual_time = true,
            Some(("needs", other)) => return Err(format!("unknown need {other:?}")),
            Some(("not-reference", reason)) => self.not_reference = Some(reason.to_owned()),
            Some(("beanstalkd-from", version)) => self.beanstalkd_from = Some(read_version(version)?),
            Some(("beanstalkd-until", version)) => self.beanstalkd_until = Some(read_version(version)?),
            Some(("unsteady-reference", reason)) => self.unsteady_reference = Some(reason.to_owned()),
            Some(("server", setting)) => {
                let unknown = || format!("unknown setting {setting:?}");
                let (key, value) = setting.split_once('=').ok_or_else(unknown)?;
                match key {
                    "max-job-size" => self.max_job_size = Some(value.parse().map_err(|_| unknown())?),
                    "max-memory" => self.max_memory = Some(value.parse().map_err(|_| unknown())?),
                    "allow-foreign-protocols" => {
                        self.allow_foreign_protocols = value.parse().map_err(|_| unknown())?;
                    }
                    "sub-second" => self.sub_second = value.parse().map_err(|_| unknown())?,
                    _ => return Err(unknown()),
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn action(&mut self, line: &str) -> Result<Action, String> {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        match first {
            "advance" => return Ok(Action::Advance(span(rest)?)),
            "signal" if rest == "USR1" => return Ok(Action::Drain),
            "signal" => return Err(format!("unknown signal {rest:?}")),
            _ => {}
        }
        let (verb, text) = rest.split_once(' ').unwrap_or((rest, ""));
        let conn = self.connection(first);
        Ok(match verb {
            "open" => Action::Open { conn },
            ">" => Action::Send { conn, bytes: bytes_of(text, "\r\n")? },
            ">|" => Action::Send { conn, bytes: bytes_of(text, "")? },
            "<" => match text.strip_prefix("OK ").and_then(DataKind::named) {
                Some(kind) => Action::ExpectData { conn, kind, lines: Vec::new() },
                None => {
                    let mut pattern = Pattern::parse(text)?;
                    pattern.push_bytes(b"\r\n");
                    Action::Expect { conn, pattern }
                }
            },
            "<|" => Action::Expect { conn, pattern: Pattern::parse(text)? },
            "nothing" => Action::Nothing { conn },
            "closed" => Action::Closed { conn },
            "half-close" => Action::HalfClose { conn },
            "close" => Action::Close { conn },
            _ => return Err(format!("unknown verb {verb:?}")),
        })
    }

    fn connection(&mut self, name: &str) -> usize {
        self.connections.iter().position(|known| known == name).unwrap_or_else(|| {
            self.connections.push(name.to_owned());
            self.connections.len() - 1
        })
    }
}

impl Conversation {
    /// Returns why this version of beanstalkd replies differently, if it does.
    pub fn not_by(&self, version: Version) -> Option<String> {
        if let Some(reason) = &self.not_reference {
            return Some(reason.clone());
        }
        let is_too_old = self.beanstalkd_from.is_some_and(|from| version < from);
        let is_too_new = self.beanstalkd_until.is_some_and(|until| version > until);
        (is_too_old || is_too_new).then(|| format!("beanstalkd {version} answers otherwise"))
    }
}

impl DataKind {
    fn named(text: &str) -> Option<Self> {
        match text {
            "{some}" => Some(Self::Some),
            "{first}" => Some(Self::First),
            "{set}" => Some(Self::Set),
            _ => None,
        }
    }
}

impl Version {
    /// Parses `1.13`, and ignores what follows.
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.trim().split(|c: char| !c.is_ascii_digit()).map(str::parse);
        Some(Self(numbers.next()?.ok()?, numbers.next()?.ok()?))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

fn read_version(text: &str) -> Result<Version, String> {
    Version::parse(text).ok_or_else(|| format!("not a version: {text:?}"))
}

fn bytes_of(text: &str, end: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Pattern::parse(text)?.literal().ok_or("what is sent cannot be free")?;
    bytes.extend_from_slice(end.as_bytes());
    Ok(bytes)
}

/// Parses `1500ms` or `2s`.
fn span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("not a span of time: {text:?}");
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    match &text[digits..] {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        _ => Err(wrong()),
    }
}
