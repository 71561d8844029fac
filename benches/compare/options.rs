//! The command line.

use clap::Parser;

use beanring_testkit::bench::process::Driver;

/// Compares beanring with its peers; see docs/BENCHMARKS.md
#[derive(Parser)]
#[command(name = "ci/bench")]
pub struct Options {
    /// The key rows only, in under three minutes
    #[arg(long)]
    pub short: bool,
    /// Only rows whose name contains one of these, such as put-16,handover
    #[arg(long, value_delimiter = ',', value_name = "TEXT")]
    pub only: Vec<String>,
    /// Times that every row meets every server [default: 3, short 2]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Measured seconds of a row that runs for a time; rows that run for a count scale with it [default: 2,
    /// short 0.4]
    #[arg(long, value_parser = seconds)]
    seconds: Option<f64>,
    /// Drivers of beanring to run, of those that start here [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub drivers: Vec<Driver>,
    /// Names the rows and ends
    #[arg(long)]
    pub list: bool,
    /// Puts the tables into docs/BENCHMARKS.md and the picture beside it
    #[arg(long)]
    pub publish: bool,
    /// What `cargo bench` passes to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    /// How often every row meets every server.
    pub fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.short { 2 } else { 3 })
    }

    /// How long a row is measured.
    pub fn seconds(&self) -> f64 {
        self.seconds.unwrap_or(if self.short { 0.4 } else { 2.0 })
    }

    /// Whether the row of this name was asked for.
    pub fn wants(&self, id: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|text| id.contains(text))
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number from 0.1 to 600".to_owned()),
    }
}
