//! Sessions: what a user types, and what the client must do. Each line is a command as in a shell, but for `beanring`.
//!
//! | line | what must occur |
//! |---|---|
//! | `VERB ...` | it succeeds without a word on stderr |
//! | `VERB ... => TEXT` | and prints the text and a line end |
//! | `VERB ... =\| TEXT` | and prints the text |
//! | `VERB ... =* WORDS` | and prints a line of these words |
//! | `VERB ... =~ JSON` | and its object with `--json` has these members |
//! | `VERB ... =1` | it ends with the exit code 1 |
//! | `VERB ... =1> TEXT` | and the text is the only line on stderr |
//! | `VERB ... =1\| TEXT` | and it prints the text and a line end |
//! | `[1 2 3 4]` | as many jobs are ready, reserved, delayed and buried |
//! | `until [1 2 3 4]` | the same, after some time |
//!
//! Before the mark, `<< TEXT` is the input. In a text, `\n` is a line end. A line that begins with `beanring:` or `beanstalkd:` is for that
//! server alone, and one that begins with `#` is a comment.

use serde_json::Value;

use super::place::Place;

/// Defines a test for each session. It runs `everywhere`, or with `with_both`.
macro_rules! sessions {
    ($($run:ident $name:ident $what:literal $session:literal)*) => {
        $(
            #[test]
            fn $name() {
                $crate::place::$run($what, |place| place.session($session));
            }
        )*
    };
}
pub(crate) use sessions;

impl Place {
    /// Plays a session.
    pub fn session(&self, lines: &str) {
        let (own, other) =
            if self.is_beanring { ("beanring:", "beanstalkd:") } else { ("beanstalkd:", "beanring:") };
        for line in lines.lines().map(str::trim) {
            let line = line.strip_prefix(own).unwrap_or(line).trim_start();
            if !line.is_empty() && !line.starts_with('#') && !line.starts_with(other) {
                println!("{}: {line}", self.address);
                self.step(line);
            }
        }
    }

    fn step(&self, line: &str) {
        if let Some(jobs) = line.strip_prefix("until ") {
            return self.wait_for_jobs(numbers(jobs).expect("four numbers"));
        }
        if let Some(jobs) = numbers(line) {
            return assert_eq!(self.jobs(), jobs);
        }
        let (command, code, kind, expected) = split(line);
        let (command, input) = command.split_once(" << ").unwrap_or((command, ""));
        let mut words = words(command);
        words.extend((kind == "~").then(|| "--json".to_owned()));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let ran = self.feed(&words, text(input).as_bytes());
        let Some(code) = code else { return expect(line, ran.ok(), kind, expected) };
        match kind {
            ">" => ran.fails(code, &text(expected)),
            "|" => assert_eq!((ran.code, ran.text()), (Some(code), text(expected) + "\n"), "{line}"),
            _ => assert_eq!(ran.code, Some(code), "{line}"),
        }
    }
}

/// Asserts what a command has printed that has succeeded.
fn expect(line: &str, printed: String, kind: &str, expected: &str) {
    match kind {
        ">" => assert_eq!(printed, text(expected) + "\n", "{line}"),
        "|" => assert_eq!(printed, text(expected), "{line}"),
        "*" => {
            let is_it = |row: &str| row.split_whitespace().eq(expected.split(' '));
            assert!(printed.lines().any(is_it), "{line}: {printed}");
        }
        "~" => {
            let found =
                serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{line}: {error}: {printed}"));
            assert!(has_members(&found, &serde_json::from_str(expected).expect("JSON")), "{line}: {found}");
        }
        _ => {}
    }
}

/// Splits a line into the command, the exit code if there is one, the kind of the expectation, and what is expected.
fn split(line: &str) -> (&str, Option<i32>, &str, &str) {
    for (at, _) in line.match_indices(" =") {
        let rest = &line[at + 2..];
        let (mark, expected) = rest.split_once(' ').unwrap_or((rest, ""));
        let code = mark.trim_end_matches(['>', '|', '*', '~']);
        let kind = &mark[code.len()..];
        let is_number = code.bytes().all(|byte| byte.is_ascii_digit());
        if is_number && !mark.is_empty() && kind.len() <= 1 {
            return (&line[..at], code.parse().ok(), kind, expected);
        }
    }
    (line, None, "", "")
}

fn numbers(line: &str) -> Option<[u64; 4]> {
    let numbers = line.strip_prefix('[')?.strip_suffix(']')?.split(' ').map(|number| number.parse().ok());
    numbers.collect::<Option<Vec<u64>>>()?.try_into().ok()
}

fn text(text: &str) -> String {
    text.replace("\\n", "\n")
}

/// The words of a command, in which single quotes may stand.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut is_quoted, mut is_new) = (Vec::new(), false, true);
    for character in command.chars() {
        if character == ' ' && !is_quoted {
            is_new = true;
            continue;
        }
        if is_new {
            words.push(String::new());
        }
        is_new = false;
        match character {
            '\'' => is_quoted = !is_quoted,
            _ => words.last_mut().expect("there is one").push(character),
        }
    }
    words
}

/// Whether a value has the members of another, and so on within them.
fn has_members(found: &Value, expected: &Value) -> bool {
    match expected {
        Value::Object(members) => members.iter().all(|(name, value)| has_members(&found[name], value)),
        _ => found == expected,
    }
}
