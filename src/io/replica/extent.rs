//! What this server knows of the log: a database that has less is an old primary that has come back, or a standby that was promoted
//! without acknowledged changes.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use super::session::{Session, SessionError, SharedState};
use super::settings::LOG;
use crate::wal::replica::{APPENDS_MAX, Epoch, Page, Position};

/// Chunks at the end of what was read that may not be replicated: those of a leader, and of claims that follow it.
const CHUNKS_UNPROVEN: u64 = 2 * APPENDS_MAX as u64;

/// With the address of the server: the URL may have several.
const FOUND: &str = "
    select log_id, epoch, beat, (select pos from beanring_log where log = $1 order by pos desc limit 1),
        coalesce(host(inet_server_addr()) || ':' || inet_server_port(), 'a socket')
    from beanring_epoch where log = $1";

/// How far a log is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Extent {
    /// 0 if it is not known.
    pub log_id: u64,
    /// The last epoch in which this server has led; 0 if it has not.
    pub epoch: Epoch,
    /// The last renewal of the epoch `beat_of`.
    pub beat: u64,
    pub beat_of: Epoch,
    pub position: Position,
}

/// What a store knows while its thread runs, as words for a program that this one executes.
#[derive(Clone, Debug)]
pub struct Known(pub(super) SharedState);

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Extent { log_id, position, .. } = self.0.seen();
        write!(f, "{log_id},{}", position.0)
    }
}

/// A database that has less than was acknowledged.
#[derive(Debug)]
pub(super) struct Older {
    pub host: String,
    found: Extent,
    seen: Extent,
}

impl FromStr for Extent {
    type Err = ParseIntError;

    fn from_str(words: &str) -> Result<Self, ParseIntError> {
        let (log_id, position) = words.split_once(',').unwrap_or((words, "0"));
        Ok(Self { log_id: log_id.parse()?, position: Position(position.parse()?), ..Self::default() })
    }
}

impl Extent {
    /// What a page that was read proves. Its epoch and its beat may not be replicated.
    pub fn proven_by(page: &Page) -> Self {
        let position = Position(page.end.0.saturating_sub(CHUNKS_UNPROVEN));
        Self { log_id: page.log_id, position, ..Self::default() }
    }

    /// Adds what else is known. Another log has nothing to do with this one.
    pub fn extend(&mut self, other: Self) {
        if other.log_id != 0 && other.log_id != self.log_id {
            *self = other;
            return;
        }
        if (self.beat_of, self.beat) < (other.beat_of, other.beat) {
            (self.beat_of, self.beat) = (other.beat_of, other.beat);
        }
        self.epoch = self.epoch.max(other.epoch);
        self.position = self.position.max(other.position);
    }

    /// Whether a database with this lacks something of what was seen.
    fn lacks(self, seen: Self) -> bool {
        let is_behind = self.epoch < seen.epoch || self.position < seen.position;
        let is_beat_behind = self.beat_of == seen.beat_of && self.beat < seen.beat;
        let is_same_log = seen.log_id == 0 || self.log_id == seen.log_id;
        is_same_log && (is_behind || is_beat_behind)
    }
}

impl Session {
    /// # Errors
    /// If the database lacks something that was seen.
    pub async fn refuse_older(&mut self, seen: Extent) -> Result<(), SessionError> {
        let Some(row) = self.row(FOUND, &[&LOG]).await? else { return Ok(()) };
        let number = |at: usize| row.get::<_, i64>(at).cast_unsigned();
        let epoch = Epoch(number(1));
        let position = Position(row.get::<_, Option<i64>>(3).unwrap_or(0).cast_unsigned());
        let found = Extent { log_id: number(0), epoch, beat: number(2), beat_of: epoch, position };
        if found.lacks(seen) {
            return Err(SessionError::Older(Box::new(Older { host: row.get(4), found, seen })));
        }
        Ok(())
    }
}

impl fmt::Display for Older {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, found, seen } = self;
        write!(f, "the database at {host} ")?;
        if found.epoch < seen.epoch {
            write!(f, "has epoch {}, and this server leads epoch {}", found.epoch, seen.epoch)?;
        } else if found.position < seen.position {
            write!(f, "ends at position {}, and {} was acknowledged", found.position, seen.position)?;
        } else {
            write!(
                f,
                "has renewal {} of epoch {}, and {} was acknowledged",
                found.beat, found.epoch, seen.beat
            )?;
        }
        f.write_str(": it is an old primary, or a standby that was promoted without acknowledged changes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_that_lacks_anything_is_older() {
        let seen = Extent { log_id: 7, epoch: Epoch(2), beat: 5, beat_of: Epoch(2), position: Position(9) };
        assert!(!seen.lacks(seen));
        for (change, lacks) in [
            (Extent { epoch: Epoch(1), ..seen }, true),
            (Extent { position: Position(8), ..seen }, true),
            (Extent { beat: 4, ..seen }, true),
            (Extent { epoch: Epoch(3), beat_of: Epoch(3), beat: 0, ..seen }, false),
            (Extent { position: Position(10), ..seen }, false),
            (Extent { log_id: 8, epoch: Epoch(0), position: Position(0), ..seen }, false),
        ] {
            assert_eq!(change.lacks(seen), lacks, "{change:?}");
        }
    }

    #[test]
    fn another_log_replaces_what_was_seen() {
        let mut seen =
            Extent { log_id: 7, epoch: Epoch(2), beat: 5, beat_of: Epoch(2), position: Position(9) };
        seen.extend(Extent { beat: 9, beat_of: Epoch(1), position: Position(4), ..seen });
        assert_eq!((seen.beat, seen.beat_of, seen.position), (5, Epoch(2), Position(9)));
        seen.extend(Extent { epoch: Epoch(0), beat: 0, beat_of: Epoch(3), position: Position(12), ..seen });
        assert_eq!((seen.epoch, seen.beat_of, seen.position), (Epoch(2), Epoch(3), Position(12)));
        seen.extend(Extent { log_id: 8, ..Extent::default() });
        assert_eq!(seen, Extent { log_id: 8, ..Extent::default() });
    }
}
