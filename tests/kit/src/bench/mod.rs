//! What the benchmarks share: the machine, servers in memory, and tables of results.

pub mod engine;
pub mod machine;
pub mod server;
pub mod stats;
pub mod table;
