//! The thread: a task for each kind of request.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use nix::sys::eventfd::EventFd;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::append::{self, Append};
use super::lock::Lock;
use super::session::{Link, SharedState};
use super::{Settings, claim, lock, read, reserve, trim, watch};
use crate::wal::replica::{APPENDS_MAX, DatabaseReply, Request};

/// A session that is unused for this long is closed.
pub(super) const IDLE_MAX: Duration = Duration::from_secs(60);

/// Where replies go.
#[derive(Clone)]
pub(super) struct Outbox {
    replies: Sender<DatabaseReply>,
    reply_fd: Arc<EventFd>,
}

/// Requests of one kind, and the tasks that answer them.
struct Queue<T>(Mutex<Tasks<T>>);

struct Tasks<T> {
    /// Requests for which no task was idle.
    waiting: VecDeque<T>,
    /// Tasks without a request. The last one is the next to get one.
    idle: Vec<oneshot::Sender<T>>,
}

impl Outbox {
    pub fn new(replies: Sender<DatabaseReply>, reply_fd: Arc<EventFd>) -> Self {
        Self { replies, reply_fd }
    }

    pub fn send(&self, reply: DatabaseReply) {
        // Both fail only while the store is dropped.
        let _ = self.replies.send(reply);
        let _ = self.reply_fd.write(1);
    }
}

/// What a task works with.
#[derive(Clone)]
pub(super) struct Context {
    pub settings: Arc<Settings>,
    pub outbox: Outbox,
    pub lock: Lock,
    /// A trim has ended.
    pub trimmed: Arc<Notify>,
    shared: SharedState,
}

impl Context {
    pub fn link(&self) -> Link {
        Link::new(self.settings.clone(), self.shared.clone())
    }

    /// A link whose session has another name.
    pub fn link_named(&self, name: &str) -> Link {
        Link::new(Arc::new(self.settings.named(name)), self.shared.clone())
    }
}

/// Passes requests to their tasks until there will be no more.
pub(super) async fn run(
    settings: Arc<Settings>,
    shared: SharedState,
    mut requests: UnboundedReceiver<Request>,
    outbox: Outbox,
) {
    let (lock, keeper) = Lock::new();
    let trimmed = Arc::new(Notify::new());
    let context = Context { settings, outbox, lock, trimmed: trimmed.clone(), shared };
    tokio::spawn(lock::keep(context.clone(), keeper));
    let appends = start::<Append, _, _>(&context, APPENDS_MAX, append::append);
    let renewals = start(&context, 1, append::renew);
    let claims = start(&context, 1, claim::claim);
    let reads = start(&context, 1, read::read);
    let trims = start(&context, 1, trim::trim);
    let reserves = start(&context, 1, reserve::reserve);
    tokio::spawn(trim::vacuum_after_trims(context.clone(), trimmed));
    let (watches, watched) = tokio::sync::watch::channel(None);
    tokio::spawn(watch::watch(context, watched));
    while let Some(request) = requests.recv().await {
        match request {
            Request::Append { term, position, chunk, is_repeated } => {
                appends.pass(Append { term, position, chunk, is_repeated });
            }
            Request::Renew(term) => renewals.pass(term),
            Request::Claim(claim) => claims.pass(claim),
            Request::Read { from } => reads.pass(from),
            Request::Trim { term, before } => trims.pass((term, before)),
            Request::Reserve(wanted) => reserves.pass(wanted),
            Request::Watch(term) => {
                let _ = watches.send(Some(term));
            }
        }
    }
}

/// Starts tasks that answer the requests of one kind, each on a session of its own.
fn start<T, F, A>(context: &Context, tasks: usize, answer: F) -> Arc<Queue<T>>
where
    T: Send + 'static,
    F: Fn(Context, Link, T) -> A + Copy + Send + 'static,
    A: Future<Output = (Link, DatabaseReply)> + Send,
{
    let queue = Arc::new(Queue(Mutex::new(Tasks { waiting: VecDeque::new(), idle: Vec::new() })));
    for _ in 0..tasks {
        let (context, queue) = (context.clone(), queue.clone());
        tokio::spawn(async move {
            let mut link = context.link();
            loop {
                let mut next = queue.next(link.is_open());
                let request = match timeout(IDLE_MAX, &mut next).await {
                    Ok(request) => request,
                    Err(_) => {
                        link.close();
                        next.await
                    }
                };
                let request = request.expect("the queue lives as long as its tasks");
                let reply;
                (link, reply) = answer(context.clone(), link, request).await;
                context.outbox.send(reply);
            }
        });
    }
    queue
}

impl<T> Queue<T> {
    /// Passes a request to the task that was busy last: its process in the database has what it needs in its caches.
    fn pass(&self, request: T) {
        let mut tasks = self.tasks();
        match tasks.idle.pop() {
            Some(task) => assert!(task.send(request).is_ok(), "its task runs as long as the thread"),
            None => tasks.waiting.push_back(request),
        }
    }

    /// Returns the next request for a task. One that first has to connect is the last to get one.
    fn next(&self, has_session: bool) -> oneshot::Receiver<T> {
        let (task, next) = oneshot::channel();
        let mut tasks = self.tasks();
        match tasks.waiting.pop_front() {
            Some(request) => assert!(task.send(request).is_ok(), "its receiver is here"),
            None if has_session => tasks.idle.push(task),
            None => tasks.idle.insert(0, task),
        }
        next
    }

    fn tasks(&self) -> MutexGuard<'_, Tasks<T>> {
        self.0.lock().expect("no code panics while it holds the lock")
    }
}
