//! The job log in PostgreSQL, against real servers: a primary and two standbys, of which one must acknowledge each commit.

mod appends;
mod checks;
mod claims;
mod faults;
mod older;
mod pages;
mod servers;
mod shown;
mod standby;
mod store;
mod tool;
mod transfer;
