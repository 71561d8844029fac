//! Drops privileges once the sockets are bound: becomes another user, and drops capabilities (capabilities(7)).

use std::ffi::CString;
use std::sync::OnceLock;

use caps::errors::CapsError;
use caps::{CapSet, Capability, CapsHashSet};
use nix::errno::Errno;
use nix::unistd::{self, Gid, ResGid, ResUid, Uid};
use tracing::warn;

use super::socket::text_without_number;

/// The capabilities that a server keeps if it stays root: it can read and write files of others in the directory of its log,
/// and the memory of an io_uring does not count against `ulimit -l`.
const KEPT: [Capability; 2] = [Capability::CAP_DAC_OVERRIDE, Capability::CAP_IPC_LOCK];

/// The name of the user that the process stays. The sandbox hides the list of users.
static NAME: OnceLock<String> = OnceLock::new();

/// A user that exists on this machine.
#[derive(Clone, Debug)]
pub struct User {
    name: String,
    uid: Uid,
    gid: Gid,
}

/// Why privileges could not be dropped.
// docs/RUNBOOK.md lists these messages.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum PrivilegesError {
    #[error("{}", unknown_user(.name))]
    UnknownUser { name: String },
    #[error("cannot become user {name}: {}; start as root, or as that user without -u", .errno.desc())]
    User { name: String, errno: Errno },
    #[error("cannot drop the capabilities of root: {}", text_without_number(.0))]
    Capabilities(CapsError),
}

/// Becomes `user` and drops all capabilities. Without a user, drops those that a running server does not need. Affects this
/// thread and those that it starts.
///
/// # Errors
/// If the process does not run as that user without capabilities. Without a user, a failure is logged as a warning.
pub fn drop_privileges(user: Option<&User>) -> Result<(), PrivilegesError> {
    NAME.get_or_init(|| user.map_or_else(name_of_user, |user| user.name.clone()));
    let Some(user) = user else {
        if let Err(error) = restrict(&CapsHashSet::from(KEPT)) {
            warn!(
                "cannot drop the capabilities that the server does not need: {}",
                text_without_number(&error)
            );
        }
        return Ok(());
    };
    let none = CapsHashSet::new();
    // Before the process becomes the user, who may not do this.
    restrict_bounding_set(&none).map_err(PrivilegesError::Capabilities)?;
    user.become_permanently()?;
    restrict(&none).map_err(PrivilegesError::Capabilities)
}

impl User {
    /// Finds the user called `name`.
    ///
    /// # Errors
    /// If the user does not exist, or the system does not tell.
    pub fn find(name: &str) -> Result<Self, PrivilegesError> {
        match unistd::User::from_name(name) {
            Ok(Some(user)) => Ok(Self { name: user.name, uid: user.uid, gid: user.gid }),
            // The answer of a system without a list of users, such as a container.
            Ok(None) | Err(Errno::ENOENT) => Err(PrivilegesError::UnknownUser { name: name.to_owned() }),
            Err(errno) => Err(PrivilegesError::User { name: name.to_owned(), errno }),
        }
    }

    /// The ids of the user and of its first group.
    pub(super) const fn ids(&self) -> (Uid, Gid) {
        (self.uid, self.gid)
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Becomes this user with its own groups and no others. A process that runs as this user already may have no right to
    /// leave groups that it was started with: then it stays in them, and logs a warning.
    fn become_permanently(&self) -> Result<(), PrivilegesError> {
        self.set_groups()
            .and_then(|()| self.set_ids())
            .map_err(|errno| PrivilegesError::User { name: self.name.clone(), errno })
    }

    /// Sets the real, effective and saved ids: any of them that is left would let the process go back. Ids that are right are
    /// not set, since a seccomp filter may refuse the call.
    fn set_ids(&self) -> nix::Result<()> {
        let Self { uid, gid, .. } = *self;
        if unistd::getresgid()? != (ResGid { real: gid, effective: gid, saved: gid }) {
            unistd::setresgid(gid, gid, gid)?;
        }
        if unistd::getresuid()? != (ResUid { real: uid, effective: uid, saved: uid }) {
            unistd::setresuid(uid, uid, uid)?;
        }
        Ok(())
    }

    fn set_groups(&self) -> nix::Result<()> {
        let name = CString::new(self.name.as_str()).expect("the system's user names contain no NUL");
        let own = unistd::getgrouplist(&name, self.gid)?;
        let foreign: Vec<String> =
            unistd::getgroups()?.iter().filter(|gid| !own.contains(gid)).map(Gid::to_string).collect();
        match unistd::setgroups(&own) {
            // As after an in-place restart.
            Err(Errno::EPERM) if self.is_current() && foreign.is_empty() => Ok(()),
            Err(Errno::EPERM) if self.is_current() => {
                warn!(
                    "-u {}: the process may not leave the groups {} that it was started with; start it as root or without them",
                    self.name,
                    foreign.join(", ")
                );
                Ok(())
            }
            result => result,
        }
    }

    /// Whether the process runs as this user.
    fn is_current(&self) -> bool {
        unistd::getuid() == self.uid && unistd::geteuid() == self.uid
    }
}

/// The name of the user that this process runs as, or its number if the system does not tell the name.
pub fn current_user() -> String {
    NAME.get().cloned().unwrap_or_else(name_of_user)
}

fn name_of_user() -> String {
    let uid = unistd::geteuid();
    match unistd::User::from_uid(uid) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    }
}

/// Drops all capabilities but `kept` from each set. A set without others is not written: a seccomp filter may refuse the call
/// to a service that has no capabilities.
fn restrict(kept: &CapsHashSet) -> Result<(), CapsError> {
    restrict_bounding_set(kept)?;
    for set in [CapSet::Ambient, CapSet::Effective, CapSet::Permitted, CapSet::Inheritable] {
        let before = match caps::read(None, set) {
            // Not every kernel, or emulation of one, has ambient capabilities.
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

/// Drops all but `kept` from the bounding set. Without the right to do so the set stays, and `no_new_privs` keeps programs
/// from gaining anything by it.
fn restrict_bounding_set(kept: &CapsHashSet) -> Result<(), CapsError> {
    if !caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        return Ok(());
    }
    let before = caps::read(None, CapSet::Bounding)?;
    before.difference(kept).try_for_each(|&capability| caps::drop(None, CapSet::Bounding, capability))
}

// docs/RUNBOOK.md lists these messages.
fn unknown_user(name: &str) -> String {
    if name.bytes().all(|byte| byte.is_ascii_digit()) {
        format!("must be the name of a user, not a number; getent passwd {name} shows the name")
    } else if name.contains(':') {
        "must be the name of a user, without a group; the server takes the groups of that user".to_owned()
    } else {
        "no such user; create it, or correct the name".to_owned()
    }
}
