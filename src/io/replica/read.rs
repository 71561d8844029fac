//! Reads.

use bytes::Bytes;
use tokio_postgres::Row;

use super::append::sql;
use super::extent::Extent;
use super::session::{Link, Session, SessionError};
use super::settings::LOG;
use super::worker::Context;
use crate::time::Span;
use crate::wal::replica::{DatabaseReply, Epoch, Failure, Member, Page, Position};

/// A page has at most 1,000 chunks, and 4 MiB and one chunk. The lengths are read without the chunks. The last position is not asked
/// for by `max`: before the table has statistics, the planner would read every row for it.
const READ: &str = "
    select e.epoch, e.address, e.token, e.secret, e.beat, e.begin, e.log_id, e.lease_ms, c.pos, c.chunk,
        (select pos from beanring_log where log = $1 order by pos desc limit 1), e.http
    from beanring_epoch e
    left join lateral (
        select pos, chunk
        from (
            select pos, chunk, octet_length(chunk) as bytes,
                sum(octet_length(chunk)) over (order by pos) as total
            from (
                select pos, chunk from beanring_log
                where log = $1 and pos >= greatest($2, e.begin) order by pos limit 1000) as first_chunks
        ) as counted
        where total - bytes < 4194304) as c on true
    where e.log = $1
    order by c.pos";

pub(super) async fn read(context: Context, mut link: Link, from: Position) -> (Link, DatabaseReply) {
    let claims = context.lock.claims();
    let result = try_read(&mut link, from).await;
    let result = link.end(result);
    if let Ok(page) = &result {
        context.lock.note_leader(claims, page.epoch, page.leader.token);
        link.note_seen(Extent::proven_by(page));
    }
    (link, DatabaseReply::Read(result))
}

async fn try_read(link: &mut Link, from: Position) -> Result<Page, SessionError> {
    read_page(link.session().await?, from).await?.ok_or(Failure::Unknown.into())
}

/// Returns the page from a position on, or nothing if there is no row of the epoch.
pub(super) async fn read_page(session: &mut Session, from: Position) -> Result<Option<Page>, SessionError> {
    Ok(page_of(&session.query(READ, &[&LOG, &sql(from.0)]).await?))
}

fn page_of(rows: &[Row]) -> Option<Page> {
    let first = rows.first()?;
    let number = |at: usize| first.get::<_, i64>(at).cast_unsigned();
    let chunk = |row: &Row| {
        let position = row.get::<_, Option<i64>>(8)?.cast_unsigned();
        Some((Position(position), Bytes::copy_from_slice(row.get::<_, &[u8]>(9))))
    };
    let leader = Member {
        address: first.get::<_, &str>(1).into(),
        http: first.get::<_, &str>(11).into(),
        token: number(2),
        secret: number(3),
        lease: Span::from_millis(number(7) as u32),
    };
    Some(Page {
        epoch: Epoch(number(0)),
        leader,
        beat: number(4),
        begin: Position(number(5)),
        log_id: number(6),
        chunks: rows.iter().filter_map(chunk).collect(),
        end: Position(first.get::<_, Option<i64>>(10).unwrap_or(0).cast_unsigned()),
    })
}
