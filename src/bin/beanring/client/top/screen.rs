//! The terminal: taken at the start, given back at the end of the program however it ends, and written to only where the
//! screen has changed.

use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::{env, panic, process};

use nix::sys::signal::{Signal, raise};
use ratatui_core::backend::Backend;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_crossterm::CrosstermBackend;
use ratatui_crossterm::crossterm::cursor::{Hide, Show};
use ratatui_crossterm::crossterm::event::{DisableBracketedPaste, EnableBracketedPaste};
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
        screen.take()?;
        Ok(screen)
    }

    fn take(&mut self) -> io::Result<()> {
        enable_raw_mode()?;
        // A text that is pasted must not act as keys.
        execute!(self.backend, EnterAlternateScreen, EnableBracketedPaste, Hide)?;
        self.shown = None;
        Ok(())
    }

    /// Gives the terminal back and stops the program, as Ctrl-Z does elsewhere. Takes the terminal again when the shell
    /// continues the program.
    ///
    /// # Errors
    /// If the system refuses.
    pub(super) fn suspend(&mut self) -> io::Result<()> {
        restore();
        raise(Signal::SIGTSTP)?;
        self.take()
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
    let _ = queue!(stdout, DisableBracketedPaste, LeaveAlternateScreen, Show).and_then(|()| stdout.flush());
    let _ = disable_raw_mode();
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::thread;

    use super::*;

    /// Set for the test when it runs again, on a terminal.
    const INSIDE: &str = "BEANRING_TEST_ON_TERMINAL";

    #[test]
    fn a_panic_gives_the_terminal_back() {
        if env::var_os(INSIDE).is_some() {
            let _screen = Screen::open().expect("there is a terminal");
            // In any thread. The panic ends the program.
            let _ = thread::spawn(|| panic!("a test")).join();
            panic!("the program has not ended");
        }
        let program = env::current_exe().expect("it runs");
        let name = "client::top::screen::tests::a_panic_gives_the_terminal_back";
        let line = format!(
            "{INSIDE}=1 '{}' --nocapture --exact {name}; echo exit code $?; stty -a",
            program.display()
        );
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--command", &line, "/dev/null"]).stdin(Stdio::null());
        let output = script.output().expect("there is a script");
        let text = String::from_utf8_lossy(&output.stdout);
        let place = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part:?}: {text:?}"));
        let order =
            ["\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h", "a test", "exit code 101", " icanon "].map(place);
        assert!(order.is_sorted(), "{text:?}");
        assert!(text.contains(" echo ") && !text.contains("has not ended"), "{text:?}");
    }
}
