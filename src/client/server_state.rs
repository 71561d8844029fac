//! Verbs for a tube or the whole server: `beanring pause`, `drain` and `undrain`.

use serde::Serialize;

use super::error::ClientError;
use super::output::Output;
use super::units::Seconds;
use crate::cli::verbs::{self, Common};

#[derive(Serialize)]
struct Paused<'a> {
    tube: &'a str,
    seconds: u32,
}

#[derive(Serialize)]
struct Draining {
    draining: bool,
}

pub(super) fn pause(verb: &verbs::Pause) -> Result<(), ClientError> {
    let verbs::Pause { tube, time, common } = verb;
    let reply = super::connect(common)?.ask(format!("pause-tube {tube} {time}"))?;
    reply
        .expect("PAUSED", &format!("tube {tube}"))
        .map_err(|refusal| refusal.meaning("NOT_FOUND", "there is no such tube"))?;
    let mut output = Output::new(common);
    if output.is_json() {
        output.json(&Paused { tube, seconds: *time })?;
    } else if *time == 0 {
        output.line(&format!("resumed {tube}"))?;
    } else {
        output.line(&format!("paused {tube} for {}", Seconds((*time).into())))?;
    }
    Ok(output.flush()?)
}

pub(super) fn drain(common: &Common) -> Result<(), ClientError> {
    let reply = super::connect(common)?.ask("drain")?;
    reply.expect("DRAINING", "drain").map_err(|refusal| {
        refusal.meaning("UNKNOWN_COMMAND", "the server cannot be drained by a client; send it SIGUSR1")
    })?;
    report(common, true, "the server drains: it refuses new jobs until beanring undrain")
}

pub(super) fn undrain(common: &Common) -> Result<(), ClientError> {
    let reply = super::connect(common)?.ask("undrain")?;
    reply.expect("NOT_DRAINING", "undrain").map_err(|refusal| {
        refusal.meaning("UNKNOWN_COMMAND", "only a restart ends drain mode of this server")
    })?;
    report(common, false, "the server accepts new jobs")
}

fn report(common: &Common, draining: bool, text: &str) -> Result<(), ClientError> {
    let mut output = Output::new(common);
    if output.is_json() {
        output.json(&Draining { draining })?
    } else {
        output.line(text)?
    }
    Ok(output.flush()?)
}
