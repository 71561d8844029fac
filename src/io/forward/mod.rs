//! A standby forwards the bytes of its clients to the leader.
//!
//! The event loop accepts connections and hands them over. One thread owns them from then on, and knows nothing of the queue. For each
//! client it connects to the leader's listener for standbys, over the TLS of the [link](crate::transport::link). It sends a
//! [header](crate::transport::forwarded::header) with the client's address and the leader's secret, and passes bytes on in both
//! directions. What a client sends over TLS is encrypted twice.
//!
//! - A change of leader closes every forwarded connection at once. Nothing is replayed, what the leader has not received is dropped, and
//!   no half of a reply is completed.
//! - Clients that come while there is no leader wait for one: a bounded number, for a bounded time. If this server becomes the leader, its
//!   event loop gets them back. So do clients whose connection to the
//!   leader fails, since none of their bytes has been read.
//! - Memory is bounded: a client that does not read costs at most [`BUFFER_BYTES`] in each direction, and then its sender is paused. All
//!   of them together cost little more than their share of the memory limit.
//! - Work is bounded: a budget is charged for the bytes that are passed on, and for handshakes. When an iteration is full, the other
//!   connections wait for their turn, first come, first served. So a client does not wait for all bytes of others.
//!
//! **Why receive and send.** With 64 clients that each send 80 bytes and wait for 14, a cycle costs this thread 5.1 us of CPU by recv(2)
//! and send(2), and 5.7 us by splice(2), both without TLS, which splice(2) cannot serve. All connections share one buffer for each
//! step, which stays in the CPU's cache. A copy is allocated only for what the other side does not take.
//!
//! **Why a connection to watch the leader.** `TCP_USER_TIMEOUT` closes a connection when a machine is gone, but also when a leader that
//! lives does not read for that long, as it does while the engine is slow. So only one connection has this option. Nothing is sent on it
//! after its header, and to the leader it is one more client. When it times out, all others close too.

mod connection;
mod hop;
mod leader;
mod worker;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use nix::sys::eventfd::{EfdFlags, EventFd};

use self::worker::{Order, Worker};
use crate::io::bell::Bell;
use crate::io::lost_peers::Keepalive;
use crate::server::ForwardCounts;
use crate::time::Span;
use crate::transport::forwarded::Inbound;
use crate::values::link_secret::LinkSecret;

/// The most that is received at once, and so the most that one direction of a connection keeps.
pub const BUFFER_BYTES: usize = 64 * 1024;

/// The most that one receive takes while the memory for that is short.
pub const RECEIVE_BYTES_MIN: usize = 1024;

/// The part of the memory that is left which one direction of a connection may take.
const RECEIVE_PART: usize = 8;

/// The limits of a [`Forwarder`].
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The maximum number of clients. Each takes two descriptors.
    pub connections_max: usize,
    /// The maximum number of clients that wait for a leader.
    pub waiting_max: usize,
    /// How long a client waits for a leader that answers.
    pub wait: Span,
    /// How long an address of the leader may take to accept a connection.
    pub connect: Span,
    /// The memory of bytes that the other side does not take, in bytes. Near it, less is received at once, and beyond it
    /// [`RECEIVE_BYTES_MIN`], or a record of the leader.
    pub memory_max: usize,
    /// When the kernel probes clients, if it does.
    pub keepalive: Option<Keepalive>,
    /// How long the machine of the leader may be silent. The kernel checks once per second.
    pub gone_after: Span,
}

/// A leader.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaderTarget {
    /// Its listener for standbys, as `HOST:PORT`. An IPv6 address is in brackets.
    pub address: String,
    /// What proves this server to it, and it to this server.
    pub secret: LinkSecret,
}

/// Where a client has come from.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The number of the listener, for the event loop.
    pub listener: usize,
    /// What the header says of it to the leader.
    pub inbound: Inbound,
}

/// A client that the event loop serves, since this server leads.
#[derive(Debug)]
pub struct GivenBack {
    /// Nothing of it was read.
    pub client: OwnedFd,
    /// See [`Arrival`].
    pub listener: usize,
}

/// The thread that forwards connections, for the event loop. Dropping it closes all connections and ends the thread. This waits for a
/// name of a leader that is being looked up.
#[derive(Debug)]
pub struct Forwarder {
    orders: Sender<Order>,
    given_back: Receiver<GivenBack>,
    wake: Arc<EventFd>,
    counts: Arc<ForwardCounts>,
    connections_max: usize,
    thread: Option<JoinHandle<()>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connections_max: usize::MAX,
            waiting_max: 1024,
            wait: Span::from_secs(10),
            connect: Span::from_secs(1),
            memory_max: usize::MAX,
            keepalive: None,
            gone_after: Span::from_secs(6),
        }
    }
}

impl Forwarder {
    /// Starts the thread. There is no leader at first.
    ///
    /// # Errors
    /// Those of eventfd(2), epoll_create(2) and of the start of a thread.
    pub fn start(settings: Settings) -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = Arc::new(EventFd::from_value_and_flags(0, flags)?);
        let counts = Arc::new(ForwardCounts::default());
        let (orders, received) = mpsc::channel();
        let (gives_back, given_back) = mpsc::channel();
        let all_orders = (orders.clone(), received);
        let mut worker =
            Worker::new(settings, Arc::clone(&counts), all_orders, gives_back, Arc::clone(&wake))?;
        let thread = thread::Builder::new().name("forward".to_owned()).spawn(move || worker.run())?;
        let connections_max = settings.connections_max;
        Ok(Self { orders, given_back, wake, counts, connections_max, thread: Some(thread) })
    }

    /// Forwards a client that was accepted. It is closed at once if there are too many.
    pub fn forward(&self, client: OwnedFd, arrival: Arrival) {
        if self.is_full() {
            self.counts.refused.add(1);
            return;
        }
        self.counts.open.add(1);
        self.order(Order::Forward(client, arrival));
    }

    /// Whether there are as many clients as there may be.
    pub fn is_full(&self) -> bool {
        self.counts.open.get() >= self.connections_max as u64
    }

    /// The maximum number of clients.
    pub const fn connections_max(&self) -> usize {
        self.connections_max
    }

    /// Sets the leader. If it is another one than before, or none, all forwarded connections close, and clients that wait go on
    /// waiting.
    pub fn lead_to(&self, target: Option<LeaderTarget>) {
        self.order(Order::Lead(target));
    }

    /// Has all forwarded connections closed, and [gives back](Self::given_back) the clients that wait: this server leads. Then the
    /// bell rings.
    pub(super) fn give_back(&self, bell: Option<Bell>) {
        self.order(Order::GiveBack(bell));
    }

    /// The next client that is given back.
    pub fn given_back(&self) -> Option<GivenBack> {
        self.given_back.try_recv().ok()
    }

    /// The counts, which change at any time.
    pub const fn counts(&self) -> &Arc<ForwardCounts> {
        &self.counts
    }

    fn order(&self, order: Order) {
        // This fails only if the thread has panicked. Its connections are closed then.
        if self.orders.send(order).is_ok() {
            let _ = self.wake.write(1);
        }
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.order(Order::End);
        let ended = self.thread.take().map(JoinHandle::join);
        if !thread::panicking() {
            ended.expect("it is joined once").expect("the thread does not panic");
        }
        self.counts.open.set(0);
    }
}
