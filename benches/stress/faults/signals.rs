//! Signals in any order: those that a server ignores, SIGSTOP and SIGCONT, SIGUSR1 again and again, and finally any
//! signal that ends the server, sent while it is stopped.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::{DURABLE, Fault};
use crate::bounds::MemoryItem;
use crate::client::{Client, put};
use crate::context::Context;
use crate::failure::Failure;
use crate::options::Options;
use crate::run::END;
use crate::server::{Server, Setup};
use beanring_testkit::bench::logs::Log;

/// Signals that change nothing.
const HARMLESS: [Signal; 5] =
    [Signal::SIGPIPE, Signal::SIGCHLD, Signal::SIGWINCH, Signal::SIGURG, Signal::SIGCONT];

const PAUSE: Duration = Duration::from_millis(1);

/// Signals that end the server. A SIGUSR1 before or after one changes nothing.
const ENDS: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGUSR1];

/// Jobs that are acknowledged before the end, and must be there after a restart.
const JOBS: usize = 200;

pub struct Signals;

impl Fault for Signals {
    fn name(&self) -> &'static str {
        "signals"
    }

    fn title(&self) -> &'static str {
        "signals in any order, drain mode, and every signal that ends a server with a job log (-b, -f 0)"
    }

    fn seconds(&self, options: &Options, _: bool) -> f64 {
        options.seconds(20.0, 3.0)
    }

    fn log(&self) -> Option<Log> {
        Some(DURABLE)
    }

    fn inject(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        context.memory_items.push(MemoryItem::connections(1));
        end_in_any_order(context)?;
        let (length, mut count) = (context.length, 0);
        context.length = length / 2;
        context.begin = std::time::Instant::now();
        while context.is_running()? {
            count += disturb(context, &HARMLESS)?;
        }
        // The server refuses puts from now on. Everything else continues.
        context.control.allow_refusals();
        context.length = length;
        let drain = [&HARMLESS[..], &[Signal::SIGUSR1]].concat();
        context.server.signal(Signal::SIGUSR1);
        while context.is_running()? {
            count += disturb(context, &drain)?;
        }
        context.notes.push(format!("{count} signals; puts after SIGUSR1 are correctly answered DRAINING"));
        Ok(())
    }

    fn drains(&self) -> bool {
        true
    }

    fn end(&self) -> &'static [Signal] {
        use Signal::{SIGCONT, SIGINT, SIGSTOP, SIGTERM, SIGUSR1};
        &[SIGSTOP, SIGUSR1, SIGTERM, SIGINT, SIGUSR1, SIGTERM, SIGCONT, SIGSTOP, SIGCONT]
    }
}

/// Sends a few signals, and sometimes stops the server for a moment.
fn disturb(context: &mut Context<'_>, signals: &[Signal]) -> Result<usize, Failure> {
    let count = context.random.below(10);
    for _ in 0..count {
        let which = context.random.below(signals.len());
        context.server.signal(signals[which]);
    }
    if context.random.below(50) == 0 {
        context.stop_server();
        let result = context.pause(Duration::from_millis(20));
        context.continue_server();
        result?;
    }
    context.pause(PAUSE)?;
    Ok(count)
}

/// Ends working servers with each signal. Each must exit with code 0, and the next server must have every acknowledged
/// job.
fn end_in_any_order(context: &mut Context<'_>) -> Result<(), Failure> {
    for round in 0..context.options.scale(4, 1) {
        let log = context.servers.log(DURABLE)?;
        let nth = 1 + 2 * round;
        let server = context.servers.start(nth, context.server.driver, &Setup::default(), Some(&log))?;
        let mut client = Client::connect(server.addr).map_err(|error| Failure::Client("connect", error))?;
        let mut signals = vec![Signal::SIGSTOP];
        signals.extend((0..context.random.below(6)).map(|_| ENDS[context.random.below(ENDS.len())]));
        signals.extend([Signal::SIGTERM, Signal::SIGCONT]);
        let acknowledged = work_until_it_ends(&mut client, server, &signals)?;
        let server = context.servers.start(nth + 1, context.server.driver, &Setup::default(), Some(&log))?;
        let ready = server.number("current-jobs-ready")?;
        // Jobs that were not acknowledged yet may be there too.
        if !(acknowledged..=acknowledged + JOBS as u64).contains(&ready) {
            let names: Vec<&str> = signals.iter().map(|signal| signal.as_str()).collect();
            context.broken.push(format!(
                "recovered {ready} of {acknowledged} jobs that were acknowledged before {}",
                names.join(" ")
            ));
        }
        server.end(END)?;
    }
    Ok(())
}

/// Half of the puts are acknowledged before the signals are sent. The others are in flight.
fn work_until_it_ends(client: &mut Client, server: Server, signals: &[Signal]) -> Result<u64, Failure> {
    let work = |client: &mut Client| -> std::io::Result<u64> {
        let mut acknowledged = 0;
        for _ in 0..JOBS / 2 {
            let line = client.request(&put(0, 0, 60, b"acknowledged"))?.line;
            acknowledged += u64::from(line.starts_with("INSERTED"));
        }
        for _ in 0..JOBS / 2 {
            client.send(&put(0, 0, 60, b"in flight"))?;
        }
        Ok(acknowledged)
    };
    let mut acknowledged = work(client).map_err(|error| Failure::Client("put", error))?;
    server.end(signals)?;
    while let Ok(reply) = client.reply() {
        acknowledged += u64::from(reply.line.starts_with("INSERTED"));
    }
    Ok(acknowledged)
}
