//! Bytes to commands and replies to bytes. All of it borrows; nothing here knows a job or a tube.

pub mod command;
pub mod foreign;
pub mod framing;
pub mod parse;
pub mod reply;

#[cfg(test)]
mod random;
