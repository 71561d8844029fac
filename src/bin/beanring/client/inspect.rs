//! `beanring stats`, `tube`, `group` and `job`: the statistics of one thing.

use beanring::values::ids::JobId;

use super::sections::section;
use super::{Align, ClientError, Connection, Follows, Kind, Object, Output, Stats, Table, Untrusted, Value};
use crate::cli::verbs::{self, Common};

pub(super) fn stats(common: &Common) -> Result<(), ClientError> {
    let stats = of_server(&mut super::connect(common)?)?;
    print(common, Kind::Server, &stats, true)
}

pub(super) fn tube(verb: &verbs::Tube) -> Result<(), ClientError> {
    let absent = "there is no such tube; it exists while it has jobs or is used or watched";
    let stats = of_tube(&mut super::connect(&verb.common)?, &verb.name, absent)?;
    print(&verb.common, Kind::Tube, &stats, true)
}

pub(super) fn group(verb: &verbs::Group) -> Result<(), ClientError> {
    let command = format!("stats-group {}", verb.name);
    let reply = super::connect(&verb.common)?.ask_for(Follows::Statistics, command)?;
    let data = reply.into_ok(&format!("group {}", verb.name)).map_err(|refusal| {
        refusal
            .meaning("NOT_FOUND", "there is no such group; it exists while it has a job")
            .meaning("BAD_FORMAT", "the server does not know groups")
    })?;
    print(&verb.common, Kind::Group, &Stats::parse(Kind::Group, &data)?, false)
}

pub(super) fn job(verb: &verbs::Job) -> Result<(), ClientError> {
    let stats = of_job(&mut super::connect(&verb.common)?, verb.id)?;
    print(&verb.common, Kind::Job, &stats, false)
}

/// The group that a held job waits for.
pub(super) fn group_ahead(job: &Stats) -> Option<&Untrusted> {
    Some(job.text("waits-for")).filter(|group| !group.is_empty())
}

/// Returns the statistics of the server.
pub(super) fn of_server(connection: &mut Connection) -> Result<Stats, ClientError> {
    Stats::parse(Kind::Server, &connection.ask_for(Follows::Statistics, "stats")?.into_ok("stats")?)
}

/// Returns what was asked for, or none if the user of the client may not see it.
pub(super) fn if_permitted<T>(asked: Result<T, ClientError>) -> Result<Option<T>, ClientError> {
    match asked {
        Err(ClientError::Refused(refusal)) if refusal.word() == "FORBIDDEN" => Ok(None),
        asked => asked.map(Some),
    }
}

/// Returns the statistics of a tube. `absent` explains that there is none.
pub(super) fn of_tube(connection: &mut Connection, tube: &str, absent: &str) -> Result<Stats, ClientError> {
    let reply = connection.ask_for(Follows::Statistics, format!("stats-tube {tube}"))?;
    let data = reply.into_ok(&format!("tube {tube}"));
    Stats::parse(Kind::Tube, &data.map_err(|refusal| refusal.meaning("NOT_FOUND", absent))?)
}

/// Returns the statistics of a job.
pub(super) fn of_job(connection: &mut Connection, id: JobId) -> Result<Stats, ClientError> {
    let reply = connection.ask_for(Follows::Statistics, format!("stats-job {id}"))?;
    Stats::parse(Kind::Job, &reply.into_ok(&format!("job {id}"))?)
}

pub(super) fn print(common: &Common, kind: Kind, stats: &Stats, is_sorted: bool) -> Result<(), ClientError> {
    Output::list(common, [Object::of(kind, stats)].into_iter(), || table(kind, stats, is_sorted))
}

fn table(kind: Kind, stats: &Stats, is_sorted: bool) -> Table {
    let has_sections = kind == Kind::Server;
    let mut rows: Vec<(&Untrusted, &Value)> = stats.iter().collect();
    if is_sorted {
        rows.sort_by_key(|(key, _)| *key);
    }
    if has_sections {
        rows.sort_by_key(|(key, _)| section(key.bytes()).0);
    }
    let is_note = |key: &Untrusted| kind == Kind::Job && key.bytes().starts_with(b"note");
    rows.sort_by_key(|(key, _)| is_note(key));
    let mut table = Table::without_header(&[Align::Left, Align::Right]);
    let mut last = None;
    for (key, value) in rows {
        let title = section(key.bytes()).1;
        if has_sections && last != Some(title) {
            if last.is_some() {
                table.row([String::new(), String::new()]);
            }
            table.row([title.to_owned(), String::new()]);
            last = Some(title);
        }
        let mut texts = value.texts(key.bytes()).into_iter();
        let indent = if has_sections { "  " } else { "" };
        let cells = [format!("{indent}{key}"), texts.next().unwrap_or_default()];
        if is_note(key) {
            table.text_row(cells)
        } else {
            table.row(cells)
        }
        texts.for_each(|text| table.row([String::new(), text]));
    }
    table
}
