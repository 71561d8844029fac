//! Deterministic simulations with faults, in virtual time.

mod log;
mod replicas;
mod seeds;
mod server;
