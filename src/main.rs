//! The server as a program.

use std::error::Error;
use std::process::ExitCode;

use beanring::cli::{Arguments, Tool};
use beanring::config::Config;
use beanring::{config_file, healthcheck, launch, log_tool};
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
    let tool = arguments.tool.take();
    if let Some(Tool::Log(tool)) = tool {
        return log_tool::run(tool);
    }
    if let Some(file) = arguments.config.clone() {
        config_file::complete(&mut arguments, &file)?;
    }
    if let Some(Tool::Healthcheck(tool)) = tool {
        return healthcheck::run(tool, arguments.listen, arguments.port);
    }
    let checks_only = arguments.check_config;
    let config = Config::check(arguments)?;
    if checks_only {
        for warning in &config.warnings {
            eprintln!("beanring: {warning}");
        }
        launch::check_places(&config)?;
        println!("the configuration is good");
        return Ok(());
    }
    launch::run(config)
}
