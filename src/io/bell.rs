//! A descriptor that other threads wake the event loop with.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::{read, write};

/// An eventfd(2). The event loop waits until it is readable.
#[derive(Debug)]
pub(super) struct Bell(OwnedFd);

impl Bell {
    /// # Errors
    /// Those of eventfd(2).
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?.into()))
    }

    /// Shares a bell that the event loop waits for already.
    ///
    /// # Errors
    /// Those of dup(2).
    pub(super) fn share(eventfd: BorrowedFd<'_>) -> io::Result<Self> {
        eventfd.try_clone_to_owned().map(Self)
    }

    /// Wakes the event loop.
    pub(super) fn ring(&self) {
        // It fails only while it is readable 2^64 times over.
        let _ = write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it unreadable until it rings again.
    pub(super) fn clear(&self) {
        let _ = read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
