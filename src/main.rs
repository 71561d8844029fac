//! The server as a program.

use std::error::Error;
use std::process::ExitCode;

use beanring::cli::Arguments;
use beanring::config::Config;
use beanring::launch;
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

fn start(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    launch::run(Config::check(arguments)?)
}
