//! Plain values that all modules share: names, tags, ids, rules, and the limits of the server. They own no state and know no
//! other module but [`time`](crate::time).

pub mod account;
pub mod budget;
pub mod byte_size;
pub mod histogram;
pub mod ids;
pub mod job_state;
pub mod limits;
pub mod link_secret;
pub mod log_limit;
pub mod notes;
pub mod peer_wait;
pub mod reserve_mode;
pub mod schedules;
pub mod tags;
pub mod tube_name;
pub mod tube_rules;
pub mod when;
