//! Scratch directories, and the files that tests make and read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use super::process::REPLY_PATIENCE;

/// A directory of one test's own, gone with it.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// Makes it.
    pub fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("beanring-log-{name}-{}", std::process::id()));
        fs::create_dir(&path).expect("a new directory");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The lines that a server has written to this file, once there are so many.
///
/// # Panics
/// If they do not come.
pub fn lines_of(file: &Path, count: usize) -> Vec<String> {
    let asked = Instant::now();
    loop {
        let text = fs::read_to_string(file).expect("it was made");
        if text.matches('\n').count() >= count {
            return text.lines().map(str::to_owned).collect();
        }
        assert!(asked.elapsed() < REPLY_PATIENCE, "{count} lines are written: {text:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Makes a program of these lines of a shell. Another process writes it: what a child of this one still has open to
/// write, from before it became its own program, cannot be started.
///
/// # Panics
/// If there is no room.
pub fn script(file: &Path, lines: &str) {
    let mut shell = Command::new("sh");
    shell.args(["-c", "printf '#!/bin/sh\\n%s' \"$1\" > \"$0\" && chmod 755 \"$0\""]);
    assert!(shell.arg(file).arg(lines).status().expect("there is a shell").success(), "there is room");
}

/// All files of a directory by name; none where there is no directory.
pub fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    let file = |entry: fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        (name, fs::read(entry.path()).expect("a file"))
    };
    entries.map(file).collect()
}
