//! The inputs that the fuzz targets of `tests/fuzz` have been led to, once more and without a fuzzer.
//! `BEANRING_FUZZ_INPUT=FILE` runs one other input instead, as a crash that `ci/fuzz` has left.

use std::path::{Path, PathBuf};
use std::{env, fs};

use beanring_testkit::fuzz;

/// The inputs of a target, in the order of their names.
fn inputs(target: &str) -> Vec<PathBuf> {
    if let Some(one) = env::var_os("BEANRING_FUZZ_INPUT") {
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
