//! The tables `[tubes.NAME]` of the file: rules of tubes.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::DeValue;

use super::{size, suggestion};
use crate::values::limits::RULED_TUBES_MAX;
use crate::values::tube_name::TubeName;
use crate::values::tube_rules::{NO, Rule, RuleKey, TubeRules, Unit, YES};

/// The key whose tables have the rules.
pub const TUBES: &str = "tubes";

/// Where a mistake is in the file, and what it is.
pub type Mistake = (Range<usize>, String);

/// Reads the rules of all tubes, by their names.
///
/// # Errors
/// The first mistake.
pub fn read(tubes: &Spanned<DeValue<'_>>) -> Result<BTreeMap<String, TubeRules>, Mistake> {
    let DeValue::Table(table) = tubes.get_ref() else {
        return Err((tubes.span(), "must be tables, such as [tubes.mail]".to_owned()));
    };
    let mut all = BTreeMap::new();
    for (name, rules) in table.iter() {
        let Some(tube) = TubeName::new(name.get_ref().as_bytes()) else {
            return Err((name.span(), "this is not the name of a tube".to_owned()));
        };
        all.insert(tube.as_str().to_owned(), rules_of(tube, rules)?);
    }
    if all.len() > RULED_TUBES_MAX {
        let mut places: Vec<_> = table.keys().map(Spanned::span).collect();
        places.sort_by_key(|place| place.start);
        let first_too_many = places[RULED_TUBES_MAX].clone();
        return Err((first_too_many, format!("at most {RULED_TUBES_MAX} tubes may have rules")));
    }
    Ok(all)
}

fn rules_of(tube: TubeName<'_>, rules: &Spanned<DeValue<'_>>) -> Result<TubeRules, Mistake> {
    let DeValue::Table(table) = rules.get_ref() else {
        return Err((rules.span(), format!("must be a table: [tubes.{}]", tube.as_str())));
    };
    let mut set = TubeRules::default();
    for (word, value) in table.iter() {
        let Some(key) = RuleKey::named(word.get_ref().as_bytes()) else {
            return Err((word.span(), unknown(word.get_ref())));
        };
        let text = match value.get_ref() {
            DeValue::Integer(number) if key != RuleKey::DeadLetter => Some(number.to_string()),
            DeValue::Float(number) if matches!(key.unit(), Unit::Tenths | Unit::Hundredths) => {
                Some(number.to_string())
            }
            DeValue::Boolean(is_on) if key.unit() == Unit::Switch => {
                Some(key.shown(if *is_on { YES } else { NO }).to_string())
            }
            DeValue::String(text) if key == RuleKey::DeadLetter => Some(text.to_string()),
            DeValue::String(text) if key.unit() == Unit::Switch => Some(text.to_string()),
            DeValue::String(text) => in_unit(key, text).map(|number| number.to_string()),
            _ => None,
        };
        // A table sets rules. To have none is to have no line.
        let text = text.filter(|text| text != "0");
        let rule = text.as_ref().and_then(|text| Rule::parse(tube, key, text.as_bytes()));
        let Some(rule) = rule else { return Err((value.span(), expected(key))) };
        set.set(rule);
    }
    Ok(set)
}

/// Returns the value of a rule that is a size or a time, in bytes or seconds. The text may have a unit.
pub fn in_unit(key: RuleKey, text: &str) -> Option<u64> {
    match key.unit() {
        Unit::Bytes => size::parse(text).ok(),
        Unit::Seconds => size::seconds(text).ok().map(u64::from),
        Unit::Count | Unit::Tenths | Unit::Hundredths | Unit::Switch => None,
    }
}

fn unknown(word: &str) -> String {
    let known = RuleKey::ALL.into_iter().map(|key| key.word().to_owned());
    match suggestion(word, known) {
        Some(known) => format!("no such rule; did you mean {known}?"),
        None => "no such rule; the keys of the server stand before the first table".to_owned(),
    }
}

fn expected(key: RuleKey) -> String {
    let range = format!("from {} to {}", key.shown(key.min()), key.shown(key.max()));
    match key.unit() {
        _ if key == RuleKey::DeadLetter => {
            "must be the name of another tube, but for 0, as a text in quotes".to_owned()
        }
        Unit::Seconds => format!("must be a number of seconds {range}, or a text such as \"5m\""),
        Unit::Bytes => format!("must be a number of bytes {range}, or a text such as \"64k\""),
        Unit::Switch => "must be true or false".to_owned(),
        Unit::Tenths => format!("must be a number {range}, with at most one decimal"),
        Unit::Hundredths => format!("must be a number {range}, with at most two decimals"),
        Unit::Count => format!("must be a number {range}"),
    }
}
