//! Becoming another user once the sockets are bound.

use std::ffi::CString;
use std::fmt;

use nix::errno::Errno;
use nix::unistd::{self, Gid, ResGid, ResUid, Uid};
use tracing::warn;

/// A user that exists on this machine.
#[derive(Clone, Debug)]
pub struct User {
    name: String,
    uid: Uid,
    gid: Gid,
}

/// Why the process does not run as the user that was asked for.
#[derive(Debug)]
pub enum UserError {
    /// There is no such user.
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// The system did not tell, or did not allow it.
    System {
        /// Who was asked for.
        name: String,
        /// What it said.
        errno: Errno,
    },
}

impl User {
    /// Finds the user called `name`.
    pub fn find(name: &str) -> Result<Self, UserError> {
        match unistd::User::from_name(name) {
            Ok(Some(user)) => Ok(Self { name: user.name, uid: user.uid, gid: user.gid }),
            // What the system says where there is no list of users, as in a container.
            Ok(None) | Err(Errno::ENOENT) => Err(UserError::Unknown { name: name.to_owned() }),
            Err(errno) => Err(UserError::System { name: name.to_owned(), errno }),
        }
    }

    /// Becomes this user with its own groups and no others. A process that runs as this user already, and has no right to
    /// leave groups that it was started with, stays in them with a warning.
    pub fn become_for_good(&self) -> Result<(), UserError> {
        self.set_groups().map_err(|errno| self.refused(errno))?;
        self.set_ids().map_err(|errno| self.refused(errno))
    }

    /// Sets real, effective and saved ids: with one of them left the others could be set back. Ids that are right already
    /// are left alone, since a seccomp filter may refuse the call.
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
        let name = CString::new(self.name.as_str()).expect("the system's user names hold no NUL");
        let own = unistd::getgrouplist(&name, self.gid)?;
        let foreign: Vec<String> =
            unistd::getgroups()?.iter().filter(|gid| !own.contains(gid)).map(Gid::to_string).collect();
        match unistd::setgroups(&own) {
            // As after a restart.
            Err(Errno::EPERM) if self.is_present() && foreign.is_empty() => Ok(()),
            Err(Errno::EPERM) if self.is_present() => {
                warn!(
                    "-u {}: no right to leave the groups {}, which the process was started with",
                    self.name,
                    foreign.join(", ")
                );
                Ok(())
            }
            result => result,
        }
    }

    /// Whether the process runs as this user.
    fn is_present(&self) -> bool {
        unistd::getuid() == self.uid && unistd::geteuid() == self.uid
    }

    fn refused(&self, errno: Errno) -> UserError {
        UserError::System { name: self.name.clone(), errno }
    }
}

impl fmt::Display for UserError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name } => write!(f, "-u {name}: there is no such user"),
            Self::System { name, errno } => write!(f, "-u {name}: cannot become this user: {}", errno.desc()),
        }
    }
}

impl std::error::Error for UserError {}
