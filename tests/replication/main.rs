//! The job log in PostgreSQL, standbys that forward clients to the leader, and faults of both.

mod faults;
mod forward;
mod node;
mod replicate;
mod site;
mod small_disk;
