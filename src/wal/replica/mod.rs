//! The job log in a database: what is written there, who may write, and who leads. It does no I/O: requests go out, replies
//! come in (docs/internals/REPLICATION.md).

mod request;

pub use self::request::{
    APPENDS_MAX, Claim, Epoch, Failure, LogStore, Member, Page, Position, Reply, Request,
};
