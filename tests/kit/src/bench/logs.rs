//! Logs of servers (`-b`): how they are kept, and where they are while a measurement lasts.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process;

use super::Error;
use super::machine::first_line;

/// When a server syncs its log; every server takes the same flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sync {
    /// Before every answer.
    Always,
    /// Every 50 ms.
    Often,
    /// Never.
    Never,
}

impl Sync {
    /// The flags.
    pub fn flags(self) -> &'static [&'static str] {
        match self {
            Sync::Always => &["-f", "0"],
            Sync::Often => &["-f", "50"],
            Sync::Never => &["-F"],
        }
    }
}

/// How a server keeps its log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Log {
    pub sync: Sync,
    /// The size of a file, where it is not the default.
    pub file_bytes: Option<u32>,
}

impl Log {
    /// The flags, without the directory.
    pub fn flags(self) -> Vec<String> {
        let size = self.file_bytes.into_iter().flat_map(|bytes| ["-s".to_owned(), bytes.to_string()]);
        self.sync.flags().iter().map(|&flag| flag.to_owned()).chain(size).collect()
    }
}

/// Where logs are kept.
pub struct Place {
    path: PathBuf,
    /// The kind of its file system, as `stat -f` calls it.
    pub file_system: String,
}

impl Place {
    /// A place of this name in `directory`, or where temporary files go if only that is on a disk.
    pub fn find(directory: &Path, name: &str) -> Place {
        let own = Place::at(directory, name.to_owned());
        let temporary = Place::at(&env::temp_dir(), format!("beanring-bench-{name}.{}", process::id()));
        if own.is_memory() && !temporary.is_memory() { temporary } else { own }
    }

    fn at(parent: &Path, name: String) -> Place {
        let kind = first_line("stat", &["-f", "-c", "%T", &parent.to_string_lossy()]);
        Place { path: parent.join(name), file_system: kind.unwrap_or("unknown".to_owned()) }
    }

    /// Whether a sync costs nothing there.
    pub fn is_memory(&self) -> bool {
        matches!(&*self.file_system, "tmpfs" | "ramfs")
    }

    /// An empty directory for a log.
    pub fn fresh(&self, log: Log) -> Result<Directory, Error> {
        let made = match fs::remove_dir_all(&self.path) {
            // A run that was killed has left it.
            Ok(()) => fs::create_dir(&self.path),
            Err(error) if error.kind() == ErrorKind::NotFound => fs::create_dir(&self.path),
            Err(error) => Err(error),
        };
        made.map_err(|error| Error::Write(self.path.clone(), error))?;
        Ok(Directory { path: self.path.clone(), log })
    }
}

/// The directory of a log; dropping it removes it with all that is in it.
pub struct Directory {
    path: PathBuf,
    log: Log,
}

impl Directory {
    /// The flags of a server whose log it is.
    pub fn flags(&self) -> Vec<OsString> {
        let own = ["-b".into(), self.path.clone().into_os_string()];
        own.into_iter().chain(self.log.flags().into_iter().map(OsString::from)).collect()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("{} is left: {error}", self.path.display());
        }
    }
}
