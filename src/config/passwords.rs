//! Hides passwords in what is printed: values of settings, and lines of the file in an error. The text may be malformed, so too
//! much is hidden rather than too little.

/// What stands for a password.
const HIDDEN: &str = "***";

const SCHEME_END: &str = "://";

/// The parameter of a URL or of a connection string that has a password.
const PARAMETER: &str = "password";

/// Returns the text with `***` for each password of a URL, in `USER:PASSWORD@HOST` and in `password=`.
pub fn hide(text: &str) -> String {
    let mut hidden = String::with_capacity(text.len());
    for (at, piece) in text.split(SCHEME_END).enumerate() {
        if at == 0 {
            hidden.push_str(piece);
        } else {
            hidden.push_str(SCHEME_END);
            hide_in_authority(piece, &mut hidden);
        }
    }
    hide_parameters(&hidden)
}

/// Copies what follows a scheme, up to the next one.
fn hide_in_authority(piece: &str, hidden: &mut String) {
    if let Some(host) = piece.rfind('@') {
        match piece[..host].find(':') {
            Some(colon) => hidden.extend([&piece[..=colon], HIDDEN, &piece[host..]]),
            None => hidden.push_str(piece),
        }
        return;
    }
    // Without an @ there is a port after the colon, or the line lacks the host.
    let ends = |char: char| char.is_whitespace() || matches!(char, '"' | '\'' | '/' | '?' | '#' | ',' | ']');
    match piece.find(':').filter(|_| !piece.starts_with('[')) {
        Some(colon) => {
            let rest = &piece[colon + 1..];
            let end = rest.find(ends).unwrap_or(rest.len());
            let (value, after) = rest.split_at(end);
            let is_port = value.bytes().all(|byte| byte.is_ascii_digit());
            let is_whole = after.is_empty() || after.starts_with(['/', '?', ',', '"', '\'']);
            hidden.push_str(&piece[..=colon]);
            if is_port && is_whole {
                hidden.push_str(rest);
            } else {
                hidden.push_str(HIDDEN);
            }
        }
        None => hidden.push_str(piece),
    }
}

fn hide_parameters(text: &str) -> String {
    let mut hidden = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(PARAMETER) {
        let (before, after) = rest.split_at(at + PARAMETER.len());
        hidden.push_str(before);
        let value = after.trim_start();
        rest = match value.strip_prefix('=').map(str::trim_start) {
            None => after,
            Some(value) => {
                hidden.push('=');
                hidden.push_str(HIDDEN);
                let quote = value.chars().next().filter(|char| matches!(char, '"' | '\''));
                let value = quote.map_or(value, |_| &value[1..]);
                let ends = |char: char| match quote {
                    Some(quote) => char == quote,
                    None => char.is_whitespace() || matches!(char, '&' | '"' | '\''),
                };
                let end = value.find(ends).unwrap_or(value.len());
                value[end..].strip_prefix(|char| Some(char) == quote).unwrap_or(&value[end..])
            }
        };
    }
    hidden.push_str(rest);
    hidden
}

#[cfg(test)]
mod tests {
    use super::hide;

    #[test]
    fn passwords_are_hidden_and_nothing_else() {
        for (text, expected) in [
            ("postgres://me:secret@db:5432/queue", "postgres://me:***@db:5432/queue"),
            ("postgres://me:se@cret/x:y@db/queue", "postgres://me:***@db/queue"),
            ("postgres://me:se cret\"x@db", "postgres://me:***@db"),
            ("postgres://me@db:5432,other:5433/queue", "postgres://me@db:5432,other:5433/queue"),
            ("postgres://db:5432/queue?user=me", "postgres://db:5432/queue?user=me"),
            ("postgres://[::1]:5432/queue", "postgres://[::1]:5432/queue"),
            ("postgres://db/queue?password=secret&x=1", "postgres://db/queue?password=***&x=1"),
            ("host=db password = 'se cret' user=me", "host=db password=*** user=me"),
            ("replicate = \"postgres://me:secret", "replicate = \"postgres://me:***"),
            ("replicate = postgres://me:secret/x\"", "replicate = postgres://me:***"),
            ("replicate = \"postgre://me:12345678 x@db\" # :", "replicate = \"postgre://me:***@db\" # :"),
            ("beanstalks://queue.example.com:11301", "beanstalks://queue.example.com:11301"),
            ("/var/lib/beanring", "/var/lib/beanring"),
            ("", ""),
        ] {
            assert_eq!(hide(text), expected, "{text}");
        }
    }
}
