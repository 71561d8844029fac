//! The task of a connection.

use std::future::{Future, poll_fn};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use tokio_uring::net::UnixStream;

use super::Shared;
use super::buffers::{Buffer, receive, send};
use super::driver::IDLE_BUFFER_BYTES;
use super::readiness::{End, wait_for_end};
use crate::io::shell::InputState;
use crate::server::Service;
use crate::values::ids::ConnId;

/// Runs a connection until it is closed.
pub async fn serve<S: Service>(shared: Shared<S>, conn: ConnId, fd: OwnedFd) {
    let transfer = transfer(&shared, conn, fd);
    let task_bytes = size_of_val(&transfer) + IDLE_BUFFER_BYTES;
    shared.borrow_mut().task_started(task_bytes);
    transfer.await;
    shared.borrow_mut().task_ended(conn, task_bytes);
}

/// Receives and sends until the server closes the connection, and closes the descriptor.
///
/// At most one receive and one send are in flight. Neither is dropped before it completes: received bytes would be lost, and
/// the kernel would use memory that has another owner by then. shutdown(2) makes them complete when the server has closed the
/// connection. The descriptor is closed after that.
async fn transfer<S: Service>(shared: &Shared<S>, conn: ConnId, fd: OwnedFd) {
    let raw = fd.as_raw_fd();
    // The runtime treats all stream sockets alike, so this type does for TCP too.
    let stream = UnixStream::from_std(fd.into());
    let mut receiving = pin!(None);
    let mut sending = pin!(None);
    let mut ending: Option<Pin<Box<dyn Future<Output = End>>>> = None;
    let mut idle = Some(Buffer::idle());
    let mut is_shut = false;
    poll_fn(|cx| {
        let driver = &mut *shared.borrow_mut();
        if driver.must_wait(cx.waker()) {
            return Poll::Pending;
        }
        driver.enter(conn, cx.waker());
        loop {
            let mut is_idle = true;
            if let Some(result) = take_result(sending.as_mut(), cx) {
                driver.sent(conn, result);
                is_idle = false;
            }
            if let Some((result, buffer)) = take_result(receiving.as_mut(), cx) {
                idle = idle.take().or(driver.received(conn, result, buffer));
                is_idle = false;
            }
            if let Some(Poll::Ready(end)) = ending.as_mut().map(|ending| ending.as_mut().poll(cx)) {
                ending = None;
                driver.ended(conn, end);
                is_idle = false;
            }
            if driver.input(conn) == InputState::Closing {
                ending = None;
                if sending.is_none() && receiving.is_none() {
                    driver.leave();
                    return Poll::Ready(());
                }
                if !is_shut {
                    is_shut = true;
                    // It fails for a broken connection, whose requests complete anyway.
                    let _ = stream.shutdown(Shutdown::Both);
                }
            } else {
                if sending.is_none()
                    && let Some(outgoing) = driver.outgoing(conn)
                {
                    sending.set(Some(send(&stream, outgoing)));
                    is_idle = false;
                }
                if receiving.is_none() && driver.input(conn) == InputState::Receiving {
                    receiving.set(Some(receive(&stream, driver.buffer(conn, &mut idle))));
                    is_idle = false;
                }
                match (driver.is_watching(conn), &ending) {
                    (true, None) => {
                        ending = Some(Box::pin(wait_for_end(raw)));
                        is_idle = false;
                    }
                    (false, Some(_)) => ending = None,
                    _ => {}
                }
            }
            if is_idle {
                driver.leave();
                return Poll::Pending;
            }
        }
    })
    .await;
}

/// Takes the result of the request in flight, if it has completed.
fn take_result<F: Future>(mut flight: Pin<&mut Option<F>>, cx: &mut Context<'_>) -> Option<F::Output> {
    match flight.as_mut().as_pin_mut()?.poll(cx) {
        Poll::Ready(output) => {
            flight.set(None);
            Some(output)
        }
        Poll::Pending => None,
    }
}
