//! Ctrl-C and SIGTERM: the first signal requests an orderly end, the second one ends the process.

use std::cell::Cell;
use std::rc::Rc;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

/// The exit code of a process that a signal ended.
pub const EXIT_INTERRUPTED: u8 = 130;

/// Whether a signal has arrived.
#[derive(Default)]
pub struct Interrupt {
    came: Cell<bool>,
    notify: Notify,
}

impl Interrupt {
    /// Installs the handlers. Must be called within a runtime.
    pub fn listen() -> Rc<Interrupt> {
        let interrupt = Rc::new(Interrupt::default());
        let listener = interrupt.clone();
        // Without handlers the signals end the process by default.
        let (Ok(mut ctrl_c), Ok(mut term)) =
            (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
        else {
            return interrupt;
        };
        tokio::task::spawn_local(async move {
            while tokio::select! { came = ctrl_c.recv() => came, came = term.recv() => came }.is_some() {
                if listener.came.replace(true) {
                    std::process::exit(i32::from(EXIT_INTERRUPTED));
                }
                listener.notify.notify_waiters();
            }
        });
        interrupt
    }

    /// Returns whether a signal has arrived.
    pub fn came(&self) -> bool {
        self.came.get()
    }

    /// Waits for a signal.
    pub async fn wait(&self) {
        if !self.came() {
            self.notify.notified().await;
        }
    }
}
