//! The server as a program.

use std::error::Error;
use std::process::ExitCode;

use beanring::cli::{Arguments, Tool};
use beanring::config::Config;
use beanring::{healthcheck, launch, log_tool};
use clap::Parser;

fn main() -> ExitCode {
    // Answers -h and -v itself with code 0, and what it does not understand with code 2.
    let arguments = Arguments::parse();
    match start(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("beanring: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start(mut arguments: Arguments) -> Result<(), Box<dyn Error>> {
    match arguments.tool.take() {
        Some(Tool::Log(tool)) => log_tool::run(tool),
        Some(Tool::Healthcheck(tool)) => healthcheck::run(tool, arguments.listen, arguments.port),
        None => launch::run(Config::check(arguments)?),
    }
}
