//! The file of `--config`: TOML with the long names of flags as keys.

use std::fs;
use std::ops::Range;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::settings::{Origin, Setting, Settings};
use super::{ConfigError, suggestion};
use crate::cli::flags::{Flag, Kind, Sources};

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
        let table = DeTable::parse(self.text).map_err(|error| {
            self.wrong(error.span().unwrap_or_default(), error.message().replace('\n', " "))
        })?;
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
            let values = texts(flag, value.get_ref())
                .map_err(|expected| self.wrong(value.span(), format!("{key}: {expected}")))?;
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

    fn wrong(&self, at: Range<usize>, what: String) -> ConfigError {
        ConfigError::Syntax { path: self.path.to_owned(), line: self.line(at), what }
    }

    fn origin(&self, at: Range<usize>, key: &str) -> Origin {
        Origin::File { path: self.path.to_owned(), line: self.line(at), key: key.to_owned() }
    }

    fn line(&self, at: Range<usize>) -> usize {
        1 + self.text.bytes().take(at.start).filter(|&byte| byte == b'\n').count()
    }
}

/// The values of a key as a variable would have them, or what they should be.
fn texts(flag: &Flag, value: &DeValue<'_>) -> Result<Vec<String>, &'static str> {
    match (flag.kind, value) {
        (Kind::Switch, DeValue::Boolean(is_on)) => Ok(vec![is_on.to_string()]),
        (Kind::Switch, _) => Err("must be true or false"),
        (Kind::Count, DeValue::Integer(number)) => Ok(vec![number.to_string()]),
        (Kind::Count, _) => Err("must be a number"),
        (Kind::Choice(..), DeValue::String(text)) => Ok(vec![text.to_string()]),
        (Kind::Choice(..), _) => Err("must be a text in quotes"),
        (Kind::Value(_), DeValue::Integer(number)) => Ok(vec![number.to_string()]),
        (Kind::Value(_) | Kind::List(_), DeValue::String(text)) => Ok(vec![text.to_string()]),
        (Kind::Value(_), _) => Err("must be a number, or a text in quotes"),
        (Kind::List(_), DeValue::Array(several)) => {
            several.iter().map(|text| text.get_ref().as_str().map(str::to_owned).ok_or(LIST)).collect()
        }
        (Kind::List(_), _) => Err(LIST),
    }
}

const LIST: &str = "must be a text in quotes, or a list of them";
