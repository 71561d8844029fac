//! `beanring replicate import` and `export`: a whole log into the database, and out of it.

use std::sync::Arc;

use bytes::Bytes;

use super::append::sql;
use super::read::try_read;
use super::session::{Session, SessionError};
use super::{CheckError, LogNumber, Settings, check, lock, runtime};
use crate::io::host;
use crate::io::wal_files::offline::Content;
use crate::queue::Engine;
use crate::time::Time;
use crate::wal::replica::{Damage, Epoch, Fault, Follower, FreshLog, Position};
use crate::wal::segment::format_of;
use crate::wal::snapshot;

/// Waits for appends and claims that have begun, and keeps others waiting.
const LOCK_EPOCH: &str = "
    select epoch, begin, log_id, (select max(pos) from beanring_log l where l.log = e.log)
    from beanring_epoch e where log = $1 for update";

/// Whether no process leads. The lock ends with the transaction.
const IS_FREE: &str = "select pg_try_advisory_xact_lock($1)";

const DELETE_ALL: &str = "delete from beanring_log where log = $1";

/// The epoch of the import has no leader: no token is 0.
const BEGIN_EPOCH: &str = "
    update beanring_epoch
    set epoch = $2, begin = $3, beat = 0, since = now(), address = '', http = '', token = 0, secret = 0, lease_ms = 0
    where log = $1";

const INSERT: &str = "insert into beanring_log (log, pos, epoch, chunk) values ($1, $2, $3, $4)";

/// Why a log is not moved. Nothing has changed in the database.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum TransferError {
    #[error("{0}")]
    Check(#[from] CheckError),
    #[error("a server leads log {0}; stop all servers with --replicate first")]
    Led(LogNumber),
    #[error("log {log} has {}, which an import would replace; import into an empty database", content(*.jobs))]
    NotEmpty { log: LogNumber, jobs: usize },
    #[error(
        "the job log in the database is damaged: {0}; if a server leads it, run beanring replicate rewrite, else restore \
        a backup of the database"
    )]
    Damaged(Damage),
    #[error("the job log has changed while it was read; try again")]
    Changed,
    #[error("too little memory for the jobs of the job log")]
    Memory,
    /// The commit was not acknowledged.
    #[error(
        "it is unknown whether the import has happened ({0}); run beanring replicate status: if the log has no chunks, \
        import again"
    )]
    Unknown(String),
}

/// Writes everything to a log in the database that has no jobs and no leader, in one transaction.
///
/// # Errors
/// If the log has jobs or a leader, or the database cannot be used.
pub fn import(settings: &Settings, content: &Content, now: Time) -> Result<(), TransferError> {
    let settings = Arc::new(settings.clone());
    block_on(async {
        let mut session = check::open(&settings).await?;
        check::refuse_old_or_standby(&mut session).await?;
        check::has_tables(&mut session, &settings).await?;
        check::has_privileges(&mut session).await?;
        check::has_log(&mut session, &settings).await?;
        session.command("begin").await?;
        let place = find_place(&mut session, &settings, now).await?;
        write(&mut session, settings.log, place, content, now).await?;
        session.command("commit").await.map_err(|error| TransferError::Unknown(error.to_string()))
    })
}

/// Reads everything in a log, as it is at one moment. A server may lead it.
///
/// # Errors
/// If the log is damaged, or the database cannot be used.
pub fn export(settings: &Settings, now: Time) -> Result<Content, TransferError> {
    let settings = Arc::new(settings.clone());
    block_on(async {
        let mut session = check::open(&settings).await?;
        check::has_tables(&mut session, &settings).await?;
        check::has_log(&mut session, &settings).await?;
        session.command("begin isolation level repeatable read read only").await?;
        let content = read(&mut session, settings.log, now).await?;
        session.command("commit").await?;
        Ok(content)
    })
}

/// Where an import begins.
struct Place {
    epoch: Epoch,
    log_id: u64,
    begin: Position,
}

/// Locks the log, and makes sure that it has no leader and no jobs.
async fn find_place(session: &mut Session, settings: &Settings, now: Time) -> Result<Place, TransferError> {
    let log = settings.log;
    let rows = session.query(LOCK_EPOCH, &[&log.sql()]).await?;
    let row = rows.first().ok_or_else(|| CheckError::NoLog(log, settings.to_string()))?;
    let number = |at: usize| row.get::<_, i64>(at).cast_unsigned();
    let (epoch, begin, log_id) = (Epoch(number(0)), Position(number(1)), number(2));
    let last = row.get::<_, Option<i64>>(3).map_or(begin, |last| Position(last.cast_unsigned()));
    if epoch > Epoch::default() {
        let rows = session.query(IS_FREE, &[&lock::key(log, epoch)]).await?;
        if !rows.first().is_some_and(|row| row.get(0)) {
            return Err(TransferError::Led(log));
        }
        let Content { engine, recovered } = read(session, log, now).await?;
        let jobs = engine.jobs().len();
        let has_rules = recovered.rules().next().is_some() || engine.kept_keys().next().is_some();
        if jobs > 0 || has_rules || engine.has_schedules() {
            return Err(TransferError::NotEmpty { log, jobs });
        }
    }
    // A log that begins behind its first position begins with a segment.
    Ok(Place { epoch: epoch.next(), log_id, begin: last.max(begin).next() })
}

async fn write(
    session: &mut Session,
    log: LogNumber,
    Place { epoch, log_id, begin }: Place,
    content: &Content,
    now: Time,
) -> Result<(), TransferError> {
    let Content { engine, recovered } = content;
    session.execute(DELETE_ALL, &[&log.sql()]).await?;
    session.execute(BEGIN_EPOCH, &[&log.sql(), &sql(epoch.0), &sql(begin.0)]).await?;
    let format = format_of(engine.keeps_reservations());
    let size = (format, content.segment_bytes());
    let mut fresh = FreshLog::begin((epoch, log_id), begin, size, engine.upcoming_id());
    for record in snapshot(engine, recovered, now) {
        fresh.append(&record);
        insert(session, log, epoch, fresh.take()).await?;
    }
    insert(session, log, epoch, fresh.finish()).await?;
    Ok(())
}

async fn insert(
    session: &mut Session,
    log: LogNumber,
    epoch: Epoch,
    chunks: Vec<(Position, Bytes)>,
) -> Result<(), SessionError> {
    for (position, chunk) in chunks {
        session.execute(INSERT, &[&log.sql(), &sql(position.0), &sql(epoch.0), &&chunk[..]]).await?;
    }
    Ok(())
}

/// Reads to the end. Chunks that may be missing, because their appends are in flight, end the log.
async fn read(session: &mut Session, log: LogNumber, now: Time) -> Result<Content, TransferError> {
    let seed = host::random_word().map_err(|_| TransferError::Memory)?;
    let mut engine = Engine::new(seed);
    let mut follower: Option<Follower> = None;
    loop {
        let from = follower.as_ref().map_or(Position::FIRST, Follower::read_from);
        let page = try_read(session, log.sql(), from).await?.map_err(|_| TransferError::Changed)?;
        let follower = follower.get_or_insert_with(|| Follower::new(&page, None));
        let has_more = follower.apply(&page, &mut engine)?;
        if !page.is_end() && has_more {
            continue;
        }
        if !follower.is_complete() {
            return Err(TransferError::Damaged(Damage::Missing(page.begin.previous())));
        }
        break;
    }
    let follower = follower.expect("a page was read");
    let (recovered, _) = follower.finish(&mut engine, now);
    Ok(Content::new(engine, recovered, now))
}

fn block_on<T>(task: impl Future<Output = Result<T, TransferError>>) -> Result<T, TransferError> {
    let runtime = runtime().map_err(|error| CheckError::Unreachable(error.to_string()))?;
    let result = runtime.block_on(task);
    runtime.shutdown_background();
    result
}

impl From<SessionError> for TransferError {
    fn from(error: SessionError) -> Self {
        Self::Check(CheckError::of_statement(&error))
    }
}

impl From<Fault> for TransferError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Damaged(damage) => Self::Damaged(damage),
            Fault::Diverged => Self::Changed,
            Fault::OutOfMemory => Self::Memory,
        }
    }
}

fn content(jobs: usize) -> String {
    match jobs {
        0 => "rules, schedules or idempotency keys".to_owned(),
        1 => "1 job".to_owned(),
        _ => format!("{jobs} jobs"),
    }
}

impl TransferError {
    /// Whether it may pass without a change by people.
    pub const fn is_temporary(&self) -> bool {
        match self {
            Self::Check(error) => error.is_temporary(),
            Self::NotEmpty { .. } => false,
            _ => true,
        }
    }
}
