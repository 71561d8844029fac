//! `beanring replicate`: the command line of the tools for a job log in PostgreSQL.

use std::env;
use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use crate::cli::{Database, ReplicateTool};
use crate::io::clock::Clock;
use crate::io::replica::{self, Commits, Created, LogNumber, Settings, Status, UrlError};
use crate::io::stdout::{OutputError, Stdout};
use crate::io::wal_files::offline::{self, Places};
use crate::time::Span;
use crate::wal_tool::{Count, write_hole};

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
    match tool {
        ReplicateTool::Init { database } => {
            let settings = settings(&database)?;
            let created = replica::init(&settings)?;
            write_created(&settings, created, &mut out)
        }
        ReplicateTool::Status { database, json } => {
            let settings = settings(&database)?;
            let status = replica::status(&settings)?;
            if json { write_json(&status, &mut out) } else { write_status(&settings, &status, &mut out) }
        }
        ReplicateTool::Rewrite { database } => {
            let settings = settings(&database)?;
            let begin = replica::rewrite(&settings)?;
            let log = settings.log;
            writeln!(out, "the leader has written log {log} again; it begins at position {begin} now")
        }
        ReplicateTool::Import { dir, database } => return import(&dir, &settings(&database)?, &mut out),
        ReplicateTool::Export { new_dir, database } => {
            return export(&settings(&database)?, &new_dir, &mut out);
        }
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
        if !source.discarded.is_empty() {
            writeln!(
                out,
                "left out {}, which a start discards too: normal after a crash; after a clean stop it is damage",
                Places(&source.discarded)
            )?;
        }
        write_hole(source.hole, out)?;
        writeln!(
            out,
            "{jobs} written to log {} in {settings}; start the servers with --replicate, and {} no more",
            settings.log,
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
    Settings::parse(&url, LogNumber::default()).map_err(ReplicateUsage::Url)
}

fn write_created(settings: &Settings, created: Created, out: &mut impl Write) -> io::Result<()> {
    let log = settings.log;
    match created {
        Created::Tables => writeln!(out, "made the tables, and log {log} in them, in {settings}"),
        Created::Log => writeln!(out, "made log {log} in the tables in {settings}"),
        Created::Nothing => writeln!(out, "log {log} is there already in {settings}"),
    }
}

fn write_status(settings: &Settings, status: &Status, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "log        {} in {settings}", settings.log)?;
    writeln!(out, "epoch      {}{}", status.epoch, Ago(status.since_s))?;
    writeln!(out, "leader     {}", Leader(status))?;
    if !status.http.is_empty() {
        writeln!(out, "console    {}", status.http.escape_debug())?;
    }
    if status.lease > Span::ZERO {
        writeln!(out, "lease      {} s", status.lease.as_secs())?;
    }
    let Status { begin, end, chunks, .. } = status;
    match chunks {
        0 => writeln!(out, "chunks     none")?,
        _ => {
            write!(out, "chunks     {chunks}, from position {begin} to {end}")?;
            match (end.0 + 1).saturating_sub(begin.0 + chunks) {
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
        let state =
            if standby.state.is_empty() { "(hidden: grant pg_monitor to the user)" } else { &standby.state };
        write!(out, "standby    {} {state}", standby.name.escape_debug())?;
        match standby.lag_bytes {
            Some(bytes) => writeln!(out, ", {bytes} bytes behind")?,
            None => writeln!(out)?,
        }
    }
    if status.standbys.is_empty() {
        writeln!(out, "standby    none of the database is connected")?;
    }
    for watcher in &status.watchers {
        writeln!(out, "watching   {} for {:.0} s", watcher.address, watcher.since_s)?;
    }
    Ok(())
}

/// The leader, in words.
struct Leader<'a>(&'a Status);

impl fmt::Display for Leader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Status { epoch, address, is_held, holder, .. } = self.0;
        if epoch.0 == 0 {
            return f.write_str("there has been none");
        }
        match &**address {
            "" => f.write_str("(accepts no forwarded connections)")?,
            address => write!(f, "{}", address.escape_debug())?,
        }
        match (is_held, holder) {
            (true, Some(holder)) => write!(f, ", connected from {holder}"),
            (true, None) => write!(f, ", connected"),
            (false, _) => write!(f, ", not connected"),
        }
    }
}

struct Ago(Option<f64>);

impl fmt::Display for Ago {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |seconds| write!(f, ", for {seconds:.0} s"))
    }
}

#[derive(Serialize)]
struct Json<'a> {
    epoch: u64,
    epoch_seconds: Option<f64>,
    leader: Option<&'a str>,
    leader_http: Option<&'a str>,
    leader_connected: bool,
    leader_host: Option<&'a str>,
    lease_seconds: Option<u64>,
    begin: u64,
    end: u64,
    chunks: u64,
    table_bytes: u64,
    commits: &'static str,
    standbys: Vec<JsonStandby<'a>>,
    watching: Vec<JsonWatcher<'a>>,
}

#[derive(Serialize)]
struct JsonStandby<'a> {
    name: &'a str,
    state: Option<&'a str>,
    lag_bytes: Option<u64>,
}

#[derive(Serialize)]
struct JsonWatcher<'a> {
    host: &'a str,
    seconds: f64,
}

fn write_json(status: &Status, out: &mut impl Write) -> io::Result<()> {
    let standbys = status.standbys.iter().map(|standby| JsonStandby {
        name: &standby.name,
        state: Some(&*standby.state).filter(|state| !state.is_empty()),
        lag_bytes: standby.lag_bytes,
    });
    let watching = status
        .watchers
        .iter()
        .map(|watcher| JsonWatcher { host: &watcher.address, seconds: watcher.since_s });
    let json = Json {
        epoch: status.epoch.0,
        epoch_seconds: status.since_s,
        leader: Some(&*status.address).filter(|address| !address.is_empty()),
        leader_http: Some(&*status.http).filter(|http| !http.is_empty()),
        leader_connected: status.is_held,
        leader_host: status.holder.as_deref(),
        lease_seconds: Some(status.lease.as_secs()).filter(|&seconds| seconds > 0),
        begin: status.begin.0,
        end: status.end.0,
        chunks: status.chunks,
        table_bytes: status.table_bytes,
        commits: match status.commits {
            Commits::Replicated => "replicated",
            Commits::Waiting => "waiting",
            Commits::Local => "local",
        },
        standbys: standbys.collect(),
        watching: watching.collect(),
    };
    serde_json::to_writer(&mut *out, &json)?;
    writeln!(out)
}
