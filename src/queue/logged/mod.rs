//! What the job log records and restores.

pub mod change;
pub mod persisted;
pub mod recovered;
