//! Compares beanring under each of its drivers with beanstalkd, redis and a no-op baseline. The servers run one after
//! the other on a core of their own, the load on another. Writes `target/bench/report.{md,json,svg}`.
//!
//! `ci/bench` runs it; docs/internals/BENCHMARKS.md says how it measures and how to read what it writes.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use beanring_testkit::bench::logs::Place;
use beanring_testkit::bench::machine::{Machine, allow_descriptors};
use beanring_testkit::bench::signals::Signals;
use failure::Failure;
use measure::Bench;
use options::Options;
use report::Report;
use servers::Peers;

mod bounds;
mod failure;
mod matrix;
mod measure;
mod options;
mod plots;
mod report;
mod servers;
mod transport;

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("ci/bench: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

fn run(options: &Options) -> Result<(), Failure> {
    let machine = Machine::inspect();
    let rows = matrix::rows(options, &machine)?;
    if options.list {
        rows.iter().for_each(|row| println!("{:20} {}", row.id, row.title()));
        return Ok(());
    }
    if let Some(why) = machine.unpinned() {
        eprintln!("{why}: nothing is pinned, so the results are less exact");
    }
    let directory = directory();
    let written = |path: &Path, result: std::io::Result<()>| {
        result.map_err(|error| Failure::Write(path.to_owned(), error))
    };
    written(&directory, std::fs::create_dir_all(&directory))?;
    allow_descriptors().map_err(Failure::Descriptors)?;
    let signals = Signals::block()?;
    let logs = Place::find(&directory, "log");
    let mut bench = Bench::new(&machine, &signals, &directory, &logs);
    let peers = Peers::find(options, &mut bench)?;
    let results = bench.run(&rows, &peers, options)?;
    let report = Report { machine: &machine, logs: &logs, peers: &peers, options, results: &results };
    let markdown = report.markdown();
    for (name, text) in [("report.json", report.json()), ("report.md", report.page())] {
        let path = directory.join(name);
        written(&path, std::fs::write(&path, text))?;
    }
    plots::draw(&directory.join("report.svg"), &report)?;
    println!("{markdown}");
    println!("Written: {}", directory.join("report.{md,json,svg}").display());
    if options.publish { report::publish(&markdown, &directory) } else { Ok(()) }
}

/// Returns the directory `bench` in cargo's target directory.
fn directory() -> PathBuf {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    scratch.parent().expect("the target directory has a parent").join("bench")
}
