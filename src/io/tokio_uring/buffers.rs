//! The memory that requests read and write.

use std::io::{self, IoSlice};
use std::iter;

use tokio_uring::buf::fixed::{FixedBuf, FixedBufRegistry};
use tokio_uring::buf::{BoundedBuf, IoBuf, IoBufMut};
use tokio_uring::net::UnixStream;

use crate::limits::{FIXED_BUFFER_BYTES, FIXED_BUFFERS, RING_RECEIVE_BYTES};

/// Where a receive goes.
pub enum Buffer {
    /// Memory of the connection, up to its capacity.
    Own(Vec<u8>),
    /// A registered buffer, up to so many bytes.
    Fixed(FixedBuf, usize),
    /// The place of a body in the server.
    Place(Place),
}

impl Buffer {
    /// What an idle connection holds.
    pub fn small() -> Self {
        Self::Own(Vec::with_capacity(RING_RECEIVE_BYTES))
    }
}

/// A part of a body's slot.
pub struct Place {
    start: *mut u8,
    len: usize,
}

impl Place {
    /// The front of what [`Service::direct`](crate::server::Service::direct) shows, at most `max` bytes. The server
    /// keeps it until the connection is told to be closed, and that is not told before the receive is over.
    ///
    /// # Safety
    ///
    /// The memory stays in place, and nobody else uses it, until the receive is over.
    #[allow(unsafe_code)]
    pub unsafe fn new(place: &mut [u8], max: usize) -> Self {
        Self { start: place.as_mut_ptr(), len: place.len().min(max) }
    }
}

// SAFETY: whoever made it has promised that the memory stays in place.
#[allow(unsafe_code)]
unsafe impl IoBuf for Place {
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

// SAFETY: as above; and nobody else uses it.
#[allow(unsafe_code)]
unsafe impl IoBufMut for Place {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.start
    }

    unsafe fn set_init(&mut self, _: usize) {}
}

/// A part of what a connection has to send.
struct Piece {
    start: *const u8,
    len: usize,
}

impl Piece {
    /// # Safety
    ///
    /// The memory stays in place, unchanged, until the send is over.
    #[allow(unsafe_code)]
    unsafe fn new(slice: &IoSlice<'_>) -> Self {
        Self { start: slice.as_ptr(), len: slice.len() }
    }
}

// SAFETY: whoever made it has promised that the memory stays in place, and it is initialised.
#[allow(unsafe_code)]
unsafe impl IoBuf for Piece {
    fn stable_ptr(&self) -> *const u8 {
        self.start
    }

    fn bytes_init(&self) -> usize {
        self.len
    }

    fn bytes_total(&self) -> usize {
        self.len
    }
}

/// What one send is given: usually all replies in one piece.
pub struct Outgoing(Pieces);

enum Pieces {
    One(Piece),
    Many(Vec<Piece>),
}

impl Outgoing {
    /// What [`Service::outgoing`](crate::server::Service::outgoing) shows, or nothing if it shows nothing.
    ///
    /// # Safety
    ///
    /// The memory of the slices stays in place, unchanged, until the send is over.
    #[allow(unsafe_code)]
    pub unsafe fn new(slices: &[IoSlice<'_>]) -> Option<Self> {
        // SAFETY: the caller's promise, for each.
        let piece = |slice| unsafe { Piece::new(slice) };
        match slices {
            [] => None,
            [slice] => Some(Self(Pieces::One(piece(slice)))),
            slices => Some(Self(Pieces::Many(slices.iter().map(piece).collect()))),
        }
    }
}

/// Receives once; how much, and the buffer back.
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
        Buffer::Place(place) => {
            let (result, place) = stream.read(place).await;
            (result, Buffer::Place(place))
        }
    }
}

/// Sends once; how much.
pub async fn send(stream: &UnixStream, outgoing: Outgoing) -> io::Result<usize> {
    match outgoing.0 {
        Pieces::One(piece) => stream.write(piece).submit().await.0,
        Pieces::Many(pieces) => stream.writev(pieces).await.0,
    }
}

/// Registered buffers that no connection uses now. The last one given back is still in the processor's
/// cache.
#[derive(Default)]
pub struct FixedBuffers {
    spare: Vec<FixedBuf>,
}

impl FixedBuffers {
    /// Registers them. Without rights a process may lock little memory: then there are none.
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

    pub fn give(&mut self, fixed: FixedBuf) {
        self.spare.push(fixed);
    }
}
