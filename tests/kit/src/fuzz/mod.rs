//! What each fuzz target does with an input. A target fails by a panic, under libFuzzer and in `tests/protocol/fuzz_corpus.rs`.

pub mod binlog_import;
#[cfg(server_has_tls)]
pub mod chains;
#[cfg(server_has_client)]
pub mod client_replies;
pub mod conversation;
pub mod dialogue;
#[cfg(server_has_tls)]
pub mod door;
pub mod driver;
pub mod framing;
#[cfg(server_has_tls)]
pub mod headers;
pub mod http;
pub mod input;
pub mod log_decoder;
pub mod log_tools;
pub mod made_log;
#[cfg(server_has_tls)]
pub mod records;
#[cfg(server_has_tls)]
pub mod tls;
