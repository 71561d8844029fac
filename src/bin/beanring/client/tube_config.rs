//! `beanring tube-config`: rules of a tube.

use beanring::config::in_unit;
use beanring::config::settings::quoted;
use beanring::values::tube_name::TubeName;
use beanring::values::tube_rules::{Rule, RuleKey, Unit};
use serde::Serialize;
use serde_json::json;

use super::{
    Align, ClientError, Connection, Fields, Follows, Kind, Output, Refusal, Stats, Table, Value, units,
};
use crate::cli::verbs;

#[derive(Serialize)]
struct Rules<'a> {
    tube: &'a str,
    rules: &'a Stats,
}

pub(super) fn run(verb: &verbs::TubeConfig) -> Result<(), ClientError> {
    let verbs::TubeConfig { tube, key, value, common } = verb;
    let rule = match (key, value) {
        (Some(key), Some(value)) => Some((*key, value, number_of(tube, *key, value)?)),
        _ => None,
    };
    let mut connection = super::connect(common)?;
    let Some((key, given, value)) = rule else {
        let mut output = Output::new(common);
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
            table.row([key.to_string(), shown(key.bytes(), value)]);
        }
        return Ok(output.table(table)?);
    };
    let word = key.word();
    let reply = connection.ask(format!("tube-config {tube} {word} {value}"))?;
    reply.expect("CONFIGURED", &format!("tube {tube}")).map_err(|refusal| {
        explained(refusal).meaning("OUT_OF_MEMORY", "1,000 tubes have rules; remove those of another one")
    })?;
    let line = match &*value {
        "0" => format!("removed {word} of {tube}"),
        _ => format!("set {word} of {tube} to {given}"),
    };
    let value = json!(typed(key, value));
    Output::result(
        common,
        &Fields(vec![("tube", json!(tube)), ("key", json!(word)), ("value", value)]),
        &line,
    )
}

/// Returns the value of a rule as the protocol has it, without the unit of a size or a time. It is checked here, so that a
/// mistake is one of usage and no refusal.
fn number_of(tube: &str, key: RuleKey, given: &str) -> Result<String, ClientError> {
    let of = TubeName::new(tube.as_bytes()).expect("the command line has a valid name");
    let (kind, unit) = match key.unit() {
        Unit::Bytes => ("a size such as 64k or 1GiB,", " bytes"),
        Unit::Seconds => ("a time such as 90 or 5m,", " s"),
        Unit::Tenths => ("a number with at most one decimal", ""),
        Unit::Hundredths => ("a number with at most two decimals", ""),
        Unit::Count | Unit::Switch => ("a number", ""),
    };
    let value = in_unit(key, given).map_or_else(|| given.to_owned(), |number| number.to_string());
    // Only 0 itself removes a rule.
    if Rule::parse(of, key, value.as_bytes()).is_some() && (value != "0" || given == "0") {
        return Ok(value);
    }
    let word = key.word();
    let must = match key {
        RuleKey::DeadLetter => "the name of another tube".to_owned(),
        RuleKey::LostCounts => "yes or no".to_owned(),
        key => format!("{kind} from {} to {}{unit}", key.shown(key.min()), key.shown(key.max())),
    };
    let given = quoted(given.as_ref());
    Err(ClientError::Usage(format!("{word} {given}: must be {must}; 0 removes the rule")))
}

/// The value of a rule as the server shows it: a number, or the name of a tube.
fn typed(key: RuleKey, value: String) -> Value {
    match value.parse() {
        Ok(number) if key != RuleKey::DeadLetter || value == "0" => Value::Number(number),
        _ => Value::Text(value.into_bytes().into()),
    }
}

/// The value of a rule as the command line takes it, with a unit if it is a whole multiple of it.
fn shown(key: &[u8], value: &Value) -> String {
    match (RuleKey::named(key).map(RuleKey::unit), value) {
        (Some(Unit::Bytes), Value::Number(bytes)) => units::whole_size(*bytes),
        (Some(Unit::Seconds), Value::Number(seconds)) => units::whole_time(*seconds),
        _ => value.with_unit(key),
    }
}

pub(super) fn rules(connection: &mut Connection, tube: &str) -> Result<Stats, ClientError> {
    let reply = connection
        .ask_for(Follows::Statistics, format!("tube-config {tube}"))?
        .into_ok(&format!("tube {tube}"));
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
