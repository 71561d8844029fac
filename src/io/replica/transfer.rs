//! `beanring replicate import` and `export`: a whole log into the database, and out of it.

use bytes::Bytes;

use super::append::sql;
use super::claim::INSERT;
use super::read::read_page;
use super::session::{Session, SessionError};
use super::settings::LOG;
use super::{CheckError, Settings, ToolError, block_on, check, lock};
use crate::io::host;
use crate::io::wal_files::offline::Content;
use crate::queue::Engine;
use crate::time::Time;
use crate::wal::replica::{Damage, Epoch, Follower, FreshLog, Position};
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

/// Writes everything to a log in the database that has no jobs and no leader, in one transaction.
///
/// # Errors
/// If the log has jobs or a leader, or the database cannot be used.
pub fn import(settings: &Settings, content: &Content, now: Time) -> Result<(), ToolError> {
    block_on(async {
        let mut session = check::open_to_write(settings).await?;
        session.command("begin").await?;
        let place = find_place(&mut session, settings, now).await?;
        write(&mut session, place, content, now).await?;
        session.command("commit").await.map_err(|error| ToolError::Unknown(error.to_string()))
    })
}

/// Reads everything in a log, as it is at one moment. A server may lead it.
///
/// # Errors
/// If the log is damaged, or the database cannot be used.
pub fn export(settings: &Settings, now: Time) -> Result<Content, ToolError> {
    block_on(async {
        let mut session = check::open_to_read(settings).await?;
        session.command("begin isolation level repeatable read read only").await?;
        let content = read(&mut session, now).await?;
        session.command("commit").await?;
        Ok(content)
    })
}

/// Locks the log, and makes sure that it has no leader and no jobs. Returns the epoch of an import, the id of the log, and the position
/// where the import begins.
async fn find_place(
    session: &mut Session,
    settings: &Settings,
    now: Time,
) -> Result<(Epoch, u64, Position), ToolError> {
    let row = session.row(LOCK_EPOCH, &[&LOG]).await?;
    let row = row.ok_or_else(|| CheckError::NoLog(settings.to_string()))?;
    let number = |at: usize| row.get::<_, i64>(at).cast_unsigned();
    let (epoch, begin, log_id) = (Epoch(number(0)), Position(number(1)), number(2));
    let last = row.get::<_, Option<i64>>(3).map_or(begin, |last| Position(last.cast_unsigned()));
    if epoch > Epoch::default() {
        if !session.is_true(IS_FREE, &[&lock::key(epoch)]).await? {
            return Err(ToolError::Led);
        }
        let Content { engine, recovered } = read(session, now).await?;
        let jobs = engine.jobs().len();
        let has_rules = recovered.rules().next().is_some() || engine.kept_keys().next().is_some();
        if jobs > 0 || has_rules || engine.has_schedules() {
            return Err(ToolError::NotEmpty { jobs });
        }
    }
    // A log that begins behind its first position begins with a segment.
    Ok((epoch.next(), log_id, last.max(begin).next()))
}

async fn write(
    session: &mut Session,
    (epoch, log_id, begin): (Epoch, u64, Position),
    content: &Content,
    now: Time,
) -> Result<(), ToolError> {
    let Content { engine, recovered } = content;
    session.execute(DELETE_ALL, &[&LOG]).await?;
    session.execute(BEGIN_EPOCH, &[&LOG, &sql(epoch.0), &sql(begin.0)]).await?;
    let format = format_of(engine.keeps_reservations());
    let size = (format, content.segment_bytes());
    let mut fresh = FreshLog::begin((epoch, log_id), begin, size, engine.upcoming_id());
    for record in snapshot(engine, recovered, now) {
        fresh.append(&record);
        insert(session, epoch, fresh.take()).await?;
    }
    insert(session, epoch, fresh.finish()).await?;
    Ok(())
}

async fn insert(
    session: &mut Session,
    epoch: Epoch,
    chunks: Vec<(Position, Bytes)>,
) -> Result<(), SessionError> {
    for (position, chunk) in chunks {
        session.execute(INSERT, &[&LOG, &sql(position.0), &sql(epoch.0), &&chunk[..]]).await?;
    }
    Ok(())
}

/// Reads to the end. Chunks that may be missing, because their appends are in flight, end the log.
async fn read(session: &mut Session, now: Time) -> Result<Content, ToolError> {
    let seed = host::random_word().map_err(|_| ToolError::Memory)?;
    let mut engine = Engine::new(seed);
    let mut follower: Option<Follower> = None;
    loop {
        let from = follower.as_ref().map_or(Position::FIRST, Follower::read_from);
        let page = read_page(session, from).await?.ok_or(ToolError::Changed)?;
        let follower = follower.get_or_insert_with(|| Follower::new(&page, None));
        let has_more = follower.apply(&page, &mut engine)?;
        if !page.is_end() && has_more {
            continue;
        }
        if !follower.is_complete() {
            return Err(ToolError::Damaged(Damage::Missing(page.begin.previous())));
        }
        break;
    }
    let follower = follower.expect("a page was read");
    let (recovered, _) = follower.finish(&mut engine, now);
    Ok(Content::new(engine, recovered, now))
}
