//! docs/RUNBOOK.md has one entry per warning and error line, and no line shows a `Debug` representation.

mod messages;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use messages::{Messages, normalized};

/// The types whose `Display` is a line of the log, or its end: why a start is refused, and why a server ends.
const ERRORS: [&str; 16] = [
    "BinlogError",
    "Cause",
    "DirectoryError",
    "DriverError",
    "FileRefusal",
    "ImportError",
    "ListenError",
    "PrivilegesError",
    "RecoveryError",
    "Refusal",
    "RingError",
    "SystemError",
    "TokenError",
    "TooFewDescriptors",
    "Unavailable",
    "Warning",
];

/// Functions that return such a text.
const FUNCTIONS: [&str; 2] = ["explain", "failure"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The sources of the server.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && !path.ends_with("src/bin") {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

fn messages() -> Messages {
    let mut all = Messages::default();
    for file in files(&root().join("src")) {
        let text = fs::read_to_string(&file).expect("a source file");
        let name = file.strip_prefix(root()).expect("a path below the root").display().to_string();
        all.read(&name, &text, &ERRORS, &FUNCTIONS);
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
    let text = fs::read_to_string(root().join("docs/RUNBOOK.md")).expect("the runbook");
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

/// The messages of the runbook. Each begins a list entry, and says further down what to do.
fn entries(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (_, text) = text.split_once("\n## Start\n").expect("the first section with entries");
    for entry in text.split("\n- ").skip(1) {
        assert!(entry.starts_with('`'), "{entry}: an entry begins with its message");
        let (message, rest) = entry[1..].split_once('`').expect("the message ends");
        assert!(rest.contains("*Do:*"), "{message}: the entry says what to do");
        found.push(message.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    assert!(found.len() > 50, "the entries are found");
    found
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
        messages.read("a.rs", &format!("fn f() {{ {text} }}"), &ERRORS, &FUNCTIONS);
        assert_eq!(messages.lines[0].is_debug, expected, "{text}");
    }
    let mut messages = Messages::default();
    let error = "impl fmt::Display for Refusal { fn fmt(&self) { write!(f, \"it is {:?} now\", self) } }";
    messages.read("a.rs", error, &ERRORS, &FUNCTIONS);
    assert!(messages.lines[0].is_debug && messages.parts.contains("it is <> now"));
}
