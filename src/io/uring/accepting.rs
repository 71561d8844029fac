//! Listeners: the ring reports once that connections wait, and accept(2) takes a bounded number of them.

use nix::errno::Errno;

use super::UringDriver;
use super::ring::{Completion, Ring, Token};
use crate::io::DriverError;
use crate::io::shell::Backend;
use crate::server::Service;
use crate::time::Span;

/// Waits for the end of requests on listeners, each of at most 1 ms.
const UNWATCH_ENTERS_MAX: usize = 1000;

impl<S: Service, R: Ring> UringDriver<S, R> {
    pub(super) fn watch_all_listeners(&mut self) {
        self.watch_listeners().expect("a request does not fail when it is made");
    }

    /// Accepts connections after the watch of a listener has completed, and watches it again.
    pub(super) fn accept(&mut self, listener: usize, watched: Result<u32, Errno>) -> Result<(), DriverError> {
        self.shell.listeners[listener].is_watched = false;
        if let Err(errno) = watched {
            self.shell.admission.pause(self.shell.now, errno);
        }
        self.accept_batch(listener)?;
        self.watch_all_listeners();
        Ok(())
    }

    /// Cancels the requests on listeners, so that another server can bind their addresses as soon as this one has ended. The
    /// kernel keeps a listener open as long as a request refers to it, even after the process has ended.
    pub(super) fn unwatch_listeners(&mut self) -> nix::Result<()> {
        for (number, watched) in self.shell.listeners.iter().enumerate() {
            if watched.is_watched {
                self.ring.cancel(Token::Listener(number as u32));
            }
        }
        for _ in 0..UNWATCH_ENTERS_MAX {
            let is_watched = self.shell.listeners.iter().any(|watched| watched.is_watched);
            self.ring.enter(Some(if is_watched { Span::from_millis(1) } else { Span::ZERO }))?;
            if !is_watched {
                break;
            }
            while let Some(Completion { token, .. }) = self.ring.next() {
                if let Token::Listener(number) = token {
                    self.shell.listeners[number as usize].is_watched = false;
                }
            }
        }
        Ok(())
    }
}
