//! Commands that are too large for one call: what is left to do of each.

pub mod flush;
pub mod job_list;
pub mod moving;
pub mod quotas;
pub mod work;
