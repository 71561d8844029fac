//! Appends and renewals.

use bytes::Bytes;
use tokio_postgres::error::SqlState;

use super::extent::Extent;
use super::session::{Link, Session, SessionError};
use super::settings::LOG;
use super::worker::Context;
use crate::wal::replica::{DatabaseReply, Epoch, Failure, Hazards, Position, Renewal, Term};

/// A claim changes the epoch, which is part of a key: it waits for the commits of these inserts. A renewal does not.
const INSERT: &str = "
    insert into beanring_log (log, pos, epoch, chunk)
    select $1, $2, $3, $4 from beanring_epoch where log = $1 and epoch = $3 and token = $5 for key share";

const INSERT_IF_FREE: &str = "
    insert into beanring_log (log, pos, epoch, chunk)
    select $1, $2, $3, $4 from beanring_epoch where log = $1 and epoch = $3 and token = $5 for key share
    on conflict do nothing";

/// Its commit waits until everything that was committed before it is replicated. An open session keeps the default of its role, so what the
/// next one gets is in the catalog: the setting of role and database first, then that of the role, of the database, and of all.
const RENEW: &str = "
    update beanring_epoch set beat = beat + 1
    where log = $1 and epoch = $2 and token = $3
    returning beat, trim(current_setting('synchronous_standby_names')) = '',
        coalesce((select split_part(setting, '=', 2)::boolean
            from pg_db_role_setting, unnest(setconfig) setting
            where setrole in (0, (select oid from pg_roles where rolname = session_user))
                and setdatabase in (0, (select oid from pg_database where datname = current_database()))
                and setting like 'default_transaction_read_only=%'
            order by setrole = 0, setdatabase = 0 limit 1), false)";

/// The bits of the beat from here on count the requests of `beanring replicate rewrite`.
const REWRITES_SHIFT: u32 = 48;

const COMPARE: &str = "select chunk = $3 from beanring_log where log = $1 and pos = $2";

/// A chunk to insert.
pub(super) struct Append {
    pub term: Term,
    pub position: Position,
    pub chunk: Bytes,
    pub is_repeated: bool,
}

pub(super) async fn append(_: Context, mut link: Link, append: Append) -> (Link, DatabaseReply) {
    let result = try_append(&mut link, &append).await;
    let result = link.end(result);
    if result.is_ok() {
        link.note_seen(Extent { position: append.position, ..led(append.term.epoch) });
    }
    (link, DatabaseReply::Appended { position: append.position, result })
}

pub(super) async fn renew(context: Context, mut link: Link, term: Term) -> (Link, DatabaseReply) {
    let result = try_renew(&mut link, term).await;
    let result = link.end(result).map(|(beat, hazards)| {
        link.note_seen(Extent { beat, beat_of: term.epoch, ..led(term.epoch) });
        let is_local = hazards.is_local && !context.settings.trusts_storage;
        Renewal { rewrites: beat >> REWRITES_SHIFT, hazards: Hazards { is_local, ..hazards } }
    });
    (link, DatabaseReply::Renewed(result))
}

async fn try_renew(link: &mut Link, term: Term) -> Result<(u64, Hazards), SessionError> {
    write_epoch(link.session().await?, term).await
}

async fn try_append(link: &mut Link, append: &Append) -> Result<(), SessionError> {
    let session = link.session().await?;
    if append.is_repeated {
        return repeat(session, append).await;
    }
    let Append { term: Term { epoch, token }, position, chunk, .. } = append;
    let (position, epoch, token) = (sql(position.0), sql(epoch.0), sql(*token));
    match session.execute(INSERT, &[&LOG, &position, &epoch, &&chunk[..], &token]).await {
        Ok(1) => Ok(()),
        Ok(_) => fenced(session, append.term).await,
        // The row there is committed. Maybe an earlier request has inserted it.
        Err(error) if error.is(&SqlState::UNIQUE_VIOLATION) => repeat(session, append).await,
        Err(error) => Err(error),
    }
}

/// Inserts a chunk that may be there. The write to the row of the epoch in the same transaction makes the commit wait until also a
/// row that was there is replicated.
async fn repeat(session: &mut Session, append: &Append) -> Result<(), SessionError> {
    session.command("begin").await?;
    let attempt = repeat_in_transaction(session, append).await;
    session.end(attempt).await
}

async fn repeat_in_transaction(session: &mut Session, append: &Append) -> Result<(), SessionError> {
    let Append { term, position, chunk, .. } = append;
    write_epoch(session, *term).await?;
    let (position, epoch, token) = (sql(position.0), sql(term.epoch.0), sql(term.token));
    if session.execute(INSERT_IF_FREE, &[&LOG, &position, &epoch, &&chunk[..], &token]).await? == 1 {
        return Ok(());
    }
    match session.value(COMPARE, &[&LOG, &position, &&chunk[..]]).await? {
        Some(true) => Ok(()),
        Some(false) => Err(Failure::Taken.into()),
        // It was deleted between the two statements.
        None => Err(Failure::Unknown.into()),
    }
}

/// A server has led in this epoch.
pub(super) fn led(epoch: Epoch) -> Extent {
    Extent { epoch, ..Extent::default() }
}

/// Writes to the row of the epoch, if the term has not ended. Returns its beat, and what endangers the queue.
async fn write_epoch(session: &mut Session, term: Term) -> Result<(u64, Hazards), SessionError> {
    let row = session.row(RENEW, &[&LOG, &sql(term.epoch.0), &sql(term.token)]).await?;
    let Some(row) = row else { return fenced(session, term).await };
    let hazards = Hazards { is_local: row.get(1), is_read_only: row.get(2) };
    Ok((row.get::<_, i64>(0).cast_unsigned(), hazards))
}

/// Refuses a request, because the row of the epoch has another term.
///
/// # Errors
/// [`Failure::Fenced`]. If the epoch of the row came before: this is not the database that has acknowledged the term.
pub(super) async fn fenced<T>(session: &mut Session, term: Term) -> Result<T, SessionError> {
    session.refuse_older(led(term.epoch)).await?;
    Err(Failure::Fenced.into())
}

/// A number for SQL, which has none without a sign. Positions and epochs never come near the limit; random numbers keep their bits.
pub(super) const fn sql(number: u64) -> i64 {
    number.cast_signed()
}
