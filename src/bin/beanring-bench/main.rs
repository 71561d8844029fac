//! `beanring-bench` loads a beanstalk server and measures it.
//!
//! It is one thread with many connections, so that it uses as little as possible of the machine that it shares with the
//! server. From the bottom: [`net`] transports bytes, [`scan`] and [`resp`] parse replies, [`script`] and [`redis`] are
//! the protocol side of a workload without I/O, [`connection`] runs a script over a stream, [`pace`] decides when
//! operations begin, [`meter`] counts and times them, [`phase`] runs a measurement, [`run`] combines the phases of a
//! workload, [`report`] shows the results, and [`mod@compare`] compares those of two series.

use std::process::ExitCode;

use beanring::help::fitted;
use clap::{CommandFactory, FromArgMatches};

use args::{Args, CommandLine, Io, Tool};
use compare::Comparison;
use failure::Failure;
use interrupt::EXIT_INTERRUPTED;
use net::Transport;
use net::epoll::Epoll;
use report::Report;

mod args;
mod bare;
mod body;
mod compare;
mod connection;
mod failure;
mod interrupt;
mod meter;
mod net;
mod pace;
mod phase;
mod proc;
mod redis;
mod report;
mod resp;
mod run;
mod scan;
mod script;
mod setup;
mod talk;

/// For files that cannot be compared, as for invalid options.
const EXIT_INVALID: u8 = 2;

fn main() -> ExitCode {
    let mut command = CommandLine::command();
    command.build();
    let command = fitted(command, "Options").mut_subcommands(|tool| fitted(tool, "Options"));
    let matches = command.get_matches();
    let CommandLine { load: args, tool } =
        CommandLine::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    if let Some(Tool::Compare(comparison)) = tool {
        return compare(comparison);
    }
    if let Err(failure) = args.check() {
        CommandLine::command().error(clap::error::ErrorKind::ArgumentConflict, failure).exit();
    }
    if let (Some(driver), Some(addr)) = (args.baseline, &args.addr) {
        return match bare::serve(driver, addr) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => fail(&failure),
        };
    }
    let json = args.json.clone();
    let writable = json.as_deref().map_or(Ok(()), report::check_file);
    let done = writable
        .and_then(|()| start(args))
        .and_then(|report| report.publish(json.as_deref()).map(|()| report));
    match done {
        Ok(report) if report.interrupted => ExitCode::from(EXIT_INTERRUPTED),
        Ok(report) if report.has_errors() => ExitCode::FAILURE,
        Ok(_) => ExitCode::SUCCESS,
        Err(failure) => fail(&failure),
    }
}

/// Only a difference has exit code 1, so that a script can tell it from a mistake.
fn compare(comparison: Comparison) -> ExitCode {
    let compared = comparison.run().map_err(|obstacle| obstacle.to_string());
    let shown = compared.and_then(|outcome| {
        report::show(&outcome.to_string()).map_err(|failure| failure.to_string())?;
        Ok(outcome.is_worse())
    });
    match shown {
        Ok(true) => ExitCode::FAILURE,
        Ok(false) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("beanring-bench: {why}");
            ExitCode::from(EXIT_INVALID)
        }
    }
}

fn fail(failure: &Failure) -> ExitCode {
    eprintln!("beanring-bench: {failure}");
    ExitCode::FAILURE
}

/// Runs on the requested runtime, or the best available one.
fn start(args: Args) -> Result<Report, Failure> {
    match args.io {
        Io::Epoll => on_epoll(args),
        Io::Auto => match on_uring(&args) {
            Ok(done) => done,
            Err(refusal) => {
                eprintln!("beanring-bench: io_uring is refused ({refusal}), so the generator uses epoll");
                on_epoll(args)
            }
        },
        Io::TokioUring => on_uring(&args).map_err(Failure::Uring)?,
    }
}

/// The outer result is the kernel's refusal of a ring.
#[cfg(feature = "tokio-uring")]
fn on_uring(args: &Args) -> std::io::Result<Result<Report, Failure>> {
    let runtime = net::uring::runtime(args.connections_max())?;
    let done = runtime.block_on(on::<net::uring::Uring>(args.clone()));
    // Dropping this runtime would free buffers that cancelled reads may still fill. The process ends now and frees
    // everything.
    std::mem::forget(runtime);
    Ok(done)
}

#[cfg(not(feature = "tokio-uring"))]
fn on_uring(_: &Args) -> std::io::Result<Result<Report, Failure>> {
    Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "this build has no tokio-uring"))
}

fn on_epoll(args: Args) -> Result<Report, Failure> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::Runtime)?;
    tokio::task::LocalSet::new().block_on(&runtime, on::<Epoll>(args))
}

/// Runs the load over this transport, or TLS over it.
async fn on<T: Transport>(args: Args) -> Result<Report, Failure> {
    #[cfg(feature = "tls")]
    if args.tls {
        net::tls::prepare(args.tls_ca.as_deref(), args.server_name()).map_err(Failure::Tls)?;
        return run::run::<net::tls::Tls<T>>(args).await;
    }
    run::run::<T>(args).await
}
