//! The driver on tokio-uring's runtime: a task for each connection, its receives and sends requests on a
//! ring.
//!
//! The runtime is one thread. It takes a batch of completions, wakes the tasks that they are for, and hands
//! the new requests to the kernel before it waits again. All tasks share one [`State`], which no task keeps
//! borrowed while it waits. The first event of a batch wakes the task of [`turns`], which runs after
//! the connections of the batch.
//!
//! What has no request in this runtime, or is better without, goes by readiness: connections are accepted
//! by accept(2), since a cancelled request may have made a descriptor that nobody closes; signals are read
//! from their descriptor; and the end of a connection that is not received from is looked for by poll(2).

mod buffers;
mod connection;
mod log_files;
mod readiness;
mod state;

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use nix::errno::Errno;
use tokio::time::{Instant, sleep_until};
pub use tokio_uring::Runtime;
use tokio_uring::{no_op, spawn};
use tracing::debug;

use self::readiness::Watched;
use self::state::State;
use super::refusal::Refusal;
use super::socket::to_errno;
use super::{DriverError, Ending, Sources, patiently};
use crate::limits::{ACCEPTS_MAX, LAST_ROUNDS_MAX};
use crate::server::Service;
use crate::time::Time;

/// What `stats` calls this driver.
pub const NAME: &str = "tokio-uring";

/// Requests gathered before they go to the kernel in the middle of a batch.
const SUBMISSIONS: u32 = 1024;

/// Completions that the ring holds; the kernel keeps what comes beyond them, at a price.
const COMPLETIONS: u32 = 8 * SUBMISSIONS;

type Shared<S> = Rc<RefCell<State<S>>>;

/// Serves until the process is told to stop, or to let another program take over.
pub fn run<S: Service + 'static>(
    server: S,
    runtime: Runtime,
    sources: Sources,
) -> Result<Ending, DriverError> {
    let shared = Rc::new(RefCell::new(State::new(server, sources)));
    let result = runtime.block_on(serve(shared.clone()));
    // Taken now, since nothing will drop the state.
    let listeners = mem::take(&mut shared.borrow_mut().listeners);
    let is_replaced = shared.borrow().is_replaced;
    let disk = shared.borrow_mut().log.take().map(|log| log.disk);
    shared.borrow_mut().signals.end_checks();
    // Dropped, the runtime would drop its tasks with the buffers that the kernel still writes to, or wait for
    // each request. As the process ends, the kernel cancels them first and then takes the memory.
    mem::forget(runtime);
    result.map(|()| Ending::of(is_replaced, listeners.into_iter(), disk))
}

/// The runtime, with its ring, if the kernel grants one.
///
/// COOP_TASKRUN and SINGLE_ISSUER save interruptions of the one thread that uses the ring; kernels before 6.0
/// do not know both and get a plain ring.
pub fn runtime() -> Result<Runtime, DriverError> {
    let mut ring = tokio_uring::uring_builder();
    ring.setup_cqsize(COMPLETIONS);
    let mut plain = tokio_uring::builder();
    plain.entries(SUBMISSIONS).uring_builder(&ring);
    ring.setup_coop_taskrun().setup_single_issuer();
    let mut quiet = tokio_uring::builder();
    quiet.entries(SUBMISSIONS).uring_builder(&ring);
    let attempt = || {
        Runtime::new(&quiet).or_else(|error| match error.kind() {
            io::ErrorKind::InvalidInput => Runtime::new(&plain),
            _ => Err(error),
        })
    };
    let runtime = patiently(attempt, is_out_of_memory);
    runtime
        .map_err(|error| DriverError::Ring(Refusal { driver: NAME, oldest: "5.10", errno: to_errno(&error) }))
}

/// Starts what runs in the background and waits for the end.
async fn serve<S: Service + 'static>(shared: Shared<S>) -> Result<(), DriverError> {
    {
        let mut state = shared.borrow_mut();
        if let Err(error) = patiently(|| state.fixed.register(), is_out_of_memory) {
            debug!("receiving without registered buffers: {error}");
        }
        for (index, listener) in state.listeners.iter().enumerate() {
            let listener = Watched::new(listener.as_fd().as_raw_fd()).map_err(DriverError::Setup)?;
            spawn(accepts(shared.clone(), index, listener));
        }
        let signals = Watched::new(state.signals.as_fd().as_raw_fd()).map_err(DriverError::Setup)?;
        spawn(signals_come(shared.clone(), signals));
        if let Some(log) = &state.log {
            let bell = Watched::new(log.disk.outcome_fd().as_raw_fd()).map_err(DriverError::Setup)?;
            spawn(disk_rings(shared.clone(), bell));
            spawn(log_files::writes(shared.clone()));
            spawn(log_files::syncs(shared.clone()));
        }
        spawn(turns(shared.clone()));
    }
    poll_fn(|cx| shared.borrow_mut().end.poll(cx)).await?;
    // The last answers go to the kernel. What it does not take now, nobody reads.
    for _ in 0..LAST_ROUNDS_MAX {
        if !shared.borrow().is_sending() {
            break;
        }
        let _ = no_op().await;
    }
    Ok(())
}

fn is_out_of_memory(error: &io::Error) -> bool {
    to_errno(error) == Errno::ENOMEM
}

/// Gives the server its own time: after each batch of events, at its deadlines, and while it has work left.
async fn turns<S: Service>(shared: Shared<S>) {
    let mut timer = pin!(sleep_until(Instant::now()));
    let mut armed: Option<Time> = None;
    loop {
        let (now, deadline) = shared.borrow_mut().turn();
        match deadline {
            Some(at) if at <= now => {
                // Through the ring and back, so that what has completed meanwhile comes first.
                let _ = no_op().await;
                continue;
            }
            // A timer that fires early costs a turn; to set it anew each time would cost more.
            Some(at) if armed.is_none_or(|armed| at < armed) => {
                armed = Some(at);
                timer.as_mut().reset(Instant::now() + Duration::from_nanos(at.since(now).as_nanos()));
            }
            _ => {}
        }
        poll_fn(|cx| {
            if armed.is_some() && timer.as_mut().poll(cx).is_ready() {
                armed = None;
                return Poll::Ready(());
            }
            shared.borrow_mut().batch.poll(cx)
        })
        .await;
    }
}

/// Takes connections in, a bounded number before the others have their turn.
async fn accepts<S: Service + 'static>(shared: Shared<S>, index: usize, listener: Watched) {
    loop {
        poll_fn(|cx| shared.borrow_mut().poll_admission(index, cx)).await;
        let readable = listener.readable().await;
        let mut accepted = 0;
        let is_empty = loop {
            if accepted == ACCEPTS_MAX {
                break false;
            }
            match state::accept(&shared, index) {
                Ok(true) => accepted += 1,
                Ok(false) => break !shared.borrow().is_resting(index),
                Err(error) => return shared.borrow_mut().end.set(Err(error)),
            }
        };
        match readable {
            Ok(mut readable) if is_empty => readable.clear_ready(),
            Ok(_) => {}
            Err(error) => return shared.borrow_mut().end.set(Err(DriverError::Accept(to_errno(&error)))),
        }
        if accepted == ACCEPTS_MAX {
            let _ = no_op().await;
        }
    }
}

/// Hears what the disk's thread has done.
async fn disk_rings<S: Service>(shared: Shared<S>, bell: Watched) {
    loop {
        match bell.readable().await {
            Ok(mut readable) => {
                readable.clear_ready();
                shared.borrow_mut().hear_disk();
            }
            Err(error) => return shared.borrow_mut().end.set(Err(DriverError::Wait(to_errno(&error)))),
        }
    }
}

/// Reads the signals.
async fn signals_come<S: Service>(shared: Shared<S>, signals: Watched) {
    loop {
        let readable = signals.readable().await;
        let read = shared.borrow_mut().read_signals();
        match (readable, read) {
            (Ok(mut readable), Ok(())) => readable.clear_ready(),
            (_, Err(error)) => return shared.borrow_mut().end.set(Err(error)),
            (Err(error), _) => {
                return shared.borrow_mut().end.set(Err(DriverError::Signals(to_errno(&error))));
            }
        }
    }
}
