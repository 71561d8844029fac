//! Screens as users see them, with a server that is a table of numbers, and no terminal.

mod keys;
mod screens;
mod servers;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use beanring::replies::{Kind, Stats};
use beanring::values::ids::JobId;
use beanring::values::job_state::JobState;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::details::{Details, Peeked};
use super::keys::{After, press};
use super::schedule::Schedule;
use super::state::State;
use super::view::{Theme, draw};
use super::worker::{Report, Request};
use crate::cli::verbs::Column;

/// A screen of `top`, and the server behind it.
struct Session {
    state: State,
    schedule: Schedule,
    now: Instant,
    area: Rect,
    server: String,
    /// The statistics of the tubes.
    tubes: BTreeMap<String, String>,
    /// Whether the server can be reached.
    is_up: bool,
    requests: Vec<Request>,
}

const SERVER: &str = "version: \"0.1.0\"\nid: one\nuptime: 7265\ndraining: false\nio-driver: uring\ncurrent-connections: 3\n\
    memory-used: 1048576\nmax-memory: 2097152\nbinlog-current-index: 2\nwal-disk-bytes: 4096\ncurrent-jobs-ready: 8\n";

impl Session {
    fn new(sort: Column, width: u16, height: u16) -> Self {
        let now = Instant::now();
        Self {
            state: State::new("127.0.0.1:11300".to_owned(), sort),
            schedule: Schedule::new(Duration::from_secs(1), now),
            now,
            area: Rect::new(0, 0, width, height),
            server: SERVER.to_owned(),
            tubes: BTreeMap::new(),
            is_up: true,
            requests: Vec::new(),
        }
    }

    /// A session with these tubes, as after its first screen.
    fn with(sort: Column, width: u16, height: u16, tubes: &[(&str, u64, &str)]) -> Self {
        let mut session = Self::new(sort, width, height);
        tubes.iter().for_each(|(name, ready, more)| session.tube(name, *ready, more));
        session.settle();
        session
    }

    fn tube(&mut self, name: &str, ready: u64, more: &str) {
        self.tubes
            .insert(name.to_owned(), format!("current-jobs-ready: {ready}\n{more}oldest-ready-age: 0\n"));
    }

    /// Runs until the server has nothing to answer, and returns the screen.
    fn settle(&mut self) -> Vec<String> {
        // The rows of a screen are known once it is drawn.
        let mut screen = self.draw();
        while let Some(request) = self.schedule.next(self.now, &mut self.state) {
            let report = self.answer(&request);
            self.requests.push(request);
            self.schedule.answered(self.now, self.now, report, &mut self.state);
            screen = self.draw();
        }
        self.schedule.wait(self.now, &mut self.state);
        lines(&screen)
    }

    fn after(&mut self, seconds: u64) -> Vec<String> {
        self.now += Duration::from_secs(seconds);
        self.settle()
    }

    fn draw(&mut self) -> Buffer {
        draw(&mut self.state, self.area, Theme { has_colors: true })
    }

    fn answer(&self, request: &Request) -> Report {
        if !self.is_up {
            return Report::Gone("cannot connect to 127.0.0.1:11300: connection refused".to_owned());
        }
        let tube = |name: &String| self.tubes.get(name).map(|text| stats(Kind::Tube, text));
        match request {
            Request::Poll { known } => {
                let is_known = *known == Some(self.tubes.len() as u64);
                let names = (!is_known).then(|| self.tubes.keys().map(|name| name.as_str().into()).collect());
                let stats = Box::new(stats(Kind::Server, &self.server));
                Report::Server { stats, names }
            }
            Request::Tubes(names) => {
                Report::Tubes(names.iter().map(|name| (name.clone(), tube(name))).collect())
            }
            Request::Pause { tube, time } => Report::Done(format!("paused {tube} for {time} s")),
            Request::Kick { tube, count } => Report::Done(format!("kicked {count} jobs of {tube}")),
            Request::Details(name) => Report::Details(Box::new(Details {
                tube: name.clone(),
                stats: tube(name).unwrap_or_else(|| stats(Kind::Tube, "")),
                jobs: vec![
                    (JobState::Ready, Some(Peeked::new(JobId(7), None, &all_bytes().into()))),
                    (JobState::Delayed, None),
                    (JobState::Buried, Some(Peeked::new(JobId(8), None, &"a\x1b[2Jb\n\tc".into()))),
                ],
            })),
        }
    }

    fn keys(&mut self, keys: &str) -> Vec<String> {
        for character in keys.chars() {
            self.key(match character {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                '\x7f' => KeyCode::Backspace,
                other => KeyCode::Char(other),
            });
        }
        self.settle()
    }

    fn key(&mut self, code: KeyCode) -> After {
        press(&mut self.state, KeyEvent::new(code, KeyModifiers::NONE))
    }

    /// The commands that the requests since the last call have sent.
    fn commands(&mut self) -> usize {
        let cost = |request: &Request| match request {
            Request::Poll { known } => 1 + usize::from(*known != Some(self.tubes.len() as u64)),
            Request::Tubes(names) => names.len(),
            _ => 1,
        };
        let commands = self.requests.iter().map(cost).sum();
        self.requests.clear();
        commands
    }
}

fn stats(kind: Kind, text: &str) -> Stats {
    Stats::parse(kind, &format!("---\n{text}").into_bytes().into()).expect("these are statistics")
}

fn lines(buffer: &Buffer) -> Vec<String> {
    let rows = buffer.content.chunks(usize::from(buffer.area.width).max(1));
    let row = |row: &[ratatui_core::buffer::Cell]| row.iter().map(|cell| cell.symbol()).collect::<String>();
    rows.map(|cells| row(cells).trim_end().to_owned()).collect()
}

fn all_bytes() -> Vec<u8> {
    (0..=255).collect()
}

/// The first words of the rows of the table.
fn tubes(screen: &[String]) -> Vec<&str> {
    let title = screen.iter().position(|line| line.starts_with("TUBE")).expect("there is a table");
    let rows = screen[title + 1..screen.len() - 1].iter().filter(|line| !line.is_empty());
    rows.map(|line| line.split(' ').next().expect("there is a word")).collect()
}
