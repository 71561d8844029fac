//! `beanring tubes`: all tubes in a table.

use beanring::replies::units::Seconds;
use clap::ValueEnum;
use memchr::memmem;

use super::{
    Align, ClientError, Color, Connection, Follows, Kind, Object, Output, Stats, Table, Untrusted, items,
    say, unquoted,
};
use crate::cli::verbs::{self, Column};

/// The columns that count jobs.
const STATES: [Column; 5] = [Column::Ready, Column::Reserved, Column::Delayed, Column::Buried, Column::Held];

pub(super) fn run(verb: &verbs::Tubes) -> Result<(), ClientError> {
    let mut connection = super::connect(&verb.common)?;
    let names = names(&mut connection)?;
    let shown: Vec<Untrusted> = names
        .into_iter()
        .filter(|name| verb.pattern.as_ref().is_none_or(|text| matches(text, name.bytes())))
        .collect();
    let mut tubes = statistics(&mut connection, &shown)?;
    let has_jobs = |tube: &Stats| STATES.iter().any(|state| state.number(tube) > 0);
    tubes.retain(|tube| !verb.busy || has_jobs(tube));
    if verb.sort == Column::Oldest && !has_age(&tubes) && !tubes.is_empty() {
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
    items(&data, |name| Some(unquoted(name).into()))
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

/// Whether the server reports the age of ready jobs. beanstalkd does not.
fn has_age(tubes: &[Stats]) -> bool {
    tubes.iter().any(|tube| tube.get(Column::Oldest.key()).is_some())
}

fn sort(tubes: &mut [Stats], column: Column) {
    tubes.sort_by(|one, other| {
        let by_number = column.number(other).cmp(&column.number(one));
        by_number.then_with(|| one.text("name").cmp(other.text("name")))
    });
}

impl Column {
    /// The title in a table, of puts and deletes as rates.
    pub(super) const fn title(self) -> &'static str {
        self.title_and_key().0
    }

    /// The key in `stats-tube`.
    pub(super) const fn key(self) -> &'static str {
        self.title_and_key().1
    }

    const fn title_and_key(self) -> (&'static str, &'static str) {
        match self {
            Self::Name => ("TUBE", "name"),
            Self::Ready => ("READY", "current-jobs-ready"),
            Self::Reserved => ("RESERVED", "current-jobs-reserved"),
            Self::Delayed => ("DELAYED", "current-jobs-delayed"),
            Self::Buried => ("BURIED", "current-jobs-buried"),
            Self::Held => ("HELD", "current-jobs-held"),
            Self::Waiting => ("WAITING", "current-waiting"),
            Self::Puts => ("PUT/S", "total-jobs"),
            Self::Deletes => ("DELETE/S", "cmd-delete"),
            Self::Oldest => ("OLDEST", "oldest-ready-age"),
            Self::Paused => ("PAUSED", "pause-time-left"),
        }
    }

    /// The number of a tube; 0 for its name.
    pub(super) fn number(self, tube: &Stats) -> u64 {
        tube.number(self.key())
    }

    fn cell(self, tube: &Stats) -> String {
        match (self, self.number(tube)) {
            (Self::Name, _) => tube.text("name").to_string(),
            (Self::Oldest, _) if Self::Ready.number(tube) == 0 => "-".to_owned(),
            (Self::Paused, 0) => "-".to_owned(),
            (Self::Oldest | Self::Paused, seconds) => Seconds(seconds).to_string(),
            (_, number) => number.to_string(),
        }
    }
}

fn table(tubes: &[Stats]) -> Table {
    let is_shown = |column: &Column| match column {
        Column::Deletes => false,
        // Most servers have none, and a line has 80 columns.
        Column::Held => tubes.iter().any(|tube| column.number(tube) > 0),
        Column::Oldest => has_age(tubes),
        _ => true,
    };
    let columns: Vec<Column> = Column::value_variants().iter().copied().filter(is_shown).collect();
    let titled = |column: &Column| match column {
        Column::Name => (column.title(), Align::Left),
        Column::Puts => ("PUTS", Align::Right),
        Column::Paused => ("PAUSED FOR", Align::Right),
        _ => (column.title(), Align::Right),
    };
    let mut table = Table::new(&columns.iter().map(titled).collect::<Vec<_>>());
    for tube in tubes {
        table.row(columns.iter().map(|column| column.cell(tube)));
        for (at, column) in columns.iter().enumerate() {
            match column {
                Column::Buried if column.number(tube) > 0 => table.color(at, Color::Red),
                Column::Paused if column.number(tube) > 0 => table.color(at, Color::Yellow),
                _ => {}
            }
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
