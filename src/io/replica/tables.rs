//! The tables: making them, and what they and the database tell about a log.

use serde::Serialize;
use tokio_postgres::error::SqlState;

use super::check::Commits;
use super::lock;
use super::settings::{LOG, WATCHER};
use super::{CheckError, Settings, block_on, check};
use crate::wal::replica::Epoch;

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
    select epoch, extract(epoch from now() - since)::float8, nullif(address, ''), nullif(http, ''), holder.pid is not null,
        host(holder.client_addr), nullif(lease_ms / 1000, 0), begin,
        (select max(pos) from beanring_log l where l.log = e.log),
        (select count(*) from beanring_log l where l.log = e.log and l.pos >= e.begin),
        pg_total_relation_size('beanring_log')
    from beanring_epoch e
    left join lateral (
        select k.pid, a.client_addr from pg_locks k left join pg_stat_activity a using (pid)
        where k.locktype = 'advisory' and k.objsubid = 1 and k.granted and k.mode = 'ExclusiveLock'
            and k.database = (select oid from pg_database where datname = current_database())
            and k.classid::bigint = $2::bigint >> 32
            and k.objid::bigint = ($2::bigint | epoch) & 4294967295 limit 1) as holder on true
    where log = $1";

const STANDBYS: &str = "
    select coalesce(application_name, ''), sync_state,
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
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Status {
    /// The current epoch; 0 before the first leader.
    pub epoch: u64,
    /// The seconds since the epoch began.
    pub epoch_seconds: Option<f64>,
    /// Where the leader accepts forwarded connections, if it does.
    pub leader: Option<String>,
    /// The URL of its console and of its API, if it has been given.
    pub leader_http: Option<String>,
    /// A session holds the lock of the epoch, so the process of the leader is there.
    pub leader_connected: bool,
    /// The address of that session, unless it is hidden, or that of a socket in a directory.
    pub leader_host: Option<String>,
    /// The lease of the leader.
    pub lease_seconds: Option<u64>,
    /// The first position.
    pub begin: u64,
    /// The last position; the one before the first if there are no chunks.
    pub end: u64,
    /// Chunks in between.
    pub chunks: u64,
    /// The size of the table with its indexes on disk, with all logs in it.
    pub table_bytes: u64,
    /// What a commit waits for.
    pub commits: Commits,
    /// The standbys of the database.
    pub standbys: Vec<Standby>,
    /// Servers that watch the leader of a log in this database.
    pub watching: Vec<Watcher>,
}

/// A standby of the database.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Standby {
    /// Its name.
    pub name: String,
    /// What its acknowledgement counts: `sync`, `quorum`, `potential` or `async`; none if that is hidden.
    pub state: Option<String>,
    /// The bytes of the database's log that are not on its disk.
    pub lag_bytes: Option<u64>,
}

/// A server that watches the leader.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Watcher {
    /// Its address.
    pub host: String,
    /// The seconds since it watches.
    pub seconds: f64,
}

/// Makes the tables and the log, as far as they are not there.
///
/// # Errors
/// If the database cannot be used, or has other tables with these names.
pub fn init(settings: &Settings) -> Result<Created, CheckError> {
    block_on(async {
        let mut session = check::open(settings).await?;
        check::refuse_old_or_standby(&mut session).await?;
        session.command("begin").await?;
        session.command(INIT_KEY).await?;
        let is_new = match check::has_tables(&mut session, settings).await {
            Ok(()) => false,
            Err(CheckError::NoTables(_)) => true,
            Err(error) => return Err(error),
        };
        if is_new {
            session.command(CREATE).await.map_err(|error| {
                match error.is(&SqlState::INSUFFICIENT_PRIVILEGE) {
                    true => CheckError::NoCreate(error.to_string()),
                    false => error.into(),
                }
            })?;
        }
        let rows = session.execute(INSERT_LOG, &[&LOG, &FORMAT]).await?;
        session.command("commit").await?;
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
    block_on(async {
        let mut session = check::open_to_read(settings).await?;
        let commits = check::commits(&mut session).await?;
        let row = session.row(STATUS, &[&LOG, &lock::key(Epoch(0))]).await?.expect("the log is there");
        let number = |at: usize| row.get::<_, i64>(at).cast_unsigned();
        let maybe = |at: usize| row.get::<_, Option<i64>>(at).map(i64::cast_unsigned);
        let standbys = session.query(STANDBYS, &[]).await?.into_iter().map(|row| Standby {
            name: row.get(0),
            state: row.get(1),
            lag_bytes: row.get::<_, Option<i64>>(2).map(|bytes| bytes.max(0).cast_unsigned()),
        });
        let watching = session.query(WATCHERS, &[&WATCHER]).await?.into_iter();
        Ok(Status {
            epoch: number(0),
            epoch_seconds: row.get(1),
            leader: row.get(2),
            leader_http: row.get(3),
            leader_connected: row.get(4),
            leader_host: row.get(5),
            lease_seconds: maybe(6),
            begin: number(7),
            end: maybe(8).unwrap_or(number(7) - 1),
            chunks: number(9),
            table_bytes: number(10),
            commits,
            standbys: standbys.collect(),
            watching: watching.map(|row| Watcher { host: row.get(0), seconds: row.get(1) }).collect(),
        })
    })
}
