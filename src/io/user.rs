//! Becoming another user once the sockets are bound.

use std::ffi::CString;
use std::fmt;

use nix::errno::Errno;
use nix::unistd::{self, Gid, Uid};

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

    /// Gives up the rights of the present user for good.
    pub fn become_for_good(&self) -> Result<(), UserError> {
        // As after a restart.
        let is_already = unistd::getuid() == self.uid && unistd::geteuid() == self.uid && !self.uid.is_root();
        if is_already {
            return Ok(());
        }
        // The groups first: afterwards the right to change them is gone.
        let name = CString::new(self.name.as_str()).expect("the system's user names hold no NUL");
        unistd::initgroups(&name, self.gid)
            .and_then(|()| unistd::setgid(self.gid))
            .and_then(|()| unistd::setuid(self.uid))
            .map_err(|errno| UserError::System { name: self.name.clone(), errno })
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
