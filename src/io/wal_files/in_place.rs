//! Whether a write to a block that was written before stays in its place on the disk. If not, it takes new space.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::libc;
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, FsType, fstatfs};

/// How a file system writes to a block that was written before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overwrites {
    /// In its place.
    InPlace,
    /// In its place in files with the attribute `C` of chattr(1): btrfs.
    InPlaceByAttribute,
    /// In a new place.
    Elsewhere,
}

impl Overwrites {
    /// Returns what the file system of this file does. One that is not known here writes in place.
    pub fn on(file: &File) -> Self {
        const ZFS: FsType = FsType(0x2fc1_2fc1);
        const BCACHEFS: FsType = FsType(0xca45_1a4e);
        match fstatfs(file).map(|found| found.filesystem_type()) {
            Ok(BTRFS_SUPER_MAGIC) => Self::InPlaceByAttribute,
            Ok(ZFS | BCACHEFS) => Self::Elsewhere,
            _ => Self::InPlace,
        }
    }

    /// Has an empty file written in place where possible. Returns whether it is. The attribute is an improvement: a
    /// file that cannot have it is as good as on any other file system that copies on write.
    pub fn prepare(self, file: &File) -> bool {
        match self {
            Self::InPlace => true,
            Self::InPlaceByAttribute => set_no_copy_on_write(file).is_ok(),
            Self::Elsewhere => false,
        }
    }
}

/// Sets the attribute `C` of chattr(1). btrfs accepts it for an empty file only. Such a file has no checksums of the
/// file system; each record of the job log has its own.
#[allow(unsafe_code)]
fn set_no_copy_on_write(file: &File) -> io::Result<()> {
    /// `FS_NOCOW_FL` of linux/fs.h.
    const NO_COPY_ON_WRITE: libc::c_int = 0x0080_0000;
    let mut flags: libc::c_int = 0;
    // SAFETY: the descriptor is open, and FS_IOC_GETFLAGS writes an int, which `flags` is, before it returns.
    Errno::result(unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_GETFLAGS, &raw mut flags) })?;
    flags |= NO_COPY_ON_WRITE;
    // SAFETY: the descriptor is open, and FS_IOC_SETFLAGS reads an int, which `flags` is, before it returns.
    Errno::result(unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_SETFLAGS, &raw const flags) })?;
    Ok(())
}
