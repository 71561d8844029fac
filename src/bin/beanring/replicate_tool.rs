//! `beanring replicate`: the command line of the tools for a job log in PostgreSQL.

use std::env;
use std::error::Error;
use std::io::{self, Write};
use std::path::Path;

use beanring::io::clock::Clock;
use beanring::io::replica::{self, Commits, Created, LOG, Settings, Status, UrlError};
use beanring::io::stdout::{OutputError, Stdout};
use beanring::io::wal_files::offline::{self, Count};

use crate::cli::{Database, ReplicateTool};
use crate::wal_tool::{write_hole, write_left_out};

/// The variable that has the URL, so that no list of processes shows its password.
const URL_VARIABLE: &str = "BEANRING_REPLICATE";

/// Why a tool was called wrongly.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ReplicateUsage {
    #[error("name the database: postgres://USER@HOST/DATABASE, or set {URL_VARIABLE}")]
    NoUrl,
    #[error("{0}")]
    Url(UrlError),
}

/// Runs a tool.
///
/// # Errors
/// If the database cannot be used, or the output cannot be written.
pub fn run(tool: ReplicateTool) -> Result<(), Box<dyn Error>> {
    let mut out = Stdout::open();
    let (ReplicateTool::Init { database }
    | ReplicateTool::Status { database, .. }
    | ReplicateTool::Rewrite { database }
    | ReplicateTool::Import { database, .. }
    | ReplicateTool::Export { database, .. }) = &tool;
    let settings = settings(database)?;
    match tool {
        ReplicateTool::Init { .. } => write_created(&settings, replica::init(&settings)?, &mut out),
        ReplicateTool::Status { json, .. } => {
            let status = replica::status(&settings)?;
            if json {
                serde_json::to_writer(&mut out, &status).map_err(Into::into).and_then(|()| writeln!(out))
            } else {
                write_status(&settings, &status, &mut out)
            }
        }
        ReplicateTool::Rewrite { .. } => {
            let begin = replica::rewrite(&settings)?;
            writeln!(out, "the leader has written log {LOG} again; it begins at position {begin} now")
        }
        ReplicateTool::Import { dir, .. } => return import(&dir, &settings, &mut out),
        ReplicateTool::Export { new_dir, .. } => return export(&settings, &new_dir, &mut out),
    }
    .and_then(|()| out.flush())
    .map_err(|error| OutputError(error).into())
}

fn import(dir: &Path, settings: &Settings, out: &mut Stdout) -> Result<(), Box<dyn Error>> {
    let now = Clock::start().now();
    let source = offline::read(dir, now)?;
    replica::import(settings, &source.content, now)?;
    let jobs = Count(source.content.engine.jobs().len() as u64, "job");
    let mut write = || {
        write_left_out(&source.discarded, out)?;
        write_hole(source.hole, out)?;
        writeln!(
            out,
            "{jobs} written to log {LOG} in {settings}; start the servers with --replicate, and {} no more",
            dir.display()
        )?;
        out.flush()
    };
    write().map_err(|error| OutputError(error).into())
}

fn export(settings: &Settings, new_dir: &Path, out: &mut Stdout) -> Result<(), Box<dyn Error>> {
    let now = Clock::start().now();
    let content = replica::export(settings, now)?;
    offline::write(&content, new_dir, now)?;
    let (jobs, dir) = (Count(content.engine.jobs().len() as u64, "job"), new_dir.display());
    let written = writeln!(out, "{jobs} written to {dir}; start the server with beanring -b {dir}");
    written.and_then(|()| out.flush()).map_err(|error| OutputError(error).into())
}

fn settings(database: &Database) -> Result<Settings, ReplicateUsage> {
    let url = database.url.clone().or_else(|| env::var(URL_VARIABLE).ok());
    let url = url.filter(|url| !url.is_empty()).ok_or(ReplicateUsage::NoUrl)?;
    Settings::parse(&url).map_err(ReplicateUsage::Url)
}

fn write_created(settings: &Settings, created: Created, out: &mut impl Write) -> io::Result<()> {
    match created {
        Created::Tables => writeln!(out, "made the tables, and log {LOG} in them, in {settings}"),
        Created::Log => writeln!(out, "made log {LOG} in the tables in {settings}"),
        Created::Nothing => writeln!(out, "log {LOG} is there already in {settings}"),
    }
}

fn write_status(settings: &Settings, status: &Status, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "log        {LOG} in {settings}")?;
    let ago = status.epoch_seconds.map(|seconds| format!(", for {seconds:.0} s")).unwrap_or_default();
    writeln!(out, "epoch      {}{ago}", status.epoch)?;
    writeln!(out, "leader     {}", leader(status))?;
    if let Some(http) = &status.leader_http {
        writeln!(out, "console    {}", http.escape_debug())?;
    }
    if let Some(seconds) = status.lease_seconds {
        writeln!(out, "lease      {seconds} s")?;
    }
    let Status { begin, end, chunks, .. } = status;
    match chunks {
        0 => writeln!(out, "chunks     none")?,
        _ => {
            write!(out, "chunks     {chunks}, from position {begin} to {end}")?;
            match (end + 1).saturating_sub(begin + chunks) {
                0 => writeln!(out)?,
                missing => writeln!(out, ", {missing} missing or in flight")?,
            }
        }
    }
    writeln!(out, "table      {} bytes on disk", status.table_bytes)?;
    writeln!(
        out,
        "commits    {}",
        match status.commits {
            Commits::Replicated => "wait for a synchronous standby",
            Commits::Waiting => "wait, because no synchronous standby is connected",
            Commits::Local => "wait for no standby: synchronous_standby_names is empty",
        }
    )?;
    for standby in &status.standbys {
        let state = standby.state.as_deref().unwrap_or("(hidden: grant pg_monitor to the user)");
        write!(out, "standby    {} {state}", standby.name.escape_debug())?;
        match standby.lag_bytes {
            Some(bytes) => writeln!(out, ", {bytes} bytes behind")?,
            None => writeln!(out)?,
        }
    }
    if status.standbys.is_empty() {
        writeln!(out, "standby    none of the database is connected")?;
    }
    for watcher in &status.watching {
        writeln!(out, "watching   {} for {:.0} s", watcher.host, watcher.seconds)?;
    }
    Ok(())
}

/// The leader, in words.
fn leader(status: &Status) -> String {
    if status.epoch == 0 {
        return "there has been none".to_owned();
    }
    let address = match &status.leader {
        None => "(accepts no forwarded connections)".to_owned(),
        Some(address) => address.escape_debug().to_string(),
    };
    match (status.leader_connected, &status.leader_host) {
        (true, Some(host)) => format!("{address}, connected from {host}"),
        (true, None) => format!("{address}, connected"),
        (false, _) => format!("{address}, not connected"),
    }
}
