//! `beanring log`: what can be done with a log while no server runs on it.

use std::error::Error;

use crate::cli::LogTool;
use crate::config::Verbosity;
use crate::io::clock::Clock;
use crate::io::disk;
use crate::launch;

/// Does what was asked for.
pub fn run(tool: LogTool) -> Result<(), Box<dyn Error>> {
    launch::log_to_stderr(Verbosity::Warnings);
    match tool {
        LogTool::Export { dir, new_dir } => {
            let jobs = disk::export(&dir, &new_dir, Clock::start().now())?;
            println!("{jobs} jobs are in {}; start beanstalkd -b on it", new_dir.display());
        }
    }
    Ok(())
}
