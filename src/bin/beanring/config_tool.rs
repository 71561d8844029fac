//! `beanring config show`: each setting that a server with the same flags, variables and file would have, and its source.
//! Secrets are not among them: a password in the URL of a database is hidden, and the other secrets are in files, of which only
//! the path is a setting.

use std::error::Error;
use std::io::Write;

use beanring::config::settings::{Origin, Setting, Settings};
use beanring::config::{ServerConfig, passwords};
use beanring::flags::{FLAGS, Flag, Kind, Sources};
use beanring::io::stdout::{OutputError, Stdout};
use beanring::values::tube_rules::RuleValue;
use beanring::wal::Durability;
use clap::ValueEnum;
use serde::Serialize;

use crate::cli::ConfigTool;

/// A setting, with its value as a flag has it.
#[derive(Serialize, Debug)]
struct Row {
    name: String,
    /// None if there is none, as for a job log that is not kept.
    value: Option<String>,
    source: SettingSource,
    /// The flag, the variable, or the file with the line.
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<String>,
}

#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
enum SettingSource {
    Default,
    Flag,
    Variable,
    File,
}

/// Prints the settings.
///
/// # Errors
/// If a setting is not valid, or the output cannot be written.
pub fn run(tool: &ConfigTool, settings: Settings) -> Result<(), Box<dyn Error>> {
    let ConfigTool::Show { json } = *tool;
    let config = ServerConfig::check(settings.clone())?;
    for warning in &config.warnings {
        eprintln!("beanring: {warning}");
    }
    let flags = FLAGS.iter().filter(|flag| flag.sources > Sources::CommandLine);
    let mut rows: Vec<Row> = flags.map(|flag| Row::of(flag, &settings, &config)).collect();
    rows.extend(rules(&config));
    rows.extend(schedules(&config));
    let mut out = Stdout::open();
    let text = if json {
        rows.iter().map(|row| serde_json::to_string(row).expect("it is plain") + "\n").collect()
    } else {
        table(&rows)
    };
    Ok(out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(OutputError)?)
}

impl Row {
    fn of(flag: &'static Flag, settings: &Settings, config: &ServerConfig) -> Self {
        let name = flag.name.to_owned();
        let given = settings.all(flag.name);
        let Some(last) = given.last() else {
            return Self { name, value: default(flag, config), source: SettingSource::Default, place: None };
        };
        let texts: Vec<String> = given.iter().map(|setting| text(flag, setting)).collect();
        let (source, place) = match &last.origin {
            Origin::CommandLine(name) => (SettingSource::Flag, name.clone()),
            Origin::Variable(name) => (SettingSource::Variable, name.clone()),
            Origin::File { path, line, .. } => (SettingSource::File, format!("{}:{line}", path.display())),
        };
        Self { name, value: Some(texts.join(",")), source, place: Some(place) }
    }

    /// A setting that has no flag.
    fn of_file(config: &ServerConfig, name: String, value: Option<String>) -> Self {
        let place = config.file.as_ref().map(|file| file.display().to_string());
        Self { name, value, source: SettingSource::File, place }
    }
}

fn text(flag: &Flag, setting: &Setting) -> String {
    match (flag.kind, setting.as_switch()) {
        (Kind::Switch, Some(is_on)) => yes_or_no(is_on),
        _ if flag.name == "replicate" && !is_url(setting) => passwords::HIDDEN.to_owned(),
        _ => passwords::hide(&setting.value.to_string_lossy()).escape_debug().to_string(),
    }
}

/// Whether a value is a URL in which a password would be found.
#[cfg(feature = "replicate")]
fn is_url(setting: &Setting) -> bool {
    use beanring::io::replica::{Settings, UrlError};
    let url = setting.value.to_str().map(Settings::parse);
    matches!(url, Some(Ok(_) | Err(UrlError::File(..))))
}

#[cfg(not(feature = "replicate"))]
const fn is_url(_: &Setting) -> bool {
    false
}

fn yes_or_no(is_on: bool) -> String {
    if is_on { "yes" } else { "no" }.to_owned()
}

/// The value without a setting. Some depend on other settings.
fn default(flag: &Flag, config: &ServerConfig) -> Option<String> {
    match (flag.name, flag.kind) {
        ("sync-interval", _) if config.wal.durability == Durability::Never => None,
        ("max-job-size", _) => Some(config.job_bytes_max.to_string()),
        ("zero-copy-memory", _) => Some(config.zero_copy_bytes_max.to_string()),
        ("log-level", _) => config.log_level.to_possible_value().map(|word| word.get_name().to_owned()),
        (_, Kind::Switch) => Some(yes_or_no(false)),
        (_, Kind::Count) => Some("0".to_owned()),
        _ => flag.default().map(str::to_owned),
    }
}

/// Rules of tubes, which only the file has.
fn rules(config: &ServerConfig) -> impl Iterator<Item = Row> {
    config.tube_rules.iter().flat_map(move |(tube, rules)| {
        rules.iter().map(move |(key, value)| {
            let value = match value {
                RuleValue::None => None,
                RuleValue::Number(number) => Some(key.shown(number).to_string()),
                RuleValue::Tube(name) => Some(name.as_str().to_owned()),
            };
            Row::of_file(config, format!("tubes.{tube}.{}", key.word()), value)
        })
    })
}

/// Schedules, which only the file has.
fn schedules(config: &ServerConfig) -> impl Iterator<Item = Row> {
    config.schedules.iter().flat_map(move |schedule| {
        let values = [("tube", &*schedule.tube), ("when", schedule.plan.when.as_str())];
        values.map(move |(key, value)| {
            Row::of_file(config, format!("schedule.{}.{key}", schedule.name), Some(value.to_owned()))
        })
    })
}

fn table(rows: &[Row]) -> String {
    let value = |row: &Row| row.value.clone().unwrap_or_else(|| "-".to_owned());
    let names = rows.iter().map(|row| row.name.len()).max().unwrap_or_default().max("SETTING".len());
    let values =
        rows.iter().map(|row| value(row).chars().count()).max().unwrap_or_default().max("VALUE".len());
    let mut table = format!("{:names$}  {:values$}  SOURCE\n", "SETTING", "VALUE");
    for row in rows {
        let source = row.place.as_deref().unwrap_or("default");
        table += &format!("{:names$}  {:values$}  {source}\n", row.name, value(row));
    }
    table
}
