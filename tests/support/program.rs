//! The program that tests start.

/// The server, or what `ci/confined` has in its place.
pub const PROGRAM: &str = match option_env!("BEANRING_TEST_PROGRAM") {
    Some(program) => program,
    None => env!("CARGO_BIN_EXE_beanring"),
};
