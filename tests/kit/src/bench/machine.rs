//! The machine that the benchmarks run on.

use std::fs;
use std::process::Command;

/// The machine.
pub struct Machine {
    /// The start of the run, in UTC.
    pub date: String,
    pub kernel: String,
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
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
        }
    }
}

/// Returns the first line that a program prints.
pub fn first_line(program: &str, arguments: &[&str]) -> Option<String> {
    let output =
        Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).lines().next()?.trim().to_owned())
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
