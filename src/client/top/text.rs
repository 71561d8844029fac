//! Texts that are made to fit a width of the terminal.

use ratatui_core::text::Span;

/// Breaks a text into lines of this width, between any two characters. An empty text is one line.
pub(super) fn wrapped(text: &str, width: u16) -> impl Iterator<Item = String> {
    let width = usize::from(width.max(1));
    let mut lines = vec![String::new()];
    let mut used = 0;
    let mut buffer = [0; 4];
    for character in text.chars() {
        let columns = Span::raw(&*character.encode_utf8(&mut buffer)).width();
        if used + columns > width && used > 0 {
            lines.push(String::new());
            used = 0;
        }
        lines.last_mut().expect("there is a line").push(character);
        used += columns;
    }
    lines.into_iter()
}

/// Breaks a text into lines of this width, between words. Only a word that is longer than a line is broken itself.
pub(super) fn by_words(text: &str, width: u16) -> Vec<String> {
    let columns = |text: &str| Span::raw(text).width();
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if columns(line) + 1 + columns(word) <= usize::from(width) => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.extend(wrapped(word, width)),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_between_words() {
        assert_eq!(by_words("filter by a text", 9), ["filter by", "a text"]);
        assert_eq!(by_words("a very-long-word b", 6), ["a", "very-l", "ong-wo", "rd b"]);
        assert_eq!(by_words("", 6), [""]);
        assert_eq!(by_words("ab", 0), ["a", "b"]);
    }
}
