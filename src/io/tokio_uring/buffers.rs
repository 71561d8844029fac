//! The memory that requests read and write.

use std::io::{self, IoSlice};
use std::{iter, slice};

use tokio_uring::buf::fixed::{FixedBuf, FixedBufRegistry};
use tokio_uring::buf::{BoundedBuf, IoBuf, IoBufMut};
use tokio_uring::net::UnixStream;

use super::driver::IDLE_BUFFER_BYTES;
use crate::values::limits::{FIXED_BUFFER_BYTES, FIXED_BUFFERS};

/// The destination of a receive.
pub enum Buffer {
    /// Memory of the connection, up to its capacity.
    Own(Vec<u8>),
    /// A registered buffer, up to this number of bytes.
    Fixed(FixedBuf, usize),
    /// The place of a body in the server.
    Direct(DirectPlace),
}

impl Buffer {
    /// The buffer of an idle connection.
    pub fn idle() -> Self {
        Self::Own(Vec::with_capacity(IDLE_BUFFER_BYTES))
    }
}

/// A part of the slot of a body.
pub struct DirectPlace {
    start: *mut u8,
    len: usize,
}

impl DirectPlace {
    /// The first `max` bytes of what [`Service::direct`](crate::server::Service::direct) returns.
    ///
    /// # Safety
    /// The memory stays in place and unused until the receive has completed.
    #[allow(unsafe_code)]
    pub unsafe fn new(place: &mut [u8], max: usize) -> Self {
        Self { start: place.as_mut_ptr(), len: place.len().min(max) }
    }
}

// SAFETY: the caller of `new` has promised that the memory stays in place.
#[allow(unsafe_code)]
unsafe impl IoBuf for DirectPlace {
    fn stable_ptr(&self) -> *const u8 {
        self.start
    }

    fn bytes_init(&self) -> usize {
        0
    }

    fn bytes_total(&self) -> usize {
        self.len
    }
}

// SAFETY: as above, and that nothing else uses it.
#[allow(unsafe_code)]
unsafe impl IoBufMut for DirectPlace {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.start
    }

    unsafe fn set_init(&mut self, _: usize) {}
}

/// The output of one send: usually all replies in one piece.
pub enum Outgoing {
    One(&'static [u8]),
    Many(Vec<&'static [u8]>),
}

impl Outgoing {
    /// The slices of [`Service::outgoing`](crate::server::Service::outgoing). `None` if there are none.
    ///
    /// # Safety
    /// The memory of the slices stays in place and unchanged until the send has completed.
    #[allow(unsafe_code)]
    pub unsafe fn new(slices: &[IoSlice<'_>]) -> Option<Self> {
        // SAFETY: the caller promises it for each slice, and nothing but the send gets the pieces.
        let piece = |slice: &IoSlice<'_>| unsafe { slice::from_raw_parts(slice.as_ptr(), slice.len()) };
        match slices {
            [] => None,
            [slice] => Some(Self::One(piece(slice))),
            slices => Some(Self::Many(slices.iter().map(piece).collect())),
        }
    }
}

/// Receives once. Returns the number of bytes, and the buffer.
pub async fn receive(stream: &UnixStream, buffer: Buffer) -> (io::Result<usize>, Buffer) {
    match buffer {
        Buffer::Own(mut bytes) => {
            bytes.clear();
            let (result, bytes) = stream.read(bytes).await;
            (result, Buffer::Own(bytes))
        }
        Buffer::Fixed(fixed, room) => {
            let (result, slice) = stream.read_fixed(fixed.slice(..room)).await;
            (result, Buffer::Fixed(slice.into_inner(), room))
        }
        Buffer::Direct(place) => {
            let (result, place) = stream.read(place).await;
            (result, Buffer::Direct(place))
        }
    }
}

/// Sends once. Returns the number of bytes.
pub async fn send(stream: &UnixStream, outgoing: Outgoing) -> io::Result<usize> {
    match outgoing {
        Outgoing::One(piece) => stream.write(piece).submit().await.0,
        Outgoing::Many(pieces) => stream.writev(pieces).await.0,
    }
}

/// Registered buffers that no receive uses. The one that was last given back is taken first, since it is in the CPU cache.
#[derive(Default)]
pub struct FixedBuffers {
    spare: Vec<FixedBuf>,
}

impl FixedBuffers {
    /// Registers the buffers. A process without rights may not lock enough memory: then there are none.
    ///
    /// # Errors
    /// Those of io_uring_register(2).
    pub fn register(&mut self) -> io::Result<()> {
        let memory = iter::repeat_with(|| vec![0; FIXED_BUFFER_BYTES]).take(FIXED_BUFFERS);
        let registry = FixedBufRegistry::new(memory);
        registry.register()?;
        self.spare.extend((0..FIXED_BUFFERS).filter_map(|index| registry.check_out(index)));
        Ok(())
    }

    pub fn take(&mut self, room: usize) -> Option<Buffer> {
        let fixed = self.spare.pop()?;
        Some(Buffer::Fixed(fixed, room.min(FIXED_BUFFER_BYTES)))
    }

    pub fn give_back(&mut self, fixed: FixedBuf) {
        self.spare.push(fixed);
    }
}
