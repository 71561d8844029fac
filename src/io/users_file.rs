//! The file with the users of `--auth`: TOML with a table for each user. And the file with the token of the HTTP API.

use std::fs::Metadata;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::named_file::{self, FileError};
use crate::server::{Grants, Pattern, Rights, Token, User, Users};

/// More than a token and the white space around it.
const TOKEN_FILE_BYTES_MAX: usize = 4096;

/// The largest file: many times what 256 users need.
const FILE_BYTES_MAX: usize = 256 * 1024;

/// The longest token: an `auth` line has 224 bytes at most.
const TOKEN_BYTES_MAX: usize = 200;

/// The longest name of a user.
const NAME_BYTES_MAX: usize = 64;

/// The most patterns of a right or of keys, and names of a certificate. A command may compare a tube with all patterns of a right: some
/// 1 us.
const LIST_MAX: usize = 64;

/// The longest name in a certificate (RFC 1035).
const CERTIFICATE_BYTES_MAX: usize = 253;

/// The permission of every user of the machine to read.
const OTHERS_READ: u32 = 0o004;

/// Users that were read from their file.
#[derive(Debug)]
pub struct UsersFile {
    /// The users.
    pub users: Users,
    /// The file, as it was before it was read.
    pub metadata: Metadata,
}

/// Why there are no users in a file.
// docs/RUNBOOK.md lists these messages.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum UsersError {
    #[error("{0}")]
    Unreadable(#[source] FileError),
    #[error("every user of this machine can read the tokens; run chmod o-r on the file")]
    Open,
    /// A running server keeps the users that it has.
    #[error("no user has a right; add users with rights")]
    WithoutRights,
    #[error("line {line}: {problem}")]
    Line { line: usize, problem: String },
}

/// Where a mistake is in the file, and what it is.
type Mistake = (Range<usize>, String);

type Table<'a> = Spanned<DeValue<'a>>;

fn mistake<T>(at: Range<usize>, problem: impl Into<String>) -> Result<T, Mistake> {
    Err((at, problem.into()))
}

impl UsersFile {
    /// Reads the users in a file.
    ///
    /// # Errors
    /// If the file cannot be read, if others can read it too, or if it is not valid.
    pub fn read(path: &Path) -> Result<Self, UsersError> {
        let (text, metadata) = named_file::read_text(path, FILE_BYTES_MAX).map_err(UsersError::Unreadable)?;
        if metadata.permissions().mode() & OTHERS_READ != 0 {
            return Err(UsersError::Open);
        }
        Ok(Self { users: parse(&text)?, metadata })
    }
}

/// Reads the users in a text.
///
/// # Errors
/// The first mistake.
pub fn parse(text: &str) -> Result<Users, UsersError> {
    let at_line = |at: Range<usize>, problem: String| {
        let line = 1 + text.bytes().take(at.start).filter(|&byte| byte == b'\n').count();
        UsersError::Line { line, problem }
    };
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().unwrap_or_default();
        let begin = text[..text.floor_char_boundary(at.start)].rfind('\n').map_or(0, |end| end + 1);
        let line = text[begin..].lines().next().unwrap_or_default();
        at_line(at, without_quotes(line).unwrap_or_else(|| syntax(error.message())))
    })?;
    users_of(table.get_ref()).map_err(|(at, problem)| at_line(at, problem))
}

/// The remedy for a line whose text lacks its quotes. It quotes nothing of the text, which may be a token.
fn without_quotes(line: &str) -> Option<String> {
    let (key, value) = line.split_once('=')?;
    let (key, value) = (key.trim(), value.split('#').next().unwrap_or_default().trim());
    if value.is_empty() || value.contains(['"', '\'']) {
        return None;
    }
    let is_list = |name: &str| {
        name == "certificate" || name == "keys" || Rights::ALL.iter().any(|(_, word)| *word == name)
    };
    match key {
        "token" => Some("a text needs quotes: write token = \"...\"".to_owned()),
        name if is_list(name) => Some(format!("each text of a list needs quotes: write {name} = [\"...\"]")),
        _ => None,
    }
}

/// The first line of a message of the parser, which may quote no secret.
fn syntax(message: &str) -> String {
    let first = message.lines().next().unwrap_or_default();
    format!("this is not TOML ({first}): write [users.NAME], then lines such as token = \"...\"")
}

fn users_of(table: &DeTable<'_>) -> Result<Users, Mistake> {
    let mut users = Vec::new();
    let mut anonymous = Grants::default();
    for (key, value) in table {
        match (&*key.get_ref().clone(), value.get_ref()) {
            ("users", DeValue::Table(all)) => {
                // In the order of the file: the first user that has a name of a certificate is the one.
                let mut all: Vec<_> = all.iter().collect();
                all.sort_by_key(|(name, _)| name.span().start);
                for (name, user) in all {
                    let user = user_of(name.span(), name.get_ref(), user)?;
                    check_unique(&users, &user, name.span())?;
                    users.push(user);
                    if users.len() > Users::MAX {
                        return mistake(name.span(), format!("at most {} users are allowed", Users::MAX));
                    }
                }
            }
            ("anonymous", _) => anonymous = fields_of(value, false)?.grants,
            _ => return mistake(key.span(), "no such table: write [users.NAME] or [anonymous]"),
        }
    }
    Ok(Users::new(users, anonymous))
}

/// Refuses a token of another user: it would be unclear who the client is.
fn check_unique(users: &[User], user: &User, at: Range<usize>) -> Result<(), Mistake> {
    match users.iter().find(|other| other.token.is_some() && other.token == user.token) {
        None => Ok(()),
        Some(other) => {
            mistake(at, format!("this user has the token of user {other}: give each user its own"))
        }
    }
}

fn user_of(at: Range<usize>, name: &str, table: &Table<'_>) -> Result<User, Mistake> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_word) {
        return mistake(
            at,
            format!("the name of a user has 1 to {NAME_BYTES_MAX} characters of A-Z a-z 0-9 - _ . @"),
        );
    }
    let mut user = fields_of(table, true)?;
    if user.token.is_none() && user.certificate.is_empty() {
        return mistake(
            at,
            format!("user {name} cannot authenticate: give it a token, or the names of a certificate"),
        );
    }
    user.name = Some(name.into());
    Ok(user)
}

/// Reads the keys of a table. Only a user can have a token or a certificate.
fn fields_of(table: &Table<'_>, is_user: bool) -> Result<User, Mistake> {
    let DeValue::Table(fields) = table.get_ref() else {
        return mistake(table.span(), "this must be a table, such as [users.mailer]");
    };
    let mut user = User::anonymous(Grants::default());
    for (key, value) in fields {
        let right = Rights::ALL.into_iter().find(|(_, word)| key.get_ref() == word);
        match (right, &*key.get_ref().clone()) {
            (Some((right, _)), _) => add_patterns(&mut user.grants, right, value)?,
            (None, "keys") => add_patterns(&mut user.grants, Rights::KEYS, value)?,
            (None, "token") if is_user => user.token = Some(token_of(value)?),
            (None, "certificate") if is_user => user.certificate = certificate_of(value)?,
            _ => {
                let known = if is_user { "token, certificate, " } else { "" };
                let problem = format!("no such key: use {known}produce, consume, inspect, admin or keys");
                return Err((key.span(), problem));
            }
        }
    }
    Ok(user)
}

fn token_of(value: &Table<'_>) -> Result<Token, Mistake> {
    let token = value.get_ref().as_str().filter(|text| text.len() <= TOKEN_BYTES_MAX && text.trim() == *text);
    token.and_then(|text| Token::parse(text.as_bytes())).ok_or_else(|| {
        let problem = format!(
            "a token has {} to {TOKEN_BYTES_MAX} visible ASCII characters in quotes, such as the output of openssl rand -hex 32",
            Token::BYTES_MIN
        );
        (value.span(), problem)
    })
}

fn certificate_of(value: &Table<'_>) -> Result<Vec<Box<str>>, Mistake> {
    let wrong = |at| {
        let problem = format!(
            "certificate is a list of 1 to {LIST_MAX} names of a certificate, such as [\"mailer.example.com\"]"
        );
        (at, problem)
    };
    let texts = texts(value).filter(|texts| !texts.is_empty()).ok_or_else(|| wrong(value.span()))?;
    let is_valid = |text: &str| {
        (1..=CERTIFICATE_BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
    };
    let checked =
        texts.into_iter().map(|(at, text)| if is_valid(text) { Ok(text.into()) } else { Err(wrong(at)) });
    checked.collect()
}

fn add_patterns(grants: &mut Grants, right: Rights, value: &Table<'_>) -> Result<(), Mistake> {
    // For `admin = false`.
    if matches!(value.get_ref(), DeValue::Boolean(false)) {
        return Ok(());
    }
    let texts = texts(value).ok_or_else(|| {
        let problem = format!(
            "a right is a list of at most {LIST_MAX} tubes, such as [\"mail.*\", \"sms\"]; [\"*\"] is all tubes"
        );
        (value.span(), problem)
    })?;
    for (at, text) in texts {
        let pattern = Pattern::parse(text).ok_or_else(|| {
            let what = if right == Rights::KEYS { "key" } else { "tube" };
            (at, format!("this is no {what}: write a name, or the beginning of names with a * at the end"))
        })?;
        grants.add(right, pattern);
    }
    Ok(())
}

/// A list of texts. None if the value is something else, or too long.
fn texts<'a>(value: &'a Table<'_>) -> Option<Vec<(Range<usize>, &'a str)>> {
    let DeValue::Array(list) = value.get_ref() else { return None };
    if list.len() > LIST_MAX {
        return None;
    }
    list.iter().map(|item| Some((item.span(), item.get_ref().as_str()?))).collect()
}

/// A token that was read from its file.
#[derive(Debug)]
pub struct TokenFile {
    /// The token.
    pub token: Token,
    /// Every user of the machine can read the file.
    pub is_open: bool,
}

/// Why there is no token in the file.
// docs/RUNBOOK.md lists these messages.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum TokenError {
    #[error("{0}")]
    Unreadable(#[source] FileError),
    #[error(
        "the file must contain a token of {} to {} visible ASCII characters, such as the output of openssl rand -hex 32",
        Token::BYTES_MIN,
        Token::BYTES_MAX
    )]
    Malformed,
}

impl TokenFile {
    /// Reads the token in a file.
    ///
    /// # Errors
    /// If the file cannot be read, or contains no token.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let file = named_file::read(path, TOKEN_FILE_BYTES_MAX).map_err(TokenError::Unreadable)?;
        let token = Token::parse(&file.content).ok_or(TokenError::Malformed)?;
        Ok(Self { token, is_open: file.metadata.permissions().mode() & OTHERS_READ != 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn problem(text: &str) -> String {
        parse(text).map_or_else(|error| error.to_string(), |users| format!("{} users", users.len()))
    }

    #[test]
    fn every_key_is_read() {
        let text = format!(
            "[users.mailer]\ntoken = \"{TOKEN}\"\ncertificate = [\"mailer.example.com\"]\nproduce = [\"mail.*\"]\n\
             consume = [\"mail.*\", \"sms\"]\ninspect = [\"*\"]\nadmin = false\nkeys = [\"customer-*\"]\n\n[anonymous]\ninspect = [\"public\"]\nkeys = false\n"
        );
        assert_eq!(problem(&text), "1 users");
        assert_eq!(problem(""), "0 users");
    }

    #[test]
    fn mistakes_name_their_line_and_no_token() {
        for (text, expected) in [
            ("[users.a]\ntoken = \"short\"", "line 2: a token has 16 to 200 visible"),
            ("[users.a]\n", "line 1: user a cannot authenticate"),
            ("[users.a]\ntoken = \"0123456789abcdef\"\nproduce = [\"a*b\"]", "line 3: this is no tube"),
            ("[users.a]\ntoken = \"0123456789abcdef\"\nproduce = \"a\"", "line 3: a right is a list"),
            ("[users.a]\ntoken = \"0123456789abcdef\"\nread = []", "line 3: no such key"),
            ("[users.a]\ntoken = \"0123456789abcdef\"\nadmin = true", "line 3: a right is a list"),
            ("[users.\"a b\"]\ntoken = \"0123456789abcdef\"", "line 1: the name of a user"),
            ("[user.a]\n", "line 1: no such table"),
            ("[anonymous]\ntoken = \"0123456789abcdef\"", "line 2: no such key"),
            ("\n\n[users.a]\ntoken = 0123456789abcdef", "line 4: a text needs quotes: write token = \"...\""),
            (
                "[users.a]\nproduce = [mail]",
                "line 2: each text of a list needs quotes: write produce = [\"...\"]",
            ),
            ("[users.a]\ntoken", "line 2: this is not TOML"),
            ("[users.a]\ntoken = \"0123456789abcdef\"\nkeys = [\"-x\"]", "line 3: this is no key"),
            ("[users.a]\ncertificate = []", "line 2: certificate is a list"),
            (
                "[users.a]\ntoken = \"0123456789abcdef\"\n[users.b]\ntoken = \"0123456789abcdef\"",
                "line 3: this user has the token of user a",
            ),
        ] {
            let problem = problem(text);
            assert!(problem.starts_with(expected), "{text}: {problem}");
            assert!(!problem.contains(TOKEN), "{problem}");
        }
    }

    #[test]
    fn users_and_patterns_are_limited() {
        let user = |number: usize| format!("[users.u{number}]\ntoken = \"0123456789abcdef{number}\"\n");
        let many = |count: usize| (0..count).map(user).collect::<String>();
        assert_eq!(problem(&many(Users::MAX)), "256 users");
        assert_eq!(problem(&many(Users::MAX + 1)), "line 513: at most 256 users are allowed");
        let patterns = |count| format!("{}produce = [{}]", user(0), "\"a\",".repeat(count));
        assert_eq!(problem(&patterns(LIST_MAX)), "1 users");
        assert!(problem(&patterns(LIST_MAX + 1)).starts_with("line 3: a right is a list of at most 64"));
    }
}
