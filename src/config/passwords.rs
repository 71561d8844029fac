//! Hides secrets in what is printed: values of settings, and lines of the file in an error. The text may be malformed, so too
//! much is hidden rather than too little.

/// What stands for a secret.
pub const HIDDEN: &str = "***";

const SCHEME_END: &str = "://";

/// The parameters of a URL or of a connection string that have a password, in lower case.
const PARAMETERS: [&str; 3] = ["password", "passwd", "pwd"];

/// The shortest text that is taken for a token.
pub const SECRET_BYTES_MIN: usize = 16;

/// The shortest text with a slash that is taken for a token, such as one in Base64.
const SECRET_WITH_SLASH_BYTES_MIN: usize = 32;

/// Whether a text may be a token, or another secret that a random generator has made, rather than the path of a file.
pub fn may_be_secret(text: &str) -> bool {
    let has = |is_of: fn(&u8) -> bool| text.bytes().any(|byte| is_of(&byte));
    let is_mixed = has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase);
    let fits = match text.contains('/') {
        true => text.len() >= SECRET_WITH_SLASH_BYTES_MIN && is_mixed,
        false => text.len() >= SECRET_BYTES_MIN,
    };
    fits && has(u8::is_ascii_digit) && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'.')
}

/// Returns the text with `***` for each password: in `USER:PASSWORD@HOST`, with a scheme before it or without, and in `password=`.
pub fn hide(text: &str) -> String {
    let mut hidden = String::with_capacity(text.len());
    for (at, piece) in text.split(SCHEME_END).enumerate() {
        if at > 0 {
            hidden.push_str(SCHEME_END);
        }
        if at > 0 || piece.contains('@') {
            hide_in_authority(piece, &mut hidden);
        } else {
            hidden.push_str(piece);
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
    while let Some(end) = first_parameter(rest) {
        let (before, after) = rest.split_at(end);
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

/// Returns where the first name of a parameter ends.
fn first_parameter(text: &str) -> Option<usize> {
    let text = text.to_ascii_lowercase();
    PARAMETERS.iter().filter_map(|name| Some(text.find(name)? + name.len())).min()
}

#[cfg(test)]
mod tests {
    use super::{hide, may_be_secret};

    #[test]
    fn tokens_are_told_from_paths() {
        for secret in [
            "5d2e9c5d2e9c5d2e",
            "5d2e9c0f5d2e9c0f5d2e9c0f5d2e9c0f5d2e9c0f5d2e9c0f5d2e9c0f5d2e9c0f",
            "TOKEN-OF-THE-SHOP-1",
            "q3Fz/8Kj2mN+vL0pR/sT4uXw7yZaBcDeFgHiJkLmNoP=",
        ] {
            assert!(may_be_secret(secret), "{secret}");
        }
        for path in [
            "",
            "token",
            "users-of-the-queue",
            "users-2026-11-28.toml",
            "/etc/beanring/users-2026",
            "/run/secrets/2f6e1c3a/http-token-of-the-queue",
        ] {
            assert!(!may_be_secret(path), "{path}");
        }
    }

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
            ("me:secret@db/queue", "me:***@db/queue"),
            ("replicate = \"me:se:cr@et@db\"", "replicate = \"me:***@db\""),
            ("postgres://db/queue?passwd=secret&x=1", "postgres://db/queue?passwd=***&x=1"),
            ("PASSWORD=secret host=db Pwd = x", "PASSWORD=*** host=db Pwd=***"),
            ("beanstalks://queue.example.com:11301", "beanstalks://queue.example.com:11301"),
            ("/var/lib/beanring", "/var/lib/beanring"),
            ("", ""),
        ] {
            assert_eq!(hide(text), expected, "{text}");
        }
    }
}
