//! The manual pages and the completions of shells, from the definition of the command line. `deploy/package` packs
//! them.
//!
//! usage: cargo run --example manual DIR

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use beanring::cli::Arguments;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

/// What the definition does not know: a name, and what there is to say about it.
type Section = (&'static str, &'static [(&'static str, &'static str)]);

const SECTIONS: [Section; 4] = [
    (
        "SIGNALS",
        &[
            ("SIGTERM, SIGINT", "Stop as soon as what has to be in the log is there."),
            ("SIGUSR1", "Accept no new jobs."),
        ],
    ),
    (
        "ENVIRONMENT",
        &[
            (
                "LISTEN_PID, LISTEN_FDS",
                "Sockets that a service manager hands over; used in place of -l and -p.",
            ),
            (
                "NOTIFY_SOCKET, WATCHDOG_USEC",
                "Where a service manager hears that the server is ready, alive and about to stop.",
            ),
        ],
    ),
    (
        "FILES",
        &[
            ("/etc/default/beanring", "Variables for the service of the Debian package."),
            ("/var/lib/beanring", "The log of this service."),
        ],
    ),
    (
        "EXIT STATUS",
        &[
            ("0", "It was told to stop; with a subcommand: it is well."),
            ("1", "It could not start or go on, or it is not well; one line says why."),
            ("2", "The arguments were not understood."),
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
    let mut command = Arguments::command();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, "beanring", dir)?;
    }
    // The help leaves the variables out to be short; the manual need not be.
    let mut command = Arguments::command().mut_args(|argument| argument.hide_env(false));
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
    command.get_subcommands().try_for_each(|command| pages(command, dir))
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
