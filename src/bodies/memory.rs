//! Memory from the kernel. All unsafe code of the arena is here.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::{ops::Range, slice};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};
use nix::unistd::{SysconfVar, sysconf};

use super::OutOfMemory;

/// An anonymous private mapping, unmapped when dropped. The kernel zeroes each page when it is touched. So all of it counts
/// as initialized, and none of it takes memory before its first use.
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    /// Maps `bytes` bytes of address space, at least 1.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the kernel refuses.
    pub fn new(bytes: usize) -> Result<Self, OutOfMemory> {
        let length = NonZeroUsize::new(bytes).expect("a mapping has a size");
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // NORESERVE: only a part of the address space may ever get memory.
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses replaces no other memory.
        let base = unsafe { mmap_anonymous(None, length, protection, flags) }.map_err(|_| OutOfMemory)?;
        Ok(Self { base: base.cast(), bytes })
    }

    /// Keeps the kernel from backing the mapping with huge pages, where one written byte would cost 2 MiB. It fails only on a
    /// kernel without huge pages.
    pub fn refuse_huge_pages(&mut self) {
        self.advise(0..self.bytes, MmapAdvise::MADV_NOHUGEPAGE);
    }

    /// Gets memory for a range that is about to be written, in one call instead of a fault per page. Kernels before Linux
    /// 5.14 cannot, and provide each page when it is written.
    pub fn populate(&mut self, range: Range<usize>) {
        self.advise(range, MmapAdvise::MADV_POPULATE_WRITE);
    }

    /// The size in bytes.
    pub const fn len(&self) -> usize {
        self.bytes
    }

    /// A pointer to all of it.
    pub fn as_ptr(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.base, self.bytes)
    }

    /// `len` bytes from `start`.
    pub fn bytes(&self, start: usize, len: usize) -> &[u8] {
        assert!(start <= self.bytes && len <= self.bytes - start, "a body lies in its mapping");
        // SAFETY: the assertion checks the bounds, and the kernel initializes pages with zeros. `self` keeps the memory
        // mapped while it is borrowed, and writes through this type need `&mut self`.
        unsafe { slice::from_raw_parts(self.base.add(start).as_ptr(), len) }
    }

    /// `len` bytes from `start`.
    pub fn bytes_mut(&mut self, start: usize, len: usize) -> &mut [u8] {
        assert!(start <= self.bytes && len <= self.bytes - start, "a body lies in its mapping");
        // SAFETY: as in `bytes`, and `&mut self` makes this the only borrow.
        unsafe { slice::from_raw_parts_mut(self.base.add(start).as_ptr(), len) }
    }

    /// Returns the memory of a range to the kernel. The range then reads as zeros. It must not be in use: a page that the
    /// kernel has pinned would no longer be the page at its address.
    pub fn discard(&mut self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.bytes, "a range lies in its mapping");
        // The kernel would round the end up to its own page size. A larger page may have bodies behind the range, so both
        // ends are rounded inwards first.
        let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().map_or(1 << 16, |bytes| bytes as usize);
        let (start, end) = (range.start.next_multiple_of(page), range.end / page * page);
        if start < end {
            self.advise(start..end, MmapAdvise::MADV_DONTNEED);
        }
    }

    /// Unmaps it now.
    ///
    /// # Errors
    /// The mapping itself if the kernel cannot split the area around it (`max_map_count`).
    pub fn unmap(self) -> Result<(), Self> {
        if unmap(self.base.cast(), self.bytes) {
            std::mem::forget(self);
            Ok(())
        } else {
            Err(self)
        }
    }

    /// Gives advice on a range. A failure changes nothing.
    fn advise(&mut self, range: Range<usize>, advice: MmapAdvise) {
        assert!(range.start <= range.end && range.end <= self.bytes, "a range lies in its mapping");
        // SAFETY: the assertion checks the bounds, `self` keeps the range mapped, and `&mut self` excludes borrows of it.
        let _ = unsafe { madvise(self.base.add(range.start).cast(), range.len(), advice) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        unmap(self.base.cast(), self.bytes);
    }
}

fn unmap(base: NonNull<c_void>, bytes: usize) -> bool {
    // SAFETY: each caller owns the whole `Mapping` and does not use it again, so no borrow of the memory is left.
    unsafe { munmap(base, bytes) }.is_ok()
}
