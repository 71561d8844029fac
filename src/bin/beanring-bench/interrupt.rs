//! Ctrl-C and SIGTERM: the first asks for an orderly end, the second ends at once.

use std::cell::Cell;
use std::rc::Rc;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

/// The exit code of a process that one of them ended.
pub const EXIT_INTERRUPTED: u8 = 130;

/// Whether one came.
#[derive(Default)]
pub struct Interrupt {
    came: Cell<bool>,
    notify: Notify,
}

impl Interrupt {
    /// Listens from now on. To be called within a runtime.
    pub fn listen() -> Rc<Interrupt> {
        let interrupt = Rc::new(Interrupt::default());
        let listener = interrupt.clone();
        // Without handlers they end the process as ever.
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

    /// Whether it came.
    pub fn came(&self) -> bool {
        self.came.get()
    }

    /// Returns when it has come.
    pub async fn wait(&self) {
        if !self.came() {
            self.notify.notified().await;
        }
    }
}
