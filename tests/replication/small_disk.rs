//! A file system of its own for a tablespace, which only root can mount.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use beanring_testkit::namespaces::{command, try_run};

/// It is unmounted with the value.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one over a directory, with the directories that are in it.
    pub fn mount(at: &Path, mib: usize) -> Result<Self, String> {
        let inner: Vec<PathBuf> =
            fs::read_dir(at).expect("it exists").map(|entry| entry.expect("it is there").path()).collect();
        let own = fs::metadata(at).expect("it exists");
        let text = at.to_str().expect("a name in UTF-8");
        try_run(&mut command(&["mount", "-t", "tmpfs", "-o", &format!("size={mib}m"), "tmpfs", text]))?;
        let mounted = Self(at.to_owned());
        for directory in inner.iter().map(PathBuf::as_path).chain([at]) {
            fs::create_dir_all(directory).expect("there is space");
            chown(directory, Some(own.uid()), Some(own.gid())).expect("root may");
            fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).expect("root may");
        }
        Ok(mounted)
    }

    /// Gives it another size, as an operator does.
    pub fn resize(&self, mib: usize) {
        let text = self.0.to_str().expect("a name in UTF-8");
        let size = format!("remount,size={mib}m");
        try_run(&mut command(&["mount", "-o", &size, text])).unwrap_or_else(|reason| panic!("{reason}"));
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
