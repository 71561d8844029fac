//! The beanstalk protocol: the connections of clients, from bytes to commands and from outcomes to replies.

mod commands;
mod input;
mod lists;
mod replies;
mod session;
mod stats;

pub(super) use self::lists::Listing;
pub(super) use self::session::{InputEnd, Session, SessionMemory};
