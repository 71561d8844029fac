//! Memory from the kernel. All unsafe code of the arena is here.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::{ops::Range, slice};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};
use nix::unistd::{SysconfVar, sysconf};

use super::OutOfMemory;

/// An anonymous private mapping, unmapped when dropped. Zeroed by the kernel, page by page as it is
/// touched, so all of it counts as initialized and none of it takes memory before its first use.
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    /// Maps `bytes` (not 0) of address space.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the kernel refuses.
    pub fn new(bytes: usize) -> Result<Self, OutOfMemory> {
        let length = NonZeroUsize::new(bytes).expect("a mapping has a size");
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // NORESERVE: address space is announced, memory comes later or never.
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: a new mapping at a place of the kernel's choice replaces no memory that anyone has.
        let base = unsafe { mmap_anonymous(None, length, protection, flags) }.map_err(|_| OutOfMemory)?;
        Ok(Self { base: base.cast(), bytes })
    }

    /// Has the kernel back this mapping with small pages only: one byte written must not cost 2 MiB.
    pub fn refuse_huge_pages(&self) {
        // SAFETY: the range is this mapping's, which `self` keeps; the advice changes no contents. It
        // fails only on a kernel without huge pages.
        let _ = unsafe { madvise(self.base.cast(), self.bytes, MmapAdvise::MADV_NOHUGEPAGE) };
    }

    /// The size in bytes.
    pub const fn len(&self) -> usize {
        self.bytes
    }

    /// All of it, without a claim to read or write it.
    pub fn as_ptr(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.base, self.bytes)
    }

    /// `len` bytes from `start`.
    pub fn bytes(&self, start: usize, len: usize) -> &[u8] {
        assert!(start <= self.bytes && len <= self.bytes - start, "a body lies in its mapping");
        // SAFETY: in bounds, as asserted; initialized, as the kernel zeroes pages; `self` keeps the
        // memory mapped for the life of the borrow, and writes through this type need `&mut self`.
        unsafe { slice::from_raw_parts(self.base.add(start).as_ptr(), len) }
    }

    /// `len` bytes from `start`.
    pub fn bytes_mut(&mut self, start: usize, len: usize) -> &mut [u8] {
        assert!(start <= self.bytes && len <= self.bytes - start, "a body lies in its mapping");
        // SAFETY: as in `bytes`; `&mut self` makes this the only borrow.
        unsafe { slice::from_raw_parts_mut(self.base.add(start).as_ptr(), len) }
    }

    /// Gives the memory of a range back to the kernel; it reads as zeros afterwards. Nothing may be
    /// using it: a page that the kernel has pinned would part from its address.
    pub fn discard(&mut self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.bytes);
        // The kernel rounds the end up to its own page, which may be larger than ours and hold bodies
        // behind the range: round inwards before it does.
        let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().map_or(1 << 16, |bytes| bytes as usize);
        let (start, end) = (range.start.next_multiple_of(page), range.end / page * page);
        if start < end {
            // SAFETY: whole pages inside this mapping, which `self` keeps; `&mut self` excludes borrows
            // of them. A failure leaves all as it was.
            let _ = unsafe { madvise(self.base.add(start).cast(), end - start, MmapAdvise::MADV_DONTNEED) };
        }
    }

    /// Unmaps it now.
    ///
    /// # Errors
    /// The mapping itself, when the kernel cannot split the area that it is in (`max_map_count`).
    pub fn unmap(self) -> Result<(), Self> {
        if unmap(self.base.cast(), self.bytes) {
            std::mem::forget(self);
            Ok(())
        } else {
            Err(self)
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        unmap(self.base.cast(), self.bytes);
    }
}

fn unmap(base: NonNull<c_void>, bytes: usize) -> bool {
    // SAFETY: called with a whole `Mapping` by one who owns it and does not use it again, so that no
    // borrow of the memory is left.
    unsafe { munmap(base, bytes) }.is_ok()
}
