//! The machine that the benchmarks run on.

use std::fs;
use std::process::Command;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::Serialize;

const DIE_WITH_PARENT: &[&str] = &["--pdeathsig", "KILL"];

/// The machine, and the cores that are used.
#[derive(Serialize)]
pub struct Machine {
    /// The start of the run, in UTC.
    pub date: String,
    pub kernel: String,
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// The revision of the sources.
    pub revision: String,
    /// The cores of the servers and of the load; none if there is only one core, or no `taskset`.
    pub pins: Option<(usize, usize)>,
    /// Whether children can be made to end with this process, even if it is killed.
    #[serde(skip)]
    has_setpriv: bool,
}

impl Machine {
    /// Inspects this machine.
    pub fn inspect() -> Machine {
        let allowed = cores(&field("/proc/self/status", "Cpus_allowed_list"));
        Machine {
            date: first_line("date", &["-u", "+%Y-%m-%d %H:%M UTC"]).unwrap_or_default(),
            kernel: first_line("uname", &["-sr"]).unwrap_or_default(),
            cpu: field("/proc/cpuinfo", "model name"),
            cores: allowed.len(),
            revision: first_line("git", &["describe", "--always", "--dirty"]).unwrap_or("unknown".to_owned()),
            pins: match allowed[..] {
                [servers, load, ..] if works("taskset", &["-c", &load.to_string(), "true"]) => {
                    Some((servers, load))
                }
                _ => None,
            },
            has_setpriv: works("setpriv", &[DIE_WITH_PARENT, &["true"]].concat()),
        }
    }

    /// Returns why nothing is pinned, if nothing is.
    pub fn unpinned(&self) -> Option<&'static str> {
        match (self.pins, self.cores) {
            (Some(_), _) => None,
            (None, 0 | 1) => Some("one core only"),
            (None, _) => Some("taskset (util-linux) is missing or refused"),
        }
    }

    /// Returns a command that runs on `core`, if cores are pinned, and ends with this process. Both wrapper programs
    /// replace themselves, so the child is the server itself.
    pub fn command(&self, program: &str, core: impl Fn((usize, usize)) -> usize) -> Command {
        let mut words: Vec<String> = Vec::new();
        if self.has_setpriv {
            words.push("setpriv".to_owned());
            words.extend(DIE_WITH_PARENT.iter().map(|&word| word.to_owned()));
        }
        if let Some(pins) = self.pins {
            words.extend(["taskset".to_owned(), "-c".to_owned(), core(pins).to_string()]);
        }
        words.push(program.to_owned());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
    }
}

fn works(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

/// Returns the first line that a program prints.
pub fn first_line(program: &str, arguments: &[&str]) -> Option<String> {
    let output =
        Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).lines().next()?.trim().to_owned())
}

/// Raises the limit of descriptors, for 10,000 connections. The servers inherit it.
pub fn allow_descriptors() -> nix::Result<()> {
    let (_, allowed) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, allowed, allowed)
}

fn field(file: &str, key: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix(':'));
    value.map_or("unknown".to_owned(), |value| value.trim().to_owned())
}

/// Parses a list such as `0-3,8`.
fn cores(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}
