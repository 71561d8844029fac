//! A directory for a log: in memory where that is possible, since nothing here depends on a real disk.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, fs, process};

pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let shared = Path::new("/dev/shm");
        let base = if shared.is_dir() { shared.to_owned() } else { env::temp_dir() };
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("beanring-sim-{}-{number}", process::id()));
        fs::create_dir_all(&path).expect("a directory can be made");
        Self(path)
    }
}

impl Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn clear(directory: &Path) {
    for entry in fs::read_dir(directory).expect("it is there") {
        fs::remove_file(entry.expect("an entry").path()).expect("it can be removed");
    }
}
