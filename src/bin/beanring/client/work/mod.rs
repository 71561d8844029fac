//! `beanring work`: runs a command for each job. Each slot is a thread with a connection of its own and at most one job, so that
//! the reservation of a slow job never delays another one.

mod command;
mod control;
mod report;
mod slot;
mod stderr;

use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;

use beanring::replies::ClientError;

use self::control::{Control, Retries};
use self::report::Report;
use self::slot::Slot;
use super::connection::Connection;
use super::interrupt;
use super::target::ServerTarget;
use crate::cli::verbs::{OnFailure, Work};

pub(super) fn run(verb: &Work) -> Result<ExitCode, ClientError> {
    if verb.tries.is_some() && verb.on_failure == OnFailure::Bury {
        return Err(ClientError::Usage("--tries needs --on-failure release".to_owned()));
    }
    command::find(verb)?;
    let target = ServerTarget::new(&verb.common.server)?;
    // A wrong address is an error. A server that goes away later is waited for.
    let mut first = Some(slot::open(&target, verb)?);
    let mut signals = interrupt::signals()?;
    let handle = signals.handle();
    let report = Report::new(verb.common.json, verb.verbose);
    let (senders, mailboxes): (Vec<_>, Vec<_>) = (0..verb.jobs).map(|_| mpsc::channel()).unzip();
    let control = Control::new(senders);
    let retries = Retries::default();
    thread::scope(|scope| {
        for (place, mailbox) in mailboxes.into_iter().enumerate() {
            let connection: Option<Connection> = first.take();
            let mut slot = Slot {
                place,
                verb,
                target: &target,
                control: &control,
                report: &report,
                retries: &retries,
                mailbox,
            };
            let handle = handle.clone();
            scope.spawn(move || {
                if let Err(error) = slot.run(connection) {
                    slot.control.fail(error);
                }
                if slot.control.ended() {
                    handle.close();
                }
            });
        }
        for _ in signals.forever() {
            control.signaled(&report);
        }
    });
    report.summary();
    match control.into_failure() {
        Some(error) => Err(error),
        None => Ok(ExitCode::SUCCESS),
    }
}
