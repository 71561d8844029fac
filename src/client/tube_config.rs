//! `beanring tube-config`: rules of a tube.

use serde::Serialize;

use super::error::ClientError;
use super::output::{Align, Output, Table};
use super::stats::{Kind, Stats};
use super::{Connection, Refusal};
use crate::cli::verbs;
use crate::tube_name::TubeName;
use crate::tube_rules::{Rule, RuleKey};

#[derive(Serialize)]
struct Configured<'a> {
    tube: &'a str,
    key: &'static str,
    value: &'a str,
}

#[derive(Serialize)]
struct Rules<'a> {
    tube: &'a str,
    rules: &'a Stats,
}

pub(super) fn run(verb: &verbs::TubeConfig) -> Result<(), ClientError> {
    let verbs::TubeConfig { tube, key, value, common } = verb;
    if let (Some(key), Some(value)) = (key, value) {
        check(tube, *key, value)?;
    }
    let mut connection = super::connect(common)?;
    let mut output = Output::new(common);
    let (Some(key), Some(value)) = (key, value) else {
        let rules = rules(&mut connection, tube)?;
        if output.is_json() {
            output.json(&Rules { tube, rules: &rules })?;
            return Ok(output.flush()?);
        }
        if rules.iter().next().is_none() && output.is_terminal() {
            output.line(&format!("tube {tube} has no rules"))?;
            return Ok(output.flush()?);
        }
        let mut table = Table::without_header(&[Align::Left, Align::Right]);
        for (key, value) in rules.iter() {
            table.row([super::escaped(key.as_bytes()), value.with_unit(key)]);
        }
        return Ok(output.table(table)?);
    };
    let key = key.word();
    let reply = connection.ask(format!("tube-config {tube} {key} {value}"))?;
    reply.expect("CONFIGURED", &format!("tube {tube}")).map_err(|refusal| {
        explained(refusal).meaning("OUT_OF_MEMORY", "1,000 tubes have rules; remove those of another one")
    })?;
    if output.is_json() {
        output.json(&Configured { tube, key, value })?;
    } else if value == "0" {
        output.line(&format!("removed {key} of {tube}"))?;
    } else {
        output.line(&format!("set {key} of {tube} to {value}"))?;
    }
    Ok(output.flush()?)
}

/// Checks a rule, so that a mistake is one of usage and no refusal.
fn check(tube: &str, key: RuleKey, value: &str) -> Result<(), ClientError> {
    let tube = TubeName::new(tube.as_bytes()).expect("the command line has a valid name");
    if Rule::parse(tube, key, value.as_bytes()).is_some() {
        return Ok(());
    }
    Err(ClientError::Usage(match key {
        RuleKey::DeadLetter => "dead-letter must be the name of another tube; 0 removes it".to_owned(),
        key => format!("{} must be a number from 1 to {}; 0 removes it", key.word(), key.max()),
    }))
}

fn rules(connection: &mut Connection, tube: &str) -> Result<Stats, ClientError> {
    let reply = connection.ask(format!("tube-config {tube}"))?.into_ok(&format!("tube {tube}"));
    let data = reply.map_err(|refusal| {
        explained(refusal).meaning("NOT_FOUND", "no such tube exists, and no rule is set for its name")
    })?;
    Stats::parse(Kind::Tube, &data)
}

fn explained(refusal: Refusal) -> Refusal {
    refusal.meaning(
        "UNKNOWN_COMMAND",
        "the server does not know tube-config: it is beanstalkd, or an older beanring",
    )
}
