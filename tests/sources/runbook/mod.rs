//! docs/RUNBOOK.md has one entry per warning and error line, and one section per alert; its commands exist. No line shows a
//! `Debug` representation.

mod messages;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use self::messages::{Messages, normalized};
use crate::layers::read;
use crate::layers::source::{SRC, files, relative};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn messages() -> Messages {
    let mut all = Messages::default();
    let files = files(Path::new(SRC)).into_iter().map(|file| relative(&file));
    // The load generator is no server.
    for file in files.filter(|file| !file.starts_with("bin/beanring-bench")) {
        all.read(&file.display().to_string(), &read(&file));
    }
    assert!(all.lines.len() > 50 && all.alarms.len() > 25, "the messages are found");
    all
}

#[test]
fn no_line_shows_a_debug_representation() {
    let wrong: Vec<_> = messages().lines.into_iter().filter(|line| line.is_debug).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn each_warning_and_error_has_an_entry_and_each_entry_a_message() {
    let Messages { alarms, parts, .. } = messages();
    let text = runbook();
    let entries = entries(&text);
    let known: BTreeSet<String> = entries.iter().map(|entry| normalized(entry)).collect();
    let all = normalized(&text.split_whitespace().collect::<Vec<_>>().join(" "));

    let missing: Vec<_> = alarms.iter().filter(|alarm| !known.contains(*alarm)).collect();
    assert!(missing.is_empty(), "without an entry: {missing:#?}");
    let missing: Vec<_> = parts.iter().filter(|part| !all.contains(part.trim())).collect();
    assert!(missing.is_empty(), "not in the runbook: {missing:#?}");
    let stale: Vec<_> =
        known.iter().filter(|entry| !alarms.contains(*entry) && !parts.contains(*entry)).collect();
    assert!(stale.is_empty(), "no such message: {stale:#?}");
}

fn runbook() -> String {
    fs::read_to_string(root().join("docs/RUNBOOK.md")).expect("the runbook")
}

/// The part of the page from the heading `## {heading}` to the next of that level.
fn chapter<'a>(text: &'a str, heading: &str) -> &'a str {
    let (_, rest) = text.split_once(&format!("\n## {heading}\n")).expect("a chapter with this heading");
    rest.split("\n## ").next().expect("a first part")
}

/// The messages of the runbook: each is the first cell of a row that says more, or a line of the list of messages that name
/// their remedy.
fn entries(text: &str) -> Vec<String> {
    let (tables, list) = chapter(text, "Messages")
        .split_once("\n### Messages that say what to do\n")
        .expect("the list comes last");
    let mut found = Vec::new();
    for row in tables.lines().filter(|line| line.starts_with("| `")) {
        let (message, rest) = row[3..].split_once("` | ").expect("a message and a second cell");
        let more = rest.strip_suffix(" |").expect("two cells");
        assert!(
            more.len() > 5 && !more.contains("as the message says"),
            "{message}: the row says more than it"
        );
        found.push(message.to_owned());
    }
    let mut parts = list.split("```\n");
    for message in parts.nth(1).expect("a block of text").lines() {
        let remedies = ["; ", "must ", ": set ", ": stop "];
        assert!(
            remedies.iter().any(|remedy| message.contains(remedy)),
            "{message}: it does not say what to do"
        );
        found.push(message.to_owned());
    }
    assert!(found.len() > 100, "the entries are found");
    found
}

/// The sections of a chapter: heading and text.
fn sections(chapter: &str) -> Vec<(&str, &str)> {
    chapter.split("\n### ").skip(1).map(|section| section.split_once('\n').expect("a heading")).collect()
}

#[test]
fn each_alert_links_to_its_section_and_each_section_says_what_to_do() {
    let text = runbook();
    let alerts = fs::read_to_string(root().join("deploy/alerts.yaml")).expect("the alerts");
    let mut names = Vec::new();
    for alert in alerts.split("- alert: ").skip(1) {
        let name = alert.lines().next().expect("a name");
        let link = format!("runbook_url: docs/RUNBOOK.md#{}\n", name.to_lowercase());
        assert!(alert.contains(&link), "{name}: no {link}");
        names.push(name);
    }
    names.sort_unstable();
    let alerts = sections(chapter(&text, "Alerts"));
    let mut headings: Vec<_> = alerts.iter().map(|(heading, _)| *heading).collect();
    headings.sort_unstable();
    assert_eq!(headings, names);

    for (heading, section) in alerts.into_iter().chain(sections(chapter(&text, "Symptoms"))) {
        let mut rest = section;
        for label in ["\n\n**Why:** ", "\n\n**Do:** ", "\n\n**Check:** "] {
            let (before, after) = rest.split_once(label).unwrap_or_else(|| panic!("{heading}: no {label}"));
            assert!(before.trim().len() > 10, "{heading}: nothing before {label}");
            rest = after;
        }
        assert!(rest.contains(' '), "{heading}: no check");
    }
}

/// The commands of the page run against a port that no server has: the client accepts their flags.
#[test]
fn each_command_of_the_runbook_exists() {
    let text = runbook();
    let commands: BTreeSet<&str> =
        text.split('`').skip(1).step_by(2).filter(|span| span.starts_with("beanring ")).collect();
    assert!(commands.len() > 20, "the commands are found");
    for command in commands {
        // Without a terminal, flush cannot ask.
        let unattended = command.replace("flush TUBE", "flush --yes TUBE");
        let arguments = unattended.split(' ').skip(1).map(|word| match word {
            "ID" => "7",
            "HOST:11300" => "127.0.0.1:1",
            word => word,
        });
        let done = Command::new(env!("CARGO_BIN_EXE_beanring"))
            .args(arguments)
            .env("BEANRING_ADDR", "127.0.0.1:1")
            .env("BEANRING_PORT", "1")
            .output()
            .expect("the program runs");
        let (code, error) = match command.split(' ').nth(1) {
            Some("--check-config") => (0, ""),
            Some("healthcheck") => (1, ""),
            Some("wal") => (2, "DIR: no such directory"),
            // No connection.
            _ => (3, ""),
        };
        let stderr = String::from_utf8_lossy(&done.stderr);
        assert!(
            done.status.code() == Some(code) && stderr.contains(error),
            "{command}: {} {stderr}",
            done.status
        );
    }
}

#[test]
fn debug_representations_are_found_however_they_are_written() {
    for (text, expected) in [
        ("warn!(\"{error}\");", false),
        ("warn!(\"{error:?}\");", true),
        ("info!(\"{:#?} of {}\", a, b);", true),
        ("debug!(?peer, \"opened\");", true),
        ("debug!(peer = ?peer, \"opened\");", true),
        ("debug!(peer = %peer, \"is it open?\");", false),
    ] {
        let mut messages = Messages::default();
        messages.read("a.rs", &format!("fn f() {{ {text} }}"));
        assert_eq!(messages.lines[0].is_debug, expected, "{text}");
    }
    let mut messages = Messages::default();
    let error = "// docs/RUNBOOK.md lists these messages.\n\
        impl fmt::Display for Refusal { fn fmt(&self) { write!(f, \"it is {:?} now\", self) } }";
    messages.read("a.rs", error);
    assert!(messages.lines[0].is_debug && messages.parts.contains("it is <> now"));
    let mut messages = Messages::default();
    messages.read(
        "a.rs",
        "// docs/RUNBOOK.md lists these messages.\nenum Refusal { #[error(\"it is {0:?} here\")] Any(u8) }",
    );
    assert!(messages.lines[0].is_debug && messages.parts.contains("it is <> here"));
}
