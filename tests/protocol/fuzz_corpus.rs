//! Replays the corpus of the fuzz targets without a fuzzer. `BEANRING_TEST_FUZZ_INPUT=FILE` replays one other input instead,
//! such as a crash that `ci/fuzz` has left.

use std::path::{Path, PathBuf};
use std::{env, fs};

use beanring_testkit::fuzz;
#[cfg(feature = "tls")]
use beanring_testkit::random::seeds;

/// Returns the inputs of a target, sorted by name.
fn inputs(target: &str) -> Vec<PathBuf> {
    if let Some(one) = env::var_os("BEANRING_TEST_FUZZ_INPUT") {
        return vec![one.into()];
    }
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target);
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

#[test]
fn framing() {
    replay("framing", fuzz::framing::run);
}

#[test]
fn http() {
    replay("http", fuzz::http::run);
}

#[test]
fn conversation() {
    replay("conversation", fuzz::conversation::run);
}

#[cfg(feature = "client")]
#[test]
fn client_replies() {
    replay("client_replies", fuzz::client_replies::run);
}

#[cfg(feature = "tls")]
#[test]
fn tls() {
    replay("tls", fuzz::tls::run);
}

#[cfg(feature = "tls")]
#[test]
fn tls_with_random_inputs() {
    for seed in seeds(300) {
        println!("BEANRING_TEST_SEED={seed}");
        fuzz::tls::run(&fuzz::input::filler(seed, 400));
    }
}

#[test]
fn log_decoder() {
    replay("log_decoder", fuzz::log_decoder::run);
}

#[test]
fn binlog_import() {
    replay("binlog_import", fuzz::binlog_import::run);
}

#[test]
fn log_tools() {
    replay("log_tools", fuzz::log_tools::run);
}
