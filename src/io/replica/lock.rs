//! The lock of the epoch: a session of the leader holds it, so it is free as soon as the process has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch::{Receiver, Sender, channel};
use tokio::time::{sleep, timeout};

use super::session::{Link, SessionError};
use super::settings::LOG;
use super::worker::Context;
use crate::wal::replica::Epoch;

/// The upper 16 bits of the keys of these locks, which distinguish them from those of other programs.
const KEYS: u64 = 0x6272;

/// The pause between two attempts. A session that waits inside of the database holds a snapshot, and so keeps it from removing
/// deleted rows.
pub(super) const PAUSE: Duration = Duration::from_millis(25);

/// A claim does not wait longer for its lock: a process that does not run may hold it, after a claim that was lost.
const TAKE_MAX: Duration = Duration::from_millis(500);

const TAKE: &str = "select pg_try_advisory_lock($1)";

/// The key of the lock of an epoch.
pub(super) const fn key(epoch: Epoch) -> i64 {
    (KEYS << 48 | (LOG as u64) << 32 | (epoch.0 & 0xffff_ffff)).cast_signed()
}

/// What the tasks of a store ask of the one that keeps the lock.
#[derive(Clone)]
pub(super) struct Lock {
    wanted: Arc<Sender<Wanted>>,
    held: Receiver<Option<Epoch>>,
    /// Claims that have begun and that have ended.
    claims: Arc<AtomicU64>,
}

/// The task's end.
pub(super) struct Keeper {
    wanted: Receiver<Wanted>,
    held: Sender<Option<Epoch>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Wanted {
    /// The session should be open.
    session: bool,
    /// The epoch that this process may lead, and its token.
    claimed: Option<(Epoch, u64)>,
    /// The lock of that epoch should be held.
    lock: bool,
}

impl Lock {
    pub fn new() -> (Self, Keeper) {
        let (wanted, told) = channel(Wanted::default());
        let (holds, held) = channel(None);
        let lock = Self { wanted: Arc::new(wanted), held, claims: Arc::default() };
        (lock, Keeper { wanted: told, held: holds })
    }

    /// Opens the session for a claim that begins.
    pub fn prepare(&self) {
        self.claims.fetch_add(1, Ordering::Relaxed);
        self.wanted.send_modify(|wanted| wanted.session = true);
    }

    /// Takes the lock, and holds it from now on. After some time it returns without the lock, which is taken later.
    pub async fn take(&self, epoch: Epoch, token: u64) {
        self.wanted.send_replace(Wanted { session: true, claimed: Some((epoch, token)), lock: true });
        let mut held = self.held.clone();
        // The time is over, or the thread ends.
        let _ = timeout(TAKE_MAX, held.wait_for(|held| *held == Some(epoch))).await;
    }

    /// Ends a claim. One that has not happened frees the lock.
    pub fn finish(&self, may_have_happened: bool) {
        self.claims.fetch_add(1, Ordering::Relaxed);
        if !may_have_happened {
            self.wanted.send_replace(Wanted::default());
        }
    }

    /// A number that changes when a claim begins and when it ends. It is odd in between.
    pub fn claims(&self) -> u64 {
        self.claims.load(Ordering::Relaxed)
    }

    /// Takes the leader that was read, unless a claim was in flight since then: frees the lock of an epoch that this process does not lead,
    /// and takes that of one that it does.
    pub fn note_leader(&self, claims: u64, epoch: Epoch, token: u64) {
        if claims != self.claims() || claims % 2 == 1 {
            return;
        }
        self.wanted.send_if_modified(|wanted| {
            let Some(claimed) = wanted.claimed else { return false };
            let is_leader = claimed == (epoch, token);
            let next = if epoch > claimed.0 || epoch == claimed.0 && !is_leader {
                Wanted::default()
            } else {
                Wanted { session: is_leader, lock: is_leader, ..*wanted }
            };
            let has_changed = *wanted != next;
            *wanted = next;
            has_changed
        });
    }
}

/// Holds the lock that is wanted, on a session that is opened again when it is lost.
pub(super) async fn keep(context: Context, mut keeper: Keeper) {
    let mut link = context.link();
    let mut held = None;
    loop {
        let wanted = *keeper.wanted.borrow_and_update();
        let epoch = wanted.claimed.map(|(epoch, _)| epoch).filter(|_| wanted.lock);
        if held.is_some() && (held != epoch || !link.is_open()) {
            // The lock ends with its session.
            link.close();
            held = None;
            keeper.held.send_replace(None);
        }
        if wanted.session && held.is_none() {
            match take(&mut link, epoch.map(key)).await {
                Ok(true) => held = epoch,
                Ok(false) => {}
                Err(error) => {
                    let _ = link.end::<()>(Err(error));
                }
            }
            keeper.held.send_replace(held);
        } else if !wanted.session {
            link.close();
        }
        let is_settled = held == epoch && (link.is_open() || !wanted.session);
        let changed = tokio::select! {
            changed = keeper.wanted.changed() => changed.is_ok(),
            () = sleep(PAUSE), if !is_settled => true,
            () = link.lost(), if is_settled => true,
        };
        if !changed {
            return;
        }
    }
}

async fn take(link: &mut Link, key: Option<i64>) -> Result<bool, SessionError> {
    let session = link.session().await?;
    let Some(key) = key else { return Ok(false) };
    session.is_true(TAKE, &[&key]).await
}
