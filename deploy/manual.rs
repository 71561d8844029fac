//! Writes the manual pages and the shell completions, from the definition of the command line. `deploy/package`
//! packages them.
//!
//! usage: cargo run --example manual DIR

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use beanring::cli;
use beanring::cli::flags::{Flag, Sources, variable};
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

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
                "Flags as variables, see OPTIONS. An unknown one is an error. An empty one counts as unset.",
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

fn main() -> ExitCode {
    let Some(dir) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("manual: say where to write: cargo run --example manual DIR");
        return ExitCode::from(2);
    };
    match write(&dir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("manual: {}: {error}", dir.display());
            ExitCode::FAILURE
        }
    }
}

fn write(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let mut command = cli::command();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, "beanring", dir)?;
    }
    // The help omits the variables to stay short. The manual lists them.
    let mut command = cli::command().mut_args(|argument| match Flag::find(argument.get_id().as_str()) {
        Some(flag) if flag.sources >= Sources::Variable => {
            argument.help(format!("{} [variable: {}]", flag.help, variable(flag.name)))
        }
        _ => argument,
    });
    command.build();
    pages(&command, dir)
}

/// One page for the command and one for each subcommand.
fn pages(command: &Command, dir: &Path) -> io::Result<()> {
    let man = Man::new(command.clone()).manual("beanring");
    let mut page = File::create(dir.join(man.get_filename()))?;
    man.render(&mut page)?;
    if command.get_name() == "beanring" {
        more().to_writer(&mut page)?;
    }
    let mut commands = command.get_subcommands().filter(|command| command.get_name() != "help");
    commands.try_for_each(|command| pages(command, dir))
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
