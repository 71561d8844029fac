//! The load generator `beanring-bench`.

mod compare;
mod tool;

use std::process::{Command, Stdio};

/// Returns a command that runs it.
fn beanring_bench() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_beanring-bench"));
    command.stdin(Stdio::null());
    command
}
