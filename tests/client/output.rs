//! What reaches a terminal, a pipe or a program that reads JSON: bytes of others are never commands of the terminal.

use std::process::{Command, Stdio};

use beanring_testkit::process::program;

use super::fake::{data, replies};
use super::place::{Place, everywhere, ran, run_at, with_both};

/// Each byte once, and sequences that clear the screen, set the title and change colors.
fn junk() -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..=255).collect();
    bytes.extend_from_slice(b"\x1b[2J\x1b]0;title\x07\x1b[31m\xc2\x9b31m");
    bytes
}

/// Control characters, and those that reorder text or end a line in some programs.
fn hidden() -> String {
    let ranges = [
        '\u{7f}'..='\u{9f}',
        '\u{61c}'..='\u{61c}',
        '\u{ad}'..='\u{ad}',
        '\u{34f}'..='\u{34f}',
        '\u{200b}'..='\u{200f}',
        '\u{2028}'..='\u{202e}',
        '\u{2060}'..='\u{206f}',
        '\u{feff}'..='\u{feff}',
        '\u{e0041}'..='\u{e0041}',
    ];
    ranges.into_iter().flatten().collect()
}

pub fn assert_harmless(text: &str) {
    let hidden = hidden();
    let is_harmless = |character: char| {
        matches!(character, '\n' | '\t') || !character.is_control() && !hidden.contains(character)
    };
    assert!(text.chars().all(is_harmless), "{text:?}");
}

#[test]
fn a_body_is_escaped_on_a_terminal_and_raw_in_a_pipe() {
    everywhere("bodies of every byte by the client", |place| {
        let body = junk();
        place.feed(&["put", "-q"], &body).ok();
        assert_eq!(place.run(&["peek", "--body"]).stdout, body);
        assert_eq!(place.run(&["peek"]).stdout, [b"job 1, 280 B:\n", &body[..], b"\n"].concat());
        for arguments in [&["peek"][..], &["peek", "--body"], &["reserve"], &["reserve", "--body"]] {
            let shown = place.on_terminal(arguments, &[]);
            assert_harmless(&shown);
            assert!(shown.contains("\\x1b[2J\\x1b]0;title\\x07") && shown.contains("\\xff"), "{shown:?}");
        }
        let job = place.json(&["peek"]);
        assert_eq!((&job["encoding"], &job["body_bytes"]), (&"base64".into(), &280.into()));
        assert!(job["body"].as_str().is_some_and(|text| text.starts_with("AAECAwQ")), "{job}");
        place.ok(&["put", "-q", "-t", "text", "Gr\u{fc}\u{df}e\n\u{1b}[1m"]);
        let job = place.json(&["peek", "-t", "text"]);
        assert_eq!((&job["body"], job.get("encoding")), (&"Gr\u{fc}\u{df}e\n\u{1b}[1m".into(), None));
        // The escape character is escaped in JSON too.
        let json = place.on_terminal(&["peek", "-t", "text", "--json"], &[]);
        assert_harmless(&json);
        assert_eq!(place.on_terminal(&["peek", "-t", "text", "--body"], &[]), "Gr\u{fc}\u{df}e\n\\x1b[1m\n");
    });
}

#[test]
fn json_on_a_terminal_has_no_hidden_characters() {
    everywhere("JSON of hidden characters by the client", |place| {
        let hidden = hidden();
        place.ok(&["put", "-q", &hidden]);
        for verb in ["peek", "reserve"] {
            assert_harmless(&place.on_terminal(&[verb, "--json"], &[]));
            place.wait_for_jobs([1, 0, 0, 0]);
        }
        assert!(place.ok(&["peek", "--json"]).contains("\\u007f\\u0080\\u0081"));
        assert_eq!(place.json(&["peek"])["body"], *hidden);
    });
    let address = hostile();
    for arguments in [&["stats"][..], &["tubes"], &["tube", "x"], &["job", "1"], &["watch", "-n", "1"]] {
        let result = run_at(&address, &[arguments, &["--json"]].concat());
        assert_harmless(&result.text());
        if arguments[0] != "watch" {
            let value = result.json();
            assert!(value.to_string().contains(&hidden()), "{value}");
        }
    }
}

#[test]
fn names_and_replies_of_a_hostile_server_are_escaped() {
    let address = hostile();
    for (arguments, shown) in [
        (&["tubes"][..], "\\x1b[2Jevil"),
        (&["tube", "x"], "\\x1b[2Jevil"),
        (&["bury", "1"], "NOT_FOUND \\x1b[2Jevil"),
    ] {
        let result = run_at(&address, arguments);
        let all = result.text() + &result.stderr;
        assert_harmless(&all);
        assert!(all.contains(shown), "{all:?}");
    }
}

/// A server with escape sequences in every reply.
fn hostile() -> String {
    replies(|| {
        let evil = format!("\x1b[2Jevil{}", hidden());
        move |line| match line.split(' ').next() {
            Some("list-tubes") => data("OK", format!("---\n- {evil}\n").as_bytes()),
            Some("stats-tube") => {
                data("OK", format!("---\nname: {evil}\n{evil}: 1\ncurrent-jobs-ready: 1\n").as_bytes())
            }
            Some("stats" | "stats-job") => {
                data("OK", format!("---\nversion: {evil}\nstate: {evil}\n{evil}: 1\n").as_bytes())
            }
            _ => b"NOT_FOUND \x1b[2Jevil\r\n".to_vec(),
        }
    })
}

#[test]
fn colors_are_for_terminals() {
    let place = Place::default();
    let bold = "\x1b[1mTUBE";
    assert!(place.on_terminal(&["tubes"], &[]).starts_with(bold));
    assert!(place.on_terminal(&["tubes"], &[("NO_COLOR", "1")]).starts_with("TUBE"));
    assert!(place.on_terminal(&["tubes"], &[("NO_COLOR", "")]).starts_with(bold));
    assert!(place.on_terminal(&["tubes"], &[("TERM", "dumb")]).starts_with("TUBE"));
    assert!(place.ok(&["tubes"]).starts_with("TUBE"));
}

#[test]
fn what_needs_a_look_is_colored() {
    let place = Place::default();
    place.session("put -q -t mail x\nbury 1\npause mail 1h");
    let colored = place.on_terminal(&["tubes", "mail"], &[]);
    assert!(colored.contains(" \x1b[31m1\x1b[0m "), "{colored:?}");
    assert!(colored.contains("\x1b[33m"), "{colored:?}");
    let plain = place.on_terminal(&["tubes", "mail"], &[("NO_COLOR", "1")]);
    assert!(!plain.contains('\x1b') && !place.ok(&["tubes", "mail"]).contains('\x1b'), "{plain:?}");
}

#[test]
fn long_names_are_shortened_on_a_terminal_only() {
    let place = Place::default();
    let name = "long-name-".repeat(20);
    place.ok(&["put", "-q", "-t", &name, "x"]);
    let mut command = Command::new("script");
    let line = format!("stty cols 80; '{}' tubes -a {}", program(), place.address);
    command.args(["--quiet", "--return", "--command", &line, "/dev/null"]).envs(place.variables());
    let shown = ran(&mut command, b"").text();
    let row = shown.lines().find(|line| line.starts_with("long-")).expect("a row").trim_end();
    assert!(row.len() <= 80 && row.contains("...") && shown.lines().count() == 3, "{shown:?}");
    assert!(place.ok(&["tubes"]).contains(&name));
    assert_eq!(place.json_lines(&["tubes", "long"])[0]["name"], name);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    with_both("output to a reader that ends", |place| {
        let mut command = Command::new("bash");
        let line = "set -o pipefail; \"$0\" stats --addr \"$1\" | head -c 1; echo \" ${PIPESTATUS[0]}\"";
        command.args(["-c", line, program(), &place.address]);
        command.env_remove("BEANRING_ADDR").envs(place.variables());
        let result = ran(&mut command, b"");
        assert!(result.text().ends_with(" 0\n") && result.stderr.is_empty(), "{result:?}");
    });
}

/// Runs a verb with its output in a closed pipe. Returns the exit code.
fn unread(place: &Place, arguments: &[&str]) -> Option<i32> {
    let mut command = place.command(arguments);
    let (reader, writer) = std::io::pipe().expect("descriptors are left");
    drop(reader);
    command.stdin(Stdio::null()).stdout(writer).status().expect("the program starts").code()
}

#[test]
fn a_verb_acts_also_if_its_output_is_closed() {
    with_both("verbs without a reader", |place| {
        assert_eq!(unread(place, &["put", "-t", "default", "a", "b", "c"]), Some(0));
        assert_eq!(place.jobs(), [3, 0, 0, 0]);
        assert_eq!(unread(place, &["bury", "1", "2"]), Some(0));
        assert_eq!(place.jobs(), [1, 0, 0, 2]);
        assert_eq!(unread(place, &["delete", "1", "9", "2"]), Some(1));
        assert_eq!(place.jobs(), [1, 0, 0, 0]);
        assert_eq!(unread(place, &["watch", "--interval", "1"]), Some(0));
        // A body that could not be written is not deleted.
        assert_eq!(unread(place, &["reserve", "--delete"]), Some(1));
        place.wait_for_jobs([1, 0, 0, 0]);
    });
}
