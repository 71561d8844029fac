//! The tables: making them, and what they and the database tell about a log.

use std::sync::Arc;

use tokio_postgres::error::SqlState;

use super::check::Commits;
use super::lock;
use super::session::{Session, SessionError};
use super::settings::WATCHER;
use super::{CheckError, Settings, check, runtime};
use crate::time::Span;
use crate::wal::replica::{Epoch, Position};

/// The format of the tables and chunks.
pub(super) const FORMAT: i32 = 1;

/// Serializes processes that make the tables.
const INIT_KEY: &str = "select pg_advisory_xact_lock(7094704000000000000)";

/// Deleted rows must give their space back soon, since the log is written and trimmed all the time. Jobs wait for the insert, so
/// `chunk` is not compressed, and stays in the row if a page can hold two of them. The row of the epoch is updated in place, as long
/// as its page has space.
const CREATE: &str = "
    create table beanring_log (
        log integer not null,
        pos bigint not null,
        epoch bigint not null,
        chunk bytea not null,
        primary key (log, pos)
    ) with (
        autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000, toast_tuple_target = 4064,
        toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 10000,
        toast.autovacuum_vacuum_cost_delay = 0
    );
    alter table beanring_log alter column chunk set storage external;
    create table beanring_epoch (
        log integer primary key,
        format integer not null,
        log_id bigint not null,
        epoch bigint not null,
        begin bigint not null,
        beat bigint not null,
        since timestamptz,
        address text not null,
        http text not null,
        token bigint not null,
        secret bigint not null,
        lease_ms bigint not null,
        unique (log, epoch)
    ) with (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
    create unlogged table if not exists beanring_reserve (filler char(400) not null);
    comment on table beanring_reserve is 'beanring: space for deletions when the disk is full';
    comment on table beanring_log is 'beanring: job logs, a chunk per row';
    comment on table beanring_epoch is 'beanring: who writes which job log'";

const INSERT_LOG: &str = "
    insert into beanring_epoch (log, format, log_id, epoch, begin, beat, address, http, token, secret, lease_ms)
    values ($1, $2, ('x' || substr(md5(gen_random_uuid()::text), 1, 16))::bit(64)::bigint, 0, 1, 0, '', '', 0, 0, 0)
    on conflict do nothing";

/// A session holds the lock with a key of 64 bits: `pg_locks` has its halves.
const STATUS: &str = "
    select epoch, begin, address, extract(epoch from now() - since)::float8,
        (select max(pos) from beanring_log l where l.log = e.log),
        (select count(*) from beanring_log l where l.log = e.log and l.pos >= e.begin),
        pg_total_relation_size('beanring_log'),
        (select host(a.client_addr) from pg_locks k left join pg_stat_activity a using (pid)
            where k.locktype = 'advisory' and k.objsubid = 1 and k.granted and k.mode = 'ExclusiveLock'
                and k.database = (select oid from pg_database where datname = current_database())
                and k.classid::bigint = $2::bigint >> 32
                and k.objid::bigint = ($2::bigint | epoch) & 4294967295 limit 1),
        exists (select from pg_locks k
            where k.locktype = 'advisory' and k.objsubid = 1 and k.granted and k.mode = 'ExclusiveLock'
                and k.database = (select oid from pg_database where datname = current_database())
                and k.classid::bigint = $2::bigint >> 32
                and k.objid::bigint = ($2::bigint | epoch) & 4294967295),
        lease_ms, http
    from beanring_epoch e where log = $1";

const STANDBYS: &str = "
    select application_name, coalesce(sync_state, ''),
        pg_wal_lsn_diff(pg_current_wal_lsn(), flush_lsn)::bigint
    from pg_stat_replication order by application_name, pid";

const WATCHERS: &str = "
    select coalesce(host(client_addr), 'local'), extract(epoch from now() - backend_start)::float8
    from pg_stat_activity where application_name = $1 and datname = current_database()
    order by backend_start";

/// What [`init`] has made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Created {
    /// The tables, and the log in them.
    Tables,
    /// A further log in the tables.
    Log,
    /// Nothing: the log is there.
    Nothing,
}

/// What the database tells about a log.
#[derive(Clone, PartialEq, Debug)]
pub struct Status {
    /// The current epoch; 0 before the first leader.
    pub epoch: Epoch,
    /// Where the leader accepts forwarded connections; empty if it does not.
    pub address: String,
    /// The URL of its console and of its API; empty if it has not been given.
    pub http: String,
    /// The lease of the leader.
    pub lease: Span,
    /// The seconds since the epoch began.
    pub since_s: Option<f64>,
    /// A session holds the lock of the epoch, so the process of the leader is there.
    pub is_held: bool,
    /// The address of that session, unless it is hidden, or that of a socket in a directory.
    pub holder: Option<String>,
    /// The first position.
    pub begin: Position,
    /// The last position; the one before the first if there are no chunks.
    pub end: Position,
    /// Chunks in between.
    pub chunks: u64,
    /// The size of the table with its indexes on disk, with all logs in it.
    pub table_bytes: u64,
    /// What a commit waits for.
    pub commits: Commits,
    /// The standbys of the database.
    pub standbys: Vec<Standby>,
    /// Servers that watch the leader of a log in this database.
    pub watchers: Vec<Watcher>,
}

/// A standby of the database.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Standby {
    /// Its name.
    pub name: String,
    /// What its acknowledgement counts: `sync`, `quorum`, `potential` or `async`; empty if that is hidden.
    pub state: String,
    /// The bytes of the database's log that are not on its disk.
    pub lag_bytes: Option<u64>,
}

/// A server that watches the leader.
#[derive(Clone, PartialEq, Debug)]
pub struct Watcher {
    /// Its address.
    pub address: String,
    /// The seconds since it watches.
    pub since_s: f64,
}

/// Makes the tables and the log, as far as they are not there.
///
/// # Errors
/// If the database cannot be used, or has other tables with these names.
pub fn init(settings: &Settings) -> Result<Created, CheckError> {
    let settings = Arc::new(settings.clone());
    block_on(async {
        let mut session = check::open(&settings).await?;
        check::refuse_old_or_standby(&mut session).await?;
        let wrong = |error: SessionError| CheckError::of_statement(&error);
        session.command("begin").await.map_err(wrong)?;
        session.command(INIT_KEY).await.map_err(wrong)?;
        let has_tables = check::has_tables(&mut session, &settings).await;
        let is_new = match has_tables {
            Ok(()) => false,
            Err(CheckError::NoTables(_)) => true,
            Err(error) => return Err(error),
        };
        if is_new {
            session.command(CREATE).await.map_err(|error| {
                match error.is(&SqlState::INSUFFICIENT_PRIVILEGE) {
                    true => CheckError::NoCreate(error.to_string()),
                    false => wrong(error),
                }
            })?;
        }
        let rows = session.execute(INSERT_LOG, &[&settings.log.sql(), &FORMAT]).await.map_err(wrong)?;
        session.command("commit").await.map_err(wrong)?;
        Ok(match (is_new, rows) {
            (true, _) => Created::Tables,
            (false, 0) => Created::Nothing,
            (false, _) => Created::Log,
        })
    })
}

/// Reads what the database tells about the log.
///
/// # Errors
/// If the database cannot be used, or has no such log.
pub fn status(settings: &Settings) -> Result<Status, CheckError> {
    let settings = Arc::new(settings.clone());
    block_on(async {
        let mut session = check::open(&settings).await?;
        check::has_tables(&mut session, &settings).await?;
        check::has_log(&mut session, &settings).await?;
        let commits = check::commits(&mut session).await?;
        let status = read_status(&mut session, &settings, commits).await;
        status.map_err(|error| CheckError::of_statement(&error))
    })
}

async fn read_status(
    session: &mut Session,
    settings: &Settings,
    commits: Commits,
) -> Result<Status, SessionError> {
    let key = lock::key(settings.log, Epoch(0));
    let rows = session.query(STATUS, &[&settings.log.sql(), &key]).await?;
    let row = rows.first().expect("the log is there");
    let number = |at: usize| row.get::<_, i64>(at).cast_unsigned();
    let begin = Position(number(1));
    let end = row.get::<_, Option<i64>>(4).map_or(begin.previous(), |end| Position(end.cast_unsigned()));
    let mut status = Status {
        epoch: Epoch(number(0)),
        address: row.get(2),
        http: row.get(10),
        lease: Span::from_millis(number(9) as u32),
        since_s: row.get(3),
        is_held: row.get(8),
        holder: row.get(7),
        begin,
        end,
        chunks: number(5),
        table_bytes: number(6),
        commits,
        standbys: Vec::new(),
        watchers: Vec::new(),
    };
    for row in session.query(STANDBYS, &[]).await? {
        let lag_bytes = row.get::<_, Option<i64>>(2).map(|bytes| bytes.max(0).cast_unsigned());
        status.standbys.push(Standby {
            name: row.get::<_, Option<String>>(0).unwrap_or_default(),
            state: row.get(1),
            lag_bytes,
        });
    }
    for row in session.query(WATCHERS, &[&WATCHER]).await? {
        status.watchers.push(Watcher { address: row.get(0), since_s: row.get(1) });
    }
    Ok(status)
}

/// Runs a task of a tool.
pub(super) fn block_on<T>(task: impl Future<Output = Result<T, CheckError>>) -> Result<T, CheckError> {
    let runtime = runtime().map_err(|error| CheckError::Unreachable(error.to_string()))?;
    let result = runtime.block_on(task);
    runtime.shutdown_background();
    result
}
