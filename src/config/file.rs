//! The file of `--config`: TOML with the long names of flags as keys.

use std::fs;
use std::ops::Range;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::settings::{Origin, SHOWN_CHARS_MAX, Setting, Settings};
use super::{ConfigError, suggestion};
use crate::cli::flags::{Flag, Kind, Sources};

/// The message of the parser for a key that it has read before.
const DUPLICATE: &str = "duplicate key";

/// Reads the settings from the file that a setting names.
///
/// # Errors
/// If the file cannot be read or is not valid.
pub fn read(config: &Setting) -> Result<Settings, ConfigError> {
    let path = config.path();
    let text = fs::read_to_string(path)
        .map_err(|error| ConfigError::Unreadable { setting: config.clone(), error })?;
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
            let Some(flag) = Flag::of(Sources::File).find(|flag| flag.names().any(|name| name == key)) else {
                return Err(self.unknown(at, &key));
            };
            let origin = self.origin(at, &key);
            if let Some(other) = settings.get(flag.name) {
                return Err(ConfigError::twice(flag, &other.origin, &origin));
            }
            let values = texts(flag.kind, value.get_ref());
            let values = values.ok_or_else(|| self.wrong(value.span(), expected(flag.kind).to_owned()))?;
            let values =
                values.into_iter().map(|value| Setting { origin: origin.clone(), value: value.into() });
            settings.set_list(flag, values.collect());
        }
        settings.resolve_alternatives(|_, _| false);
        Ok(settings)
    }

    fn unknown(&self, at: Range<usize>, key: &str) -> ConfigError {
        let known = Flag::of(Sources::File).map(|flag| flag.name.to_owned());
        ConfigError::UnknownKey { origin: self.origin(at, key), suggestion: suggestion(key, known) }
    }

    /// The error for a text that is not TOML.
    fn syntax(&self, error: &toml::de::Error) -> ConfigError {
        let at = error.span().unwrap_or_default();
        let line = self.line_text(at.start);
        let is_again = error.message().starts_with(DUPLICATE);
        self.wrong(at, if is_again { "this key is set twice; remove one".to_owned() } else { remedy(line) })
    }

    fn wrong(&self, at: Range<usize>, problem: String) -> ConfigError {
        let (begin, end) = (self.line_begin(at.start), self.text.floor_char_boundary(at.start));
        let column = 1 + self.text[begin..end].chars().count();
        let text = self
            .line_text(at.start)
            .chars()
            .take(SHOWN_CHARS_MAX)
            .filter(|char| !char.is_control())
            .collect();
        ConfigError::Syntax { path: self.path.to_owned(), line: self.line(at), column, text, problem }
    }

    /// The line of the file that contains this byte.
    fn line_text(&self, at: usize) -> &str {
        self.text[self.line_begin(at)..].lines().next().unwrap_or_default().trim()
    }

    fn line_begin(&self, at: usize) -> usize {
        self.text[..self.text.floor_char_boundary(at)].rfind('\n').map_or(0, |end| end + 1)
    }

    fn origin(&self, at: Range<usize>, key: &str) -> Origin {
        Origin::File { path: self.path.to_owned(), line: self.line(at), key: key.to_owned() }
    }

    fn line(&self, at: Range<usize>) -> usize {
        1 + self.text.bytes().take(at.start).filter(|&byte| byte == b'\n').count()
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
const fn expected(kind: Kind) -> &'static str {
    match kind {
        Kind::Switch => "must be true or false",
        Kind::Count => "must be a number from 0 to 2",
        Kind::Value(_) => "must be a number, or a text in quotes",
        Kind::Choice(..) => "must be a text in quotes",
        Kind::List(_) => "must be a text in quotes, or a list of them",
    }
}

/// What to do about a line that is not TOML.
fn remedy(line: &str) -> String {
    let Some((key, value)) = line.split_once('=') else {
        return "must be KEY = VALUE, such as port = 11300".to_owned();
    };
    let (key, value) = (key.trim(), value.split('#').next().unwrap_or_default().trim());
    match Flag::of(Sources::File).find(|flag| flag.names().any(|name| name == key)) {
        _ if value.is_empty() => "the value is missing".to_owned(),
        Some(flag)
            if value.contains(['"', '\'', '[', '\\']) || matches!(flag.kind, Kind::Switch | Kind::Count) =>
        {
            expected(flag.kind).to_owned()
        }
        // Such as wal-dir = /var/lib/beanring, or max-memory = 2g.
        Some(_) => format!("a text needs quotes: {key} = \"{value}\""),
        None => "must be KEY = VALUE, with a text in quotes".to_owned(),
    }
}
