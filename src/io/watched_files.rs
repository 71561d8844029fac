//! Files that a running server reads again when they change. A thread looks at them and reads them: a file system may not answer,
//! and a large file takes time.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::Duration;

use tracing::{info, warn};

use super::bell::Bell;
use super::certificate::{CertificateFiles, CertificateNames};
use super::socket::text_of;
use super::users_file::{UsersError, UsersFile};
use crate::server::{Certificate, Change, Service, Users};
use crate::time::Time;

/// How often the files are looked at: one stat(2) for each.
const INTERVAL: Duration = Duration::from_secs(10);

/// Requests that wait for the thread, at most. With more, a look is queued already.
const REQUESTS_MAX: usize = 2;

/// How long the end of a run waits for the thread, which may be in a system call that does not return.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// Files that are read again when they change. Each is looked at every 10 s, and when asked by a signal. Paths are resolved
/// each time, so a link that is replaced, as Kubernetes does it, is a change.
#[derive(Debug, Default)]
pub struct WatchedFiles {
    files: Vec<WatchedFile>,
    /// The files of the certificate, which are read together.
    certificate: Option<(CertificateFiles, CertificateNames)>,
}

/// The event loop's end of the thread that looks at files. `I` is a certificate that was read.
#[derive(Debug)]
pub(super) struct FileWatch<I> {
    requests: SyncSender<Request>,
    changes: Receiver<FileChange<I>>,
}

/// What the thread is to do.
#[derive(Debug)]
enum Request {
    /// To look at the files now.
    Look,
    /// To free these: thousands of allocations.
    Free(Users),
}

/// The content of files that have changed.
#[derive(Debug)]
enum FileChange<I> {
    Users(PathBuf, Result<Users, UsersError>),
    Certificate(Result<I, String>),
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
    pub fn add_certificate(&mut self, files: CertificateFiles, names: CertificateNames) {
        self.files.extend(files.paths().map(|path| WatchedFile {
            kind: WatchedKind::Certificate,
            path: path.to_owned(),
            seen: identity_at(path),
        }));
        self.certificate = Some((files, names));
    }

    /// Whether there are none.
    pub(super) const fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Looks at all files, and reads those that have changed. One that is refused is read again when it changes again.
    fn look<I: Certificate>(&mut self) -> Vec<FileChange<I>> {
        let mut changes = Vec::new();
        let mut is_certificate_new = false;
        for file in &mut self.files {
            let present = identity_at(&file.path);
            if present != file.seen {
                file.seen = present;
                match file.kind {
                    WatchedKind::Users => {
                        changes.push(FileChange::Users(file.path.clone(), file.read_users()));
                    }
                    WatchedKind::Certificate => is_certificate_new = true,
                }
            }
        }
        if is_certificate_new {
            changes.extend(self.read_certificate().map(FileChange::Certificate));
        }
        changes
    }

    fn read_certificate<I: Certificate>(&mut self) -> Option<Result<I, String>> {
        let (files, names) = self.certificate.as_ref()?;
        let read = files.read();
        if read.as_ref().is_err_and(|(_, error)| error.is_temporary()) {
            let parts = self.files.iter_mut().filter(|file| file.kind == WatchedKind::Certificate);
            parts.for_each(|file| file.seen = None);
        }
        if let Some(warning) = files.open_key() {
            warn!("{warning}");
        }
        let read = read.map_err(|(part, error)| (Some(part), error.to_string()));
        let identity = read.and_then(|files| I::from_pem(&files));
        Some(identity.map_err(|(part, problem)| match part {
            Some(part) => format!("{}: {problem}", names.of(part)),
            None => problem,
        }))
    }
}

impl WatchedFile {
    fn read_users(&mut self) -> Result<Users, UsersError> {
        let read = UsersFile::read(&self.path);
        match &read {
            Ok(file) => self.seen = Some(Identity::of(&file.metadata)),
            Err(UsersError::Unreadable(error)) if error.is_temporary() => self.seen = None,
            Err(_) => {}
        }
        // Such a file is empty, or about to be written.
        let users = read?.users;
        if users.are_without_rights() { Err(UsersError::WithoutRights) } else { Ok(users) }
    }
}

/// Logs that the thread cannot be started.
pub(super) fn log_no_thread(error: &io::Error) {
    warn!(
        "cannot start the thread that looks at changed files, so a restart is needed for them: {}",
        text_of(error)
    );
}

impl<I: Certificate> FileWatch<I> {
    /// Starts the thread. It rings the bell when there is a change.
    pub(super) fn start(files: WatchedFiles, bell: Bell) -> io::Result<Self> {
        let (requests, queued) = mpsc::sync_channel(REQUESTS_MAX);
        // The thread waits until the event loop has taken a change.
        let (sender, changes) = mpsc::sync_channel(1);
        let run = move || watch(files, &queued, &sender, &bell);
        thread::Builder::new().name("files".to_owned()).spawn(run)?;
        Ok(Self { requests, changes })
    }

    /// Has the files looked at now.
    pub(super) fn look(&self) {
        let _ = self.requests.try_send(Request::Look);
    }

    /// Gives the service what is in files that have changed.
    pub(super) fn apply(&self, now: Time, service: &mut impl Service<Identity = I>) {
        while let Ok(change) = self.changes.try_recv() {
            match change {
                FileChange::Users(path, Ok(users)) => {
                    info!("{}: the users have changed", path.display());
                    if let Some(earlier) = service.change(now, Change::Users(Some(users))) {
                        let _ = self.requests.try_send(Request::Free(earlier));
                    }
                }
                FileChange::Users(path, Err(error)) => {
                    warn!(
                        "the users stay as they were: {}: {error}. The file is read again when it changes",
                        path.display()
                    );
                    service.change(now, Change::Users(None));
                }
                FileChange::Certificate(identity) => {
                    service.change(now, Change::Certificate(identity));
                }
            }
        }
    }

    /// Ends the thread, and waits for that unless it is stuck.
    pub(super) fn end(self) {
        let Self { requests, changes } = self;
        drop(requests);
        while changes.recv_timeout(END_PATIENCE).is_ok() {}
    }
}

fn watch<I: Certificate>(
    mut files: WatchedFiles,
    requests: &Receiver<Request>,
    changes: &SyncSender<FileChange<I>>,
    bell: &Bell,
) {
    loop {
        for change in files.look() {
            if changes.send(change).is_err() {
                return;
            }
            bell.ring();
        }
        match requests.recv_timeout(INTERVAL) {
            Ok(Request::Look) | Err(RecvTimeoutError::Timeout) => {}
            Ok(Request::Free(users)) => drop(users),
            Err(RecvTimeoutError::Disconnected) => return,
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
}
