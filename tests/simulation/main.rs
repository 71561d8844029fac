//! Deterministic simulations with faults, in virtual time.

mod log;
mod replicas;
mod schedules;
mod seeds;
mod server;
