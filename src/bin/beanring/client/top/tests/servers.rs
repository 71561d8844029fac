//! What `top` asks the server, and what it does when the server is slow or gone.

use std::time::Duration;

use ratatui_crossterm::crossterm::event::KeyCode;

use super::super::worker::{Report, Request};
use super::{SERVER, Session, lines, tubes};
use crate::cli::verbs::Column;

#[test]
fn an_action_that_was_not_sent_is_named() {
    let mut session = Session::with(Column::Name, 80, 20, &[("default", 0, "")]);
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
    let screen = session.after(30);
    assert_eq!(screen[19], "connected again; not sent: pause of default");
    assert!(session.keys("r")[19].starts_with("q quit"));
    assert!(!session.requests.iter().any(|request| matches!(request, Request::Pause { .. })));
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
        session
            .state
            .tubes
            .at(0)
            .and_then(|tube| tube.counts.as_ref())
            .map(|counts| counts.of(Column::Ready)),
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
    let mut session = Session::with(Column::Ready, 100, 20, &[("default", 5, "")]);
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
    let refused = "cannot connect to 127.0.0.1:11300: connection refused; not confirmed: kick of default";
    assert_eq!(session.keys("k\n")[19], refused);
    session.is_up = true;
    session.server = SERVER.replace("id: one", "id: two");
    session.tube("default", 6, "");
    session.requests.clear();
    let screen = session.after(15);
    assert!(!screen[0].contains("DISCONNECTED") && screen[5].contains(" 6 "), "{screen:?}");
    assert_eq!(screen[19], "connected again; not confirmed: kick of default");
    assert!(
        matches!(session.requests[..], [Request::Poll { .. }, Request::Tubes(_)]),
        "{:?}",
        session.requests
    );
}

#[test]
fn an_outage_leaves_no_message() {
    let mut session = Session::with(Column::Name, 100, 20, &[("default", 5, "")]);
    session.is_up = false;
    assert_eq!(session.after(1)[19], "cannot connect to 127.0.0.1:11300: connection refused");
    session.is_up = true;
    assert!(session.after(15)[19].starts_with("q quit"));
}

#[test]
fn an_order_that_the_server_does_not_know_is_that_of_the_names() {
    let mut session = Session::new(Column::Oldest, 100, 20);
    session.tubes.insert("b".to_owned(), "current-jobs-ready: 1\n".to_owned());
    session.tubes.insert("a".to_owned(), "current-jobs-ready: 1\n".to_owned());
    let screen = session.settle();
    assert_eq!(screen[19], "the server does not report the age of ready jobs; the order is by name");
    assert!(
        tubes(&screen) == ["a", "b"] && screen.iter().any(|line| line.starts_with("TUBE▲")),
        "{screen:?}"
    );
    assert!(session.keys("?")[19].contains("q quit"));
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
