//! `beanring tubes`: all tubes in a table.

use std::cmp::Reverse;

use memchr::memmem;

use super::connection::Connection;
use super::error::ClientError;
use super::fields::Object;
use super::output::{Align, Color, Output, Table, say};
use super::reply::{self, Follows};
use super::stats::{Kind, Stats};
use super::units::Seconds;
use super::untrusted::Untrusted;
use crate::cli::verbs::{self, Column};

/// A title and its key in `stats-tube`.
type Titled = (&'static str, &'static str);

const COUNTS: [Titled; 6] = [
    ("READY", "current-jobs-ready"),
    ("RESERVED", "current-jobs-reserved"),
    ("DELAYED", "current-jobs-delayed"),
    ("BURIED", "current-jobs-buried"),
    ("WAITING", "current-waiting"),
    ("PUTS", "total-jobs"),
];

/// The number of [`COUNTS`] that count jobs, of which the last are the buried ones.
const STATES: usize = 4;
const BURIED: usize = STATES - 1;

/// The column behind that of the buried jobs, if a tube has held ones. Most servers have none, and a line has 80 columns.
const HELD: Titled = ("HELD", "current-jobs-held");

const OLDEST: &str = "oldest-ready-age";

pub(super) fn run(verb: &verbs::Tubes) -> Result<(), ClientError> {
    let mut connection = super::connect(&verb.common)?;
    let names = names(&mut connection)?;
    let shown: Vec<Untrusted> = names
        .into_iter()
        .filter(|name| verb.pattern.as_ref().is_none_or(|text| matches(text, name.bytes())))
        .collect();
    let mut tubes = statistics(&mut connection, &shown)?;
    let has_jobs = |tube: &Stats| COUNTS[..STATES].iter().chain([&HELD]).any(|(_, key)| tube.number(key) > 0);
    tubes.retain(|tube| !verb.busy || has_jobs(tube));
    let has_age = tubes.iter().any(|tube| tube.get(OLDEST).is_some());
    if verb.sort == Column::Oldest && !has_age && !tubes.is_empty() {
        say("beanring: the server does not report the age of ready jobs; the order is by name");
    }
    sort(&mut tubes, verb.sort);
    if verb.reverse {
        tubes.reverse();
    }
    Output::list(&verb.common, tubes.iter().map(|tube| Object::of(Kind::Tube, tube)), || table(&tubes))
}

/// Returns the names of all tubes.
pub(super) fn names(connection: &mut Connection) -> Result<Vec<Untrusted>, ClientError> {
    let data = connection.ask_for(Follows::List, "list-tubes")?.into_ok("list-tubes")?;
    reply::items(&data, |name| Some(reply::unquoted(name).into()))
}

/// Returns the statistics of tubes. One that has disappeared is left out.
pub(super) fn statistics(
    connection: &mut Connection,
    names: &[Untrusted],
) -> Result<Vec<Stats>, ClientError> {
    let mut tubes = Vec::with_capacity(names.len());
    connection.ask_all(
        Follows::Statistics,
        names,
        |name| [b"stats-tube ", name.bytes()].concat(),
        |name, reply| match reply.word() {
            "OK" => {
                tubes.push(Stats::parse(Kind::Tube, &reply.into_ok("")?)?);
                Ok(())
            }
            "NOT_FOUND" => Ok(()),
            _ => Err(reply.refusal(format!("tube {name}")).into()),
        },
    )?;
    Ok(tubes)
}

fn sort(tubes: &mut [Stats], column: Column) {
    tubes.sort_by(|one, other| {
        let rank = |tube: &Stats| column.key().map(|key| Reverse(tube.number(key)));
        rank(one).cmp(&rank(other)).then_with(|| one.text("name").cmp(other.text("name")))
    });
}

impl Column {
    /// The key of its number in `stats-tube`.
    pub(super) const fn key(self) -> Option<&'static str> {
        Some(match self {
            Self::Name => return None,
            Self::Ready => "current-jobs-ready",
            Self::Reserved => "current-jobs-reserved",
            Self::Delayed => "current-jobs-delayed",
            Self::Buried => "current-jobs-buried",
            Self::Held => HELD.1,
            Self::Waiting => "current-waiting",
            Self::Puts => "total-jobs",
            Self::Deletes => "cmd-delete",
            Self::Oldest => OLDEST,
            Self::Paused => "pause-time-left",
        })
    }
}

fn table(tubes: &[Stats]) -> Table {
    // beanstalkd does not have it.
    let has_age = tubes.iter().any(|tube| tube.get(OLDEST).is_some());
    let has_held = tubes.iter().any(|tube| tube.number(HELD.1) > 0);
    let (states, others) = COUNTS.split_at(STATES);
    let counts = || states.iter().chain(has_held.then_some(&HELD)).chain(others);
    let mut columns = vec![("TUBE", Align::Left)];
    columns.extend(counts().map(|(title, _)| (*title, Align::Right)));
    if has_age {
        columns.push(("OLDEST", Align::Right));
    }
    columns.push(("PAUSED FOR", Align::Right));
    let mut table = Table::new(&columns);
    for tube in tubes {
        let mut cells = vec![tube.text("name").to_string()];
        cells.extend(counts().map(|(_, key)| tube.number(key).to_string()));
        let time = |key, is_there| match tube.number(key) {
            seconds if is_there => Seconds(seconds).to_string(),
            _ => "-".to_owned(),
        };
        if has_age {
            cells.push(time(OLDEST, tube.number(COUNTS[0].1) > 0));
        }
        cells.push(time("pause-time-left", tube.number("pause-time-left") > 0));
        let paused_for = cells.len() - 1;
        table.row(cells);
        if tube.number(COUNTS[BURIED].1) > 0 {
            table.color(1 + BURIED, Color::Red);
        }
        if tube.number("pause-time-left") > 0 {
            table.color(paused_for, Color::Yellow);
        }
    }
    table
}

/// Whether a name matches a pattern with `*` and `?`, or contains it. The case of ASCII letters does not matter.
pub(super) fn matches(pattern: &str, name: &[u8]) -> bool {
    if !pattern.contains(['*', '?']) {
        return memmem::find(&name.to_ascii_lowercase(), pattern.to_ascii_lowercase().as_bytes()).is_some();
    }
    let pattern = pattern.as_bytes();
    let (mut at, mut in_name) = (0, 0);
    // Where to continue if the text behind the last * does not match.
    let mut retry: Option<(usize, usize)> = None;
    while in_name < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                retry = Some((at + 1, in_name));
                at += 1;
            }
            Some(&byte) if byte == b'?' || byte.eq_ignore_ascii_case(&name[in_name]) => {
                at += 1;
                in_name += 1;
            }
            _ => {
                let Some((after, from)) = retry else { return false };
                retry = Some((after, from + 1));
                (at, in_name) = (after, from + 1);
            }
        }
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name, expected) in [
            ("mail", "send-mail", true),
            ("mail", "default", false),
            ("", "default", true),
            ("mail*", "mail.send", true),
            ("mail*", "send-mail", false),
            ("*mail", "send-mail", true),
            ("m?il", "mail", true),
            ("m?il", "mil", false),
            ("*a*b*c", "xaybzc", true),
            ("*a*b*c", "xaybzcd", false),
            ("**", "anything", true),
            ("MAIL", "send-Mail", true),
            ("mAIL*", "Mail.send", true),
            ("a*a", "a", false),
        ] {
            assert_eq!(matches(pattern, name.as_bytes()), expected, "{pattern} {name}");
        }
    }
}
