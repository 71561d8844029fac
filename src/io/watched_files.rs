//! Files that a running server reads again when they change. A thread looks at them and reads them: a file system may not answer,
//! and a large file takes time.

use std::fs::{self, Metadata};
use std::io;
use std::mem;
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
use crate::server::{Certificate, Service, Update, Users};
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
    users: Option<WatchedFile>,
    certificate: Option<WatchedCertificate>,
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

#[derive(Debug)]
struct WatchedFile {
    path: PathBuf,
    seen: Option<Identity>,
}

/// The files of a certificate, which are read together.
#[derive(Debug)]
struct WatchedCertificate {
    files: CertificateFiles,
    names: CertificateNames,
    watched: Vec<WatchedFile>,
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
    /// Adds the file of `--auth`, which was read and was this one.
    pub fn add_users(&mut self, path: PathBuf, seen: Identity) {
        self.users = Some(WatchedFile { path, seen: Some(seen) });
    }

    /// Adds the files of a certificate. They are read after this call, so that a change in between is not lost.
    pub fn add_certificate(&mut self, files: CertificateFiles, names: CertificateNames) {
        let watched = |path: &Path| WatchedFile { path: path.to_owned(), seen: identity_at(path) };
        let watched = files.paths().map(watched).collect();
        self.certificate = Some(WatchedCertificate { files, names, watched });
    }

    /// Whether there are none.
    pub(super) const fn is_empty(&self) -> bool {
        self.users.is_none() && self.certificate.is_none()
    }

    /// Looks at all files, and reads those that have changed. One that is refused is read again when it changes again.
    fn look<I: Certificate>(&mut self) -> Vec<FileChange<I>> {
        let mut changes = Vec::new();
        if let Some(file) = &mut self.users
            && file.has_changed()
        {
            changes.push(FileChange::Users(file.path.clone(), file.read_users()));
        }
        if let Some(certificate) = &mut self.certificate
            && certificate.has_changed()
        {
            changes.push(FileChange::Certificate(certificate.read()));
        }
        changes
    }
}

impl WatchedCertificate {
    fn has_changed(&mut self) -> bool {
        let mut has_changed = false;
        for file in &mut self.watched {
            has_changed |= file.has_changed();
        }
        has_changed
    }

    fn read<I: Certificate>(&mut self) -> Result<I, String> {
        let Self { files, names, watched } = self;
        let read = files.read();
        if read.as_ref().is_err_and(|(_, error)| error.is_temporary()) {
            watched.iter_mut().for_each(|file| file.seen = None);
        }
        if let Some(warning) = files.open_key() {
            warn!("{warning}");
        }
        let read = read.map_err(|(part, error)| (Some(part), error.to_string()));
        read.and_then(|files| I::from_pem(&files)).map_err(|(part, problem)| match part {
            Some(part) => format!("{}: {problem}", names.of(part)),
            None => problem,
        })
    }
}

impl WatchedFile {
    /// Whether it is another file than when it was last looked at.
    fn has_changed(&mut self) -> bool {
        let present = identity_at(&self.path);
        mem::replace(&mut self.seen, present) != present
    }

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
                    if let Some(earlier) = service.update(now, Update::Users(Some(users))) {
                        let _ = self.requests.try_send(Request::Free(earlier));
                    }
                }
                FileChange::Users(path, Err(error)) => {
                    warn!(
                        "the users stay as they were: {}: {error}. The file is read again when it changes",
                        path.display()
                    );
                    service.update(now, Update::Users(None));
                }
                FileChange::Certificate(identity) => {
                    service.update(now, Update::Certificate(identity));
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
