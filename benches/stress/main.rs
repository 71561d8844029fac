//! Injects faults into servers under each driver, while a control client checks that it loses nothing and hardly waits.
//! Writes `target/stress/report.{md,json}`.
//!
//! `ci/stress` runs it; docs/internals/STRESS.md says what each fault does and what must hold.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use beanring_testkit::bench::logs::Place;
use beanring_testkit::bench::machine::{Machine, allow_descriptors};
use beanring_testkit::bench::process::Driver;
use beanring_testkit::bench::signals::Signals;
use failure::Failure;
use options::Options;
use report::Report;
use run::Bench;

mod bounds;
mod client;
mod client_process;
mod context;
mod control;
mod crowd;
mod failure;
mod faults;
mod options;
#[path = "../../src/bin/beanring-bench/proc.rs"]
#[allow(dead_code, unused_imports)] // Its tests have no harness here.
mod proc;
mod record;
mod report;
mod run;
mod server;

fn main() -> ExitCode {
    let options = Options::parse();
    let result = match options.client_process {
        Some(addr) => client_process::live(addr, options.seed),
        None => stress(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("ci/stress: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

fn stress(options: &Options) -> Result<(), Failure> {
    let faults = faults::all();
    let wanted: Vec<&dyn faults::Fault> =
        faults.iter().map(AsRef::as_ref).filter(|fault| options.wants(fault.name())).collect();
    if options.list {
        wanted.iter().for_each(|fault| println!("{:16} {}", fault.name(), fault.title()));
        return Ok(());
    }
    if wanted.is_empty() {
        return Err(Failure::UnknownFault);
    }
    let machine = Machine::inspect();
    if let Some(why) = machine.unpinned() {
        eprintln!("{why}: nothing is pinned, so latencies are higher");
    }
    allow_descriptors().map_err(Failure::Descriptors)?;
    let signals = Signals::block()?;
    let directory = directory();
    let written = |path: &Path, result: std::io::Result<()>| {
        result.map_err(|error| Failure::Write(path.to_owned(), error))
    };
    written(&directory, std::fs::create_dir_all(&directory))?;
    let (logs, spare_logs) = (Place::find(&directory, "log"), Place::find(&directory, "spare-log"));
    let mut bench = Bench::new(&machine, &signals, &directory, [&logs, &spare_logs], options);
    let asked = |driver: &Driver| options.drivers.is_empty() || options.drivers.contains(driver);
    let drivers: Vec<Driver> = Driver::value_variants().iter().copied().filter(asked).collect();
    let outcomes = bench.run(&wanted, &drivers)?;
    let report = Report { machine: &machine, options, outcomes: &outcomes };
    let markdown = report.markdown();
    for (name, text) in [("report.json", report.json()), ("report.md", markdown.clone())] {
        let path = directory.join(name);
        written(&path, std::fs::write(&path, text))?;
    }
    println!("{markdown}");
    println!("Written: {}", directory.join("report.{md,json}").display());
    let broken = outcomes.iter().filter(|outcome| !outcome.broken.is_empty()).count();
    if broken > 0 { Err(Failure::Bounds(broken)) } else { Ok(()) }
}

/// Returns the directory `stress` in cargo's target directory.
fn directory() -> PathBuf {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    scratch.parent().expect("the target directory has a parent").join("stress")
}
