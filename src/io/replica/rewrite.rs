//! `beanring replicate rewrite`: asks the leader to write everything again, so that damaged chunks are not needed.

use std::time::Duration;

use tokio::time::sleep;

use super::append::sql;
use super::session::Session;
use super::settings::LOG;
use super::{CheckError, Settings, ToolError, block_on, check, lock};
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
pub fn rewrite(settings: &Settings) -> Result<Position, ToolError> {
    block_on(rewrite_all(settings))
}

async fn rewrite_all(settings: &Settings) -> Result<Position, ToolError> {
    let mut session = check::open_to_write(settings).await?;
    let Look { epoch, last, .. } = look(&mut session).await?;
    if epoch == Epoch::default() || session.is_true(IS_FREE, &[&lock::key(epoch)]).await? {
        return Err(ToolError::NoLeader);
    }
    if session.execute(REQUEST, &[&LOG, &sql(epoch.0)]).await? == 0 {
        return Err(ToolError::OtherLeader);
    }
    loop {
        let now = look(&mut session).await?;
        if now.epoch != epoch {
            return Err(ToolError::OtherLeader);
        }
        if now.begin > last {
            return Ok(now.begin);
        }
        sleep(PAUSE).await;
    }
}

async fn look(session: &mut Session) -> Result<Look, ToolError> {
    let row = session.row(LOOK, &[&LOG]).await?;
    let row = row.ok_or_else(|| CheckError::Statement("the log is gone".to_owned()))?;
    let number = |at: usize| row.get::<_, Option<i64>>(at).unwrap_or_default().cast_unsigned();
    Ok(Look { epoch: Epoch(number(0)), begin: Position(number(1)), last: Position(number(2)) })
}
