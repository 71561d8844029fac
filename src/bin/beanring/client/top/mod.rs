//! `beanring top`: a live view of the tubes.
//!
//! The main thread owns the state and the screen. One thread reads keys, one speaks with the server (`worker`), and one waits
//! for signals. They send `Event`s.

mod columns;
mod details;
mod header;
mod keys;
mod schedule;
mod screen;
mod state;
#[cfg(test)]
mod tests;
mod tubes;
mod view;
mod worker;

use std::io;
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use beanring::replies::ClientError;
use ratatui_crossterm::crossterm::event::{self, KeyEvent};

use self::keys::After;
use self::schedule::Schedule;
use self::screen::Screen;
use self::state::State;
use self::view::Theme;
use self::worker::{Report, Worker};
use super::interrupt;
use super::output::has_colors;
use super::target::ServerTarget;
use crate::cli::verbs::Top;

/// What happens.
enum Event {
    Key(KeyEvent),
    Paste(String),
    /// The terminal has another size.
    Resized,
    /// The worker has done a request.
    Report {
        at: Instant,
        report: Report,
    },
    /// A signal, or the end of the terminal.
    Stop,
}

pub(super) fn run(verb: &Top) -> Result<ExitCode, ClientError> {
    if !screen::is_possible() {
        let message =
            "top needs a terminal for its input and output; use beanring tubes or beanring watch instead";
        return Err(ClientError::Usage(message.to_owned()));
    }
    let target = ServerTarget::new(&verb.server)?;
    let mut state = State::new(target.remote().to_string(), verb.sort);
    // A server that cannot be reached at the start is an error as for every verb.
    let worker = Worker::connect(target)?;
    let (events_sender, events) = mpsc::channel();
    let (requests, requests_receiver) = mpsc::channel();
    let refused = |what| move |error| ClientError::System { what, error };
    let mut signals = interrupt::signals()?;
    let theme = Theme { has_colors: has_colors() };
    let mut screen = Screen::open().map_err(refused("take the terminal"))?;

    let sender = events_sender.clone();
    start("connection", move || worker.run(&requests_receiver, &sender))?;
    let sender = events_sender.clone();
    start("keys", move || read_terminal(&sender))?;
    start("signals", move || {
        if signals.forever().next().is_some() {
            // The main thread may have ended already.
            let _ = events_sender.send(Event::Stop);
        }
    })?;

    let mut schedule = Schedule::new(Duration::from_secs(verb.interval.into()), Instant::now());
    loop {
        screen.show(view::draw(&mut state, Screen::area()?, theme))?;
        while let Some(request) = schedule.next(Instant::now(), &mut state) {
            if requests.send(request).is_err() {
                return Ok(ExitCode::SUCCESS);
            }
        }
        let now = Instant::now();
        match events.recv_timeout(schedule.wait(now, &mut state)) {
            Ok(Event::Key(key)) => match keys::press(&mut state, key) {
                After::Continue => {}
                After::Redraw => screen.forget(),
                After::Suspend => {
                    screen.suspend().map_err(refused("suspend the program"))?;
                    state.wants_poll = true;
                }
                After::Quit => return Ok(ExitCode::SUCCESS),
            },
            Ok(Event::Paste(text)) => keys::paste(&mut state, &text),
            Ok(Event::Report { at, report }) => schedule.answered(Instant::now(), at, report, &mut state),
            Ok(Event::Resized) | Err(RecvTimeoutError::Timeout) => {}
            Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => return Ok(ExitCode::SUCCESS),
        }
    }
}

fn start(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), ClientError> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(run);
    started.map(drop).map_err(|error| ClientError::System { what: "start a thread", error })
}

/// Sends what the terminal reports, until it is gone.
fn read_terminal(events: &Sender<Event>) {
    loop {
        let event = match event::read() {
            Ok(event::Event::Key(key)) => Event::Key(key),
            Ok(event::Event::Paste(text)) => Event::Paste(text),
            Ok(event::Event::Resize(..)) => Event::Resized,
            Ok(_) => continue,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => Event::Stop,
        };
        let is_last = matches!(event, Event::Stop);
        if events.send(event).is_err() || is_last {
            return;
        }
    }
}
