//! A buffer that an I/O thread is to register with its ring: the kernel accepts that only from the thread that enabled the ring.

use std::ptr::{self, NonNull};

use super::sync::{AtomicU32, Ordering, Word};

#[derive(Default, Debug)]
pub struct Mailbox {
    /// The number of the buffer, plus 1. 0: none is to be registered.
    number: AtomicU32,
    address: Word,
    bytes: Word,
}

impl Mailbox {
    /// Whether a buffer is still to be registered.
    pub fn is_full(&self) -> bool {
        self.number.load(Ordering::Acquire) != 0
    }

    /// Requests the registration of memory as the buffer with this number. The mailbox is empty.
    ///
    /// # Safety
    /// The memory must stay mapped, with its present pages, for the life of the process.
    #[allow(unsafe_code)]
    pub unsafe fn put(&self, number: u16, memory: NonNull<[u8]>) {
        self.address.store(memory.as_ptr().expose_provenance() as u64, Ordering::Relaxed);
        self.bytes.store(memory.len() as u64, Ordering::Relaxed);
        self.number.store(u32::from(number) + 1, Ordering::Release);
    }

    /// The buffer that is to be registered. It stays in the mailbox.
    pub fn get(&self) -> Option<(u16, *mut [u8])> {
        let number = self.number.load(Ordering::Acquire).checked_sub(1)?;
        let address = self.address.load(Ordering::Relaxed) as usize;
        let bytes = self.bytes.load(Ordering::Relaxed) as usize;
        let memory = ptr::slice_from_raw_parts_mut(ptr::with_exposed_provenance_mut(address), bytes);
        Some((number as u16, memory))
    }

    /// Empties the mailbox.
    pub fn clear(&self) {
        self.number.store(0, Ordering::Release);
    }
}
