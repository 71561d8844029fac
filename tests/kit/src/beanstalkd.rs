//! The beanstalkd that tests compare with.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use super::conversation::Version;

/// The first version that quotes strings in statistics.
pub const QUOTES_FROM: Version = Version(1, 13);

/// Returns the version of a program.
///
/// # Panics
/// If the program does not print a version.
pub fn version(program: &Path) -> Version {
    let output = Command::new(program).arg("-v").output().expect("it can be started");
    let printed = String::from_utf8_lossy(&output.stdout);
    let version = printed.strip_prefix("beanstalkd ").and_then(Version::parse);
    version.unwrap_or_else(|| panic!("{} -v prints {printed:?}", program.display()))
}

/// Returns the beanstalkd in `PATH`, if one is installed.
pub fn installed() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).map(|dir| dir.join("beanstalkd")).find(|program| program.is_file())
}
