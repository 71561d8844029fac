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
pub mod config;
pub mod flags;
pub mod help;
pub mod intrusive;
pub mod io;
pub mod logging;
pub mod protocol;
pub mod queue;
#[cfg(feature = "client")]
pub mod replies;
pub mod server;
pub mod time;
#[cfg(feature = "tls")]
pub mod transport;
pub mod values;
pub mod wal;
