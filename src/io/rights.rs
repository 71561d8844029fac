//! Gives up the rights of root, whole or by capability (capabilities(7)), once the sockets are bound.

use std::fmt;

use caps::errors::CapsError;
use caps::{CapSet, Capability, CapsHashSet};
use tracing::warn;

use super::privileges::{User, UserError};

/// What a server that stays root keeps: files of others in the directory of its log are still its own to read and write,
/// and the memory of an io_uring is not counted against `ulimit -l`.
const KEPT: [Capability; 2] = [Capability::CAP_DAC_OVERRIDE, Capability::CAP_IPC_LOCK];

/// Why rights could not be given up.
#[derive(Debug)]
pub enum RightsError {
    /// The process does not run as the user that was asked for.
    User(UserError),
    /// It does, and still has more rights than that user.
    Capabilities(CapsError),
}

/// Becomes `user` with no capabilities, or without one drops those that a running server has no use for. Affects this
/// thread and those that it starts.
pub fn give_up(user: Option<&User>) -> Result<(), RightsError> {
    let Some(user) = user else {
        if let Err(error) = keep(&CapsHashSet::from(KEPT)) {
            warn!("the process keeps rights that it does not need: {error}");
        }
        return Ok(());
    };
    let none = CapsHashSet::new();
    // The right to do so goes with the user.
    bound(&none).map_err(RightsError::Capabilities)?;
    user.become_for_good().map_err(RightsError::User)?;
    keep(&none).map_err(RightsError::Capabilities)
}

/// Drops all capabilities but these from each set. Sets that have no others are left alone: a seccomp filter may refuse
/// the call to a service that has none.
fn keep(kept: &CapsHashSet) -> Result<(), CapsError> {
    bound(kept)?;
    for set in [CapSet::Ambient, CapSet::Effective, CapSet::Permitted, CapSet::Inheritable] {
        let before = match caps::read(None, set) {
            // Not every kernel, or what stands in for one, has ambient capabilities.
            Err(_) if matches!(set, CapSet::Ambient) => continue,
            result => result?,
        };
        let after: CapsHashSet = before.intersection(kept).copied().collect();
        if after.len() < before.len() {
            caps::set(None, set, &after)?;
        }
    }
    Ok(())
}

/// Drops all but these from the bounding set. Without the right to do so the set stays, and `no_new_privs` keeps programs
/// from gaining anything by it.
fn bound(kept: &CapsHashSet) -> Result<(), CapsError> {
    if !caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        return Ok(());
    }
    let before = caps::read(None, CapSet::Bounding)?;
    before.difference(kept).try_for_each(|&capability| caps::drop(None, CapSet::Bounding, capability))
}

impl fmt::Display for RightsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(error) => error.fmt(f),
            Self::Capabilities(error) => write!(f, "-u: cannot drop the capabilities of root: {error}"),
        }
    }
}

impl std::error::Error for RightsError {}
