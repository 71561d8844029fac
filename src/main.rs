//! The command line program: runs the server or one of its tools, and sets the exit code.

use std::env;
use std::error::Error;
use std::process::ExitCode;

use beanring::cli::{Arguments, LogFormat, Tool};
use beanring::config::ServerConfig;
use beanring::io::systemd;
use beanring::{config_file, healthcheck, launch, preflight, wal_tool};
use tracing::error;

fn main() -> ExitCode {
    // clap exits itself: with code 0 after -h and -v, with code 2 after an error.
    let arguments = Arguments::from_words(env::args_os()).unwrap_or_else(|error| error.exit());
    match start(arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("beanring: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start(mut arguments: Arguments) -> Result<ExitCode, Box<dyn Error>> {
    let tool = arguments.tool.take();
    if let Some(Tool::Log(tool)) = tool {
        return wal_tool::run(tool);
    }
    if let Some(file) = arguments.config.clone() {
        config_file::complete(&mut arguments, &file)?;
    }
    if let Some(Tool::Healthcheck(tool)) = tool {
        return healthcheck::run(tool, arguments.listen, arguments.port).map(|()| ExitCode::SUCCESS);
    }
    let checks_only = arguments.check_config;
    let config = ServerConfig::check(arguments)?;
    if checks_only {
        for warning in &config.warnings {
            eprintln!("beanring: {warning}");
        }
        let driver = preflight::check(&config)?;
        println!("the configuration is good\ndriver: {driver}");
        return Ok(ExitCode::SUCCESS);
    }
    let format = config.log_format;
    match launch::run(config) {
        // A reader of JSON expects no other line, and the journal gets a priority only with log lines.
        Err(error) if format == LogFormat::Json || systemd::is_stderr_the_journal() => {
            error!("{error}");
            Ok(ExitCode::FAILURE)
        }
        result => result,
    }
}
