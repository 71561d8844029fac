//! `beanring log`: the command line of the tools for a job log that no server uses.

mod dump;

use std::error::Error;
use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

pub use self::dump::dump;
use crate::cli::LogFormat;
use crate::cli::LogTool;
use crate::config::Verbosity;
use crate::io::clock::Clock;
use crate::io::wal_files::offline::{self, Damage, Discarded, Salvaged, ToolError, Verdict};
use crate::launch;
use crate::time::Time;

/// Runs a tool.
///
/// # Errors
/// If it fails, or if `check` finds that a start would discard bytes.
pub fn run(tool: LogTool) -> Result<(), Box<dyn Error>> {
    launch::log_to_stderr(Verbosity::Warnings, LogFormat::Text);
    let now = Clock::start().now();
    let mut out = io::stdout().lock();
    match tool {
        LogTool::Check { dir } => check(&dir, now, &mut out),
        LogTool::Salvage { dir, new_dir } => salvage(&dir, &new_dir, now, &mut out),
        LogTool::Dump { dir } => match dump(&dir, out) {
            // The reader closed the pipe, which is not an error.
            Err(ToolError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            result => Ok(result?),
        },
        LogTool::Export { dir, new_dir } => {
            let jobs = offline::export(&dir, &new_dir, now)?;
            writeln!(out, "{jobs} jobs are in {}; start beanstalkd -b on it", new_dir.display())?;
            Ok(())
        }
    }
}

fn check(dir: &Path, now: Time, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let Verdict { segments, records, refusal, discarded, damage, tubes } = offline::check(dir, now)?;
    writeln!(out, "{records} records in {segments} files")?;
    for damage in &damage {
        writeln!(out, "{}", Line(damage))?;
    }
    let what = if refusal.is_some() { "can be saved" } else { "are there" };
    let jobs: usize = tubes.values().flatten().sum();
    writeln!(out, "{jobs} jobs {what}")?;
    for (name, [ready, delayed, buried]) in tubes {
        writeln!(out, "  {name}: {ready} ready, {delayed} delayed, {buried} buried")?;
    }
    if let Some(refusal) = refusal {
        return Err(refusal.into());
    }
    writeln!(out, "a server starts from it")?;
    if discarded.is_empty() { Ok(()) } else { Err(Discards(discarded).into()) }
}

/// A server would start, and discard these bytes.
#[derive(Debug)]
struct Discards(Vec<Discarded>);

impl fmt::Display for Discards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places: Vec<String> = self
            .0
            .iter()
            .map(|Discarded { file, offset, bytes }| format!("{bytes} bytes at {file}:{offset}"))
            .collect();
        write!(
            f,
            "a server that starts from it discards {}: a torn write, or damage to what was written last",
            places.join(", ")
        )
    }
}

impl Error for Discards {}

fn salvage(dir: &Path, new_dir: &Path, now: Time, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let Salvaged { jobs, lost, damage } = offline::salvage(dir, new_dir, now)?;
    for damage in &damage {
        writeln!(out, "{}", Line(damage))?;
    }
    let ranges: Vec<String> = lost
        .iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
        .collect();
    if !ranges.is_empty() {
        writeln!(out, "lost, or deleted before: {}", ranges.join(" "))?;
    }
    if !damage.is_empty() {
        writeln!(
            out,
            "what else happened in these places is forgotten: a job that was deleted there is back"
        )?;
    }
    writeln!(out, "{jobs} jobs are in {}; start beanring -b on it", new_dir.display())?;
    Ok(())
}

/// The line of output for one damage.
struct Line<'a>(&'a Damage);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Damage::Header { file } => write!(f, "{file}:0: the header is not what was written there"),
            Damage::Records { file, offset, bytes, were_durable: true } => {
                write!(f, "{file}:{offset}: {bytes} bytes of records are not what was written there")
            }
            Damage::Records { file, offset, bytes, were_durable: false } => {
                write!(f, "{file}:{offset}: {bytes} bytes of records were never brought to disk")
            }
            Damage::Missing { file } => write!(f, "{file}: the file is missing"),
        }
    }
}
