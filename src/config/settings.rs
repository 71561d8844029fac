//! Values as they were given, with their source: the command line, a variable, or the file. Only names are checked here.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use super::{environment, file, passwords};
use crate::config::ConfigError;
use crate::flags::Flag;
use crate::values::schedules::ConfiguredSchedule;
use crate::values::tube_rules::TubeRules;

/// The most of a value that an error repeats.
pub(super) const SHOWN_CHARS_MAX: usize = 80;

/// A value and a switch that set the same thing.
const ALTERNATIVES: [(&str, &str); 2] = [("sync-interval", "no-sync"), ("log-level", "verbose")];

/// Words of a switch that is off.
const OFF: [&str; 6] = ["0", "no", "n", "false", "f", "off"];

/// Words of a switch that is on.
const ON: [&str; 6] = ["1", "yes", "y", "true", "t", "on"];

/// A value as it was given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setting {
    /// Where it was given.
    pub origin: Origin,
    /// The value.
    pub value: OsString,
}

/// Where a value was given.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Origin {
    /// On the command line, with this flag, as in `-p/--port`.
    CommandLine(String),
    /// In the environment, in this variable.
    Variable(String),
    File {
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        key: Box<str>,
        is_quoted: bool,
    },
}

/// Values as they were given, by the long name of the flag. A list has several, any other flag one.
#[derive(Clone, Default, Debug)]
pub struct Settings {
    given: BTreeMap<&'static str, Vec<Setting>>,
    /// Rules of tubes by their names. Only the file has them.
    pub rules: BTreeMap<String, TubeRules>,
    /// Schedules of the file.
    pub schedules: Vec<ConfiguredSchedule>,
    /// Obsolete flags of beanstalkd that were given.
    pub obsolete: Vec<&'static str>,
}

impl Settings {
    /// Adds what the variables and the file of `--config` set, to what the command line sets. The command line wins over the
    /// variables, and both over the file.
    ///
    /// # Errors
    /// If a variable or a key has no meaning, or the file cannot be read.
    pub fn complete(mut self) -> Result<Self, ConfigError> {
        self.fill_from(environment::read(std::env::vars_os())?);
        if let Some(config) = self.get("config").cloned() {
            let mut file = file::read(&config.for_file()?)?;
            self.rules = std::mem::take(&mut file.rules);
            self.schedules = std::mem::take(&mut file.schedules);
            self.fill_from(file);
        }
        Ok(self)
    }

    /// Sets a flag.
    pub fn set(&mut self, flag: &'static Flag, setting: Setting) {
        self.given.insert(flag.name, vec![setting]);
    }

    /// Sets a flag that may be given several times.
    pub fn set_list(&mut self, flag: &'static Flag, settings: Vec<Setting>) {
        self.given.insert(flag.name, settings);
    }

    /// The value that was given for a flag: the last one, if it was repeated.
    pub fn get(&self, name: &str) -> Option<&Setting> {
        self.given.get(name)?.last()
    }

    /// Everything that was given for a flag.
    pub fn all(&self, name: &str) -> &[Setting] {
        self.given.get(name).map_or(&[], Vec::as_slice)
    }

    /// Removes what was given for a flag, and returns it.
    pub fn take(&mut self, name: &str) -> Option<Setting> {
        self.given.remove(name)?.pop()
    }

    pub(crate) fn take_list(&mut self, name: &str) -> Vec<Setting> {
        self.given.remove(name).unwrap_or_default()
    }

    /// Returns the name of a flag that was not taken.
    pub fn rest(&self) -> Option<&'static str> {
        self.given.keys().next().copied()
    }

    /// Of a value and a switch that set the same thing, keeps the one that comes later on the command line.
    pub fn keep_later_alternatives(&mut self, is_later: impl Fn(&str, &str) -> bool) {
        for (value, switch) in ALTERNATIVES {
            if self.get(value).and(self.get(switch)).is_some() {
                self.given.remove(if is_later(value, switch) { switch } else { value });
            }
        }
    }

    /// Refuses a value and a switch that set the same thing, in a source without an order. A switch that is off does not
    /// count.
    ///
    /// # Errors
    /// [`ConfigError::Alternatives`].
    pub(super) fn refuse_alternatives(&mut self) -> Result<(), ConfigError> {
        for (value, switch) in ALTERNATIVES {
            let (Some(one), Some(other)) = (self.get(value), self.get(switch)) else { continue };
            if other.as_switch() != Some(false) {
                let (one, other) = (one.origin.clone(), other.origin.clone());
                return Err(ConfigError::Alternatives { one, other });
            }
            self.given.remove(switch);
        }
        Ok(())
    }

    /// Combines these values with those of a source of lower rank.
    #[must_use]
    pub fn over(mut self, lower: Self) -> Self {
        self.obsolete.extend(
            lower.obsolete.iter().filter(|flag| !self.obsolete.contains(flag)).copied().collect::<Vec<_>>(),
        );
        self.fill_from(lower);
        self
    }

    fn fill_from(&mut self, mut lower: Self) {
        for (value, switch) in ALTERNATIVES {
            if self.get(value).or(self.get(switch)).is_some() {
                lower.given.remove(value);
                lower.given.remove(switch);
            }
        }
        for (name, settings) in lower.given {
            self.given.entry(name).or_insert(settings);
        }
    }
}

impl Setting {
    /// A value of the command line.
    pub fn on_command_line(flag: impl Into<String>, value: impl Into<OsString>) -> Self {
        Self { origin: Origin::CommandLine(flag.into()), value: value.into() }
    }

    /// The value as a path.
    pub fn path(&self) -> &Path {
        Path::new(&self.value)
    }

    /// The value as a switch, if it is one.
    pub fn as_switch(&self) -> Option<bool> {
        let text = self.value.to_str()?.to_ascii_lowercase();
        let is_on = ON.contains(&&*text);
        (is_on || OFF.contains(&&*text)).then_some(is_on)
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = quoted(&self.value);
        match &self.origin {
            Origin::CommandLine(flag) => write!(f, "{flag} {value}"),
            Origin::Variable(name) => write!(f, "{name}={value}"),
            Origin::File { path, line, key, is_quoted } => {
                let value = if *is_quoted { &*value } else { value.trim_matches('"') };
                write!(f, "{}:{line}: {key} = {value}", path.display())
            }
        }
    }
}

impl Origin {
    /// The name of another setting of the same source, with its line if it is in the file.
    pub(super) fn beside(&self) -> String {
        match self {
            Self::File { line, key, .. } => format!("{key} of line {line}"),
            Self::CommandLine(name) | Self::Variable(name) => name.clone(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CommandLine(name) | Self::Variable(name) => f.write_str(name),
            Self::File { path, line, key, .. } => write!(f, "{}:{line}: {key}", path.display()),
        }
    }
}

/// Quotes a value for an error of one line, without a password that it has.
pub fn quoted(value: &OsStr) -> String {
    let text = passwords::hide(&value.to_string_lossy());
    let shown: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    let rest = if shown.len() < text.len() { "..." } else { "" };
    // Between double quotes, a single one needs no backslash.
    format!("\"{}{rest}\"", shown.escape_debug().to_string().replace("\\'", "'"))
}
