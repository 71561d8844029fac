//! beanring: a work-queue server that speaks the beanstalk protocol.
//!
//! Everything that decides is plain state behind [`server::Server`], which does no I/O and reads no
//! clock. Drivers under [`io`] feed it events and carry out its effects. `docs/internals/ARCHITECTURE.md` has the
//! map.

// `beanring_testkit::server_config!` names this crate from outside.
#[cfg(test)]
extern crate self as beanring;

pub mod beanstalkd_binlog;
pub mod bodies;
pub mod cli;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "completions")]
pub mod completions;
pub mod config;
pub mod config_tool;
pub mod exit_code;
pub mod flags;
pub mod healthcheck;
pub mod intrusive;
pub mod io;
pub mod launch;
pub mod logging;
#[cfg(feature = "completions")]
pub mod manual;
pub mod preflight;
pub mod protocol;
pub mod queue;
#[cfg(feature = "replicate")]
pub mod replicate_tool;
pub mod server;
pub mod time;
#[cfg(feature = "tls")]
pub mod transport;
pub mod values;
pub mod wal;
pub mod wal_tool;
