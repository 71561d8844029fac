//! The data of `stats`, `stats-tube` and `stats-job`: a line `key: value` for each value.

/// Returns the key and the value of a line. A line of a list has none.
pub fn pair(line: &str) -> Option<(&str, &str)> {
    line.split_once(": ")
}

/// Returns keys and values, in their order.
pub fn pairs(statistics: &str) -> impl Iterator<Item = (&str, &str)> {
    statistics.lines().filter_map(pair)
}

/// Returns the value of a key, if there is one.
pub fn value<'a>(statistics: &'a str, key: &str) -> Option<&'a str> {
    pairs(statistics).find(|(found, _)| *found == key).map(|(_, value)| value)
}

/// Returns the value of a key that must be there.
pub fn field<'a>(statistics: &'a str, key: &str) -> &'a str {
    value(statistics, key).unwrap_or_else(|| panic!("no {key} in {statistics}"))
}

/// Returns the number of a key that must be there.
pub fn number(statistics: &str, key: &str) -> u64 {
    field(statistics, key).parse().expect("a number")
}
