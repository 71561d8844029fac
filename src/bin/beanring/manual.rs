//! `beanring manual`: writes the manual pages and the shell completions, from the definition of the command line. `deploy/package`
//! packages them.

use std::fs;
use std::io;
use std::path::Path;

use beanring::flags::{Flag, Sources, variable};
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::cli::{self, Shell};
use crate::completions;

/// A section that the definition of the command line does not have: its title, and its entries with their texts.
type Section = (&'static str, &'static [(&'static str, &'static str)]);

const SECTIONS: [Section; 4] = [
    (
        "SIGNALS",
        &[
            ("SIGTERM, SIGINT, SIGHUP", "Sync the job log and stop."),
            ("SIGUSR1", "Drain mode, as by beanring drain: refuse new jobs until a client sends undrain."),
            (
                "SIGUSR2",
                "With -b: preflight check of the installed program, then an in-place restart with it.",
            ),
        ],
    ),
    (
        "ENVIRONMENT",
        &[
            (
                "BEANRING_*",
                "The flags above as variables. An unknown one is an error. An empty one counts as unset.",
            ),
            ("BEANRING_ADDR", "The server of the client's verbs, such as beanring put, without --addr."),
            ("LISTEN_PID, LISTEN_FDS", "Sockets from systemd (socket activation); they replace -l and -p."),
            (
                "NOTIFY_SOCKET, WATCHDOG_USEC",
                "The socket on which systemd is notified when the server is ready, alive and stopping.",
            ),
        ],
    ),
    (
        "FILES",
        &[
            ("/etc/default/beanring", "Variables for the service of the Debian package."),
            ("/var/lib/beanring", "The job log of this service."),
        ],
    ),
    (
        "EXIT STATUS",
        &[
            ("0", "A signal has stopped the server, or the subcommand has succeeded."),
            (
                "1",
                "The server cannot start or continue although its configuration is valid: an address is in use, a permission \
                 is missing, the disk or the job log has an error. With a subcommand: it has failed.",
            ),
            (
                "2",
                "The configuration is wrong: a flag, a variable, a key or a value, or a user, directory or file that does not \
                 exist. Another start fails as well.",
            ),
            (
                "3",
                "beanring wal salvage: the new job log lacks something that the old one had. Verbs of the client: no \
                 connection. Their codes are in their pages.",
            ),
        ],
    ),
];

/// Writes the files into a directory, which it creates.
///
/// # Errors
/// If they cannot be written, or a page refers to one that is not there.
pub fn write(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    completions(dir)?;
    // The help omits the variables to stay short. The manual lists them.
    let mut command = cli::command().mut_args(|argument| match Flag::find(argument.get_id().as_str()) {
        Some(flag) if flag.sources >= Sources::Variable => {
            argument.help(format!("{} [variable: {}]", flag.help, variable(flag.name)))
        }
        _ => argument,
    });
    command.build();
    pages(&command, dir)?;
    check_references(dir)
}

/// One file per shell.
fn completions(dir: &Path) -> io::Result<()> {
    for (name, shell) in
        [("beanring.bash", Shell::Bash), ("_beanring", Shell::Zsh), ("beanring.fish", Shell::Fish)]
    {
        fs::write(dir.join(name), completions::script(shell))?;
    }
    Ok(())
}

/// One page for the command and one for each subcommand.
fn pages(command: &Command, dir: &Path) -> io::Result<()> {
    let man = Man::new(without_help(command)).manual("beanring");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    let is_top = command.get_name() == "beanring";
    let has_page = |command: &&Command| command.get_name() != "help" && !command.is_hide_set();
    let commands: Vec<&Command> = command.get_subcommands().filter(has_page).collect();
    if !commands.is_empty() {
        man.render_subcommands_section(&mut page)?;
    }
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    for (title, paragraphs) in sections_of(&help) {
        // The top page has longer ones.
        if !is_top || !SECTIONS.iter().any(|(own, _)| *own == title) {
            section(title, &paragraphs).to_writer(&mut page)?;
        }
    }
    if is_top {
        more().to_writer(&mut page)?;
        man.render_version_section(&mut page)?;
    }
    fs::write(dir.join(man.get_filename()), page)?;
    commands.into_iter().try_for_each(|command| pages(command, dir))
}

/// The command without `help`, which has no page.
fn without_help(command: &Command) -> Command {
    let command = command.clone();
    if command.find_subcommand("help").is_some() {
        command.mut_subcommand("help", |help| help.hide(true))
    } else {
        command
    }
}

/// Sorts the paragraphs behind the flags of a help into sections with the titles that manual pages have.
fn sections_of(help: &str) -> Vec<(&'static str, Vec<String>)> {
    let titles = ["EXAMPLES", "NOTES", "SIGNALS", "ENVIRONMENT", "EXIT STATUS"];
    let mut sections: Vec<(&str, Vec<String>)> = titles.map(|title| (title, Vec::new())).into();
    // It follows the exit codes without an empty line.
    let help = help.replace("\nWithout --addr", "\n\nWithout --addr");
    for paragraph in help.split("\n\n").map(|paragraph| paragraph.trim_matches('\n')) {
        let begins = [
            ("Examples:\n", "EXAMPLES"),
            ("Example:\n", "EXAMPLES"),
            ("Signals: ", "SIGNALS"),
            ("Without --addr", "ENVIRONMENT"),
            ("Exit code: ", "EXIT STATUS"),
        ];
        let found = begins.into_iter().find(|(begin, _)| paragraph.starts_with(begin));
        let (begin, title) = found.unwrap_or(("", "NOTES"));
        let text = if title == "ENVIRONMENT" { paragraph } else { &paragraph[begin.len()..] };
        if let Some((_, paragraphs)) = sections.iter_mut().find(|(own, _)| *own == title)
            && !text.is_empty()
        {
            paragraphs.push(text.to_owned());
        }
    }
    sections.retain(|(_, paragraphs)| !paragraphs.is_empty());
    sections
}

/// A section of paragraphs. Lines of one that has indented lines stay as they are.
fn section(title: &str, paragraphs: &[String]) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [title]);
    for paragraph in paragraphs {
        roff.control("PP", []);
        if paragraph.lines().any(|line| line.starts_with("  ")) {
            roff.control("nf", []);
            paragraph.lines().for_each(|line| _ = roff.text([roman(line)]));
            roff.control("fi", []);
        } else {
            roff.text([roman(paragraph.replace('\n', " "))]);
        }
    }
    roff
}

fn more() -> Roff {
    let mut roff = Roff::new();
    for (title, entries) in SECTIONS {
        roff.control("SH", [title]);
        for (name, text) in entries {
            roff.control("TP", []);
            roff.text([bold(*name)]);
            roff.text([roman(*text)]);
        }
    }
    roff
}

/// Refuses a reference to a page that was not written.
fn check_references(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "1") {
            continue;
        }
        let text = fs::read_to_string(&path)?.replace("\\-", "-");
        for word in text.split_whitespace().filter_map(|word| word.split_once("(1)").map(|(name, _)| name)) {
            if word.starts_with("beanring") && !dir.join(format!("{word}.1")).exists() {
                return Err(io::Error::other(format!("{} refers to {word}(1)", path.display())));
            }
        }
    }
    Ok(())
}
