//! Screens as users see them, with a server that is a table of numbers, and no terminal.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier};
use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::super::stats::{Kind, Stats};
use super::columns::Column;
use super::details::{Details, Peeked};
use super::keys::{After, paste, press};
use super::schedule::Schedule;
use super::state::State;
use super::view::{Theme, draw};
use super::worker::{Report, Request};
use crate::cli::verbs::ListState;
use crate::ids::JobId;

/// A screen of `top`, and the server behind it.
struct Session {
    state: State,
    schedule: Schedule,
    now: Instant,
    area: Rect,
    has_colors: bool,
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
            has_colors: true,
            server: SERVER.to_owned(),
            tubes: BTreeMap::new(),
            is_up: true,
            requests: Vec::new(),
        }
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
        draw(&mut self.state, self.area, Theme { has_colors: self.has_colors })
    }

    fn answer(&self, request: &Request) -> Report {
        if !self.is_up {
            return Report::Gone("cannot connect to 127.0.0.1:11300: connection refused".to_owned());
        }
        let tube = |name: &String| self.tubes.get(name).map(|text| Stats::parse(Kind::Tube, text.as_bytes()));
        match request {
            Request::Poll { known } => {
                let is_known = *known == Some(self.tubes.len() as u64);
                let names = (!is_known).then(|| self.tubes.keys().cloned().collect());
                let stats = Box::new(Stats::parse(Kind::Server, self.server.as_bytes()));
                Report::Server { stats, names }
            }
            Request::Tubes(names) => {
                Report::Tubes(names.iter().map(|name| (name.clone(), tube(name))).collect())
            }
            Request::Pause { tube, seconds } => Report::Done(format!("paused {tube} for {seconds} s")),
            Request::Kick { tube, count } => Report::Done(format!("kicked {count} jobs of {tube}")),
            Request::Details(name) => Report::Details(Box::new(Details {
                tube: name.clone(),
                stats: tube(name).unwrap_or_else(|| Stats::parse(Kind::Tube, b"")),
                jobs: vec![
                    (ListState::Ready, Some(Peeked::new(JobId(7), None, all_bytes()))),
                    (ListState::Delayed, None),
                    (ListState::Buried, Some(Peeked::new(JobId(8), None, b"a\x1b[2Jb\n\tc".to_vec()))),
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

#[test]
fn the_screen_shows_server_and_tubes() {
    let mut session = Session::new(Column::Ready, 100, 13);
    session.tube("default", 0, "");
    session.tube("mail", 7, "current-jobs-buried: 2\noldest-ready-age: 65\npause-time-left: 30\n");
    session.tube("web", 1, "total-jobs: 100\n");
    session.settle();
    session.tube("web", 1, "total-jobs: 350\n");
    session.server = format!("{SERVER}cmd-put: 5\n");
    session.after(1);
    session.server = format!("{SERVER}cmd-put: 255\n");
    let expected = "\
beanring 0.1.0 at 127.0.0.1:11300   uring   up 2 h 1 min
put 250/s   reserve 0/s   delete 0/s
ready 8   reserved 0   delayed 0   buried 0   tubes 3
connections 3   memory 1.0 MiB of 2.0 MiB (50 %)   job log 4.0 KiB
TUBE                    READY▼ RESERVED  DELAYED  BURIED  WAITING   PUT/S  DELETE/S  OLDEST  PAUSED
mail                        7         0        0       2        0       0         0   1m 5s     30s
web                         1         0        0       0        0       0         0       -       -
default                     0         0        0       0        0       0         0       -       -




q quit  ? help  / filter  s sort  r reverse  p pause  k kick  Enter details  Space freeze";
    assert_eq!(session.after(1).join("\n"), expected);
    assert_eq!(tubes(&session.keys("r")), ["default", "web", "mail"]);
    assert_eq!(tubes(&session.keys("<")), ["default", "mail", "web"]);
    assert!(session.keys("").iter().any(|line| line.starts_with("TUBE▲")));
}

#[test]
fn an_unchanged_server_changes_nothing_on_the_screen() {
    let mut session = Session::new(Column::Name, 80, 24);
    session.tube("default", 0, "");
    session.settle();
    session.after(1);
    let screen = session.draw();
    for _ in 0..30 {
        session.after(1);
        assert!(screen.diff(&session.draw()).is_empty());
    }
    session.tube("default", 1, "");
    session.after(1);
    assert_eq!(screen.diff(&session.draw()).len(), 1);
}

#[test]
fn every_size_has_a_screen() {
    let mut session = Session::new(Column::Ready, 0, 0);
    session.tube(&"long-name-".repeat(20), 3, "pause-time-left: 5\n");
    session.tube("b", 1, "");
    for keys in ["", "?", "\x1b/b", "\n\x1bp", "\x1bd", "x", "k"] {
        for width in (0..200).step_by(7).chain([1, 2, 40, 80]) {
            for height in [0, 1, 2, 3, 5, 10, 24, 60] {
                session.area = Rect::new(0, 0, width, height);
                assert_eq!(session.settle().len(), if width == 0 { 0 } else { usize::from(height) });
            }
        }
        session.keys(keys);
    }
}

#[test]
fn narrow_terminals_drop_columns() {
    let mut session = Session::new(Column::Ready, 40, 16);
    session.tube("a-tube-with-a-long-name", 12, "pause-time-left: 5\ncurrent-jobs-reserved: 3\n");
    session.tube("b", 1, "");
    let expected = "\
beanring 0.1.0 at 127.0.0.1:11300
uring   up 2 h 1 min
put -/s   reserve -/s   delete -/s
ready 8   reserved 0   delayed 0
buried 0   tubes 2
connections 3
memory 1.0 MiB of 2.0 MiB (50 %)
job log 4.0 KiB
TUBE                    READY▼ RESERVED
a-tube-wit... (paused)     12         3
b                           1         0";
    let screen = session.settle();
    assert_eq!(
        screen[..11].join(
            "
"
        ),
        expected
    );
    assert_eq!(screen[15], "q quit  ? help  / filter  s sort");
}

#[test]
fn low_terminals_keep_the_counts_of_jobs() {
    let mut session = Session::new(Column::Ready, 40, 10);
    session.tube("mail", 12, "");
    let screen = session.settle();
    assert_eq!(screen[..2], ["beanring 0.1.0 at 127.0.0.1:11300", "ready 8   reserved 0   delayed 0"]);
    assert_eq!(screen[2..4], ["buried 0   tubes 1", "put -/s   reserve -/s   delete -/s"]);
    session.is_up = false;
    let screen = session.after(1);
    assert_eq!(screen[1], "DISCONNECTED, trying again");
    assert_eq!(screen[8..], ["cannot connect to 127.0.0.1:11300:", "connection refused"]);
}

#[test]
fn the_help_scrolls() {
    let mut session = Session::new(Column::Ready, 40, 10);
    let screen = session.keys("?");
    assert_eq!(screen[4..6], ["Up Down PgUp PgDn Home End", "              move"]);
    assert_eq!(screen[6..8], ["< > or s      sort by the column before", "              or after"]);
    assert!(
        screen[9].starts_with("PgDn ") && screen[9].ends_with(" more  any other key goes back"),
        "{screen:?}"
    );
    let mut seen: Vec<String> = screen[4..9].to_vec();
    for _ in 0..10 {
        session.key(KeyCode::PageDown);
        seen.extend_from_slice(&session.settle()[4..9]);
    }
    assert!(seen.contains(&"q or Ctrl-C   quit".to_owned()), "{seen:?}");
    session.key(KeyCode::Home);
    assert_eq!(session.settle(), screen);
    assert!(session.keys("x")[4].starts_with("TUBE"));
}

#[test]
fn a_long_name_does_not_hide_the_question() {
    let mut session = Session::new(Column::Name, 80, 20);
    session.tube(&"long-name-".repeat(20), 3, "");
    session.settle();
    assert_eq!(
        session.keys("p")[19],
        "pause long-name-long-name-long-name-long-name-lo... for seconds (0 resumes): 60"
    );
    let kick = "kick up to N buried jobs of long-name-l... (delayed ones if none is buried): 10";
    assert_eq!(session.keys("\x1bk")[19], kick);
    session.area.width = 40;
    assert_eq!(session.settle()[19], "kick up to N buried jobs of long...: 10");
    session.area.width = 12;
    assert!(session.settle()[19].starts_with("kick"));
}

#[test]
fn an_action_that_was_not_sent_is_named() {
    let mut session = Session::new(Column::Name, 80, 20);
    session.tube("default", 0, "");
    session.settle();
    // A poll is in flight that the server does not answer.
    session.now += Duration::from_secs(1);
    assert!(session.schedule.next(session.now, &mut session.state).is_some());
    session.key(KeyCode::Char('p'));
    session.key(KeyCode::Enter);
    let gone = Report::Gone("127.0.0.1:11300 has not replied within 10 s".to_owned());
    session.schedule.answered(session.now, session.now, gone, &mut session.state);
    let screen = lines(&session.draw());
    assert_eq!(screen[19], "127.0.0.1:11300 has not replied within 10 s; not sent: pause of default");
    session.requests.clear();
    session.after(30);
    assert!(!session.requests.iter().any(|request| matches!(request, Request::Pause { .. })));
}

#[test]
fn filters_show_matching_tubes() {
    let mut session = Session::new(Column::Name, 80, 20);
    for name in ["default", "mail.in", "mail.out", "web"] {
        session.tube(name, 0, "");
    }
    session.settle();
    let screen = session.keys("/mail");
    assert_eq!(tubes(&screen), ["mail.in", "mail.out"]);
    assert_eq!(screen[19], "filter (text, or a pattern with * and ?): mail");
    assert!(screen[2].ends_with("tubes 2 of 4 match mail"), "{screen:?}");
    assert_eq!(tubes(&session.keys("*n\n")), ["mail.in"]);
    assert_eq!(tubes(&session.keys("/\x7f\x7f\x7f\x7f\x7f\x7fz\n")), ["no"]);
    assert_eq!(session.keys("p")[19], "no tube is selected");
    assert_eq!(tubes(&session.keys("\x1b")).len(), 4);
}

#[test]
fn the_cursor_stays_with_its_tube() {
    let mut session = Session::new(Column::Ready, 80, 14);
    for at in 0..30_u64 {
        session.tube(&format!("t{at:02}"), 100 - at, "");
    }
    session.settle();
    let selected = |session: &Session| session.state.selected().expect("there is a tube").to_owned();
    for (code, expected) in [
        (KeyCode::Down, "t01"),
        (KeyCode::PageDown, "t09"),
        (KeyCode::End, "t29"),
        (KeyCode::Down, "t29"),
        (KeyCode::PageUp, "t21"),
        (KeyCode::Up, "t20"),
    ] {
        session.key(code);
        session.settle();
        assert_eq!(selected(&session), expected, "{code:?}");
        let row = session.state.cursor.place;
        assert!(session.state.on_screen().contains(&row));
        let buffer = session.draw();
        let marked: Vec<String> = lines(&buffer)
            .into_iter()
            .zip(buffer.content.chunks(80))
            .filter(|(_, cells)| cells[0].modifier.contains(Modifier::REVERSED))
            .map(|(line, _)| line)
            .collect();
        assert!(marked.len() == 1 && marked[0].starts_with(expected), "{marked:?}");
    }
    session.tube("t20", 1000, "");
    session.after(1);
    assert_eq!((selected(&session).as_str(), session.state.cursor.place), ("t20", 0));
    session.tubes.remove("t20");
    session.after(1);
    assert_eq!(selected(&session), "t00");
    session.key(KeyCode::Home);
    // On the first row it stays there.
    session.tube("t29", 2000, "");
    session.after(1);
    assert_eq!(selected(&session), "t29");
}

#[test]
fn keys_ask_before_they_act() {
    let mut session = Session::new(Column::Name, 80, 20);
    session.tube("default", 0, "");
    session.tube("mail", 0, "pause-time-left: 9\n");
    session.settle();
    session.requests.clear();
    assert_eq!(session.keys("p")[19], "pause default for seconds (0 resumes): 60");
    assert_eq!(session.keys("\x1b")[19].split("  ").next(), Some("q quit"));
    assert_eq!(session.keys("p300")[19], "pause default for seconds (0 resumes): 300");
    assert_eq!(session.requests, []);
    assert_eq!(session.keys("\n")[19], "paused default for 300 s");
    assert_eq!(session.requests[0], Request::Pause { tube: "default".to_owned(), seconds: 300 });
    session.key(KeyCode::Down);
    assert_eq!(session.keys("p")[19], "pause mail for seconds (0 resumes): 0");
    assert_eq!(session.keys("99999999999")[19], "pause mail for seconds (0 resumes): 99999999999");
    session.requests.clear();
    assert_eq!(session.keys("\x1bk\x7f5\n")[19], "kicked 5 jobs of mail");
    assert_eq!(session.requests[0], Request::Kick { tube: "mail".to_owned(), count: 5 });
    // A pasted text does not act.
    session.requests.clear();
    paste(&mut session.state, "k\n5\nq");
    session.keys("k");
    paste(&mut session.state, "12a\n");
    assert_eq!(
        session.settle()[19],
        "kick up to N buried jobs of mail (delayed ones if none is buried): 12a"
    );
    assert_eq!((session.keys("\x1b").len(), session.requests.len()), (20, 0));
    assert_eq!(session.key(KeyCode::Char('q')), After::Quit);
    let control = |code| KeyEvent::new(KeyCode::Char(code), KeyModifiers::CONTROL);
    assert_eq!(press(&mut session.state, control('c')), After::Quit);
    assert_eq!(press(&mut session.state, control('l')), After::Redraw);
}

#[test]
fn a_frozen_screen_asks_nothing() {
    let mut session = Session::new(Column::Ready, 80, 20);
    session.tube("default", 1, "");
    session.settle();
    session.keys(" ");
    session.requests.clear();
    session.tube("default", 2, "");
    let screen = session.after(60);
    assert!(screen[0].ends_with("FROZEN") && session.requests.is_empty(), "{screen:?}");
    assert!(screen[5].contains(" 1 "));
    assert!(session.keys(" ")[5].contains(" 2 "));
}

#[test]
fn bytes_of_others_are_escaped_everywhere() {
    for width in [30, 80, 200] {
        let mut session = Session::new(Column::Name, width, 60);
        let evil = "\x1b]0;title\x07\u{9b}31m\u{202e}\r\x7f";
        session.server = format!("version: \"{evil}\"\nio-driver: {evil}\nid: {evil}\n");
        session.tube(evil, 0, &format!("{evil}: {evil}\n"));
        session.tube("good", 0, &format!("{evil}: {evil}\n"));
        session.is_up = true;
        for keys in ["", "p", "d", "k"] {
            check_cells(&session.keys(keys));
        }
        assert!(
            !session.requests.iter().any(|request| format!("{request:?}").contains("title")),
            "{:?}",
            session.requests
        );
        session.key(KeyCode::End);
        for keys in ["d", "x", "u", "p", "\x1b\x1b/", "\u{202e}\x07\n"] {
            check_cells(&session.keys(keys));
        }
        assert!(session.requests.contains(&Request::Details("good".to_owned())));
        session.state.take(session.now, Report::Refused(super::super::escaped(evil.as_bytes())));
        check_cells(&session.settle());
    }
}

fn check_cells(screen: &[String]) {
    for line in screen {
        let is_plain =
            |one: char| !one.is_control() && !matches!(one, '\u{200b}'..='\u{206f}' | '\u{80}'..='\u{9f}');
        assert!(line.chars().all(is_plain), "{line:?}");
    }
}

#[test]
fn a_tube_is_shown_in_full() {
    let mut session = Session::new(Column::Name, 80, 40);
    session.tube("mail", 7, "cmd-delete: 3\n");
    session.settle();
    let screen = session.keys("d");
    for expected in [
        "Tube mail",
        "Next ready job",
        "job 7, 256 B",
        "  00010  10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f  ................",
        "  00040  40 41 42 43 44 45 46 47 48 49 4a 4b 4c 4d 4e 4f  @ABCDEFGHIJKLMNO",
        "No delayed job",
        "Next buried job",
        "  a\\x1b[2Jb",
        "      c",
        "Statistics",
    ] {
        assert!(screen.iter().any(|line| line == expected), "{expected}\n{}", screen.join("\n"));
    }
    assert!(screen.iter().any(|line| line.starts_with("current-jobs-ready") && line.contains('7')));
    session.tube("mail", 8, "");
    assert!(session.after(1).iter().any(|line| line.starts_with("current-jobs-ready") && line.contains('8')));
    session.keys("x");
    assert!(session.settle().iter().any(|line| line.starts_with("  00000  61 1b 5b 32 4a 62 0a 09 63 ")));
    session.area.height = 12;
    session.key(KeyCode::End);
    assert!(session.settle()[10].starts_with("current-jobs-ready"));
    session.key(KeyCode::Home);
    assert_eq!(session.settle()[4], "Tube mail");
    session.requests.clear();
    session.keys("k\n");
    assert_eq!(
        session.requests[..2],
        [Request::Kick { tube: "mail".to_owned(), count: 10 }, Request::Details("mail".to_owned())]
    );
    assert_eq!(tubes(&session.keys("\x1b")), ["mail"]);
}

#[test]
fn colors_can_be_switched_off() {
    let mut session = Session::new(Column::Name, 120, 20);
    session.tube("default", 0, "current-jobs-buried: 4\npause-time-left: 9\n");
    session.server = SERVER.replace("draining: false", "draining: true");
    session.settle();
    let colors = |buffer: &Buffer| {
        buffer.content.iter().filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset).count()
    };
    assert!(colors(&session.draw()) > 0);
    session.has_colors = false;
    assert_eq!(colors(&session.draw()), 0);
    assert!(session.settle()[0].ends_with("DRAINING"));
}

#[test]
fn ten_thousand_tubes_cost_few_commands() {
    const TUBES: usize = 10_000;
    let mut session = Session::new(Column::Name, 80, 46);
    for at in 0..TUBES {
        session.tube(&format!("t{at:04}"), (at * 7919 % TUBES) as u64, "");
    }
    session.settle();
    let rows = session.state.cursor.height;
    assert_eq!(rows, 46 - 4 - 2);
    // Statistics, the names, and the rows on the screen.
    assert_eq!(session.commands(), 2 + rows);
    for _ in 0..9 {
        session.after(1);
        assert_eq!(session.commands(), 1 + rows);
    }
    // New rows are read at once.
    session.key(KeyCode::End);
    let screen = session.settle();
    assert!(tubes(&screen).ends_with(&["t9999"]) && !screen[5..45].join("").contains('?'));
    assert_eq!(session.commands(), rows);
    // Any other order needs all of them, every ten seconds.
    session.key(KeyCode::Home);
    let screen = session.keys("s");
    assert!(screen[2].ends_with("tubes 10000   order up to 10 s old"), "{screen:?}");
    assert_eq!(
        session.state.tubes.at(0).and_then(|tube| tube.counts.as_ref()).map(|counts| counts.ready),
        Some(9999)
    );
    let most = session
        .requests
        .iter()
        .map(|request| if let Request::Tubes(names) = request { names.len() } else { 0 })
        .max();
    assert_eq!(most, Some(256));
    session.commands();
    let commands: Vec<usize> = (0..20)
        .map(|_| {
            session.after(1);
            session.commands()
        })
        .collect();
    assert_eq!(commands.iter().filter(|count| **count > TUBES).count(), 2, "{commands:?}");
    assert_eq!(commands.iter().filter(|count| **count <= 2 + rows).count(), 18, "{commands:?}");
}

#[test]
fn a_server_that_is_gone_is_tried_again_less_and_less() {
    let mut session = Session::new(Column::Ready, 100, 20);
    session.tube("default", 5, "");
    session.settle();
    session.is_up = false;
    session.requests.clear();
    let screen = session.after(1);
    assert!(screen[0].ends_with("DISCONNECTED, trying again") && tubes(&screen) == ["default"], "{screen:?}");
    assert_eq!(screen[19], "cannot connect to 127.0.0.1:11300: connection refused");
    for _ in 0..60 {
        session.after(1);
    }
    // After 1, 2, 4, 8, 15, 15 and 15 seconds.
    assert_eq!(session.requests.len(), 1 + 7);
    // A key that is pressed now has no effect later.
    assert_eq!(session.keys("k\n")[19], "cannot connect to 127.0.0.1:11300: connection refused");
    session.is_up = true;
    session.server = SERVER.replace("id: one", "id: two");
    session.tube("default", 6, "");
    session.requests.clear();
    let screen = session.after(15);
    assert!(!screen[0].contains("DISCONNECTED") && screen[5].contains(" 6 "), "{screen:?}");
    assert!(
        matches!(session.requests[..], [Request::Poll { .. }, Request::Tubes(_)]),
        "{:?}",
        session.requests
    );
}

#[test]
fn a_slow_server_is_shown() {
    let mut session = Session::new(Column::Ready, 80, 20);
    session.settle();
    session.now += Duration::from_secs(1);
    assert!(session.schedule.next(session.now, &mut session.state).is_some());
    let mut status = |seconds| {
        session.now += Duration::from_secs(seconds);
        assert_eq!(session.schedule.next(session.now, &mut session.state), None);
        session.schedule.wait(session.now, &mut session.state);
        lines(&session.draw())[19].clone()
    };
    assert!(status(2).starts_with("q quit"));
    assert_eq!(status(1), "no answer for 3 s");
    assert_eq!(status(4), "no answer for 7 s");
    let now = session.now + Duration::from_millis(300);
    assert_eq!(session.schedule.wait(now, &mut session.state), Duration::from_millis(700));
    let report = session.answer(&Request::Poll { known: None });
    session.schedule.answered(now, now, report, &mut session.state);
    assert!(session.settle()[19].starts_with("q quit"));
}

#[test]
fn what_is_no_number_is_refused_with_a_hint() {
    let mut session = Session::new(Column::Name, 80, 20);
    session.tube("mail", 3, "");
    session.settle();
    session.requests.clear();
    // A letter replaces the proposal, as a digit does.
    assert!(session.keys("kx")[19].ends_with("if none is buried): x"));
    let refused = session.keys("\n");
    assert!(refused[19].ends_with("mail: x   must be a number up to 4294967295"), "{refused:?}");
    for text in ["\x7f4294967296\n", "\x1bp-1\n", "\x1bp1h\n"] {
        assert!(session.keys(text)[19].ends_with("must be a number up to 4294967295"));
    }
    assert!(
        !session
            .requests
            .iter()
            .any(|request| matches!(request, Request::Kick { .. } | Request::Pause { .. }))
    );
    let done = session.keys("\x1bk7\n");
    assert_eq!(done[19], "kicked 7 jobs of mail");
    assert!(session.requests.contains(&Request::Kick { tube: "mail".to_owned(), count: 7 }));
}

#[test]
fn beanstalkd_has_fewer_columns() {
    let mut session = Session::new(Column::Name, 120, 20);
    session.server =
        "version: \"1.13\"\nid: a\nuptime: 5\nbinlog-current-index: 0\ncurrent-connections: 1\n".to_owned();
    session.tubes.insert("default".to_owned(), "current-jobs-ready: 3\n".to_owned());
    let screen = session.settle();
    assert_eq!(screen[0], "beanstalkd 1.13 at 127.0.0.1:11300   up less than 1 min");
    assert_eq!(screen[3], "connections 1   no job log");
    assert!(!screen[4].contains("OLDEST") && screen[4].contains("PAUSED"));
}
