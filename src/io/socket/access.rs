//! Who may connect to a UNIX socket: the mode, the owner and the group of its file.

use std::os::fd::AsRawFd;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open};
use nix::sys::socket::{UnixAddr, bind};
use nix::sys::stat::{Mode, SFlag, fstat, umask};
use nix::unistd::{Gid, Group, Uid, fchownat, geteuid};

use super::super::privileges::User;

/// What the address of a UNIX socket says about its file.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SocketAccess {
    /// The permissions, at most 0o777. Without them, those that the umask leaves.
    pub mode: Option<u32>,
    /// The name or number of the group.
    pub group: Option<String>,
}

/// The owner that the file of a socket gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Owner {
    uid: Option<Uid>,
    gid: Option<Gid>,
}

impl SocketAccess {
    /// Returns the owner for a server that will run as `user`. The group is that of the address, else that of another user.
    ///
    /// # Errors
    /// If there is no such group, its name; or the answer of the system.
    pub(super) fn owner(&self, user: Option<&User>) -> Result<Owner, Errno> {
        let other = user.map(User::ids).filter(|(uid, _)| *uid != geteuid());
        let gid = match &self.group {
            Some(name) => Some(gid_of(name)?),
            None => other.map(|(_, gid)| gid),
        };
        Ok(Owner { uid: other.map(|(uid, _)| uid), gid })
    }
}

/// Finds a group by its name, else by its number: the system of a container may have no list of groups. The largest number is
/// none of a group: for the system it means that the group stays.
fn gid_of(name: &str) -> Result<Gid, Errno> {
    match Group::from_name(name) {
        Ok(Some(group)) => Ok(group.gid),
        Ok(None) | Err(Errno::ENOENT) => {
            let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
            let number = name.parse().ok().filter(|&number| is_number && number < u32::MAX);
            number.map(Gid::from_raw).ok_or(Errno::ENOENT)
        }
        Err(errno) => Err(errno),
    }
}

/// Binds a socket to a path. The file never has more permissions than `mode`.
pub(super) fn bind_with_mode(fd: &impl AsRawFd, address: &UnixAddr, mode: Option<u32>) -> nix::Result<()> {
    let Some(mode) = mode else { return bind(fd.as_raw_fd(), address) };
    // The process has one umask. A start has no other thread that creates files.
    let before = umask(Mode::from_bits_truncate(0o777 & !mode));
    let bound = bind(fd.as_raw_fd(), address);
    umask(before);
    bound
}

impl Owner {
    /// Gives the file at `path`, which this process has created with this device and inode, to the owner. A user who can write the
    /// directory may have put another file there: that one stays as it is.
    ///
    /// # Errors
    /// If the system refuses, or the file is another one.
    pub(super) fn take(self, path: &Path, identity: (u64, u64)) -> nix::Result<()> {
        if self == (Self { uid: None, gid: None }) {
            return Ok(());
        }
        let file = open(path, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?;
        let found = fstat(&file)?;
        let is_socket = SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT == SFlag::S_IFSOCK;
        if !is_socket || (found.st_dev, found.st_ino) != identity || found.st_uid != geteuid().as_raw() {
            return Err(Errno::EBUSY);
        }
        fchownat(&file, "", self.uid, self.gid, AtFlags::AT_EMPTY_PATH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_a_name_or_a_number() {
        assert_eq!(gid_of("root"), Ok(Gid::from_raw(0)));
        assert_eq!(gid_of("54321"), Ok(Gid::from_raw(54_321)));
        for name in ["no-such-group", "-1", "+1", "4294967295", "4294967296"] {
            assert_eq!(gid_of(name), Err(Errno::ENOENT), "{name}");
        }
    }
}
