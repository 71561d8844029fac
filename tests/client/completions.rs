//! `beanring completions bash`, with a server that has tubes.

use std::env;
use std::path::Path;
use std::process::Command;

use beanring_testkit::process::program;

use super::place::everywhere;

/// Completes the last word as bash does, and prints each completion in a line. A busy machine may need more than the second that a
/// person waits.
const COMPLETE: &str = r#"
timeout() { shift; "$@"; }
source <("$1" completions bash)
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
COMPREPLY=()
_beanring_with_names beanring "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}" 2>/dev/null
printf '%s\n' "${COMPREPLY[@]}"
"#;

#[test]
fn bash_completes_tubes_rules_and_schedules() {
    everywhere("completions", |place| {
        for tube in ["mail", "mail.send", "other", "run$(id);id"] {
            place.ok(&["put", "-q", "-t", tube, "x"]);
        }
        if place.is_beanring {
            place.ok(&["schedule", "add", "nightly", "x", "-w", "every:1h"]);
        }
        let schedules = if place.is_beanring { "nightly\n" } else { "\n" };
        let completed = |words: &[&str]| {
            let directory = Path::new(program()).parent().expect("a directory").to_str().expect("text");
            let path = format!("{directory}:{}", env::var("PATH").unwrap_or_default());
            let mut command = Command::new("bash");
            command.args(["--norc", "-c", COMPLETE, "bash", program(), "beanring"]).args(words);
            command.env("BEANRING_ADDR", &place.address).envs(place.variables());
            let output = command.env("PATH", path).output().expect("bash runs");
            String::from_utf8(output.stdout).expect("text")
        };
        for (words, expected) in [
            (&["put", "-t", "mail"][..], "mail\nmail.send\n"),
            (&["tube", "o"], "other\n"),
            (&["move", "mail", "o"], "other\n"),
            // The name is quoted, and nothing in it runs.
            (&["peek", "--tube", "r"], "run\\$\\(id\\)\\;id\n"),
            (&["tube-config", "mail", "rete"], "retention\n"),
            (&["tube-config", "mail", "lost-counts", ""], "no\nyes\n"),
            (&["stat"], "stats\n"),
            (&["tube", "--js"], "--json\n"),
            (&["schedule", "add", "x", "-t", "o"], "other\n"),
            (&["schedule", "run", "n"], schedules),
            (&["schedule", "rm", ""], schedules),
            (&["schedule", "add", "x", "--missed", "sk"], "skip\n"),
            (&["schedule", "sh"], "show\n"),
        ] {
            assert_eq!(completed(words), expected, "{words:?}");
        }
    });
}
