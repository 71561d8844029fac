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
    log_decoder;
    binlog_import;
    log_tools;
}

#[cfg(feature = "tls")]
#[test]
fn tls_with_random_inputs() {
    for seed in seeds(300) {
        println!("BEANRING_TEST_SEED={seed}");
        fuzz::tls::run(&fuzz::input::filler(seed, 400));
    }
}
