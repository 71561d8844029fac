//! Job logs of servers (`-b`), and where they are kept during a measurement.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process;

use super::Error;
use super::machine::first_line;

/// When a server syncs its job log. All servers take the same flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sync {
    /// Before each reply.
    Always,
    /// Every 50 ms.
    Often,
    Never,
}

impl Sync {
    pub fn flags(self) -> &'static [&'static str] {
        match self {
            Sync::Always => &["-f", "0"],
            Sync::Often => &["-f", "50"],
            Sync::Never => &["-F"],
        }
    }
}

/// How a server keeps its job log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Log {
    pub sync: Sync,
    /// The size of a file, if it is not the default.
    pub file_bytes: Option<u32>,
}

impl Log {
    /// Returns the flags, without the directory.
    pub fn flags(self) -> Vec<String> {
        let size = self.file_bytes.into_iter().flat_map(|bytes| ["-s".to_owned(), bytes.to_string()]);
        self.sync.flags().iter().map(|&flag| flag.to_owned()).chain(size).collect()
    }
}

/// A place for job logs.
pub struct Place {
    path: PathBuf,
    /// The type of its file system, as it was mounted. `stat -f` does not tell ext2, ext3 and ext4 apart.
    pub file_system: String,
}

impl Place {
    /// Finds a place of this name in `directory`, or among the temporary files if only those are on a disk.
    pub fn find(directory: &Path, name: &str) -> Place {
        let own = Place::at(directory, name.to_owned());
        let temporary = Place::at(&env::temp_dir(), format!("beanring-bench-{name}.{}", process::id()));
        if own.is_memory() && !temporary.is_memory() { temporary } else { own }
    }

    fn at(parent: &Path, name: String) -> Place {
        let kind = first_line("findmnt", &["-n", "-o", "FSTYPE", "-T", &parent.to_string_lossy()]);
        Place { path: parent.join(name), file_system: kind.unwrap_or("unknown".to_owned()) }
    }

    /// Returns whether a sync is free there.
    pub fn is_memory(&self) -> bool {
        matches!(&*self.file_system, "tmpfs" | "ramfs")
    }

    /// Creates an empty directory for a job log.
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

/// The directory of a job log. It is removed when the value is dropped.
pub struct Directory {
    path: PathBuf,
    log: Log,
}

impl Directory {
    /// Returns the flags of a server with this job log.
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
