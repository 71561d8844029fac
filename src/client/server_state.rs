//! Verbs for a tube or the whole server: `beanring pause`, `drain` and `undrain`.

use serde_json::json;

use super::error::ClientError;
use super::output::{Fields, Output};
use super::{NO_TUBE, units};
use crate::cli::verbs::{self, Common};
use crate::time;

pub(super) fn pause(verb: &verbs::Pause) -> Result<(), ClientError> {
    let verbs::Pause { tube, time, common } = verb;
    let mut connection = super::connect(common)?;
    connection.require_decimals([*time])?;
    let reply = connection.ask(format!("pause-tube {tube} {time}"))?;
    let reply = reply.expect("PAUSED", &format!("tube {tube}"));
    reply.map_err(|refusal| refusal.meaning("NOT_FOUND", NO_TUBE))?;
    let line = match *time {
        time::Seconds::ZERO => format!("resumed {tube}"),
        time => format!("paused {tube} for {}", units::time(time)),
    };
    Output::result(common, &Fields(vec![("tube", json!(tube)), ("seconds", json!(time))]), &line)
}

pub(super) fn drain(common: &Common) -> Result<(), ClientError> {
    let reply = super::connect(common)?.ask("drain")?;
    reply.expect("DRAINING", "drain").map_err(|refusal| {
        refusal.meaning("UNKNOWN_COMMAND", "the server does not know drain; send it SIGUSR1")
    })?;
    Output::result(
        common,
        &json!({ "draining": true }),
        "the server drains: it refuses new jobs until beanring undrain",
    )
}

pub(super) fn undrain(common: &Common) -> Result<(), ClientError> {
    let reply = super::connect(common)?.ask("undrain")?;
    reply.expect("NOT_DRAINING", "undrain").map_err(|refusal| {
        refusal.meaning("UNKNOWN_COMMAND", "the server does not know undrain; a restart ends its drain mode")
    })?;
    Output::result(common, &json!({ "draining": false }), "the server accepts new jobs")
}
