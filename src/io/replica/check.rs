//! What must be true of the database before a server uses it.

use std::error::Error;
use std::io::{self, ErrorKind};

use serde::Serialize;
use tokio_postgres::error::SqlState;

use super::session::{Session, SessionError};
use super::settings::{LOG, places};
use super::tables::FORMAT;
use super::{Settings, block_on};

/// The oldest version that has what the tables need.
const VERSION_MIN: i32 = 130_000;

const COLUMNS: &str = "
    select string_agg(a.attname::text || ' ' || format_type(a.atttypid, a.atttypmod), ', ' order by a.attnum)
    from pg_attribute a where a.attrelid = to_regclass($1) and a.attnum > 0 and not a.attisdropped";

const LOG_COLUMNS: &str = "log integer, pos bigint, epoch bigint, chunk bytea";

const RESERVE_COLUMNS: &str = "filler character(400)";

const EPOCH_COLUMNS: &str = "log integer, format integer, log_id bigint, epoch bigint, begin bigint, beat bigint, \
    since timestamp with time zone, address text, http text, token bigint, secret bigint, lease_ms bigint";

const PRIVILEGES: &str = "
    select t.name || ': ' || p.privilege
    from unnest(array['beanring_log', 'beanring_epoch']) as t(name),
        unnest(array['SELECT', 'INSERT', 'UPDATE', 'DELETE']) as p(privilege)
    where not has_table_privilege(t.name, p.privilege)";

/// The database cannot be used. Each is one line that says what to do.
// docs/RUNBOOK.md lists these messages.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum CheckError {
    /// No server answers, or it refuses for a time.
    #[error("cannot connect to the database {0}")]
    Unreachable(String),
    #[error("the database refuses the login: {0}; correct user and password, or pg_hba.conf")]
    Login(String),
    #[error("{0}; create it, or correct the URL")]
    NoDatabase(String),
    /// The version, as `server_version_num` has it.
    #[error("PostgreSQL {} is too old; 13 or later is needed", .0 / 10_000)]
    Version(i32),
    #[error("the database server is a standby, or read-only; name the primary in the URL")]
    Standby,
    #[error("no host of the URL is a primary: {0}; start or promote one, or name the primary")]
    NoPrimary(String),
    #[error("{0} are primaries; stop the one that is not the queue's, such as an old primary")]
    Primaries(String),
    #[error(
        "a pooler shares sessions between clients; connect to PostgreSQL itself, or set pool_mode = session"
    )]
    Pooler,
    #[error(
        "commits wait for no standby: synchronous_standby_names is empty; set it, or pass --replicate-trust-storage if \
        the storage below keeps copies"
    )]
    NotSynchronous,
    #[error(
        "no synchronous standby is connected, so commits wait; start one that synchronous_standby_names lists"
    )]
    NoStandby,
    #[error("the database has no tables of beanring; run beanring replicate init {0}")]
    NoTables(String),
    #[error(
        "the user may not create tables ({0}); grant create on the schema to the user, or run this command as its owner"
    )]
    NoCreate(String),
    #[error(
        "the table {0} has other columns than beanring makes; use another database, or a schema of its own in search_path"
    )]
    OtherTables(&'static str),
    #[error(
        "the table {0} is missing, but not the other ones of beanring; restore a backup, or drop them and run beanring \
        replicate init"
    )]
    MissingTable(&'static str),
    #[error("the tables have format {0}, of a newer version; this one knows {FORMAT}")]
    Format(i32),
    #[error("the tables have no log {LOG}; run beanring replicate init {0}")]
    NoLog(String),
    #[error(
        "the user lacks privileges ({0}); grant select, insert, update, delete on beanring_log, beanring_epoch"
    )]
    Privileges(String),
    #[error("search_path names no schema that exists; create it: create schema NAME authorization USER")]
    NoSchema,
    #[error("the connection to the database was lost: {0}")]
    Lost(String),
    #[error("the database refuses a statement: {0}")]
    Statement(String),
}

/// What a commit waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Commits {
    /// The acknowledgement of a standby.
    Replicated,
    /// A standby that is not connected.
    Waiting,
    /// The disk of the primary: `synchronous_standby_names` is empty.
    Local,
}

/// Checks whether a server can use the database. Without `trusts_storage` it must have a synchronous standby.
///
/// # Errors
/// If it cannot.
pub fn check(settings: &Settings, trusts_storage: bool) -> Result<(), CheckError> {
    block_on(async {
        let mut session = open(settings).await?;
        refuse_old_or_standby(&mut session).await?;
        refuse_pooler(&mut session, settings).await?;
        has_tables(&mut session, settings).await?;
        has_privileges(&mut session).await?;
        has_log(&mut session, settings).await?;
        if trusts_storage {
            return Ok(());
        }
        match commits(&mut session).await? {
            Commits::Replicated => Ok(()),
            Commits::Waiting => Err(CheckError::NoStandby),
            Commits::Local => Err(CheckError::NotSynchronous),
        }
    })
}

/// Connects, for a tool that changes the log.
pub(super) async fn open_to_write(settings: &Settings) -> Result<Session, CheckError> {
    let mut session = open(settings).await?;
    refuse_old_or_standby(&mut session).await?;
    has_tables(&mut session, settings).await?;
    has_privileges(&mut session).await?;
    has_log(&mut session, settings).await?;
    Ok(session)
}

/// Connects, for a tool that reads the log.
pub(super) async fn open_to_read(settings: &Settings) -> Result<Session, CheckError> {
    let mut session = open(settings).await?;
    has_tables(&mut session, settings).await?;
    has_log(&mut session, settings).await?;
    Ok(session)
}

/// Connects. Of several hosts, one must be the primary. If none is, the error is that which tells most.
pub(super) async fn open(settings: &Settings) -> Result<Session, CheckError> {
    let hosts = settings.each_host();
    if hosts.is_empty() {
        let opened = Session::open(settings).await;
        return opened.map_err(|error| CheckError::of_connection(&error, settings));
    }
    let attempts = hosts.into_iter().map(|host| {
        tokio::spawn(async move {
            let opened = Session::open(&host).await;
            (host, opened)
        })
    });
    let attempts: Vec<_> = attempts.collect();
    let (mut primaries, mut others, mut refusal) = (Vec::new(), Vec::new(), None);
    for attempt in attempts {
        let (host, opened) = attempt.await.expect("no task panics");
        let place = places(&host.config);
        match opened.map_err(|error| (CheckError::of_connection(&error, &host), error)) {
            Ok(session) => primaries.push((place, session)),
            Err((CheckError::Standby, _)) => others.push(format!("{place} is a standby, or read-only")),
            Err((error @ (CheckError::Login(_) | CheckError::NoDatabase(_)), _)) => refusal = Some(error),
            Err((_, error)) => others.push(format!("{place}: {error}")),
        }
    }
    if primaries.len() > 1 {
        primaries = not_older(primaries, settings).await;
    }
    match primaries.len() {
        0 => Err(refusal.unwrap_or_else(|| CheckError::NoPrimary(others.join(", ")))),
        1 => Ok(primaries.remove(0).1),
        _ => {
            let places: Vec<_> = primaries.iter().map(|(place, _)| &**place).collect();
            Err(CheckError::Primaries(places.join(" and ")))
        }
    }
}

/// The primaries that have what is known of the log. All of them, if none does.
async fn not_older(primaries: Vec<(String, Session)>, settings: &Settings) -> Vec<(String, Session)> {
    let (mut older, mut others) = (Vec::new(), Vec::new());
    for (place, mut session) in primaries {
        let checked = session.refuse_older(settings.seen).await;
        let list = if matches!(checked, Err(SessionError::Older(_))) { &mut older } else { &mut others };
        list.push((place, session));
    }
    if others.is_empty() { older } else { others }
}

pub(super) async fn refuse_old_or_standby(session: &mut Session) -> Result<(), CheckError> {
    let sql = "select current_setting('server_version_num')::integer, pg_is_in_recovery()";
    let row = one(session, sql).await?;
    match (row.get(0), row.get(1)) {
        (version, _) if version < VERSION_MIN => Err(CheckError::Version(version)),
        (_, true) => Err(CheckError::Standby),
        _ => Ok(()),
    }
}

/// With a pooler that gives a session away after each transaction, a second client gets the one of the first.
async fn refuse_pooler(session: &mut Session, settings: &Settings) -> Result<(), CheckError> {
    let sql = "select pg_backend_pid()";
    let process: i32 = one(session, sql).await?.get(0);
    let mut other = open(settings).await?;
    let other_process: i32 = one(&mut other, sql).await?.get(0);
    let again: i32 = one(session, sql).await?.get(0);
    if other_process == process || again != process { Err(CheckError::Pooler) } else { Ok(()) }
}

/// Whether the tables are those of beanring.
pub(super) async fn has_tables(session: &mut Session, settings: &Settings) -> Result<(), CheckError> {
    let epoch = columns(session, "beanring_epoch").await?;
    let log = columns(session, "beanring_log").await?;
    // Where no space is kept in reserve, there may be no such table.
    let reserve = columns(session, "beanring_reserve").await?;
    if !reserve.is_empty() && reserve != RESERVE_COLUMNS {
        return Err(CheckError::OtherTables("beanring_reserve"));
    }
    if epoch.is_empty() && log.is_empty() {
        return Err(CheckError::NoTables(settings.to_string()));
    }
    if epoch.split(", ").any(|column| column == "format integer") {
        let format: Option<Option<i32>> =
            session.value("select max(format) from beanring_epoch", &[]).await?;
        if let Some(format) = format.flatten().filter(|&format| format > FORMAT) {
            return Err(CheckError::Format(format));
        }
    }
    let tables = [("beanring_epoch", epoch, EPOCH_COLUMNS), ("beanring_log", log, LOG_COLUMNS)];
    let is_other = |(_, found, expected): &&(_, String, _)| !found.is_empty() && found != expected;
    if let Some((name, ..)) = tables.iter().find(is_other) {
        return Err(CheckError::OtherTables(name));
    }
    match tables.iter().find(|(_, found, _)| found.is_empty()) {
        Some((name, ..)) => Err(CheckError::MissingTable(name)),
        None => Ok(()),
    }
}

/// The columns of a table with their types; nothing if there is no such table.
async fn columns(session: &mut Session, table: &str) -> Result<String, CheckError> {
    let columns: Option<Option<String>> = session.value(COLUMNS, &[&table]).await?;
    Ok(columns.flatten().unwrap_or_default())
}

/// Whether the tables have the log.
async fn has_log(session: &mut Session, settings: &Settings) -> Result<(), CheckError> {
    match session.row("select 1 from beanring_epoch where log = $1", &[&LOG]).await? {
        Some(_) => Ok(()),
        None => Err(CheckError::NoLog(settings.to_string())),
    }
}

async fn has_privileges(session: &mut Session) -> Result<(), CheckError> {
    match session.value(PRIVILEGES, &[]).await? {
        Some(missing) => Err(CheckError::Privileges(missing)),
        None => Ok(()),
    }
}

/// What a commit of this session waits for. A user who may not see what standbys do sees that they are there.
pub(super) async fn commits(session: &mut Session) -> Result<Commits, CheckError> {
    let sql = "
        select trim(current_setting('synchronous_standby_names')) <> '',
            exists (select from pg_stat_replication
                where sync_state is null or sync_state in ('sync', 'quorum'))";
    let row = one(session, sql).await?;
    Ok(match (row.get(0), row.get(1)) {
        (false, _) => Commits::Local,
        (true, false) => Commits::Waiting,
        (true, true) => Commits::Replicated,
    })
}

async fn one(session: &mut Session, sql: &'static str) -> Result<tokio_postgres::Row, CheckError> {
    let row = session.row(sql, &[]).await?;
    row.ok_or_else(|| CheckError::Statement("a query has returned no row".to_owned()))
}

impl CheckError {
    /// Whether it may pass without a change by people.
    pub const fn is_temporary(&self) -> bool {
        matches!(
            self,
            Self::Unreachable(_)
                | Self::Standby
                | Self::NoPrimary(_)
                | Self::Primaries(_)
                | Self::NoStandby
                | Self::Lost(_)
                | Self::Statement(_)
        )
    }

    /// Classifies the error of an attempt to connect.
    fn of_connection(error: &SessionError, settings: &Settings) -> Self {
        let text = error.to_string();
        let shown = || format!("{settings}: {text}");
        match error.code() {
            Some(code) if code.code().starts_with("28") => return Self::Login(shown()),
            Some(code) if *code == SqlState::INVALID_CATALOG_NAME => return Self::NoDatabase(shown()),
            // A pooler refuses the settings of a session, or its own database does not exist.
            _ => {}
        }
        let SessionError::Database(error) = error else { return Self::Unreachable(shown()) };
        let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
        let is_refused = cause.is_some_and(|cause| cause.kind() == ErrorKind::PermissionDenied);
        if is_refused && text.contains("does not allow writes") {
            return Self::Standby;
        }
        if text.contains("password missing") || text.contains("authentication") {
            return Self::Login(shown());
        }
        if text.contains("does not support TLS") {
            return Self::Unreachable(format!(
                "{}; set ssl = on there, or leave sslmode out of the URL",
                shown()
            ));
        }
        Self::Unreachable(shown())
    }
}

impl From<SessionError> for CheckError {
    /// Classifies the error of a statement.
    fn from(error: SessionError) -> Self {
        match error.code() {
            Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => Self::Privileges(error.to_string()),
            Some(code) if *code == SqlState::INVALID_SCHEMA_NAME => Self::NoSchema,
            // A prepared statement is unknown, or known already: another session got it.
            Some(code)
                if [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::DUPLICATE_PSTATEMENT].contains(code) =>
            {
                Self::Pooler
            }
            // Class 57P: a shutdown or an administrator ends the session.
            Some(code) if !code.code().starts_with("57P") => Self::Statement(error.to_string()),
            _ => Self::Lost(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fenced leader that starts again would end instead.
    #[test]
    fn a_connection_that_is_lost_is_waited_for() {
        let lost = CheckError::from(SessionError::Timeout);
        assert!(lost.is_temporary() && !matches!(lost, CheckError::Statement(_)), "{lost}");
    }
}
