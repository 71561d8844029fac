//! Ciphertext on its way to a driver.

use std::mem;

/// Ciphertext to be sent. What a driver was shown stays in place until it is sent, so new ciphertext gathers beside it.
#[derive(Default)]
pub(super) struct Outgoing {
    shown: Vec<u8>,
    /// Bytes of `shown` that are sent.
    sent: usize,
    /// Bytes that were sent so far.
    sent_bytes: u64,
    gathered: Vec<u8>,
}

impl Outgoing {
    /// Bytes that are not sent.
    pub const fn len(&self) -> usize {
        self.shown.len() - self.sent + self.gathered.len()
    }

    /// Bytes that were sent so far.
    pub const fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Memory in bytes.
    pub const fn capacity(&self) -> usize {
        self.shown.capacity() + self.gathered.capacity()
    }

    /// Where new ciphertext goes.
    pub const fn gathered(&mut self) -> &mut Vec<u8> {
        &mut self.gathered
    }

    /// Shows what to send next. It stays in place until all of it is [removed](Self::remove).
    pub fn show(&mut self) -> &[u8] {
        if self.sent == self.shown.len() {
            self.shown.clear();
            self.sent = 0;
            mem::swap(&mut self.shown, &mut self.gathered);
        }
        &self.shown[self.sent..]
    }

    /// Removes what was sent.
    ///
    /// # Panics
    /// If it was not shown: a defect of the driver.
    pub fn remove(&mut self, bytes: usize) {
        self.sent += bytes;
        self.sent_bytes += bytes as u64;
        assert!(self.sent <= self.shown.len(), "a driver sends what it was shown");
    }

    /// Takes the buffers. Everything is sent.
    pub fn take_buffers(&mut self) -> [Vec<u8>; 2] {
        debug_assert_eq!(self.len(), 0);
        self.sent = 0;
        [mem::take(&mut self.shown), mem::take(&mut self.gathered)]
    }
}
