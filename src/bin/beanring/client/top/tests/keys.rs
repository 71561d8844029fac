//! What keys do.

use beanring::time::Seconds;
use ratatui_core::style::Modifier;
use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::super::keys::{After, press};
use super::super::worker::Request;
use super::{SERVER, Session, lines, tubes};
use crate::cli::verbs::Column;

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
    let selected = |session: &Session| session.state.selected().expect("there is a tube").to_string();
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
    // A key that acts or moves has it follow the tube.
    for (name, ready, keys) in [("t28", 3000, "k\x1b"), ("t27", 4000, "p\x1b"), ("t26", 5000, "d\x1b")] {
        session.tube(name, ready, "");
        session.key(KeyCode::Home);
        session.after(1);
        assert_eq!(selected(&session), name);
        session.keys(keys);
        session.tube("t25", 9000, "");
        session.after(1);
        assert_eq!((selected(&session).as_str(), session.state.cursor.place), (name, 1), "{keys:?}");
        session.tube("t25", 0, "");
    }
    session.key(KeyCode::Up);
    session.tube("t25", 9000, "");
    session.after(1);
    assert_eq!((selected(&session).as_str(), session.state.cursor.place), ("t26", 1));
}

#[test]
fn keys_ask_before_they_act() {
    let mut session =
        Session::with(Column::Name, 80, 20, &[("default", 0, ""), ("mail", 0, "pause-time-left: 9\n")]);
    session.requests.clear();
    assert_eq!(session.keys("p")[19], "pause default for a time such as 90 or 5m (0 resumes): 60");
    assert_eq!(session.keys("\x1b")[19].split("  ").next(), Some("q quit"));
    assert_eq!(session.keys("p300")[19], "pause default for a time such as 90 or 5m (0 resumes): 300");
    assert_eq!(session.requests, []);
    assert_eq!(session.keys("\n")[19], "paused default for 300 s");
    assert_eq!(session.requests[0], Request::Pause { tube: "default".to_owned(), time: Seconds::whole(300) });
    session.requests.clear();
    assert_eq!(session.keys("p5m\n")[19], "paused default for 300 s");
    assert_eq!(session.requests[0], Request::Pause { tube: "default".to_owned(), time: Seconds::whole(300) });
    session.requests.clear();
    assert_eq!(session.keys("p0.25\n")[19], "paused default for 0.25 s");
    session.requests.clear();
    session.key(KeyCode::Down);
    assert_eq!(session.keys("p")[19], "pause mail for a time such as 90 or 5m (0 resumes): 0");
    assert_eq!(
        session.keys("99999999999")[19],
        "pause mail for a time such as 90 or 5m (0 resumes): 99999999999"
    );
    session.requests.clear();
    assert_eq!(session.keys("\x1bk\x7f5\n")[19], "kicked 5 jobs of mail");
    assert_eq!(session.requests[0], Request::Kick { tube: "mail".to_owned(), count: 5 });
    assert_eq!(session.key(KeyCode::Char('q')), After::Quit);
    let control = |code| KeyEvent::new(KeyCode::Char(code), KeyModifiers::CONTROL);
    assert_eq!(press(&mut session.state, control('c')), After::Quit);
    assert_eq!(press(&mut session.state, control('l')), After::Redraw);
}

#[test]
fn what_is_no_number_is_refused_with_a_hint() {
    let mut session = Session::with(Column::Name, 80, 20, &[("mail", 3, "")]);
    session.requests.clear();
    // A letter replaces the proposal, as a digit does.
    assert!(session.keys("kx")[19].ends_with("if none is buried): x"));
    let refused = session.keys("\n");
    assert!(refused[19].ends_with("mail: x   must be a number from 1 to 4294967295"), "{refused:?}");
    for text in ["\x7f4294967296\n", "\x1bk0\n"] {
        assert!(session.keys(text)[19].ends_with("must be a number from 1 to 4294967295"));
    }
    for text in ["\x1bp-1\n", "\x1bp5 m\n", "\x1bp4294967296\n"] {
        assert!(session.keys(text)[19].ends_with("must be a time such as 90, 5m or 2h"));
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
fn a_frozen_screen_asks_nothing() {
    let mut session = Session::with(Column::Ready, 80, 20, &[("default", 1, "")]);
    session.keys(" ");
    session.requests.clear();
    session.tube("default", 2, "");
    let screen = session.after(60);
    assert!(screen[0].ends_with("FROZEN") && session.requests.is_empty(), "{screen:?}");
    assert!(screen[5].contains(" 1 "));
    assert!(session.keys(" ")[5].contains(" 2 "));
}

#[test]
fn a_column_that_is_not_there_is_passed_over() {
    let mut session = Session::with(Column::Buried, 80, 20, &[("mail", 1, "")]);
    session.keys("s");
    assert_eq!(session.state.tubes.sort(), Column::Waiting);
    session.keys("<");
    assert_eq!(session.state.tubes.sort(), Column::Buried);
    session.server = format!("{SERVER}current-jobs-held: 2\n");
    session.after(1);
    session.keys("s");
    assert_eq!(session.state.tubes.sort(), Column::Held);
}
