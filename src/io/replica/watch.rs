//! Watches: whether the process of the leader has ended.

use std::time::Duration;

use tokio::sync::watch::Receiver;
use tokio::time::sleep;

use super::append::sql;
use super::lock::{PAUSE, key};
use super::session::{Link, SessionError};
use super::settings::{LOG, WATCHER};
use super::worker::Context;
use crate::wal::replica::{DatabaseReply, Term};

/// The attempts in a row that must find the lock free. The first one may come while the leader, which has lost its session, opens
/// another one.
const ATTEMPTS: u32 = 2;

/// The pause after a lost session. The leader has then probably lost its own too, and takes its lock again in this time.
const GRACE: Duration = Duration::from_secs(1);

/// The lock that it takes, shared with others that watch, ends with the statement. No row: the database has failed
/// over, and this session and the read have reached different primaries.
const IS_FREE: &str = "
    select pg_try_advisory_xact_lock_shared($1) from beanring_epoch where log = $2 and epoch = $3 and token = $4";

/// Answers the latest watch that was wanted.
pub(super) async fn watch(context: Context, mut wanted: Receiver<Option<Term>>) {
    let mut link = context.link_named(WATCHER);
    let mut has_lost = false;
    while wanted.changed().await.is_ok() {
        loop {
            let Some(term) = *wanted.borrow_and_update() else { break };
            let result = tokio::select! {
                result = until_free(&mut link, term, has_lost) => result,
                changed = wanted.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    // The statement of the other watch may be in flight.
                    continue;
                }
            };
            has_lost = result.is_err();
            let result = link.end(result);
            if result.is_ok() {
                // The next watch may be long in coming: this process may be the next leader.
                link.close();
            }
            context.outbox.send(DatabaseReply::Watched { term, result });
            break;
        }
    }
}

async fn until_free(link: &mut Link, term: Term, has_lost: bool) -> Result<(), SessionError> {
    let session = link.session().await?;
    if has_lost {
        sleep(GRACE).await;
    }
    let (key, epoch, token) = (key(term.epoch), sql(term.epoch.0), sql(term.token));
    let mut attempts = 0;
    loop {
        let is_free = session.is_true(IS_FREE, &[&key, &LOG, &epoch, &token]).await?;
        attempts = if is_free { attempts + 1 } else { 0 };
        if attempts == ATTEMPTS {
            return Ok(());
        }
        sleep(PAUSE).await;
    }
}
