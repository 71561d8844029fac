//! The file of `--config`: TOML with the long names of flags as keys, with rules of tubes, and with schedules.

use std::ops::Range;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::settings::{Origin, SHOWN_CHARS_MAX, Setting, Settings};
use super::{ConfigError, Problem, in_unit, passwords, rules, schedules, suggestion};
use crate::flags::{Flag, Kind, Sources};
use crate::io::named_file;
use crate::values::tube_name::TubeName;
use crate::values::tube_rules::RuleKey;

/// The largest file: many times what all keys and the rules of 1,000 tubes need.
const FILE_BYTES_MAX: usize = 1024 * 1024;

/// The message of the parser for a key that it has read before.
const DUPLICATE: &str = "duplicate key";

/// Reads the settings from the file that a setting names.
///
/// # Errors
/// If the file cannot be read or is not valid.
pub fn read(config: &Setting) -> Result<Settings, ConfigError> {
    let path = config.path();
    let (text, _) = named_file::read_text(path, FILE_BYTES_MAX)
        .map_err(|error| ConfigError::Unreadable { setting: config.clone(), error })?;
    if text.contains('\0') {
        return Err(config.error(Problem::Nul));
    }
    Reader { path, text: &text }.settings()
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Reader<'_> {
    fn settings(&self) -> Result<Settings, ConfigError> {
        let table = DeTable::parse(self.text).map_err(|error| self.syntax(&error))?;
        let mut settings = Settings::default();
        for (key, value) in table.into_inner() {
            let at = key.span();
            let key = key.into_inner();
            let mistake = |(at, problem)| self.wrong(at, problem);
            if key == rules::TUBES {
                settings.rules = rules::read(&value).map_err(mistake)?;
                continue;
            }
            if key == schedules::SCHEDULE {
                settings.schedules = schedules::read(&value).map_err(mistake)?;
                continue;
            }
            if is_table(value.get_ref()) {
                let tables = [rules::TUBES, schedules::SCHEDULE].map(str::to_owned);
                let problem = match suggestion(&key, tables.into_iter()) {
                    Some(tubes) => format!("no such table; did you mean {tubes}?"),
                    None => "no such table; put the keys at the top of the file".to_owned(),
                };
                return Err(self.wrong(at, problem));
            }
            let Some(flag) = Flag::of(Sources::File).find(|flag| flag.name == key) else {
                return Err(self.unknown(at, &key));
            };
            let is_quoted = matches!(value.get_ref(), DeValue::String(_) | DeValue::Array(_));
            let origin = self.origin(at, &key, is_quoted);
            let values = texts(flag.kind, value.get_ref());
            let values = values.ok_or_else(|| {
                let is_fraction = matches!(value.get_ref(), DeValue::Float(_));
                let expected = match flag.kind {
                    kind if is_fraction && is_number(kind) => "must be a whole number",
                    Kind::Value("SIZE") if is_fraction => "must be a whole number, or a text in quotes",
                    kind => expected(kind),
                };
                self.wrong(value.span(), expected.to_owned())
            })?;
            let values =
                values.into_iter().map(|value| Setting { origin: origin.clone(), value: value.into() });
            settings.set_list(flag, values.collect());
        }
        settings.refuse_alternatives()?;
        Ok(settings)
    }

    fn unknown(&self, at: Range<usize>, key: &str) -> ConfigError {
        let known = Flag::of(Sources::File).map(|flag| flag.name.to_owned());
        let origin = self.origin(at, key, false);
        match Flag::find(key) {
            Some(flag) => ConfigError::NotInFile { origin, flag },
            None => ConfigError::UnknownKey { origin, suggestion: suggestion(key, known) },
        }
    }

    /// The error for a text that is not TOML.
    fn syntax(&self, error: &toml::de::Error) -> ConfigError {
        let at = error.span().unwrap_or_default();
        let line = self.line_text(at.start);
        let is_again = error.message().starts_with(DUPLICATE);
        let is_at_end = line.is_empty() && self.text[self.line_begin(at.start)..].trim().is_empty();
        let problem = match () {
            () if is_again => "this key is set twice; remove one".to_owned(),
            () if is_at_end => "the file ends within a text, a list or a table; close it".to_owned(),
            () => remedy(line),
        };
        self.wrong(at, problem)
    }

    fn wrong(&self, at: Range<usize>, problem: String) -> ConfigError {
        let (begin, end) = (self.line_begin(at.start), self.text.floor_char_boundary(at.start));
        let column = 1 + self.text[begin..end].chars().count();
        let line = self.line_text(at.start);
        let hide = |text: &str| match secret_in(line) {
            Some(secret) => passwords::hide(&text.replace(secret, passwords::HIDDEN)),
            None => passwords::hide(text),
        };
        let text = hide(line).chars().take(SHOWN_CHARS_MAX).filter(|char| !char.is_control()).collect();
        let problem = hide(&problem);
        ConfigError::Syntax { path: self.path.to_owned(), line: self.line(at), column, text, problem }
    }

    /// The line of the file that contains this byte.
    fn line_text(&self, at: usize) -> &str {
        self.text[self.line_begin(at)..].lines().next().unwrap_or_default().trim()
    }

    fn line_begin(&self, at: usize) -> usize {
        self.text[..self.text.floor_char_boundary(at)].rfind('\n').map_or(0, |end| end + 1)
    }

    fn origin(&self, at: Range<usize>, key: &str, is_quoted: bool) -> Origin {
        Origin::File { path: self.path.to_owned(), line: self.line(at), key: key.into(), is_quoted }
    }

    fn line(&self, at: Range<usize>) -> usize {
        1 + self.text.bytes().take(at.start).filter(|&byte| byte == b'\n').count()
    }
}

/// Returns what may be a secret in a line that is wrong: the file may be one with a token, or with users.
fn secret_in(line: &str) -> Option<&str> {
    let is_long = |text: &&str| text.len() >= passwords::SECRET_BYTES_MIN;
    let Some((key, value)) = line.split_once('=').filter(|_| !line.starts_with('[')) else {
        return Some(line).filter(is_long).filter(|line| !line.starts_with('['));
    };
    let (key, value) = (key.trim(), value.trim());
    let text = value.trim_matches(['"', '\'']);
    match Flag::of(Sources::File).find(|flag| flag.name == key) {
        Some(flag) if flag.kind == Kind::Value("FILE") => {
            Some(text).filter(|text| passwords::may_be_secret(text))
        }
        Some(_) => None,
        None if RuleKey::named(key.as_bytes()).is_some() || schedules::is_shown(key) => None,
        // The end of a token in Base64.
        None if text.trim_matches('=').is_empty() => Some(line).filter(is_long),
        None => Some(text).filter(is_long),
    }
}

/// Whether a value is a table, or a list of tables: what `[server]`, `[[server]]` and `server.port` make.
fn is_table(value: &DeValue<'_>) -> bool {
    match value {
        DeValue::Table(_) => true,
        DeValue::Array(several) => several.iter().any(|one| matches!(one.get_ref(), DeValue::Table(_))),
        _ => false,
    }
}

/// The values of a key as a variable would have them. None if the type is wrong.
fn texts(kind: Kind, value: &DeValue<'_>) -> Option<Vec<String>> {
    match (kind, value) {
        (Kind::Switch, DeValue::Boolean(is_on)) => Some(vec![is_on.to_string()]),
        (Kind::Count | Kind::Value(_), DeValue::Integer(number)) => Some(vec![number.to_string()]),
        (Kind::Value(_) | Kind::Choice(..) | Kind::List(_), DeValue::String(text)) => {
            Some(vec![text.to_string()])
        }
        (Kind::List(_), DeValue::Array(several)) => {
            several.iter().map(|text| text.get_ref().as_str().map(str::to_owned)).collect()
        }
        _ => None,
    }
}

/// What a key of this kind must be.
fn expected(kind: Kind) -> &'static str {
    match kind {
        Kind::Switch => "must be true or false",
        Kind::Count => "must be a number from 0 to 2",
        Kind::Value(_) if is_number(kind) => "must be a number",
        Kind::Value("SIZE") => "must be a number, or a text in quotes",
        Kind::Value("ADDR") => "must be one address, as a text in quotes",
        Kind::Value(_) | Kind::Choice(..) => "must be a text in quotes",
        Kind::List(_) => "must be a text in quotes, or a list of them",
    }
}

fn is_number(kind: Kind) -> bool {
    matches!(kind, Kind::Value("PORT" | "MS" | "NUMBER" | "SECONDS") | Kind::Count)
}

/// What to do about a line that is not TOML.
fn remedy(line: &str) -> String {
    if let Some(name) = line.strip_prefix("[tubes.").and_then(|rest| rest.strip_suffix(']'))
        && TubeName::new(name.as_bytes()).is_some()
    {
        return format!("the name needs quotes: [tubes.\"{name}\"]");
    }
    let Some((key, value)) = line.split_once('=') else {
        return "must be KEY = VALUE, such as port = 11300".to_owned();
    };
    let (key, value) = (key.trim(), value.split('#').next().unwrap_or_default().trim());
    if let Some(problem) = problem_of_quotes(line) {
        return problem.to_owned();
    }
    match Flag::of(Sources::File).find(|flag| flag.name == key) {
        _ if value.is_empty() => "the value is missing".to_owned(),
        Some(flag)
            if value.contains(['"', '\'', '[', '\\'])
                || flag.kind == Kind::Switch
                || is_number(flag.kind) =>
        {
            expected(flag.kind).to_owned()
        }
        // Such as wal-dir = /var/lib/beanring, or max-memory = 2g.
        Some(_) => format!("a text needs quotes: {key} = \"{value}\""),
        // Such as retention = 5m.
        None if RuleKey::named(key.as_bytes()).is_some_and(|rule| in_unit(rule, value).is_some()) => {
            format!("a text needs quotes: {key} = \"{value}\"")
        }
        None => "must be KEY = VALUE, with a text in quotes".to_owned(),
    }
}

/// The problem of a text in quotes, if the line has one that does not end or has an unknown escape.
fn problem_of_quotes(line: &str) -> Option<&'static str> {
    let (_, value) = line.split_once('=')?;
    let mut chars = value.trim_start().chars();
    let quote = chars.next().filter(|quote| ['"', '\''].contains(quote))?;
    while let Some(char) = chars.next() {
        if char == '\\' && quote == '"' {
            // How many hexadecimal digits follow.
            let digits = match chars.next()? {
                'b' | 't' | 'n' | 'f' | 'r' | 'e' | '"' | '\\' => Some(0),
                'x' => Some(2),
                'u' => Some(4),
                'U' => Some(8),
                _ => None,
            };
            let is_whole =
                |digits| chars.by_ref().take(digits).filter(char::is_ascii_hexdigit).count() == digits;
            if !digits.is_some_and(is_whole) {
                return Some(
                    "the escape is unknown; write \\\\ for a backslash, or put the text in single quotes",
                );
            }
        } else if char == quote {
            return None;
        }
    }
    Some("the closing quote is missing")
}
