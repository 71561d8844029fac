//! What each fuzz target does with an input. A target fails by a panic, under libFuzzer and in `tests/protocol/fuzz_corpus.rs`.

pub mod binlog_import;
#[cfg(feature = "tls")]
pub mod chains;
#[cfg(feature = "client")]
pub mod client_replies;
pub mod conversation;
pub mod dialogue;
#[cfg(feature = "tls")]
pub mod door;
pub mod driver;
pub mod framing;
#[cfg(feature = "tls")]
pub mod headers;
pub mod http;
pub mod input;
pub mod log_decoder;
pub mod log_tools;
pub mod made_log;
#[cfg(feature = "tls")]
pub mod records;
#[cfg(feature = "tls")]
pub mod tls;
