//! Parsing of commands and rendering of replies. Everything here borrows its input, and nothing here knows a job or a tube.

pub mod announced;
pub mod command;
pub mod foreign;
pub mod framing;
pub mod parse;
pub mod reply;

#[cfg(test)]
mod random;
