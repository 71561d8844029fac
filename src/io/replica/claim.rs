//! Take-overs.

use super::append::sql;
use super::session::{Link, Session, SessionError};
use super::settings::LOG;
use super::worker::Context;
use crate::wal::replica::{Claim, DatabaseReply, Failure};

/// Waits for the inserts of the epoch that ends, and refuses those that come later.
const BEGIN_EPOCH: &str = "
    update beanring_epoch
    set epoch = epoch + 1, beat = 0, since = now(), address = $3, http = $8, token = $4, secret = $5, lease_ms = $7
    where log = $1 and epoch = $2 and beat = $6";

/// The identities of chunks are four of their bytes: see `wal::replica::identity`.
const TAIL: &str = "
    select pos, substring(chunk from 61 for 4) from beanring_log where log = $1 and pos between $2 and $3 order by pos";

const COUNT_BEHIND: &str = "select count(*) from beanring_log where log = $1 and pos > $2";

const DELETE_BEHIND: &str = "delete from beanring_log where log = $1 and pos > $2";

pub(super) const INSERT: &str = "insert into beanring_log (log, pos, epoch, chunk) values ($1, $2, $3, $4)";

pub(super) async fn claim(context: Context, mut link: Link, claim: Claim) -> (Link, DatabaseReply) {
    context.lock.prepare();
    let result = try_claim(&context, &mut link, &claim).await;
    // A claim that may have happened keeps the lock.
    context.lock.finish(!matches!(result, Err(SessionError::Refused(_))));
    let result = link.end(result);
    (link, DatabaseReply::Claimed(result))
}

async fn try_claim(context: &Context, link: &mut Link, claim: &Claim) -> Result<(), SessionError> {
    let session = link.session().await?;
    session.command("begin").await?;
    let attempt = write(session, claim).await;
    if attempt.is_ok() {
        // No other process can be here with the same epoch: its row is locked.
        context.lock.take(claim.seen.next(), claim.leader.token).await;
    }
    session.end(attempt).await
}

async fn write(session: &mut Session, claim: &Claim) -> Result<(), SessionError> {
    let Claim { seen, beat, behind, position, tail, chunk, leader } = claim;
    let first = sql(position.0 - tail.len() as u64);
    let position = sql(position.0);
    let (token, secret, beat) = (sql(leader.token), sql(leader.secret), sql(*beat));
    let lease_ms = sql(leader.lease.as_nanos() / 1_000_000);
    let leader: [&(dyn tokio_postgres::types::ToSql + Sync); 8] =
        [&LOG, &sql(seen.0), &&*leader.address, &token, &secret, &beat, &lease_ms, &&*leader.http];
    if session.execute(BEGIN_EPOCH, &leader).await? == 0 {
        return Err(Failure::Fenced.into());
    }
    let there = session.query(TAIL, &[&LOG, &first, &position]).await?;
    let there = there.iter().map(|row| (row.get(0), row.get::<_, &[u8]>(1)));
    let expected: Vec<[u8; 4]> = tail.iter().map(|identity| identity.to_le_bytes()).collect();
    if !there.eq((first..).zip(expected.iter().map(|bytes| &bytes[..]))) {
        return Err(Failure::Taken.into());
    }
    if session.value(COUNT_BEHIND, &[&LOG, &position]).await? != Some(*behind as i64) {
        return Err(Failure::Taken.into());
    }
    session.execute(DELETE_BEHIND, &[&LOG, &position]).await?;
    session.execute(INSERT, &[&LOG, &position, &sql(seen.next().0), &&chunk[..]]).await?;
    Ok(())
}
