//! The thread: a task for each kind of request.

use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use nix::sys::eventfd::EventFd;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex, Notify};
use tokio::time::timeout;

use super::append::{self, Append};
use super::lock::Lock;
use super::session::{Link, SharedState};
use super::{Settings, claim, lock, read, reserve, trim, vacuum, watch};
use crate::wal::replica::{APPENDS_MAX, Reply, Request};

/// A session that is unused for this long is closed.
pub(super) const IDLE_MAX: Duration = Duration::from_secs(60);

/// Where replies go.
#[derive(Clone)]
pub(super) struct Outbox {
    replies: Sender<Reply>,
    reply_fd: Arc<EventFd>,
}

/// Requests of one kind. Several tasks may take them.
type Inbox<T> = Arc<Mutex<UnboundedReceiver<T>>>;

impl Outbox {
    pub fn new(replies: Sender<Reply>, reply_fd: Arc<EventFd>) -> Self {
        Self { replies, reply_fd }
    }

    pub fn send(&self, reply: Reply) {
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

    /// The number of the log for SQL.
    pub fn log(&self) -> i32 {
        self.settings.log.sql()
    }
}

/// Passes requests to their tasks until there will be no more.
pub(super) async fn run(settings: Arc<Settings>, mut requests: UnboundedReceiver<Request>, outbox: Outbox) {
    let (lock, keeper) = Lock::new();
    let trimmed = Arc::new(Notify::new());
    let context =
        Context { settings, outbox, lock, trimmed: trimmed.clone(), shared: SharedState::default() };
    tokio::spawn(lock::keep(context.clone(), keeper));
    let appends = start::<Append, _, _>(&context, APPENDS_MAX, append::append);
    let renewals = start(&context, 1, append::renew);
    let claims = start(&context, 1, claim::claim);
    let reads = start(&context, 1, read::read);
    let trims = start(&context, 1, trim::trim);
    let reserves = start(&context, 1, reserve::reserve);
    tokio::spawn(vacuum::vacuum_after_trims(context.clone(), trimmed));
    let (watches, watched) = tokio::sync::watch::channel(None);
    tokio::spawn(watch::watch(context, watched));
    while let Some(request) = requests.recv().await {
        match request {
            Request::Append { term, position, chunk, is_repeated } => {
                pass(&appends, Append { term, position, chunk, is_repeated });
            }
            Request::Renew(term) => pass(&renewals, term),
            Request::Claim(claim) => pass(&claims, claim),
            Request::Read { from } => pass(&reads, from),
            Request::Trim { term, before } => pass(&trims, trim::Trim { term, before }),
            Request::Reserve(wanted) => pass(&reserves, wanted),
            Request::Watch(term) => {
                let _ = watches.send(Some(term));
            }
        }
    }
}

fn pass<T>(requests: &UnboundedSender<T>, request: T) {
    assert!(requests.send(request).is_ok(), "its task runs as long as the thread");
}

/// Starts tasks that answer the requests of one kind, each on a session of its own.
fn start<T, F, A>(context: &Context, tasks: usize, answer: F) -> UnboundedSender<T>
where
    T: Send + 'static,
    F: Fn(Context, Link, T) -> A + Copy + Send + 'static,
    A: Future<Output = (Link, Reply)> + Send,
{
    let (requests, queued) = unbounded_channel();
    let inbox: Inbox<T> = Arc::new(Mutex::new(queued));
    for _ in 0..tasks {
        let (context, inbox) = (context.clone(), inbox.clone());
        tokio::spawn(async move {
            let mut link = context.link();
            loop {
                let next = timeout(IDLE_MAX, async { inbox.lock().await.recv().await });
                match next.await {
                    Err(_) => link.close(),
                    Ok(None) => return,
                    Ok(Some(request)) => {
                        let reply;
                        (link, reply) = answer(context.clone(), link, request).await;
                        context.outbox.send(reply);
                    }
                }
            }
        });
    }
    requests
}
