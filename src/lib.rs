//! beanring: a work-queue server that speaks the beanstalk protocol.
//!
//! Everything that decides is plain state behind [`server::Server`], which does no I/O and reads no
//! clock. Drivers under [`io`] feed it events and carry out its effects. `docs/ARCHITECTURE.md` has the
//! map.

// The tests' own support names this crate from outside.
#[cfg(test)]
extern crate self as beanring;

pub mod bodies;
pub mod buckets;
pub mod cli;
pub mod config;
pub mod config_file;
pub mod healthcheck;
pub mod ids;
pub mod intrusive;
pub mod io;
pub mod launch;
pub mod limits;
pub mod log;
pub mod log_tool;
pub mod protocol;
pub mod queue;
pub mod rehearsal;
pub mod server;
pub mod time;
pub mod tube_name;
