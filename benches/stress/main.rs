//! Faults against the server itself, under each of its drivers, while a control client works on: it loses nothing
//! and hardly waits. Writes `target/stress/report.{md,json}`.
//!
//! `ci/stress` runs it; docs/STRESS.md says what each fault does and what must hold.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use failure::Failure;
use logs::Place;
use machine::Machine;
use options::Options;
use process::Driver;
use report::Report;
use run::Bench;
use signals::Signals;

mod bounds;
mod client;
mod control;
mod crowd;
mod failure;
mod faults;
mod field;
#[path = "../common/logs.rs"]
#[allow(dead_code)] // Each benchmark uses a part of it.
mod logs;
#[path = "../common/machine.rs"]
#[allow(dead_code)]
mod machine;
mod options;
#[path = "../../src/bin/beanring-bench/proc.rs"]
#[allow(dead_code, unused_imports)] // Its tests have no harness here.
mod proc;
#[path = "../common/process.rs"]
mod process;
mod record;
mod report;
mod run;
mod server;
#[path = "../common/signals.rs"]
mod signals;
#[path = "../common/stats.rs"]
mod stats;
#[path = "../common/table.rs"]
#[allow(dead_code)]
mod table;
mod victim;

fn main() -> ExitCode {
    let options = Options::parse();
    let result = match options.victim {
        Some(addr) => victim::live(addr, options.seed),
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
        return Err(Failure::NoStorms);
    }
    let machine = Machine::look();
    if let Some(why) = machine.unpinned() {
        eprintln!("{why}: nothing is pinned, and latencies are the longer for it");
    }
    machine::allow_descriptors().map_err(Failure::Descriptors)?;
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

/// `fault` in cargo's target directory.
fn directory() -> PathBuf {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    scratch.parent().expect("it lies in the target directory").join("stress")
}
