//! Files that a running server reads again when they change.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tracing::{info, warn};

use super::certificate::CertificateFiles;
use super::users_file::UsersFile;
use crate::server::Service;
use crate::time::{Span, Time};

/// How often the files are looked at: one stat(2) for each.
const INTERVAL: Span = Span::from_secs(10);

/// Files that are read again when they change. Each is looked at every 10 s, and when asked by a signal. Paths are resolved
/// each time, so a link that is replaced, as Kubernetes does it, is a change.
#[derive(Debug, Default)]
pub struct WatchedFiles {
    files: Vec<WatchedFile>,
    /// The files of the certificate, which are read together.
    certificate: Option<CertificateFiles>,
    /// When they are looked at next, once they have been for the first time.
    due: Time,
}

/// What a file is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WatchedKind {
    /// The users of `--auth`.
    Users,
    /// A part of the certificate of TLS.
    Certificate,
}

#[derive(Debug)]
struct WatchedFile {
    kind: WatchedKind,
    path: PathBuf,
    seen: Option<Identity>,
}

/// What differs between two versions of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    /// The time of the last change of its permissions, its owner or its content. A tool may set the other time back.
    changed: (i64, i64),
}

impl Identity {
    /// The identity of a file with these properties. They must be those of the open file, from before it is read: a change
    /// while it is read then counts as a change.
    pub fn of(file: &Metadata) -> Self {
        Self {
            device: file.dev(),
            inode: file.ino(),
            bytes: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        }
    }
}

impl WatchedFiles {
    /// Adds a file that was read, and was this one.
    pub fn add(&mut self, kind: WatchedKind, path: PathBuf, seen: Identity) {
        self.files.push(WatchedFile { kind, path, seen: Some(seen) });
    }

    /// Adds the files of a certificate. They are read after this call, so that a change in between is not lost.
    pub fn add_certificate(&mut self, files: CertificateFiles) {
        self.files.extend(files.paths().map(|path| WatchedFile {
            kind: WatchedKind::Certificate,
            path: path.to_owned(),
            seen: identity_at(path),
        }));
        self.certificate = Some(files);
    }

    /// When the files are to be looked at next. None if there are none.
    pub(super) fn deadline(&self) -> Option<Time> {
        (!self.files.is_empty()).then_some(self.due)
    }

    /// Whether the files are to be looked at.
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.deadline().is_some_and(|due| due <= now)
    }

    /// Looks at all files, and gives the service what is in those that have changed. A file that is refused is logged once: it
    /// is read again when it changes again.
    pub(super) fn check(&mut self, now: Time, service: &mut impl Service) {
        self.due = now + INTERVAL;
        let mut is_certificate_new = false;
        for file in &mut self.files {
            let present = identity_at(&file.path);
            if present != file.seen {
                file.seen = present;
                match file.kind {
                    WatchedKind::Users => file.reload_users(service),
                    WatchedKind::Certificate => is_certificate_new = true,
                }
            }
        }
        if let Some(files) = self.certificate.as_ref().filter(|_| is_certificate_new) {
            service.replace_certificate(files.read().map_err(|error| error.to_string()));
        }
    }
}

impl WatchedFile {
    fn reload_users(&mut self, service: &mut impl Service) {
        match UsersFile::read(&self.path) {
            Ok(UsersFile { users, metadata }) => {
                self.seen = Some(Identity::of(&metadata));
                info!("{}: the users have changed", self.path.display());
                if users.are_without_rights() {
                    warn!(
                        "--auth {}: no user has a right, so every client is refused: add users with rights",
                        self.path.display()
                    );
                }
                service.replace_users(users);
            }
            Err(error) => {
                warn!(
                    "the users stay as they were: {}: {error}. The file is read again when it changes",
                    self.path.display()
                );
                service.users_refused();
            }
        }
    }
}

fn identity_at(path: &Path) -> Option<Identity> {
    fs::metadata(path).ok().as_ref().map(Identity::of)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn identity(path: &std::path::Path) -> Identity {
        Identity::of(&fs::metadata(path).expect("the file exists"))
    }

    #[test]
    fn a_replaced_link_and_a_changed_file_are_changes() {
        let dir = std::env::temp_dir().join(format!("beanring-watched-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("a directory can be made");
        let [one, two, link] = ["one", "two", "link"].map(|name| dir.join(name));
        fs::write(&one, "1").expect("the file can be written");
        fs::write(&two, "2").expect("the file can be written");
        symlink(&one, &link).expect("the link can be made");
        let first = identity(&link);
        assert_eq!(first, identity(&one));
        fs::remove_file(&link).expect("it exists");
        symlink(&two, &link).expect("the link can be made");
        let second = identity(&link);
        assert_ne!(first, second);
        fs::write(&two, "22").expect("the file can be written");
        assert_ne!(second, identity(&link));
        fs::remove_dir_all(&dir).expect("it exists");
    }

    #[test]
    fn without_files_there_is_no_deadline() {
        let mut files = WatchedFiles::default();
        assert_eq!(files.deadline(), None);
        assert!(!files.is_due(Time::ZERO));
        let identity = identity(std::path::Path::new("/"));
        files.add(WatchedKind::Users, "/no such file".into(), identity);
        assert!(files.is_due(Time::ZERO));
    }
}
