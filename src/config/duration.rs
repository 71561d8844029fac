//! Times with a unit: `90`, `90s`, `10m`, `2h`, `1d`.

/// Parses a number of seconds, or of another unit.
///
/// # Errors
/// If the text is something else, or the time too long.
pub fn seconds(text: &str) -> Result<u32, String> {
    let unit = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)];
    let (number, factor) = unit
        .into_iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))
        .unwrap_or((text, 1));
    // `parse` accepts a sign.
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("must be a whole number of seconds, or a time such as 90s, 10m, 2h or 1d".to_owned());
    }
    let seconds = number.parse::<u32>().ok().and_then(|number| number.checked_mul(factor));
    seconds.ok_or_else(|| format!("must be at most {} s, {} days", u32::MAX, u32::MAX / 86_400))
}
