//! The terminal: taken at the start, given back at the end of the program however it ends, and written to only where the
//! screen has changed.

use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::{env, panic, process};

use ratatui_core::backend::Backend;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_crossterm::CrosstermBackend;
use ratatui_crossterm::crossterm::cursor::{Hide, Show};
use ratatui_crossterm::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use ratatui_crossterm::crossterm::{execute, queue};

/// The exit code of a program that has panicked.
const EXIT_PANIC: i32 = 101;

/// A terminal that shows only this program.
pub(super) struct Screen {
    backend: CrosstermBackend<BufWriter<Stdout>>,
    /// What the terminal shows; none if that is not known.
    shown: Option<Buffer>,
}

/// Whether there is a terminal to take.
pub(super) fn is_possible() -> bool {
    io::stdout().is_terminal()
        && io::stdin().is_terminal()
        && env::var_os("TERM").is_none_or(|term| term != "dumb")
}

impl Screen {
    /// Takes the terminal. A panic gives it back, and then ends the program with its message.
    ///
    /// # Errors
    /// If the system refuses.
    pub(super) fn open() -> io::Result<Self> {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            restore();
            print(panic);
            process::exit(EXIT_PANIC);
        }));
        // From here on the drop of this value gives the terminal back.
        let mut screen = Self { backend: CrosstermBackend::new(BufWriter::new(io::stdout())), shown: None };
        enable_raw_mode()?;
        execute!(screen.backend, EnterAlternateScreen, Hide)?;
        Ok(screen)
    }

    /// The size of the terminal.
    ///
    /// # Errors
    /// If there is no terminal any more.
    pub(super) fn area() -> io::Result<Rect> {
        let (width, height) = size()?;
        Ok(Rect::new(0, 0, width, height))
    }

    /// Shows a screen. Only cells that differ are written, and nothing if none does.
    ///
    /// # Errors
    /// If there is no terminal any more.
    pub(super) fn show(&mut self, next: Buffer) -> io::Result<()> {
        let empty;
        let shown = match &self.shown {
            Some(shown) if shown.area == next.area => shown,
            _ => {
                self.backend.clear()?;
                empty = Buffer::empty(next.area);
                &empty
            }
        };
        let changes = shown.diff(&next);
        if !changes.is_empty() {
            self.backend.draw(changes.into_iter())?;
        }
        Write::flush(&mut self.backend)?;
        self.shown = Some(next);
        Ok(())
    }

    /// The next screen is written as a whole.
    pub(super) fn forget(&mut self) {
        self.shown = None;
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Gives the terminal back. A terminal that is gone needs nothing.
fn restore() {
    let mut stdout = io::stdout();
    let _ = queue!(stdout, LeaveAlternateScreen, Show).and_then(|()| stdout.flush());
    let _ = disable_raw_mode();
}
