//! Ctrl-C: the first asks for an orderly end, the second ends at once.

use std::cell::Cell;
use std::rc::Rc;

use tokio::sync::Notify;

/// The exit code of a process that Ctrl-C ended.
pub const EXIT_INTERRUPTED: u8 = 130;

/// Whether Ctrl-C came.
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
        tokio::task::spawn_local(async move {
            // Without a handler Ctrl-C ends the process as ever.
            while tokio::signal::ctrl_c().await.is_ok() {
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
