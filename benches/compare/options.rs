//! The command line.

use clap::Parser;

use beanring_testkit::bench::process::Driver;

/// Compare beanring with other servers; see docs/internals/BENCHMARKS.md
#[derive(Parser)]
#[command(name = "ci/bench")]
pub struct Options {
    /// Run only the key rows, once, in about a minute
    #[arg(long)]
    pub short: bool,
    /// Run only rows whose name contains one of these, such as put-16,delivery
    #[arg(long, value_delimiter = ',', value_name = "TEXT")]
    pub only: Vec<String>,
    /// Rounds per row and server [default: 3, short 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Seconds of a row that runs for a time; rows that run for a count scale with it [default: 2, short 0.4]
    #[arg(long, value_parser = seconds)]
    seconds: Option<f64>,
    /// Drivers of beanring to run, of those that are available [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub drivers: Vec<Driver>,
    /// List the names of all rows and exit
    #[arg(long)]
    pub list: bool,
    /// Update benches/results.md, and the figures and plots of README.md and docs/internals/BENCHMARKS.md
    #[arg(long)]
    pub publish: bool,
    /// Passed by `cargo bench` to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    /// Returns the number of rounds.
    pub fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.short { 1 } else { 3 })
    }

    /// Returns the duration of a row in seconds.
    pub fn seconds(&self) -> f64 {
        self.seconds.unwrap_or(if self.short { 0.4 } else { 2.0 })
    }

    /// Returns whether the row of this name is selected.
    pub fn wants(&self, id: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|text| id.contains(text))
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected a number from 0.1 to 600".to_owned()),
    }
}
