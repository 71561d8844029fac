//! Scratch directories, and the files that tests make and read.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use nix::sys::statvfs::statvfs;

use super::process::REPLY_PATIENCE;

/// Free memory that the directories of some tests may need.
const MEMORY_BYTES_MIN: u64 = 2 << 30;

/// A directory of one test's own. It is removed when the value is dropped.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// Creates a directory among the temporary files.
    ///
    /// # Panics
    /// If the directory cannot be created.
    pub fn new(name: &str) -> Self {
        Self::below(&env::temp_dir(), name)
    }

    /// Creates a directory in memory if there is a place for it: for tests that do not depend on the disk and would wait for it.
    /// A program that `BEANRING_TEST_PROGRAM` names may not see that place.
    ///
    /// # Panics
    /// If the directory cannot be created.
    pub fn in_memory(name: &str) -> Self {
        let memory = Path::new("/dev/shm");
        // That of a container may be small.
        let free = statvfs(memory).map_or(0, |system| system.blocks_available() * system.fragment_size());
        let is_seen = env::var_os("BEANRING_TEST_PROGRAM").is_none();
        if is_seen && free >= MEMORY_BYTES_MIN { Self::below(memory, name) } else { Self::new(name) }
    }

    fn below(parent: &Path, name: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("beanring-{name}-{}-{count}", process::id()));
        fs::create_dir(&path).expect("the directory is new");
        Self(path)
    }

    /// Returns a path in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Creates an empty directory in it.
    ///
    /// # Panics
    /// If the directory exists.
    pub fn dir(&self, name: &str) -> PathBuf {
        let path = self.join(name);
        fs::create_dir(&path).expect("the directory is new");
        path
    }

    /// Copies the files of a directory to a new directory in it.
    ///
    /// # Panics
    /// If the directory exists, or a file cannot be copied.
    pub fn copy(&self, from: &Path, name: &str) -> PathBuf {
        let to = self.dir(name);
        for entry in fs::read_dir(from).expect("the directory exists") {
            let entry = entry.expect("the directory can be read");
            fs::copy(entry.path(), to.join(entry.file_name())).expect("there is space for a copy");
        }
        to
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Waits until a server has written `count` lines to a file, and returns them.
///
/// # Panics
/// If the lines do not appear in time.
pub fn lines_of(file: &Path, count: usize) -> Vec<String> {
    let started = Instant::now();
    loop {
        let text = fs::read_to_string(file).expect("the file exists");
        if text.matches('\n').count() >= count {
            return text.lines().map(str::to_owned).collect();
        }
        assert!(started.elapsed() < REPLY_PATIENCE, "expected {count} lines: {text:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until a file contains a text `count` times: a log, for example.
///
/// # Panics
/// If it does not in time.
pub fn await_text(file: &Path, text: &str, count: usize) {
    let started = Instant::now();
    loop {
        let content = fs::read_to_string(file).expect("the file exists");
        if content.matches(text).count() >= count {
            return;
        }
        assert!(started.elapsed() < REPLY_PATIENCE, "{text:?} is not there {count} times: {content}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Writes a file that only its owner can read.
///
/// # Panics
/// If there is no space.
pub fn secret(file: &Path, text: &str) {
    let mut created = fs::File::create(file).expect("the file is created");
    created.set_permissions(fs::Permissions::from_mode(0o600)).expect("it is ours");
    created.write_all(text.as_bytes()).expect("there is space");
}

/// Writes a shell script and makes it executable. Another process writes the file: a program that some process has open
/// for writing cannot be started, and children of this process inherit its descriptors for a moment.
///
/// # Panics
/// If there is no space.
pub fn script(file: &Path, lines: &str) {
    let mut shell = Command::new("sh");
    shell.args(["-c", "printf '#!/bin/sh\\n%s' \"$1\" > \"$0\" && chmod 755 \"$0\""]);
    assert!(shell.arg(file).arg(lines).status().expect("there is a shell").success(), "there is space");
}

/// Returns all files of a directory by name; none if the directory does not exist.
pub fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    let file = |entry: fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        (name, fs::read(entry.path()).expect("a file"))
    };
    entries.map(file).collect()
}
