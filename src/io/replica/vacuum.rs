//! Vacuums: they make the space of deleted rows usable again.
//!
//! Autovacuum comes once a minute at best, in which a busy leader writes more than a gigabyte. The leader knows when it has deleted.

use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::timeout;

use super::session::{Session, SessionError};
use super::worker::{Context, IDLE_MAX};

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
                let result = match link.session().await {
                    Ok(session) => vacuum(session).await,
                    Err(error) => Err(error),
                };
                // A failed vacuum is retried after the next trim; no request waits for it.
                let _ = link.end(result);
            }
        }
    }
}

/// Vacuums the table of the log, if this user may.
pub(super) async fn vacuum(session: &mut Session) -> Result<(), SessionError> {
    let rows = session.query(MAY_VACUUM, &[]).await?;
    if rows.first().is_some_and(|row| row.get(0)) {
        session.command(VACUUM).await?;
    }
    Ok(())
}
