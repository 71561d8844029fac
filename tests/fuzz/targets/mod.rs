//! What each fuzz target does with an input. It fails by a panic, under libFuzzer as in `tests/fuzz_corpus.rs`.

pub mod binlog_import;
pub mod conversation;
pub mod dialogue;
pub mod driver;
pub mod framing;
pub mod input;
pub mod log_decoder;
pub mod log_tools;
pub mod made_log;
pub mod scratch;

/// What is run with an input.
pub type Target = fn(&[u8]);

/// All targets by name.
pub const ALL: [(&str, Target); 5] = [
    ("framing", framing::run),
    ("conversation", conversation::run),
    ("log_decoder", log_decoder::run),
    ("binlog_import", binlog_import::run),
    ("log_tools", log_tools::run),
];
