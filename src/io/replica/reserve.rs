//! The reserve: a table whose only purpose is its size. When the disk of the database is full, it is emptied, so that deletions
//! can be appended. Truncation gives the space back at once; that of deleted rows stays in their table until a vacuum, and then
//! only that table can use it.

use tokio_postgres::error::SqlState;

use super::session::{Link, Session, SessionError};
use super::trim::vacuum;
use super::worker::Context;
use crate::wal::replica::{DatabaseReply, Failure, Reserve};

/// The size of the reserve, in bytes: what may wait to be written when the disk becomes full, the copies of a segment, and some
/// deletions.
const BYTES: i64 = 32 * 1024 * 1024;

/// No size if there is no such table.
const SIZE: &str = "select pg_relation_size(to_regclass('beanring_reserve'))";

/// Rows without a name for their content: 18 are on a page of 8 KiB.
const FILL: &str = "insert into beanring_reserve select '' from generate_series(1, $1::bigint * 18 / 8192)";

const EMPTY: &str = "truncate beanring_reserve";

/// Space in the table that no row uses. A row takes some more than its chunk.
const SLACK: &str = "
    select pg_total_relation_size('beanring_log') - coalesce(sum(octet_length(chunk)) * 11 / 10, 0)::bigint
    from beanring_log";

pub(super) async fn reserve(_: Context, mut link: Link, wanted: Reserve) -> (Link, DatabaseReply) {
    let result = match try_reserve(&mut link, wanted).await {
        // A user without these rights, or tables without a reserve.
        Err(error) if error.is(&SqlState::INSUFFICIENT_PRIVILEGE) || error.is(&SqlState::UNDEFINED_TABLE) => {
            link.close();
            Ok(())
        }
        result => link.end(result),
    };
    (link, DatabaseReply::Reserved { wanted, result })
}

async fn try_reserve(link: &mut Link, wanted: Reserve) -> Result<(), SessionError> {
    let session = link.session().await?;
    match wanted {
        Reserve::Keep => keep(session).await,
        Reserve::Free => session.execute(EMPTY, &[]).await.map(drop),
    }
}

/// Refills the reserved space. Where the disk has none, unused space in the table of the log is as good.
async fn keep(session: &mut Session) -> Result<(), SessionError> {
    let missing = session.value(SIZE, &[]).await?.flatten().map_or(0, |size: i64| BYTES - size);
    if missing <= 0 {
        return Ok(());
    }
    // Without space a later one succeeds. For another user than the owner, PostgreSQL does it within a minute or so.
    match vacuum(session).await {
        Err(error) if error.code().is_none() && !matches!(error, SessionError::Notice) => return Err(error),
        _ => {}
    }
    match session.execute(FILL, &[&missing]).await {
        Err(error) if error.failure() == Failure::Full => {}
        result => return result.map(drop),
    }
    session.execute(EMPTY, &[]).await?;
    let slack: Option<i64> = session.value(SLACK, &[]).await?;
    if slack.is_some_and(|slack| slack >= BYTES) { Ok(()) } else { Err(Failure::Full.into()) }
}
