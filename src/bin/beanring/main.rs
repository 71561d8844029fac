//! The command line program: runs the server or one of its tools, and sets the exit code.

mod cli;
#[cfg(feature = "client")]
mod client;
#[cfg(feature = "completions")]
mod completions;
mod config_tool;
mod exit_code;
mod healthcheck;
mod launch;
#[cfg(feature = "completions")]
mod manual;
mod preflight;
#[cfg(feature = "replicate")]
mod replicate_tool;
mod wal_tool;

use std::env;
use std::error::Error;
use std::ops::ControlFlow;
use std::process::ExitCode;

use beanring::config::ServerConfig;
use beanring::io::reexec::{CHECK_PASSED, RunningServer, TAKES_CONNECTIONS};
use beanring::io::stdout::print;
use beanring::io::{log_writer, systemd};
use beanring::logging::LogFormat;
use tracing::error;

use self::cli::{CommandLine, Tool};
use self::preflight::Passed;

fn main() -> ExitCode {
    let code = start().unwrap_or_else(|error| {
        #[cfg(feature = "client")]
        let is_printed = client::print_failure(&*error, env::args_os().skip(1));
        #[cfg(not(feature = "client"))]
        let is_printed = false;
        if !is_printed {
            eprintln!("beanring: {error}");
        }
        exit_code::of(&*error)
    });
    log_writer::flush();
    code
}

fn start() -> Result<ExitCode, Box<dyn Error>> {
    let CommandLine { settings, checks_config, tool } = match cli::parse(env::args_os())? {
        ControlFlow::Continue(command_line) => command_line,
        ControlFlow::Break(text) => {
            print(&text)?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    match tool {
        Some(Tool::Wal(tool)) => return wal_tool::run(tool),
        #[cfg(feature = "replicate")]
        Some(Tool::Replicate(tool)) => replicate_tool::run(tool)?,
        Some(Tool::Version) => print(&concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION"), "\n"))?,
        Some(Tool::Healthcheck(tool)) => healthcheck::run(&tool, settings.complete()?)?,
        Some(Tool::Config(tool)) => config_tool::run(&tool, settings.complete()?)?,
        #[cfg(feature = "completions")]
        Some(Tool::Completions { shell }) => print(&completions::script(shell))?,
        #[cfg(feature = "completions")]
        Some(Tool::Manual { dir }) => {
            manual::write(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        }
        #[cfg(feature = "client")]
        Some(Tool::Client(verb)) => return Ok(client::run(verb)?),
        None if checks_config => check(&ServerConfig::check(settings.complete()?)?)?,
        None => return serve(ServerConfig::check(settings.complete()?)?),
    }
    Ok(ExitCode::SUCCESS)
}

fn check(config: &ServerConfig) -> Result<(), Box<dyn Error>> {
    for warning in &config.warnings {
        eprintln!("beanring: {warning}");
    }
    let Passed { driver, warnings } = preflight::check(config)?;
    for warning in warnings {
        eprintln!("beanring: {warning}");
    }
    print(&format_args!("the configuration is valid\n{CHECK_PASSED}{driver}\n"))?;
    if RunningServer::from_environment().is_some() {
        print(&format_args!("{TAKES_CONNECTIONS}\n"))?;
    }
    Ok(())
}

fn serve(config: ServerConfig) -> Result<ExitCode, Box<dyn Error>> {
    let format = config.log_format;
    match launch::run(config) {
        // A reader of JSON expects no other line, and the journal gets a priority only with log lines.
        Err(error) if format == LogFormat::Json || systemd::is_stderr_the_journal() => {
            error!("{error}");
            Ok(exit_code::of(&*error))
        }
        result => result,
    }
}
