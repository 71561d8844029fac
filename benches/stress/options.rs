//! The command line.

use std::net::SocketAddr;

use clap::Parser;

use beanring_testkit::bench::process::Driver;

/// Faults against the server while a control client works on; see docs/STRESS.md
#[derive(Parser)]
#[command(name = "ci/stress")]
pub struct Options {
    /// Small faults of seconds, under the first driver that starts unless others are named
    #[arg(long)]
    pub short: bool,
    /// Only faults whose name contains one of these, such as unread,clock
    #[arg(long, value_delimiter = ',', value_name = "TEXT")]
    pub only: Vec<String>,
    /// Drivers to run, of those that start here [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub drivers: Vec<Driver>,
    /// How long each fault lasts, in seconds [default: what the fault takes]
    #[arg(long, value_parser = seconds)]
    seconds: Option<f64>,
    /// Names the faults and ends
    #[arg(long)]
    pub list: bool,
    /// What random choices are made from
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// One of the clients that are killed
    #[arg(long, hide = true)]
    pub victim: Option<SocketAddr>,
    /// What `cargo bench` passes to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    /// Of a length of a fault in full and in short, the one to take.
    pub fn seconds(&self, full: f64, short: f64) -> f64 {
        self.seconds.unwrap_or(self.scale(full, short))
    }

    /// Of a figure in full and in short, the one to take.
    pub fn scale<T>(&self, full: T, short: T) -> T {
        if self.short { short } else { full }
    }

    /// Whether the fault of this name was asked for.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|text| name.contains(text))
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.5..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number from 0.5 to 3600".to_owned()),
    }
}
