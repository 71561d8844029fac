//! What the screen shows, and where.

use ratatui_core::layout::Rect;
use ratatui_crossterm::crossterm::event::KeyCode;

use super::super::worker::{Report, Request};
use super::{SERVER, Session, tubes};
use crate::cli::verbs::Column;

#[test]
fn the_screen_shows_server_and_tubes() {
    let mut session = Session::with(
        Column::Ready,
        100,
        13,
        &[
            ("default", 0, ""),
            ("mail", 7, "current-jobs-buried: 2\noldest-ready-age: 65\npause-time-left: 30\n"),
            ("web", 1, "total-jobs: 100\n"),
        ],
    );
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
web                         1         0        0       0        0       0         0      0s       -
default                     0         0        0       0        0       0         0       -       -




q quit  ? help  / filter  s sort  r reverse  p pause  k kick  Enter details  Space freeze";
    assert_eq!(session.after(1).join("\n"), expected);
    assert_eq!(tubes(&session.keys("r")), ["default", "web", "mail"]);
    assert_eq!(tubes(&session.keys("<")), ["default", "mail", "web"]);
    assert!(session.keys("").iter().any(|line| line.starts_with("TUBE▲")));
}

#[test]
fn an_unchanged_server_changes_nothing_on_the_screen() {
    let mut session = Session::with(Column::Name, 80, 24, &[("default", 0, "")]);
    session.after(1);
    let screen = session.draw();
    for _ in 0..30 {
        session.after(1);
        assert!(screen.diff(&session.draw()).is_empty());
    }
    session.tube("default", 1, "");
    session.after(1);
    // The count, and the age in place of a dash.
    assert_eq!(screen.diff(&session.draw()).len(), 3);
}

#[test]
fn refused_puts_of_the_last_minutes_are_shown_by_reason() {
    let mut session = Session::new(Column::Ready, 100, 13);
    let line = |session: &mut Session, seconds, memory: u64, disk: u64| {
        session.server = format!("{SERVER}put-refusals-memory: {memory}\nput-refusals-disk: {disk}\n");
        session.after(seconds)[1].clone()
    };
    let plain = "put 0/s   reserve 0/s   delete 0/s";
    // Those of before the program began are old.
    assert_eq!(line(&mut session, 1, 7, 0), "put -/s   reserve -/s   delete -/s");
    assert_eq!(line(&mut session, 1, 7, 0), plain);
    assert_eq!(line(&mut session, 1, 19, 0), format!("{plain}   puts refused: 12 (memory limit)"));
    let both = format!("{plain}   puts refused: 12 (memory limit), 3 (full disk)");
    assert_eq!(line(&mut session, 10, 19, 3), both);
    assert_eq!(line(&mut session, 300, 19, 3), both);
    assert_eq!(line(&mut session, 300, 19, 3), plain);
    assert_eq!(line(&mut session, 1, 20, 3), format!("{plain}   puts refused: 1 (memory limit)"));
    // Another process has counts of its own.
    session.server = SERVER.replace("id: one", "id: two");
    assert_eq!(session.after(1)[1], "put -/s   reserve -/s   delete -/s");
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
    assert_eq!(screen[..11].join("\n"), expected);
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
    assert_eq!(screen[4..6], ["Up Down PgUp PgDn End", "              move"]);
    assert_eq!(screen[6..8], ["Home          go to the first row, and", "              stay there"]);
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
    let mut session = Session::with(Column::Name, 80, 20, &[(&*"long-name-".repeat(20), 3, "")]);
    assert_eq!(
        session.keys("p")[19],
        "pause long-name-long-name-long-n... for a time such as 90 or 5m (0 resumes): 60"
    );
    let kick = "kick up to N buried jobs of long-name-l... (delayed ones if none is buried): 10";
    assert_eq!(session.keys("\x1bk")[19], kick);
    session.area.width = 40;
    assert_eq!(session.settle()[19], "kick N buried jobs of long-name-...: 10");
    session.area.width = 24;
    assert_eq!(session.settle()[19], "kick long-name-l...: 10");
    session.area.width = 12;
    assert!(session.settle()[19].starts_with("kick"));
}

#[test]
fn a_hint_does_not_hide_the_question() {
    let mut session = Session::with(Column::Name, 40, 20, &[("mail", 3, "")]);
    assert_eq!(session.keys("p5 m\n")[19], "pause mail for a time: 5 m   no time");
    session.area.width = 24;
    assert_eq!(session.settle()[19], "pause mail: 5 m");
    session.area.width = 80;
    let full = "pause mail for a time: 5 m   must be a time such as 90, 5m or 2h";
    assert_eq!(session.settle()[19], full);
    // Of a long text the end is shown.
    session.area.width = 40;
    let typed = session.keys("\x7f\x7f\x7f123456789012345678901234567890");
    assert_eq!(typed[19], "pause mail: 456789012345678901234567890");
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
        session.state.take(session.now, Report::Refused(crate::client::escaped(evil.as_bytes())));
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
    let mut session = Session::with(Column::Name, 80, 40, &[("mail", 7, "cmd-delete: 3\n")]);
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
fn the_role_in_a_replicated_queue_is_shown_and_what_is_bad_about_it() {
    let mut session = Session::with(Column::Name, 120, 20, &[("default", 0, "")]);
    for (keys, shown) in [
        (
            "replication-role: leader\nreplication-epoch: 7\nreplication-lease: 2.500000\n",
            "leader, epoch 7   job log",
        ),
        (
            "replication-role: leader\nreplication-epoch: 7\nreplication-lease: 0.000000\n",
            "leader, epoch 7, LEASE OVER   job log",
        ),
        (
            "replication-role: standby\nreplication-epoch: 8\nreplication-lag: 6.000000\n",
            "standby, epoch 8, BEHIND   job log",
        ),
        (
            "replication-role: standby\nreplication-epoch: 8\nreplication-damaged: true\n",
            "standby, epoch 8, CANNOT FOLLOW   job log",
        ),
    ] {
        session.server = format!("{SERVER}{keys}");
        let screen = session.after(1).join("\n");
        assert!(screen.contains(shown), "{shown}: {screen}");
    }
    session.server = SERVER.replace("draining: false", "draining: true");
    assert!(session.after(1)[0].ends_with("DRAINING"));
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

#[test]
fn held_jobs_have_a_column_while_there_are_some() {
    let mut session = Session::new(Column::Name, 80, 20);
    session.tube("mail", 1, "current-jobs-held: 2\n");
    let titles = |screen: &[String]| {
        let line = screen.iter().find(|line| line.starts_with("TUBE")).expect("a table");
        line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
    };
    let before = "READY RESERVED DELAYED BURIED PUT/S DELETE/S OLDEST";
    assert_eq!(titles(&session.settle()), before);
    session.server = format!("{SERVER}current-jobs-held: 2\n");
    let screen = session.after(1);
    assert_eq!(titles(&screen), "READY RESERVED DELAYED BURIED HELD PUT/S OLDEST");
    assert_eq!(screen[2], "ready 8   reserved 0   delayed 0   buried 0   held 2   tubes 1");
    let numbers: Vec<&str> = screen[5].split_whitespace().collect();
    assert_eq!(numbers[..6], ["mail", "1", "0", "0", "0", "2"]);
    session.server = SERVER.to_owned();
    assert_eq!(titles(&session.after(1)), before);
}
