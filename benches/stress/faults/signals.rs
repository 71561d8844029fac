//! Signals in any order: those that mean nothing to a server, SIGSTOP and SIGCONT, SIGUSR1 again and again, and at the
//! end whatever ends it while it stands still.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::{DURABLE, Fault};
use crate::bounds::Term;
use crate::client::{Client, put};
use crate::failure::Failure;
use crate::field::Field;
use crate::options::Options;
use crate::run::END;
use crate::server::{Server, Setup};
use beanring_testkit::bench::logs::Log;

/// They change nothing.
const HARMLESS: [Signal; 5] =
    [Signal::SIGPIPE, Signal::SIGCHLD, Signal::SIGWINCH, Signal::SIGURG, Signal::SIGCONT];

const PAUSE: Duration = Duration::from_millis(1);

/// What ends the server; SIGUSR1 that comes before or after changes nothing.
const ENDS: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGUSR1];

/// Jobs that were acknowledged before the end, and are to be there after it.
const JOBS: usize = 200;

pub struct Signals;

impl Fault for Signals {
    fn name(&self) -> &'static str {
        "signals"
    }

    fn title(&self) -> &'static str {
        "signals in any order, drain mode, and ends of all kinds with a log (-b, -f 0)"
    }

    fn seconds(&self, options: &Options, _: bool) -> f64 {
        options.seconds(20.0, 3.0)
    }

    fn log(&self) -> Option<Log> {
        Some(DURABLE)
    }

    fn inject(&self, field: &mut Field<'_>) -> Result<(), Failure> {
        field.terms.push(Term::connections(1));
        end_in_any_order(field)?;
        let (length, mut count) = (field.length, 0);
        field.length = length / 2;
        field.begin = std::time::Instant::now();
        while field.rages()? {
            count += disturb(field, &HARMLESS)?;
        }
        // From now on there are no more jobs; everything else goes on.
        field.control.allow_refusals();
        field.length = length;
        let drain = [&HARMLESS[..], &[Signal::SIGUSR1]].concat();
        field.server.signal(Signal::SIGUSR1);
        while field.rages()? {
            count += disturb(field, &drain)?;
        }
        field
            .notes
            .push(format!("{count} signals; after SIGUSR1 puts are answered DRAINING, which is right"));
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

/// A few signals, and now and then a moment of standing still.
fn disturb(field: &mut Field<'_>, signals: &[Signal]) -> Result<usize, Failure> {
    let count = field.random.below(10);
    for _ in 0..count {
        let which = field.random.below(signals.len());
        field.server.signal(signals[which]);
    }
    if field.random.below(50) == 0 {
        field.stop_server();
        let result = field.pause(Duration::from_millis(20));
        field.continue_server();
        result?;
    }
    field.pause(PAUSE)?;
    Ok(count)
}

/// Servers that are ended while they work: each ends with exit code 0, and what it has acknowledged is there when the
/// next one starts.
fn end_in_any_order(field: &mut Field<'_>) -> Result<(), Failure> {
    for round in 0..field.options.scale(4, 1) {
        let log = field.spare.log(DURABLE)?;
        let nth = 1 + 2 * round;
        let server = field.spare.start(nth, field.server.driver, &Setup::default(), Some(&log))?;
        let mut client = Client::connect(server.addr).map_err(|error| Failure::Client("connect", error))?;
        let mut signals = vec![Signal::SIGSTOP];
        signals.extend((0..field.random.below(6)).map(|_| ENDS[field.random.below(ENDS.len())]));
        signals.extend([Signal::SIGTERM, Signal::SIGCONT]);
        let acknowledged = work_until_it_ends(&mut client, server, &signals)?;
        let server = field.spare.start(nth + 1, field.server.driver, &Setup::default(), Some(&log))?;
        let ready = server.number("current-jobs-ready")?;
        // What it had not acknowledged yet may be there too.
        if !(acknowledged..=acknowledged + JOBS as u64).contains(&ready) {
            let names: Vec<&str> = signals.iter().map(|signal| signal.as_str()).collect();
            field.broken.push(format!(
                "{ready} jobs are back of {acknowledged} that were acknowledged before {}",
                names.join(" ")
            ));
        }
        server.end(END)?;
    }
    Ok(())
}

/// Half of the jobs are answered before the signals come, the others are on their way.
fn work_until_it_ends(client: &mut Client, server: Server, signals: &[Signal]) -> Result<u64, Failure> {
    let work = |client: &mut Client| -> std::io::Result<u64> {
        let mut acknowledged = 0;
        for _ in 0..JOBS / 2 {
            let line = client.ask(&put(0, 0, 60, b"acknowledged"))?.line;
            acknowledged += u64::from(line.starts_with("INSERTED"));
        }
        for _ in 0..JOBS / 2 {
            client.send(&put(0, 0, 60, b"on its way"))?;
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
