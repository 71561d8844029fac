//! `beanring replicate rewrite`: asks the leader to write everything again, so that damaged chunks are not needed.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::append::sql;
use super::session::{Session, SessionError};
use super::{CheckError, LogNumber, Settings, check, lock, runtime};
use crate::wal::replica::{Epoch, Position};

/// How long to wait between two looks at the log.
const PAUSE: Duration = Duration::from_millis(100);

const LOOK: &str = "
    select epoch, begin, (select max(pos) from beanring_log l where l.log = e.log)
    from beanring_epoch e where log = $1";

/// The lock that the leader holds. It is free again with the end of the statement.
const IS_FREE: &str = "select pg_try_advisory_xact_lock_shared($1)";

/// The leader reads the upper bits of the beat when it renews its epoch. A claim sets the beat to 0.
const REQUEST: &str = "
    update beanring_epoch set beat = beat + (1::bigint << 48) where log = $1 and epoch = $2";

/// Why a log is not written again.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum RewriteError {
    #[error("{0}")]
    Check(#[from] CheckError),
    #[error(
        "no server leads log {0}, and only one that leads has all jobs; if the log is damaged, none can begin to: restore \
        a backup"
    )]
    NoLeader(LogNumber),
    #[error("another server leads now, and knows nothing of the request; try again")]
    OtherLeader,
}

/// What the row of the epoch says.
struct Look {
    epoch: Epoch,
    begin: Position,
    last: Position,
}

/// Asks the leader to write everything again, and waits until it has deleted all chunks before that. Returns the position where the
/// log begins now.
///
/// # Errors
/// If no server leads, another one leads before the end, or the database cannot be used.
pub fn rewrite(settings: &Settings) -> Result<Position, RewriteError> {
    let settings = Arc::new(settings.clone());
    let runtime = runtime().map_err(|error| CheckError::Unreachable(error.to_string()))?;
    let result = runtime.block_on(request(&settings));
    runtime.shutdown_background();
    result
}

async fn request(settings: &Settings) -> Result<Position, RewriteError> {
    let log = settings.log;
    let mut session = check::open(settings).await?;
    check::refuse_old_or_standby(&mut session).await?;
    check::has_tables(&mut session, settings).await?;
    check::has_privileges(&mut session).await?;
    check::has_log(&mut session, settings).await?;
    let Look { epoch, last, .. } = look(&mut session, log).await?;
    let rows = session.query(IS_FREE, &[&lock::key(log, epoch)]).await?;
    if epoch == Epoch::default() || rows.first().is_some_and(|row| row.get(0)) {
        return Err(RewriteError::NoLeader(log));
    }
    if session.execute(REQUEST, &[&log.sql(), &sql(epoch.0)]).await? == 0 {
        return Err(RewriteError::OtherLeader);
    }
    loop {
        let now = look(&mut session, log).await?;
        if now.epoch != epoch {
            return Err(RewriteError::OtherLeader);
        }
        if now.begin > last {
            return Ok(now.begin);
        }
        sleep(PAUSE).await;
    }
}

async fn look(session: &mut Session, log: LogNumber) -> Result<Look, RewriteError> {
    let rows = session.query(LOOK, &[&log.sql()]).await?;
    let row = rows.first().ok_or_else(|| CheckError::Statement("the log is gone".to_owned()))?;
    let number = |at: usize| row.get::<_, Option<i64>>(at).unwrap_or_default().cast_unsigned();
    Ok(Look { epoch: Epoch(number(0)), begin: Position(number(1)), last: Position(number(2)) })
}

impl From<SessionError> for RewriteError {
    fn from(error: SessionError) -> Self {
        Self::Check(CheckError::of_statement(&error))
    }
}
