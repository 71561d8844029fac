//! `beanring completions bash`, with a server that has tubes.

use std::env;
use std::path::Path;
use std::process::Command;

use beanring_testkit::process::program;

use super::place::everywhere;

/// Completes the last word as bash does, and prints each completion in a line.
const COMPLETE: &str = r#"
source <("$1" completions bash)
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
COMPREPLY=()
_beanring_with_names beanring "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}" 2>/dev/null
printf '%s\n' "${COMPREPLY[@]}"
"#;

#[test]
fn bash_completes_tubes_and_rules() {
    everywhere("completions", |place| {
        for tube in ["mail", "mail.send", "other", "run$(id);id"] {
            place.ok(&["put", "-q", "-t", tube, "x"]);
        }
        let completed = |words: &[&str]| {
            let directory = Path::new(program()).parent().expect("a directory").to_str().expect("text");
            let path = format!("{directory}:{}", env::var("PATH").unwrap_or_default());
            let mut command = Command::new("bash");
            command.args(["--norc", "-c", COMPLETE, "bash", program(), "beanring"]).args(words);
            command.env("BEANRING_ADDR", &place.address).envs(place.variables());
            let output = command.env("PATH", path).output().expect("bash runs");
            String::from_utf8(output.stdout)
                .expect("text")
                .split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(completed(&["put", "-t", "mail"]), ["mail", "mail.send"]);
        assert_eq!(completed(&["tube", "o"]), ["other"]);
        assert_eq!(completed(&["move", "mail", "o"]), ["other"]);
        // The name is quoted, and nothing in it runs.
        assert_eq!(completed(&["peek", "--tube", "r"]), ["run\\$\\(id\\)\\;id"]);
        assert_eq!(completed(&["tube-config", "mail", "re"]), ["retention"]);
        assert_eq!(completed(&["stat"]), ["stats"]);
        assert_eq!(completed(&["tube", "--js"]), ["--json"]);
    });
}
