//! Trims, and the vacuums after them, which make the space of deleted rows usable again.
//!
//! Autovacuum comes once a minute at best, in which a busy leader writes more than a gigabyte. The leader knows when it has deleted.

use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::timeout;

use super::append::{fenced, sql};
use super::session::{Link, Session, SessionError};
use super::settings::LOG;
use super::worker::{Context, IDLE_MAX};
use crate::wal::replica::{DatabaseReply, Position, Term};

const SET_BEGIN: &str = "
    update beanring_epoch set begin = greatest(begin, $3) where log = $1 and epoch = $2 and token = $4";

/// At most some 500 rows with their chunks, which takes about 0.1 s.
const DELETE_SOME: &str = "
    delete from beanring_log where log = $1 and pos in
        (select pos from beanring_log where log = $1 and pos < $2 order by pos limit 500)";

pub(super) async fn trim(
    context: Context,
    mut link: Link,
    (term, before): (Term, Position),
) -> (Link, DatabaseReply) {
    let result = try_trim(&mut link, term, before).await;
    let result = link.end(result);
    if result.is_ok() {
        context.trimmed.notify_one();
    }
    (link, DatabaseReply::Trimmed(result))
}

async fn try_trim(link: &mut Link, term: Term, before: Position) -> Result<(), SessionError> {
    let session = link.session().await?;
    let (epoch, token, before) = (sql(term.epoch.0), sql(term.token), sql(before.0));
    if session.execute(SET_BEGIN, &[&LOG, &epoch, &before, &token]).await? == 0 {
        return fenced(session, term).await;
    }
    // No process reads these rows any more, whatever the epoch is. Rows that a crash brings back are deleted by the next trim.
    loop {
        session.command("begin; set local synchronous_commit = off").await?;
        let deleted = session.execute(DELETE_SOME, &[&LOG, &before]).await;
        if session.end(deleted).await? == 0 {
            return Ok(());
        }
    }
}

/// For a user without that right, the database would log a warning each time. Before version 17 only the owner may.
const MAY_VACUUM: &str = "
    select case when current_setting('server_version_num')::integer >= 170000
        then has_table_privilege(oid, 'MAINTAIN') else pg_has_role(relowner, 'usage') end
    from pg_class where oid = to_regclass('beanring_log')";

const VACUUM: &str = "vacuum beanring_log";

/// Vacuums after each trim. Trims that end while it runs are followed by one vacuum.
pub(super) async fn vacuum_after_trims(context: Context, trimmed: Arc<Notify>) {
    let mut link = context.link();
    loop {
        match timeout(IDLE_MAX, trimmed.notified()).await {
            Err(_) => link.close(),
            Ok(()) => {
                let result = try_vacuum(&mut link).await;
                // A failed vacuum is retried after the next trim; no request waits for it.
                let _ = link.end(result);
            }
        }
    }
}

async fn try_vacuum(link: &mut Link) -> Result<(), SessionError> {
    vacuum(link.session().await?).await
}

/// Vacuums the table of the log, if this user may.
pub(super) async fn vacuum(session: &mut Session) -> Result<(), SessionError> {
    if session.is_true(MAY_VACUUM, &[]).await? {
        session.command(VACUUM).await?;
    }
    Ok(())
}
