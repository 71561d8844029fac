//! The command line.

use std::net::SocketAddr;

use clap::Parser;

use beanring_testkit::bench::process::Driver;

/// Inject faults into servers while a control client works; see docs/internals/STRESS.md
#[derive(Parser)]
#[command(name = "ci/stress")]
pub struct Options {
    /// Run short, small faults under the first available driver unless others are named
    #[arg(long)]
    pub short: bool,
    /// Run only faults whose name contains one of these, such as unread,clock
    #[arg(long, value_delimiter = ',', value_name = "TEXT")]
    pub only: Vec<String>,
    /// Drivers to run, of those that are available [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub drivers: Vec<Driver>,
    /// Duration of each fault in seconds [default: depends on the fault]
    #[arg(long, value_parser = seconds)]
    seconds: Option<f64>,
    /// List the names of all faults and exit
    #[arg(long)]
    pub list: bool,
    /// Seed of the random choices
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Run as a process of clients that a fault kills
    #[arg(long, hide = true)]
    pub client_process: Option<SocketAddr>,
    /// Passed by `cargo bench` to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    /// Returns the duration of a fault, which is shorter with `--short`.
    pub fn seconds(&self, full: f64, short: f64) -> f64 {
        self.seconds.unwrap_or(self.scale(full, short))
    }

    /// Returns `full`, or `short` with `--short`.
    pub fn scale<T>(&self, full: T, short: T) -> T {
        if self.short { short } else { full }
    }

    /// Returns whether the fault of this name is selected.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|text| name.contains(text))
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.5..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected a number from 0.5 to 3600".to_owned()),
    }
}
