//! Replays the corpus of the fuzz targets without a fuzzer. `BEANRING_TEST_FUZZ_INPUT=FILE` replays one other input instead,
//! such as a crash that `ci/fuzz` has left.

use std::path::PathBuf;
use std::{env, fs};

use beanring_testkit::fuzz;
#[cfg(feature = "tls")]
use beanring_testkit::random::seeds;
use beanring_testkit::repository;

/// Returns the inputs of a target, sorted by name.
fn inputs(target: &str) -> Vec<PathBuf> {
    if let Some(one) = env::var_os("BEANRING_TEST_FUZZ_INPUT") {
        return vec![one.into()];
    }
    let corpus = repository().join("tests/fuzz/corpus").join(target);
    let entries = fs::read_dir(corpus).expect("there is a corpus");
    let mut inputs: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "the inputs are found");
    inputs
}

fn replay(target: &str, run: fn(&[u8])) {
    for path in inputs(target) {
        println!("{}", path.display());
        run(&fs::read(path).expect("an input"));
    }
}

/// A test for each fuzz target.
macro_rules! tests {
    ($($(#[$needs:meta])? $target:ident;)*) => {$(
        $(#[$needs])?
        #[test]
        fn $target() {
            replay(stringify!($target), fuzz::$target::run);
        }
    )*};
}

tests! {
    framing;
    http;
    conversation;
    #[cfg(feature = "client")]
    client_replies;
    #[cfg(feature = "tls")]
    tls;
    #[cfg(feature = "tls")]
    records;
    #[cfg(feature = "tls")]
    chains;
    #[cfg(feature = "tls")]
    headers;
    log_decoder;
    binlog_import;
    log_tools;
}

/// Runs inputs that no corpus has.
#[cfg(feature = "tls")]
fn replay_random(count: u64, bytes: usize, run: fn(&[u8])) {
    for seed in seeds(count) {
        println!("BEANRING_TEST_SEED={seed}");
        run(&fuzz::input::filler(seed, bytes));
    }
}

#[cfg(feature = "tls")]
#[test]
fn tls_with_random_inputs() {
    replay_random(300, 400, fuzz::tls::run);
}

#[cfg(feature = "tls")]
#[test]
fn records_with_random_inputs() {
    replay_random(300, 300, fuzz::records::run);
}

#[cfg(feature = "tls")]
#[test]
fn chains_with_random_inputs() {
    replay_random(40, 300, fuzz::chains::run);
}

#[cfg(feature = "tls")]
#[test]
fn headers_with_random_inputs() {
    replay_random(300, 200, fuzz::headers::run);
}
