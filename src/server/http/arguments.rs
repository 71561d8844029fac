//! The arguments of an action: whole numbers and texts in the JSON object that is the body of its request.
//!
//! Bounded by JSON_BYTES_MAX: the body of one request.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::response::{ErrorKind, ErrorResponse, bad};
use super::target::must_be_whole;
use crate::values::tube_name::TubeName;
use crate::values::tube_rules::{Rule, RuleKey, Unit};

/// The members of an object in their order, so that a name that occurs twice is seen.
pub(super) struct Members(Vec<(String, Value)>);

struct MembersVisitor;

/// Reads the whole numbers `names`, of which none may be missing and beside which there may be no argument.
pub(super) fn read<const N: usize>(json: &[u8], names: [&str; N]) -> Result<[u32; N], ErrorResponse> {
    let members = Members::read(json, &names)?;
    let mut numbers = [0; N];
    for (number, name) in numbers.iter_mut().zip(names) {
        *number = members.number(name)?;
    }
    Ok(numbers)
}

impl Members {
    /// Reads an object that has no other members than these.
    pub fn read(json: &[u8], names: &[&str]) -> Result<Self, ErrorResponse> {
        let Self(members) = parse(json)?;
        for (at, (name, _)) in members.iter().enumerate() {
            if !names.contains(&&**name) {
                let taken = match names {
                    [] => "none".to_owned(),
                    [name] => (*name).to_owned(),
                    [some @ .., last] => format!("{} and {last}", some.join(", ")),
                };
                return Err(bad(format!(
                    "the body has a member that this action does not take: it takes {taken}"
                )));
            }
            if members[..at].iter().any(|(other, _)| other == name) {
                return Err(bad(format!("the body has {name} twice")));
            }
        }
        Ok(Self(members))
    }

    pub fn number(&self, name: &str) -> Result<u32, ErrorResponse> {
        self.number_from(0, name)
    }

    /// The member `count`: a number of jobs, which must not be 0.
    pub fn count(&self) -> Result<u32, ErrorResponse> {
        self.number_from(1, "count")
    }

    fn number_from(&self, least: u32, name: &str) -> Result<u32, ErrorResponse> {
        let number = |value: &Value| whole(value).filter(|number| *number >= least);
        self.get(name, number, || must_be_whole(name, &(least..=u32::MAX)))
    }

    pub fn text(&self, name: &str) -> Result<&str, ErrorResponse> {
        self.get(name, Value::as_str, || format!("{name} must be a JSON string"))
    }

    fn get<'a, T>(
        &'a self,
        name: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
        rule: impl Fn() -> String,
    ) -> Result<T, ErrorResponse> {
        let member = self.0.iter().find(|(other, _)| other == name);
        let (_, value) = member.ok_or_else(|| bad(format!("the body lacks {name}: {}", rule())))?;
        read(value).ok_or_else(|| bad(rule()))
    }
}

/// The text of a number with at most two decimals. Those of a computed one may be off by a binary fraction, as in 1.4000000000000001.
fn decimal(number: f64) -> Option<String> {
    let near = (number * 100.0).round() / 100.0;
    ((near - number).abs() <= number.abs() * 1e-12).then(|| near.to_string())
}

/// Reads the arguments `key` and `value` of a rule. Returns the key and the text of the value.
pub(super) fn rule(json: &[u8], tube: TubeName<'_>) -> Result<(RuleKey, Box<str>), ErrorResponse> {
    let members = Members::read(json, &["key", "value"])?;
    let key = |value: &Value| RuleKey::named(value.as_str()?.as_bytes());
    let key = members.get("key", key, || {
        let [some @ .., last] = RuleKey::ALL.map(RuleKey::word);
        format!("key must be one of {} or {last}", some.join(", "))
    })?;
    let is_own =
        |key, text: &str| key == RuleKey::DeadLetter && text != "0" && text.as_bytes() == tube.as_bytes();
    let text = |value: &Value| {
        let text = match value {
            // A tube is named by a text.
            Value::Number(_) if key == RuleKey::DeadLetter => {
                (whole_u64(value)? == 0).then(|| "0".to_owned())?
            }
            Value::Number(number) if matches!(key.unit(), Unit::Tenths | Unit::Hundredths) => {
                decimal(number.as_f64()?)?
            }
            Value::Number(_) => whole_u64(value)?.to_string(),
            Value::Bool(is_on) if key.unit() == Unit::Switch => {
                (if *is_on { "yes" } else { "no" }).to_owned()
            }
            Value::String(text) if key == RuleKey::DeadLetter || key.unit() == Unit::Switch => text.clone(),
            _ => return None,
        };
        let is_valid = is_own(key, &text) || Rule::parse(tube, key, text.as_bytes()).is_some();
        is_valid.then_some(text)
    };
    let text = members.get("value", text, || match key {
        RuleKey::DeadLetter => "value must be the name of another tube, or 0".to_owned(),
        key => {
            let range = format!("from {} to {}, or 0", key.shown(key.min()), key.shown(key.max()));
            match key.unit() {
                Unit::Bytes => format!("value must be a whole number of bytes from 0 to {}", key.max()),
                Unit::Seconds => format!("value must be a whole number of seconds from 0 to {}", key.max()),
                Unit::Count => format!("value must be a whole number from 0 to {}", key.max()),
                Unit::Tenths => format!("value must be a number with at most one decimal {range}"),
                Unit::Hundredths => format!("value must be a number with at most two decimals {range}"),
                Unit::Switch => "value must be yes, no or 0".to_owned(),
            }
        }
    })?;
    if is_own(key, &text) {
        let message = "a tube cannot be its own dead-letter tube: name another one in value";
        return Err(ErrorResponse::new(ErrorKind::Conflict, message));
    }
    Ok((key, text.into()))
}

fn parse(json: &[u8]) -> Result<Members, ErrorResponse> {
    if json.trim_ascii_start().first() != Some(&b'{') {
        return Err(bad("the body must be a JSON object, such as {}".to_owned()));
    }
    serde_json::from_slice(json).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        bad(format!("the body is not valid JSON: look at line {line}, column {column}"))
    })
}

/// Reads a whole number, which may have been written with a decimal point.
fn whole_u64(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| {
        let number = value.as_f64()?;
        let is_whole = (0.0..9_223_372_036_854_775_808.0).contains(&number) && number.fract() == 0.0;
        is_whole.then_some(number as u64)
    })
}

/// A number from 0 to 2^32 - 1. JSON does not distinguish 1 from 1.0.
fn whole(value: &Value) -> Option<u32> {
    let number = value.as_f64()?;
    let is_whole = (0.0..=f64::from(u32::MAX)).contains(&number) && number.fract() == 0.0;
    is_whole.then_some(number as u32)
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Members(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_whole_numbers_by_name() {
        assert_eq!(read(b" {\"b\": 1e2, \"a\": 4294967295.0} ", ["a", "b"]), Ok([u32::MAX, 100]));
        assert_eq!(read(b"{}", []), Ok([]));
        for (json, message) in [
            ("", "the body must be a JSON object, such as {}"),
            ("{\"a\":1} x", "the body is not valid JSON: look at line 1, column 9"),
            ("{}", "the body lacks a: a must be a whole number from 0 to 4294967295"),
            ("{\"a\":1,\"c\":2}", "the body has a member that this action does not take: it takes a and b"),
            ("{\"a\":1,\"a\":2}", "the body has a twice"),
            ("{\"a\":\"1\",\"b\":1}", "a must be a whole number from 0 to 4294967295"),
            ("{\"a\":1,\"b\":-1}", "b must be a whole number from 0 to 4294967295"),
            ("{\"a\":1,\"b\":null}", "b must be a whole number from 0 to 4294967295"),
        ] {
            assert_eq!(read(json.as_bytes(), ["a", "b"]), Err(bad(message.to_owned())), "{json}");
        }
        let members = Members::read(b"{\"a\":\"\\u0041\",\"b\":1}", &["a", "b", "c"]).expect("it is valid");
        assert_eq!((members.text("a"), members.number("b")), (Ok("A"), Ok(1)));
        assert_eq!(members.text("b"), Err(bad("b must be a JSON string".to_owned())));
        assert_eq!(members.text("c"), Err(bad("the body lacks c: c must be a JSON string".to_owned())));
        let none = "the body has a member that this action does not take: it takes none";
        assert_eq!(read(b"{\"a\":1}", []), Err(bad(none.to_owned())));
    }

    #[test]
    fn a_rule_has_a_key_and_a_value() {
        let mail = TubeName::new(b"mail").expect("a valid name");
        let read = |json: &str| rule(json.as_bytes(), mail).map_err(|refusal| refusal.message.to_string());
        let rule = |key, text: &str| Ok((key, text.into()));
        assert_eq!(read("{\"key\":\"rate\",\"value\":5}"), rule(RuleKey::Rate, "5"));
        assert_eq!(read("{\"key\":\"retry-factor\",\"value\":1.5}"), rule(RuleKey::RetryFactor, "1.5"));
        let computed = "{\"key\":\"retry-factor\",\"value\":1.4000000000000001}";
        assert_eq!(read(computed), rule(RuleKey::RetryFactor, "1.4"));
        assert!(read("{\"key\":\"retry-factor\",\"value\":1.45}").is_err());
        assert!(
            read("{\"key\":\"retry-jitter\",\"value\":2.6e-42}").is_err(),
            "only 0 itself removes a rule"
        );
        assert_eq!(read("{\"key\":\"retry-jitter\",\"value\":1}"), rule(RuleKey::RetryJitter, "1"));
        assert_eq!(read("{\"key\":\"lost-counts\",\"value\":false}"), rule(RuleKey::LostCounts, "no"));
        assert_eq!(read("{\"key\":\"lost-counts\",\"value\":\"yes\"}"), rule(RuleKey::LostCounts, "yes"));
        assert_eq!(read("{\"key\":\"rate\",\"value\":5.0}"), rule(RuleKey::Rate, "5"));
        let large = "{\"key\":\"max-bytes\",\"value\":2106328370409007.0}";
        assert_eq!(read(large), rule(RuleKey::MaxBytes, "2106328370409007"));
        assert_eq!(read("{\"value\":0,\"key\":\"dead-letter\"}"), rule(RuleKey::DeadLetter, "0"));
        assert_eq!(read("{\"key\":\"dead-letter\",\"value\":\"a\"}"), rule(RuleKey::DeadLetter, "a"));
        let keys = "key must be one of max-attempts, retry-for, retry-delay, retry-factor, retry-max-delay, retry-jitter, lost-counts, max-jobs, max-bytes, default-ttr, retention, rate or dead-letter";
        let own = "a tube cannot be its own dead-letter tube: name another one in value";
        for (json, message) in [
            ("{\"key\":\"rate\"}", "the body lacks value: value must be a whole number from 0 to 1000000"),
            ("{\"key\":\"rate\",\"key\":\"rate\"}", "the body has key twice"),
            (
                "{\"key\":\"rate\",\"value\":1,\"x\":1}",
                "the body has a member that this action does not take: it takes key and value",
            ),
            ("{\"key\":\"speed\",\"value\":1}", keys),
            ("{\"key\":1,\"value\":1}", keys),
            ("{\"key\":\"rate\",\"value\":\"1\"}", "value must be a whole number from 0 to 1000000"),
            (
                "{\"key\":\"max-bytes\",\"value\":\"1k\"}",
                "value must be a whole number of bytes from 0 to 9223372036854775807",
            ),
            (
                "{\"key\":\"retention\",\"value\":\"5m\"}",
                "value must be a whole number of seconds from 0 to 4294967295",
            ),
            ("{\"key\":\"rate\",\"value\":1.5}", "value must be a whole number from 0 to 1000000"),
            ("{\"key\":\"rate\",\"value\":-1}", "value must be a whole number from 0 to 1000000"),
            ("{\"key\":\"rate\",\"value\":null}", "value must be a whole number from 0 to 1000000"),
            ("{\"key\":\"dead-letter\",\"value\":\"mail\"}", own),
            ("{\"key\":\"dead-letter\",\"value\":5}", "value must be the name of another tube, or 0"),
            ("{\"key\":\"dead-letter\",\"value\":\"a b\"}", "value must be the name of another tube, or 0"),
        ] {
            assert_eq!(read(json), Err(message.to_owned()), "{json}");
        }
    }
}
