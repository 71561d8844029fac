//! Names of things: what the protocol calls a job, and where the server keeps its records.

use std::fmt;

/// A job's id on the wire: from 1 upwards, never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct JobId(pub u64);

impl JobId {
    /// The largest id that a record can have.
    pub const LAST: Self = Self(i64::MAX as u64);

    /// The largest id in a log that a server starts from: far enough below [`LAST`](Self::LAST) that ids do not run out.
    pub const START_MAX: Self = Self(3 << 61);

    /// The largest id in a binlog that is imported: far enough below [`START_MAX`](Self::START_MAX) that the log can
    /// grow from it.
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
    /// Where the queue keeps a job.
    JobKey
}
slab_key! {
    /// The slot of a tube's record: how the records of the queue link to a tube. A tube is removed only when no record
    /// links to it, so a link needs no generation.
    TubeSlot
}
slab_key! {
    /// The slot of a client's record: how the records of the queue link to a client. A client is removed only when no
    /// record links to it, so a link needs no generation.
    ClientSlot
}

/// A tube, as everything names it that may outlive the tube. The generation tells the tube from a later one in the same
/// slot, so a stale key is caught.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TubeKey {
    /// Where the queue keeps the tube.
    pub slot: TubeSlot,
    /// Differs between the tubes that have had this slot. Repeats after 2^32 tubes.
    pub generation: u32,
}

/// A client, as everything names it that may outlive the client. The generation tells the client from a later one in
/// the same slot, so a stale key is caught.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientKey {
    /// Where the queue keeps the client.
    pub slot: ClientSlot,
    /// Differs between the clients that have had this slot. Repeats after 2^32 clients.
    pub generation: u32,
}

slab_key! {
    /// Where the queue keeps the fact that one client watches one tube.
    WatchKey
}

/// A connection, as drivers and the server name it to each other. The generation tells it from an earlier connection in the
/// same slot, so a late completion cannot reach the wrong one. It also tells the kind of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnId {
    /// Index in the table of connections, reused after the connection has been closed.
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

    /// Unpacks the result of [`ConnId::to_u64`].
    pub const fn from_u64(word: u64) -> Self {
        Self { slot: word as u32, generation: (word >> 32) as u32 }
    }
}
