//! The job log in PostgreSQL: a thread that owns no state carries out the requests of the log on up to twelve sessions.
//!
//! | sessions | what for |
//! |---|---|
//! | 4 | appends: each is one statement that commits by itself |
//! | 1 each | renew, claim, trim, vacuum, reserve, read, watch |
//! | 1 | holds the lock of the epoch as long as the process leads |
//!
//! A session opens when it is needed, and closes after a minute without use. A request whose session is lost is answered
//! [`Failure::Unknown`](crate::wal::replica::Failure), and so is one that waits for a connection in vain.

mod append;
mod check;
mod claim;
mod extent;
mod lock;
mod password;
mod read;
mod reserve;
mod rewrite;
mod session;
mod settings;
mod tables;
mod tls;
mod tool_error;
mod transfer;
mod trim;
mod watch;
mod worker;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};

use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

pub use self::check::{CheckError, Commits, check};
pub use self::extent::Known;
pub use self::rewrite::rewrite;
use self::session::SharedState;
pub use self::settings::{LOG, Settings, UrlError};
pub use self::tables::{Created, Standby, Status, Watcher, init, status};
pub use self::tool_error::ToolError;
pub use self::transfer::{export, import};
use self::worker::Outbox;
use crate::io::Database;
use crate::wal::replica::{DatabaseReply, LogStore, Request};

/// The database as the event loop sees it: a request in, its reply later.
pub struct PostgresStore {
    /// At most one request of each kind is in flight, so this is bounded.
    requests: Option<UnboundedSender<Request>>,
    replies: Receiver<DatabaseReply>,
    known: Known,
    reply_fd: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl PostgresStore {
    /// Starts the thread. It connects when the first request begins.
    ///
    /// # Errors
    /// If there are no threads or descriptors left.
    pub fn new(settings: Settings) -> io::Result<Self> {
        let reply_fd =
            Arc::new(EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let (reported, replies) = mpsc::channel();
        let (requests, queued) = unbounded_channel();
        let outbox = Outbox::new(reported, reply_fd.clone());
        let shared = SharedState::knowing(settings.seen);
        let known = Known(shared.clone());
        let runtime = runtime()?;
        let thread = thread::Builder::new().name("replica".to_owned()).spawn(move || {
            runtime.block_on(worker::run(Arc::new(settings), shared, queued, outbox));
            // A name that is being resolved is not waited for.
            runtime.shutdown_background();
        })?;
        Ok(Self { requests: Some(requests), replies, known, reply_fd, thread: Some(thread) })
    }

    /// What it knows of the log, for [`Settings::knowing`] of a program that this one executes.
    pub fn known(&self) -> Known {
        self.known.clone()
    }
}

impl LogStore for PostgresStore {
    fn begin(&mut self, request: Request) {
        let requests = self.requests.as_ref().expect("it is there until the end");
        requests.send(request).expect("the thread runs as long as this value lives");
    }

    fn reply(&mut self) -> Option<DatabaseReply> {
        self.replies.try_recv().ok()
    }
}

impl Database for PostgresStore {
    fn reply_fd(&self) -> BorrowedFd<'_> {
        self.reply_fd.as_fd()
    }

    fn clear_reply_fd(&mut self) {
        // An error means that it was not readable.
        let _ = self.reply_fd.read();
    }

    fn end(self: Box<Self>) {
        drop(self);
    }
}

impl Drop for PostgresStore {
    /// Ends the sessions, which frees the lock of the epoch. Requests in flight get no reply.
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // A panic has been printed.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").finish_non_exhaustive()
    }
}

/// Runs a task of a tool.
fn block_on<T, E: From<CheckError>>(task: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    let runtime = runtime().map_err(|error| CheckError::Unreachable(error.to_string()))?;
    let result = runtime.block_on(task);
    runtime.shutdown_background();
    result
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_io().enable_time().max_blocking_threads(1).build()
}
