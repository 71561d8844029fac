//! The job log in a database: what is written there, who may write, and who leads. It does no I/O: requests go out, replies
//! come in (docs/internals/REPLICATION.md).

mod chunk;
mod follower;
#[cfg(feature = "replicate")]
mod fresh;
mod leader;
mod request;
mod standby;

pub use self::chunk::{ChunkHeader, Kind, PAYLOAD_BYTES_MAX, identity};
pub use self::follower::{Damage, Fault, Follower, SegmentStarts, Witness};
#[cfg(feature = "replicate")]
pub use self::fresh::FreshLog;
pub use self::leader::{Leader, LeaderEnd, patience_of_stop};
pub use self::request::{
    APPENDS_MAX, Claim, DatabaseReply, Epoch, Failure, Hazards, LogStore, Member, Page, Position, Renewal,
    Request, Reserve, Term,
};
pub use self::standby::{Progress, ReplicaConfig, Standby};
