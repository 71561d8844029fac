//! The arguments of an action: whole numbers in the JSON object that is the body of its request.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::response::{ErrorKind, Refusal};
use super::target::must_be_whole;

/// The members of an object in their order, so that a name that occurs twice is seen.
struct Members(Vec<(String, Value)>);

struct MembersVisitor;

/// Reads the arguments `names`, of which none may be missing and beside which there may be none.
pub(super) fn read<const N: usize>(json: &[u8], names: [&str; N]) -> Result<[u32; N], Refusal> {
    let Members(members) = parse(json)?;
    for (at, (name, _)) in members.iter().enumerate() {
        if !names.contains(&&**name) {
            let taken = if N == 0 { "none".to_owned() } else { names.join(" and ") };
            return Err(bad(format!(
                "the body has a member that this action does not take: it takes {taken}"
            )));
        }
        if members[..at].iter().any(|(other, _)| other == name) {
            return Err(bad(format!("the body has {name} twice")));
        }
    }
    let mut numbers = [0; N];
    for (number, name) in numbers.iter_mut().zip(names) {
        let range = || must_be_whole(name, &(0..=u32::MAX));
        let member = members.iter().find(|(other, _)| other == name);
        let (_, value) = member.ok_or_else(|| bad(format!("the body lacks {name}: {}", range())))?;
        *number = whole(value).ok_or_else(|| bad(range()))?;
    }
    Ok(numbers)
}

fn parse(json: &[u8]) -> Result<Members, Refusal> {
    if json.trim_ascii_start().first() != Some(&b'{') {
        return Err(bad("the body must be a JSON object, such as {}".to_owned()));
    }
    serde_json::from_slice(json).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        bad(format!("the body is not valid JSON: look at line {line}, column {column}"))
    })
}

/// A number from 0 to 2^32 - 1. JSON does not distinguish 1 from 1.0.
fn whole(value: &Value) -> Option<u32> {
    let number = value.as_f64()?;
    let is_whole = (0.0..=f64::from(u32::MAX)).contains(&number) && number.fract() == 0.0;
    is_whole.then_some(number as u32)
}

fn bad(message: String) -> Refusal {
    Refusal::new(ErrorKind::BadRequest, message)
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
            ("[1]", "the body must be a JSON object, such as {}"),
            ("{\"a\":", "the body is not valid JSON: look at line 1, column 5"),
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
        let none = "the body has a member that this action does not take: it takes none";
        assert_eq!(read(b"{\"a\":1}", []), Err(bad(none.to_owned())));
    }
}
