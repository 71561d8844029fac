//! Text of others, made safe for a terminal: no escape sequence, no line that looks like ours, no reordered text.

use std::fmt::Write;

use serde::Serialize;

/// Escapes everything that could move the cursor, break the line or reorder text: control characters, format characters, and
/// bytes that are not UTF-8.
pub fn escaped(bytes: &[u8]) -> String {
    escape(bytes, |_| false)
}

/// Escapes text of several lines: LF and tabs stay.
pub fn escaped_lines(bytes: &[u8]) -> String {
    escape(bytes, |character| matches!(character, '\n' | '\t'))
}

fn escape(bytes: &[u8], is_kept: impl Fn(char) -> bool) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                _ if is_kept(character) => text.push(character),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                '\0'..='\x1f' | '\x7f' => {
                    write!(text, "\\x{:02x}", character as u32).expect("memory is there")
                }
                _ if is_hidden(character) => text.extend(character.escape_unicode()),
                _ => text.push(character),
            }
        }
        for byte in chunk.invalid() {
            write!(text, "\\x{byte:02x}").expect("memory is there");
        }
    }
    text
}

/// Returns a value as a line of JSON in which hidden characters are escaped too, because JSON itself escapes only those below
/// U+0020.
///
/// # Errors
/// If the value is none that JSON has.
pub fn json(value: &impl Serialize) -> serde_json::Result<String> {
    let json = serde_json::to_string(value)?;
    // Only strings have such characters, so an escape is valid wherever there is one.
    let Some(first) = json.find(is_hidden) else { return Ok(json) };
    let mut text = String::with_capacity(json.len() + 64);
    text.push_str(&json[..first]);
    for character in json[first..].chars() {
        if is_hidden(character) {
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(text, "\\u{unit:04x}").expect("memory is there");
            }
        } else {
            text.push(character);
        }
    }
    Ok(text)
}

/// Characters that are not seen: control characters of C1, those of Unicode's category Cf (what changes the direction, the joining
/// or the tag of others), line separators, and what has no width or no ink by default (Default_Ignorable_Code_Point).
fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}'
                | '\u{34f}'
                | '\u{600}'..='\u{605}'
                | '\u{61c}'
                | '\u{6dd}'
                | '\u{70f}'
                | '\u{890}'..='\u{891}'
                | '\u{8e2}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}'
                | '\u{110bd}'
                | '\u{110cd}'
                | '\u{13430}'..='\u{1343f}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_reaches_the_terminal_as_a_command() {
        let all: Vec<u8> = (0..=255).collect();
        for text in [escaped(&all), escaped(&[&all[..], b"\xc2\x9b31m"].concat())] {
            assert!(text.chars().all(|character| !character.is_control()), "{text}");
        }
        assert!(escaped_lines(&all).chars().all(|one| !one.is_control() || one == '\n' || one == '\t'));
    }

    #[test]
    fn json_has_no_hidden_character_and_the_same_meaning() {
        let all: String = ('\0'..=char::MAX).collect();
        let text = json(&all).expect("it is text");
        assert!(!text.contains(is_hidden), "{}", text.escape_unicode());
        assert_eq!(serde_json::from_str::<String>(&text).expect("it is JSON"), all);
        for (value, expected) in [
            ("\u{7f}\u{9b}31m", r#""\u007f\u009b31m""#),
            ("a\u{202e}b\u{2028}", r#""a\u202eb\u2028""#),
            ("\u{e0041}", r#""\udb40\udc41""#),
            ("Gr\u{fc}\u{df}e \u{1f980}\n", "\"Gr\u{fc}\u{df}e \u{1f980}\\n\""),
        ] {
            assert_eq!(json(&value).expect("it is text"), expected);
        }
    }

    #[test]
    fn text_stays_readable() {
        for (bytes, text) in [
            (&b"plain"[..], "plain"),
            ("Gr\u{fc}\u{df}e \u{1f980}".as_bytes(), "Gr\u{fc}\u{df}e \u{1f980}"),
            (b"a\x1b[2Jb", "a\\x1b[2Jb"),
            (b"a\r\nb\tc", "a\\r\\nb\\tc"),
            (b"\xff\xc3", "\\xff\\xc3"),
            ("a\u{202e}b\u{9b}c\u{2028}".as_bytes(), "a\\u{202e}b\\u{9b}c\\u{2028}"),
        ] {
            assert_eq!(escaped(bytes), text);
        }
        assert_eq!(escaped_lines(b"{\r\n\t1\n}"), "{\\r\n\t1\n}");
    }
}
