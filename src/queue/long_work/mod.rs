//! Commands that are too large for one call, and what is left to do of each.

pub mod flush;
pub mod job_list;
pub mod moving;
pub mod quotas;
pub mod work;
