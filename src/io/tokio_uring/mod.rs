//! The driver on tokio-uring's runtime: a task for each connection, whose receives and sends are requests on a ring.
//!
//! The runtime is one thread. It takes a batch of completions, wakes the tasks that they are for, and submits the new requests
//! before it waits again. All tasks share one `TokioDriver`, which no task keeps borrowed while it waits. The first event of
//! a batch wakes the task of `turns`, which runs after the connections of the batch.
//!
//! Some things have no request in this runtime, or are better without, and use readiness. Connections are accepted by
//! accept(2), since a cancelled request may have made a descriptor that nothing closes. Signals are read from their
//! descriptor. poll(2) finds the end of a paused connection.

mod buffers;
mod connection;
mod driver;
mod log_files;
mod readiness;

use std::cell::RefCell;
use std::convert::Infallible;
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

use self::driver::TokioDriver;
use self::readiness::Watched;
use super::ring_error::RingError;
use super::shell::Backend;
use super::socket::{text_of, to_errno};
use super::{DriverError, Exit, Resources, retry_for_locked_memory};
use crate::server::Service;
use crate::time::Time;
use crate::values::limits::{FIXED_BUFFER_BYTES, FIXED_BUFFERS};

/// What `stats` calls this driver.
pub const NAME: &str = "tokio-uring";

/// Requests gathered before they are submitted in the middle of a batch.
const SUBMISSIONS: u32 = 1024;

/// Completions that the ring holds. The kernel keeps further ones, at a cost.
const COMPLETIONS: u32 = 8 * SUBMISSIONS;

/// Memory of all registered buffers.
const FIXED_BYTES: u64 = (FIXED_BUFFERS * FIXED_BUFFER_BYTES) as u64;

/// Memory of the ring without its headers: requests and completions.
const RING_BYTES: u64 = 64 * SUBMISSIONS as u64 + 16 * COMPLETIONS as u64;

/// Iterations of the ring at the end, in which the last replies are sent.
const LAST_ITERATIONS_MAX: usize = 1000;

type Shared<S> = Rc<RefCell<TokioDriver<S>>>;

/// Runs the server until it stops or restarts in place.
///
/// # Errors
/// If the runtime or a listener breaks, or the server fails.
pub fn run<S: Service + 'static>(
    server: S,
    runtime: Runtime,
    resources: Resources,
) -> Result<Exit, DriverError> {
    let shared = Rc::new(RefCell::new(TokioDriver::new(server, resources)));
    let result = runtime.block_on(serve(shared.clone()));
    let exit = shared.borrow_mut().shell().exit(result);
    // Dropped, the runtime would drop its tasks with the buffers that the kernel still writes to, or wait for each request. At
    // the end of the process the kernel cancels the requests before it frees the memory.
    mem::forget((runtime, shared));
    exit
}

/// Sets up the runtime with its ring.
///
/// COOP_TASKRUN and SINGLE_ISSUER save interruptions of the one thread that uses the ring. Kernels before 6.0 do not know both
/// and get a plain ring.
///
/// # Errors
/// If the kernel grants no ring.
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
    retry_for_locked_memory(RING_BYTES, attempt, is_out_of_memory).map_err(|error| {
        DriverError::Ring(RingError { driver: NAME, oldest: "5.10", errno: to_errno(&error) })
    })
}

/// Starts the tasks of the driver and waits for the end of the run.
async fn serve<S: Service + 'static>(shared: Shared<S>) -> Result<(), DriverError> {
    {
        let mut driver = shared.borrow_mut();
        let register = || driver.fixed.register();
        if let Err(error) = retry_for_locked_memory(FIXED_BYTES, register, is_out_of_memory) {
            debug!("receiving without registered buffers: {}", text_of(&error));
        }
        let shell = driver.shell();
        for index in 0..shell.listeners.len() {
            shell.listeners[index].is_watched = true;
            let fd = shell.listeners[index].listener.as_fd().as_raw_fd();
            let listener = Watched::new(fd).map_err(DriverError::Setup)?;
            spawn_service(&shared, accept_connections(shared.clone(), index, listener));
        }
        let signals = Watched::new(shell.signals.as_fd().as_raw_fd()).map_err(DriverError::Setup)?;
        spawn_service(&shared, read_signals(shared.clone(), signals));
        if let Some(fd) = shell.outcome_fd() {
            let bell = Watched::new(fd.as_raw_fd()).map_err(DriverError::Setup)?;
            spawn_service(&shared, complete_log_requests(shared.clone(), bell));
            spawn(log_files::write(shared.clone()));
            spawn(log_files::sync(shared.clone()));
        }
        spawn(turns(shared.clone()));
    }
    poll_fn(|cx| shared.borrow_mut().end.poll(cx)).await?;
    // The kernel gets the last replies. What it does not take now, no client would read.
    for _ in 0..LAST_ITERATIONS_MAX {
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

/// Gives the server its turn: after each batch of events, at its deadlines, and while it has work left.
async fn turns<S: Service + 'static>(shared: Shared<S>) {
    let mut timer = pin!(sleep_until(Instant::now()));
    let mut armed: Option<Time> = None;
    loop {
        let (now, deadline) = shared.borrow_mut().turn();
        serve_admitted(&shared);
        match deadline {
            Some(at) if at <= now => {
                // A round trip through the ring, so that requests that have completed come first.
                let _ = no_op().await;
                continue;
            }
            // A timer that fires early costs a turn. Setting it each time would cost more.
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

/// Starts the tasks of accepted connections.
fn serve_admitted<S: Service + 'static>(shared: &Shared<S>) {
    let admitted = mem::take(&mut shared.borrow_mut().admitted);
    for (conn, fd) in admitted {
        spawn(connection::serve(shared.clone(), conn, fd));
    }
}

/// Starts a task that runs until the driver cannot continue.
fn spawn_service<S: Service + 'static>(
    shared: &Shared<S>,
    task: impl Future<Output = Result<Infallible, DriverError>> + 'static,
) {
    let shared = shared.clone();
    spawn(async move {
        let Err(error) = task.await;
        shared.borrow_mut().end.set(Err(error));
    });
}

/// Accepts connections at a listener, a bounded number before the other tasks run.
async fn accept_connections<S: Service + 'static>(
    shared: Shared<S>,
    index: usize,
    listener: Watched,
) -> Result<Infallible, DriverError> {
    loop {
        poll_fn(|cx| shared.borrow_mut().poll_accept(index, cx)).await;
        let readable = listener.readable().await;
        let accepted = shared.borrow_mut().accept_batch(index);
        serve_admitted(&shared);
        let may_have_more = accepted?;
        let mut readable = readable.map_err(|error| DriverError::Accept(to_errno(&error)))?;
        if may_have_more {
            let _ = no_op().await;
        } else if !shared.borrow_mut().shell().is_accept_paused(index) {
            readable.clear_ready();
        }
    }
}

/// Passes on what the threads of the disk have completed.
async fn complete_log_requests<S: Service>(
    shared: Shared<S>,
    bell: Watched,
) -> Result<Infallible, DriverError> {
    loop {
        let readable = bell.readable().await;
        readable.map_err(|error| DriverError::Wait(to_errno(&error)))?.clear_ready();
        shared.borrow_mut().complete_log_requests();
    }
}

async fn read_signals<S: Service>(shared: Shared<S>, signals: Watched) -> Result<Infallible, DriverError> {
    loop {
        let readable = signals.readable().await;
        shared.borrow_mut().read_signals()?;
        readable.map_err(|error| DriverError::Signals(to_errno(&error)))?.clear_ready();
    }
}
