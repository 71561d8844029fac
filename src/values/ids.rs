//! Identifiers: job ids of the protocol, keys of the queue's records, and ids of connections.

use std::fmt;

/// The id of a job on the wire, from 1 upwards. An id is never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct JobId(pub u64);

impl JobId {
    /// The largest id that a record of the job log can have.
    pub const LAST: Self = Self(i64::MAX as u64);

    /// The largest id that recovery accepts in a job log: far enough below [`LAST`](Self::LAST) that ids do not run out.
    pub const START_MAX: Self = Self(3 << 61);

    /// The largest id that an import accepts in a binlog: far enough below [`START_MAX`](Self::START_MAX) that the job log
    /// can continue from it.
    pub const IMPORT_MAX: Self = Self(1 << 62);
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! slab_key {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(pub u32);
    };
}

slab_key! {
    /// The slot of a job's record. It has no generation, because the record fills a cache line. A key that leaves the
    /// queue is used before the next call.
    JobKey
}
slab_key! {
    /// The slot of a tube's record. Other records of the queue link to a tube by slot, without a generation, because a tube
    /// is not removed before its last link.
    TubeSlot
}
slab_key! {
    /// The slot of a client's record. Other records of the queue link to a client by slot, without a generation, because a
    /// client is not removed before its last link.
    ClientSlot
}

slab_key! {
    /// The slot of what a job with tags has besides its record. It has no generation: it goes with the job.
    TagsKey
}
slab_key! {
    /// The slot of a group of jobs. It has no generation, because a group is not removed before its last member and the last job
    /// that waits for it.
    GroupSlot
}
slab_key! {
    /// The slot of the hold of a job by a group. It has no generation: it goes with the hold.
    HoldSlot
}
slab_key! {
    /// The slot of an idempotency key. It has no generation. A slot that leaves the queue is used before the next call.
    IdpSlot
}

slab_key! {
    /// The slot of the rules of a tube. It has no generation, because the tube that names it follows every change.
    RulesSlot
}

slab_key! {
    /// The slot of a concurrency key. It has no generation, because a key is not removed before its last job.
    ConSlot
}

/// The key of a tube, for use after the call that returned it. The generation distinguishes the tube from a later one in the
/// same slot, so an assertion catches a stale key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TubeKey {
    /// The slot of the record.
    pub slot: TubeSlot,
    /// Differs between the tubes that have had this slot. Repeats after 2^32 tubes.
    pub generation: u32,
}

/// The key of a client, for use after the call that returned it. The generation distinguishes the client from a later one in
/// the same slot, so an assertion catches a stale key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientKey {
    /// The slot of the record.
    pub slot: ClientSlot,
    /// Differs between the clients that have had this slot. Repeats after 2^32 clients.
    pub generation: u32,
}

slab_key! {
    /// The slot of a watch, by which one client watches one tube.
    WatchKey
}

/// The id of a connection, between drivers and the server. The generation distinguishes the connection from an earlier one in
/// the same slot, so a late completion cannot reach the wrong connection. It also tells the kind of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnId {
    /// The index in the table of connections. It is reused after the connection has been closed.
    pub slot: u32,
    /// A number that earlier connections in the slot did not have. The lowest bit is set for an HTTP connection.
    pub generation: u32,
}

impl ConnId {
    /// The connection of a client. `serial` counts connections and may wrap around.
    pub const fn client(slot: u32, serial: u32) -> Self {
        Self { slot, generation: serial << 1 }
    }

    /// A connection over which HTTP is spoken.
    pub const fn http(slot: u32, serial: u32) -> Self {
        Self { slot, generation: serial << 1 | 1 }
    }

    /// Whether HTTP is spoken over it.
    #[inline]
    pub const fn is_http(self) -> bool {
        self.generation & 1 == 1
    }

    /// Packs the id into one word, for a kernel's user data.
    pub const fn to_u64(self) -> u64 {
        (self.generation as u64) << 32 | self.slot as u64
    }

    /// Unpacks an id from [`ConnId::to_u64`].
    pub const fn from_u64(word: u64) -> Self {
        Self { slot: word as u32, generation: (word >> 32) as u32 }
    }
}
