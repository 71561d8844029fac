//! `beanring wal`: the command line of the tools for a job log that no server uses.

use std::error::Error;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use beanring::io::clock::Clock;
use beanring::io::stdout::{OutputError, Stdout};
use beanring::io::wal_files::MarkFault;
use beanring::io::wal_files::offline::{
    self, BackedUp, Count, Damage, Exported, Extensions, Extent, Hole, Places, Salvaged, ToolError,
};
use beanring::time::Time;
use beanring::values::limits::JOB_BYTES_DEFAULT;

use crate::cli::WalTool;

/// The exit code of `salvage` where the old log had more than the new one has.
const LOSS: u8 = 3;

/// Runs a tool, and returns the exit code.
///
/// # Errors
/// If it fails, or if `check` finds that a server does not start from the log or discards bytes.
pub fn run(tool: WalTool) -> Result<ExitCode, Box<dyn Error>> {
    let now = Clock::start().now();
    let mut out = Stdout::open();
    let end = match tool {
        WalTool::Check { dir } => check(&dir, now, &mut out),
        WalTool::Salvage { dir, new_dir } => salvage(&dir, &new_dir, now, &mut out),
        // It ends when the reader closes the pipe, which is not an error.
        WalTool::Dump { dir } => match offline::dump_json(&dir, io::stdout().lock()) {
            Err(ToolError::Output(OutputError(error))) if error.kind() == ErrorKind::BrokenPipe => {
                Ok(ExitCode::SUCCESS)
            }
            result => result.map(|()| ExitCode::SUCCESS).map_err(Into::into),
        },
        WalTool::Backup { dir, new_dir } => backup(&dir, &new_dir, now, &mut out),
        WalTool::Export { dir, new_dir } => export(&dir, &new_dir, now, &mut out),
    };
    // Everything else that is written or read has an error of its own.
    end.map_err(|error| match error.downcast::<io::Error>() {
        Ok(error) => OutputError(*error).into(),
        Err(error) => error,
    })
}

fn check(dir: &Path, now: Time, out: &mut impl Write) -> Result<ExitCode, Box<dyn Error>> {
    let found = offline::check(dir, now)?;
    let outlook = found.outlook;
    writeln!(out, "{} in {}", Count(found.records, "record"), Count(found.segments as u64, "segment"))?;
    for damage in &found.damage {
        writeln!(out, "{damage}")?;
    }
    let jobs: usize = found.tubes.values().flatten().sum();
    let what = if outlook.refusal.is_some() { " can be salvaged" } else { "" };
    writeln!(out, "{}{what}", Count(jobs as u64, "job"))?;
    for (name, [ready, delayed, buried, held, reserved]) in found.tubes {
        let if_any = |count, state| if count == 0 { String::new() } else { format!(", {count} {state}") };
        let (held, reserved) = (if_any(held, "held"), if_any(reserved, "reserved"));
        writeln!(out, "  {name}: {ready} ready, {delayed} delayed, {buried} buried{held}{reserved}")?;
    }
    for count in besides_jobs(found.extensions) {
        writeln!(out, "{count}{what}")?;
    }
    if let Some(refusal) = outlook.refusal {
        return Err(refusal.into());
    }
    if outlook.unproven_bytes > 0 {
        let bytes = Count(outlook.unproven_bytes, "byte");
        writeln!(out, "the last {bytes} may be unsynced; the next start rewrites them (normal)")?;
    }
    if !outlook.discarded.is_empty() {
        return Err(Discards(outlook.discarded).into());
    }
    match outlook.mark_fault {
        None => {}
        Some(fault @ MarkFault::One(_)) => writeln!(out, "{fault}")?,
        Some(fault @ MarkFault::All) => return Err(fault.into()),
    }
    if let Some(unrecorded) = found.unrecorded {
        return Err(unrecorded.into());
    }
    write_hole(outlook.hole, out)?;
    let verdict = if found.damage.is_empty() && outlook.hole.is_none() { "no damage; " } else { "" };
    writeln!(out, "{verdict}beanring -b {} can start from it", dir.display())?;
    Ok(ExitCode::SUCCESS)
}

/// Kept keys, rules and schedules, as far as there are any.
fn besides_jobs(extensions: Extensions) -> impl Iterator<Item = Count> {
    let Extensions { kept_keys, rules, schedules, .. } = extensions;
    let counts = [
        Count(kept_keys as u64, "kept idempotency key"),
        Count(rules as u64, "rule"),
        Count(schedules as u64, "schedule"),
    ];
    counts.into_iter().filter(|Count(count, _)| *count > 0)
}

pub fn write_hole(hole: Option<Hole>, out: &mut impl Write) -> io::Result<()> {
    let Some(Hole { last, next }) = hole else { return Ok(()) };
    writeln!(
        out,
        "{last} is full and was not closed, and the next file is {next}: normal if the server crashed soon after a start; if a \
         file between them was removed, its jobs are missing: restore a backup"
    )
}

/// Says which bytes of the job log are not in the copy.
pub fn write_left_out(discarded: &[Extent], out: &mut impl Write) -> io::Result<()> {
    if discarded.is_empty() {
        return Ok(());
    }
    let places = Places(discarded);
    writeln!(
        out,
        "left out {places}, which a start discards too: normal after a crash; after a clean stop it is damage"
    )
}

/// A server would start, and discard these bytes.
#[derive(Debug, thiserror::Error)]
#[error("the next start discards {}: normal after a crash, and needs nothing; after a clean stop it is damage: restore a \
    backup", Places(.0))]
struct Discards(Vec<Extent>);

fn salvage(dir: &Path, new_dir: &Path, now: Time, out: &mut impl Write) -> Result<ExitCode, Box<dyn Error>> {
    let Salvaged { jobs, lost, damage, hole } = offline::salvage(dir, new_dir, now)?;
    for damage in &damage {
        writeln!(out, "{damage}")?;
    }
    let ranges: Vec<String> = lost
        .iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
        .collect();
    if !ranges.is_empty() {
        writeln!(out, "ids of jobs that are lost, if they were not deleted: {}", ranges.join(" "))?;
    }
    write_hole(hole, out)?;
    // A header has no job.
    let has_gap = damage.iter().any(|damage| !matches!(damage, Damage::Header { .. }));
    if has_gap {
        writeln!(
            out,
            "changes that were recorded in these places are lost: a job whose deletion was there exists again"
        )?;
    }
    if has_gap || !lost.is_empty() {
        writeln!(out, "further jobs may be missing: a damaged place does not show which records it had")?;
    }
    let (jobs, dir) = (Count(jobs as u64, "job"), new_dir.display());
    writeln!(out, "{jobs} written to {dir}; start the server with beanring -b {dir}")?;
    let has_loss = !damage.is_empty() || !lost.is_empty();
    Ok(if has_loss { ExitCode::from(LOSS) } else { ExitCode::SUCCESS })
}

fn backup(dir: &Path, new_dir: &Path, now: Time, out: &mut impl Write) -> Result<ExitCode, Box<dyn Error>> {
    let BackedUp { jobs, segments, attempts, hole } = offline::backup(dir, new_dir, now)?;
    write_hole(hole, out)?;
    let (jobs, segments) = (Count(jobs as u64, "job"), Count(segments as u64, "segment"));
    let attempts = Count(attempts.into(), "attempt");
    let dir = new_dir.display();
    writeln!(out, "{jobs} in {segments} copied to {dir} in {attempts}; beanring -b {dir} can start from it")?;
    Ok(ExitCode::SUCCESS)
}

fn export(dir: &Path, new_dir: &Path, now: Time, out: &mut impl Write) -> Result<ExitCode, Box<dyn Error>> {
    let Exported { jobs, largest_bytes, discarded, left_out } = offline::export(dir, new_dir, now)?;
    write_left_out(&discarded, out)?;
    let of_jobs = [("tags", left_out.tagged_jobs), ("notes", left_out.noted_jobs)]
        .into_iter()
        .filter(|(_, jobs)| *jobs > 0)
        .map(|(what, jobs)| format!("the {what} of {}", Count(jobs as u64, "job")));
    let counts = besides_jobs(left_out).map(|count| count.to_string());
    let names: Vec<String> = counts.chain(of_jobs).collect();
    if !names.is_empty() {
        writeln!(out, "left out {}: a binlog has no place for them", names.join(", "))?;
    }
    let (jobs, dir) = (Count(jobs as u64, "job"), new_dir.display());
    write!(out, "{jobs} written to {dir}; start beanstalkd -b {dir}")?;
    if largest_bytes > JOB_BYTES_DEFAULT.into() {
        write!(out, " -z {largest_bytes} (with a smaller -z it drops jobs, also small ones)")?;
    }
    writeln!(out)?;
    Ok(ExitCode::SUCCESS)
}
