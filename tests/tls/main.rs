//! TLS of a running server: handshakes that must fail and how they are counted, certificates that change while clients work,
//! restarts, clients that misuse TLS, and other implementations of it.

mod chains;
mod crowd;
mod endless;
mod failures;
mod harm;
mod https;
mod others;
mod place;
mod proxy;
mod raw;
mod records;
mod restarts;
mod rotation;
mod stuck;
