//! Shell completions, from the definition of the command line: `beanring completions SHELL`. Names of tubes and schedules come from
//! the server while the line is completed.

use beanring::values::tube_rules::RuleKey;
use clap::{Arg, Command, ValueHint};

use crate::cli::{self, Shell};

/// Names of tubes and schedules for bash, after the function that `clap_complete` makes. A name may have any of `$();`, so it is neither
/// expanded nor inserted without quotes.
const BASH: &str = r#"
_beanring_add() {
    local word
    while read -r word; do
        if [[ $word == "$1"* ]]; then
            COMPREPLY+=("$(printf %q "$word")")
        fi
    done
}

_beanring_tubes() {
    timeout 1 beanring tubes 2>/dev/null | tail -n +2 | cut -d ' ' -f 1
}

_beanring_schedules() {
    timeout 1 beanring schedule list 2>/dev/null | tail -n +2 | cut -d ' ' -f 1
}

_beanring_with_names() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} before= first=
    if ((COMP_CWORD > 1)); then
        before=${COMP_WORDS[COMP_CWORD-2]}
    fi
    if ((COMP_CWORD > 2)); then
        first=${COMP_WORDS[COMP_CWORD-3]}
    fi
    if [[ $first == tube-config && $prev == lost-counts ]]; then
        COMPREPLY=() && _beanring_add "$cur" <<<$'no\nyes'
        return
    fi
    _beanring "$@"
    case $prev in
        -t | --tube | @TUBE_VERBS@)
            [[ $cur == -* ]] || { COMPREPLY=() && _beanring_add "$cur" < <(_beanring_tubes); } ;;
        *)
            case "$before $prev" in
                "move "*) [[ $cur == -* ]] || { COMPREPLY=() && _beanring_add "$cur" < <(_beanring_tubes); } ;;
                "tube-config "*) [[ $cur == -* ]] || { COMPREPLY=() && _beanring_add "$cur" <<<"@RULES@"; } ;;
                @SCHEDULE_VERBS@)
                    [[ $cur == -* ]] || { COMPREPLY=() && _beanring_add "$cur" < <(_beanring_schedules); } ;;
            esac ;;
    esac
}
"#;

/// The same for zsh, which quotes what it inserts.
const ZSH: &str = r#"
_beanring_tubes() {
    local -a tubes
    tubes=(${(f)"$(timeout 1 beanring tubes 2>/dev/null | tail -n +2 | cut -d ' ' -f 1)"})
    compadd -a tubes
}

_beanring_schedules() {
    local -a schedules
    schedules=(${(f)"$(timeout 1 beanring schedule list 2>/dev/null | tail -n +2 | cut -d ' ' -f 1)"})
    compadd -a schedules
}

_beanring_rules() {
    compadd -- @RULES@
}

_beanring_rule_values() {
    if [[ $words[CURRENT-1] == lost-counts ]]; then
        compadd -- no yes
    fi
}
"#;

/// The same for fish, which quotes what it inserts.
const FISH: &str = r#"
function __fish_beanring_tubes
    timeout 1 beanring tubes 2>/dev/null | tail -n +2 | cut -d ' ' -f 1
end

function __fish_beanring_schedules
    timeout 1 beanring schedule list 2>/dev/null | tail -n +2 | cut -d ' ' -f 1
end
"#;

/// Verbs whose first argument is a tube.
const TUBE_VERBS: [&str; 7] = ["tube", "jobs", "pause", "tube-config", "flush", "move", "watch"];

/// Commands of `beanring schedule` whose first argument is a schedule.
const SCHEDULE_VERBS: [&str; 3] = ["show", "rm", "run"];

/// Returns the script for a shell. A value that is no file and no directory is not completed by names of files.
pub fn script(shell: Shell) -> String {
    // The parser accepts it there, and the help shows it with each verb.
    let addr =
        Arg::new("addr").short('a').long("addr").value_name("ADDR").help("Server of a verb of the client");
    let mut command = with_hints(cli::command().arg(addr));
    let generator = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(generator, &mut command, "beanring", &mut script);
    let script = String::from_utf8(script).expect("the script is text");
    match shell {
        Shell::Bash => for_bash(&script),
        Shell::Zsh => for_zsh(&script),
        Shell::Fish => for_fish(&script, &command),
    }
}

fn rules(between: &str) -> String {
    RuleKey::ALL.map(RuleKey::word).join(between)
}

/// Adds names of tubes, rules and schedules.
fn for_bash(script: &str) -> String {
    const USE: &str = "complete -F _beanring ";
    const CONDITION: &str = "\nif [[ \"${BASH_VERSINFO[0]}\" -eq 4 && ";
    assert!(
        script.contains(USE) && script.contains(CONDITION),
        "the script ends with the use of its function"
    );
    let names = BASH.replace("@TUBE_VERBS@", &TUBE_VERBS.join(" | ")).replace("@RULES@", &rules("\n"));
    let of_schedules = SCHEDULE_VERBS.map(|verb| format!("\"schedule {verb}\""));
    let names = names.replace("@SCHEDULE_VERBS@", &of_schedules.join(" | "));
    script.replace(CONDITION, &(names + CONDITION)).replace(USE, "complete -F _beanring_with_names ")
}

/// Keeps the flags of the top command from completing the values of a verb's flags: `-s` of `peek` is a state, and of the
/// server a size.
fn for_zsh(script: &str) -> String {
    const TOP: &str = "_arguments \"${_arguments_options[@]}\"";
    assert!(script.contains(TOP), "the script parses the flags of the top command first");
    let script = script.replacen(TOP, &TOP.replace("_arguments ", "_arguments -A '-*' "), 1);
    let (head, rest) = script.split_once('\n').expect("it has lines");
    // The action follows the last colon of a line.
    let lines = rest.lines().map(|line| {
        let is_tube = line.contains(":TUBE:'")
            || ["':tube -- ", "':from -- ", "':to -- ", "'*::tubes -- ", "':name -- Tube "]
                .iter()
                .any(|begin| line.starts_with(begin));
        let action = match () {
            () if is_tube => "_beanring_tubes",
            () if line.starts_with("'::key -- Rule") => "_beanring_rules",
            () if line.starts_with("'::value -- ") => "_beanring_rule_values",
            () if line.starts_with("':name -- Schedule, ") => "_beanring_schedules",
            () => return line.to_owned(),
        };
        line.replacen(":' \\", &format!(":{action}' \\"), 1)
    });
    let lines: Vec<String> = lines.collect();
    format!("{head}\n{}{}\n", ZSH.replace("@RULES@", &rules(" ")), lines.join("\n"))
}

fn with_hints(command: Command) -> Command {
    command.mut_args(with_hint).mut_subcommands(with_hints)
}

/// Tells shells what the value of an argument is, by the name of the value.
fn with_hint(argument: Arg) -> Arg {
    let name = argument.get_value_names().and_then(<[_]>::first).map(ToString::to_string);
    if !argument.get_action().takes_values() {
        return argument;
    }
    argument.value_hint(match name.as_deref().unwrap_or_default() {
        "FILE" => ValueHint::FilePath,
        "DIR" | "NEWDIR" => ValueHint::DirPath,
        "USER" => ValueHint::Username,
        "CMD" => ValueHint::CommandName,
        _ => ValueHint::Other,
    })
}

/// Completes what `clap_complete` leaves out in the script for fish. The script does not know the top command while the
/// value of its last flag is missing, offers files as arguments of every command, and no commands behind `help`.
fn for_fish(script: &str, command: &Command) -> String {
    const PARSE: &str =
        "    argparse -s (__fish_beanring_global_optspecs) -- $cmd 2>/dev/null\n    or return\n";
    assert!(script.contains(PARSE), "the script parses the flags of the top command");
    let again = PARSE.replace("$cmd", "$cmd value").replace("    argparse", "    or argparse");
    let mut script = script.replace(PARSE, &(PARSE.replace("    or return\n", "") + &again));
    let mut line = |condition: &str, rest: &str| {
        script += &format!("complete -c beanring -n \"{condition}\" -f{rest}\n");
    };
    line("__fish_beanring_needs_command", "");
    let mut names = Vec::new();
    for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
        let name = command.get_name();
        names.push(name);
        if !takes_path(command) {
            line(&format!("__fish_beanring_using_subcommand {name}"), "");
        }
    }
    let is_first = "__fish_beanring_using_subcommand help; and test (count (commandline -opc)) -eq 2";
    line(is_first, &format!(" -a \"{}\"", names.join(" ")));
    // Whether a command is used, and this word is the last, or the last but one.
    let has = |command: &str, at: i32, word: &str| {
        format!("__fish_beanring_using_subcommand {command}; and test (commandline -opc)[{at}] = {word}")
    };
    let tubes = " -a \"(__fish_beanring_tubes)\"";
    for verb in TUBE_VERBS {
        line(&has(verb, -1, verb), tubes);
    }
    line(&has("move", -2, "move"), tubes);
    line(&has("tube-config", -2, "tube-config"), &format!(" -a \"{}\"", rules(" ")));
    line(&has("tube-config", -1, "lost-counts"), " -a \"no yes\"");
    for verb in SCHEDULE_VERBS {
        line(&has("schedule", -1, verb), " -a \"(__fish_beanring_schedules)\"");
    }
    for verb in ["put", "reserve", "peek", "kick", "work", "schedule"] {
        line(&format!("__fish_beanring_using_subcommand {verb}"), &format!(" -s t -l tube -r{tubes}"));
    }
    FISH.to_owned() + &script
}

/// Whether an argument of the command, or of one of its own commands, is a path.
fn takes_path(command: &Command) -> bool {
    let is_path = |argument: &Arg| {
        matches!(argument.get_value_hint(), ValueHint::FilePath | ValueHint::DirPath | ValueHint::CommandName)
    };
    command.get_positionals().any(is_path) || command.get_subcommands().any(takes_path)
}
