//! The thread with which a standby forwards clients: bytes, ends, changes of leader, bounds; and the leader's listener for standbys.

mod bytes;
mod changes;
mod end;
mod flood;
mod leader;
mod link;
mod place;
mod shares;
mod silence;
mod turns;
mod waiting;
