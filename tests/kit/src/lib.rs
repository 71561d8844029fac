//! What the tests, benchmarks and fuzz targets of beanring share.
//!
//! * a server as a process: [`process`], with [`stream`] and [`client`] to talk to it, and [`scratch`] directories; its log
//!   lines: [`logged`];
//! * a server on a thread whose iterations are measured: [`measured`];
//! * a server in memory and in virtual time: [`in_memory`], with its [`config`], its [`connection`]s and a [`disk`] that fails;
//!   iteration by iteration: [`stepped`];
//! * clients of the HTTP listener of either: [`http_client`];
//! * conversations with either, both of which are a [`peer`]: [`conversation`], [`pattern`], [`runner`], [`suite`];
//! * certificates for TLS: [`certificates`]; TLS in front of a server: `tls_front`; a server in memory behind TLS: `tunnel`;
//!   records that no library would send: `forge`;
//! * what `stats` and similar commands reply: [`statistics`];
//! * PostgreSQL with standbys: [`postgres`];
//! * random numbers and the seeds of a test: [`random`];
//! * what the kernel allows: [`kernel`], [`driver`], [`seccomp`];
//! * what the fuzz targets do with an input: [`fuzz`];
//! * what the benchmarks share: [`bench`].

pub mod beanstalkd;
pub mod bench;
pub mod certificates;
pub mod chains;
pub mod client;
pub mod config;
pub mod connection;
pub mod conversation;
mod diagnosis;
pub mod disk;
pub mod driver;
#[cfg(server_has_tls)]
pub mod forge;
pub mod forged_head;
pub mod fuzz;
pub mod http_client;
pub mod in_memory;
pub mod kernel;
pub mod live;
pub mod logged;
pub mod measured;
pub mod naive;
pub mod namespaces;
pub mod pattern;
pub mod peer;
pub mod postgres;
pub mod process;
pub mod random;
pub mod reply;
pub mod runner;
pub mod scratch;
#[cfg(target_arch = "x86_64")]
pub mod seccomp;
pub mod signals;
pub mod statistics;
pub mod stepped;
pub mod stream;
pub mod suite;
#[cfg(server_has_tls)]
pub mod tls_front;
#[cfg(server_has_tls)]
pub mod tls_stream;
#[cfg(server_has_tls)]
pub mod tunnel;
pub mod under_test;
#[cfg(server_has_tls)]
mod unmetered;
pub mod unused_address;
pub mod wait;

use std::path::Path;

/// Returns the top of the repository.
pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
