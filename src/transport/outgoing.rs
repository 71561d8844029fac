//! Ciphertext on its way to a driver.

use std::mem;

use rustls::Error;
use rustls::unbuffered::InsufficientSizeError;

use super::AHEAD_BYTES;
use super::session::{RECORD_BYTES_MAX, RECORD_OVERHEAD};

/// The ciphertext that a connection has ahead: so much plaintext, in up to eight records.
pub(super) const BUFFER_BYTES: usize = AHEAD_BYTES + RECORD_BYTES_MAX + 8 * RECORD_OVERHEAD;

/// A buffer that grows at its end, and whose memory is cleared once: rustls writes only to bytes that have a value.
#[derive(Default)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    /// How many of them are ciphertext.
    filled: usize,
}

impl Buffer {
    /// The ciphertext.
    pub fn filled(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }

    /// Bytes of ciphertext.
    pub const fn len(&self) -> usize {
        self.filled
    }

    /// Memory in bytes.
    pub const fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Removes the ciphertext and keeps the memory.
    pub const fn clear(&mut self) {
        self.filled = 0;
    }

    /// Appends what `write` puts into `room` bytes, or into as many as it demands.
    pub fn append(
        &mut self,
        mut room: usize,
        mut write: impl FnMut(&mut [u8]) -> Result<usize, Option<InsufficientSizeError>>,
    ) -> Result<(), Error> {
        // Bounded by RECORD_BYTES_MAX: the size that is demanded. It grows once.
        loop {
            self.reserve(room);
            match write(&mut self.bytes[self.filled..self.filled + room]) {
                Ok(bytes) => {
                    self.filled += bytes;
                    return Ok(());
                }
                Err(Some(InsufficientSizeError { required_size })) if required_size > room => {
                    room = required_size
                }
                Err(_) => return Err(Error::EncryptError),
            }
        }
    }

    /// Reserves memory at the end. It doubles as it grows, but not beyond what one connection has ahead.
    fn reserve(&mut self, room: usize) {
        let needed = self.filled + room;
        if self.bytes.capacity() < needed {
            let grown = if needed > BUFFER_BYTES / 2 { BUFFER_BYTES } else { 2 * self.bytes.capacity() };
            // Only ciphertext moves to the new place.
            self.bytes.truncate(self.filled);
            self.bytes.reserve_exact(grown.max(needed) - self.filled);
        }
        if self.bytes.len() < needed {
            self.bytes.resize(needed, 0);
        }
    }
}

/// Ciphertext to be sent. What a driver was shown stays in place until it is sent, so new ciphertext gathers beside it.
#[derive(Default)]
pub(super) struct Outgoing {
    shown: Buffer,
    /// Bytes of `shown` that are sent.
    sent: usize,
    /// Bytes that were sent so far.
    sent_bytes: u64,
    gathered: Buffer,
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
    pub const fn gathered(&mut self) -> &mut Buffer {
        &mut self.gathered
    }

    /// Shows what to send next. It stays in place until all of it is [removed](Self::remove).
    pub fn show(&mut self) -> &[u8] {
        if self.sent == self.shown.len() {
            self.shown.clear();
            self.sent = 0;
            mem::swap(&mut self.shown, &mut self.gathered);
        }
        &self.shown.filled()[self.sent..]
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
    pub fn take_buffers(&mut self) -> [Buffer; 2] {
        debug_assert_eq!(self.len(), 0);
        self.sent = 0;
        [mem::take(&mut self.shown), mem::take(&mut self.gathered)]
    }
}
