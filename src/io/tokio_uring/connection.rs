//! The task of a connection.

use std::future::{Future, poll_fn};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use tokio_uring::net::UnixStream;

use super::Shared;
use super::buffers::{Buffer, receive, send};
use super::readiness::{End, end};
use crate::ids::ConnId;
use crate::limits::RING_RECEIVE_BYTES;
use crate::server::Service;

/// Serves a connection until the server has it closed.
pub async fn serve<S: Service>(shared: Shared<S>, conn: ConnId, fd: OwnedFd) {
    let transfer = transfer(&shared, conn, fd);
    let task_bytes = size_of_val(&transfer) + RING_RECEIVE_BYTES;
    shared.borrow_mut().grow_memory(task_bytes);
    transfer.await;
    shared.borrow_mut().closed(conn, task_bytes);
}

/// Receives and sends until the server does not want the connection any more, and closes it.
///
/// There is at most one receive and one send in flight, and neither is ever given up: bytes that have come
/// would be lost, and the kernel would go on with memory that somebody else uses by then. What makes them
/// complete when they are not wanted any more is shutdown(2). The descriptor is closed after that.
async fn transfer<S: Service>(shared: &Shared<S>, conn: ConnId, fd: OwnedFd) {
    let raw = fd.as_raw_fd();
    // The runtime's sockets are all alike; this type is only a name for one.
    let stream = UnixStream::from_std(fd.into());
    let mut receiving = pin!(None);
    let mut sending = pin!(None);
    let mut ending: Option<Pin<Box<dyn Future<Output = End>>>> = None;
    let mut small = Some(Buffer::small());
    let mut is_shut = false;
    poll_fn(|cx| {
        let state = &mut *shared.borrow_mut();
        state.enter(conn, cx.waker());
        loop {
            let mut is_idle = true;
            if let Some(result) = take_result(sending.as_mut(), cx) {
                state.sent(conn, result);
                is_idle = false;
            }
            if let Some((result, buffer)) = take_result(receiving.as_mut(), cx) {
                small = small.take().or(state.received(conn, result, buffer));
                is_idle = false;
            }
            if let Some(Poll::Ready(end)) = ending.as_mut().map(|ending| ending.as_mut().poll(cx)) {
                ending = None;
                state.ended(conn, end);
                is_idle = false;
            }
            if state.is_closing(conn) {
                ending = None;
                if sending.is_none() && receiving.is_none() {
                    state.leave();
                    return Poll::Ready(());
                }
                if !is_shut {
                    is_shut = true;
                    // It fails for one that is broken: then nothing waits for it.
                    let _ = stream.shutdown(Shutdown::Both);
                }
            } else {
                if sending.is_none()
                    && let Some(outgoing) = state.outgoing(conn)
                {
                    sending.set(Some(send(&stream, outgoing)));
                    is_idle = false;
                }
                if receiving.is_none() && state.is_reading(conn) {
                    receiving.set(Some(receive(&stream, state.buffer(conn, &mut small))));
                    is_idle = false;
                }
                match (state.is_looking_for_end(conn), &ending) {
                    (true, None) => {
                        ending = Some(Box::pin(end(raw)));
                        is_idle = false;
                    }
                    (false, Some(_)) => ending = None,
                    _ => {}
                }
            }
            if is_idle {
                state.leave();
                return Poll::Pending;
            }
        }
    })
    .await;
}

/// The result of what is in flight, if it has come; then nothing is in flight.
fn take_result<F: Future>(mut flight: Pin<&mut Option<F>>, cx: &mut Context<'_>) -> Option<F::Output> {
    match flight.as_mut().as_pin_mut()?.poll(cx) {
        Poll::Ready(output) => {
            flight.set(None);
            Some(output)
        }
        Poll::Pending => None,
    }
}
