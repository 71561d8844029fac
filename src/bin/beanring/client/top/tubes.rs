//! The tubes of the server: their counts, their rates, and the order in which they are shown.

use std::time::{Duration, Instant};

use clap::ValueEnum;

use super::super::tubes::matches;
use super::super::{Stats, Untrusted};
use crate::cli::verbs::Column;

/// Two readings that are closer give no rate: the clock of the client is not that of the server.
const RATE_SPAN_MIN: Duration = Duration::from_millis(200);

/// A counter of the server, and how quickly it grows.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Rate {
    last: Option<(Instant, u64)>,
    per_second: Option<f64>,
}

#[derive(Clone, Debug)]
pub(super) struct Tube {
    /// Its name as the server has sent it.
    pub(super) name: Untrusted,
    /// The last counts; none before the first reply.
    pub(super) counts: Option<Counts>,
    /// The poll that has last asked for the counts.
    asked: u64,
}

/// What `stats-tube` says.
#[derive(Clone, Default, Debug)]
pub(super) struct Counts {
    /// The numbers of the columns. A server may lack some.
    numbers: [u64; COLUMNS],
    pub(super) put: Rate,
    pub(super) delete: Rate,
    /// Whether the server knows the age of the job that has been ready longest. beanstalkd does not.
    pub(super) has_oldest: bool,
}

/// The number of columns, with that of the names.
const COLUMNS: usize = Column::Paused as usize + 1;

/// All tubes, and which of them are shown.
#[derive(Default, Debug)]
pub(super) struct Tubes {
    /// In the order of their names.
    all: Vec<Tube>,
    /// Positions in `all`, in the order of the screen.
    shown: Vec<usize>,
    sort: Column,
    is_reversed: bool,
    filter: String,
}

impl Rate {
    /// Adds a reading. A counter that has shrunk belongs to a server that has started again.
    pub(super) fn read(&mut self, now: Instant, count: u64) {
        match self.last {
            Some((at, _)) if now.saturating_duration_since(at) < RATE_SPAN_MIN => return,
            Some((at, last)) => {
                let seconds = now.saturating_duration_since(at).as_secs_f64();
                self.per_second = count.checked_sub(last).map(|more| more as f64 / seconds);
            }
            None => {}
        }
        self.last = Some((now, count));
    }

    /// The increase per second between the last two readings.
    pub(super) const fn per_second(&self) -> Option<f64> {
        self.per_second
    }
}

impl Counts {
    /// Takes over new statistics.
    fn read(&mut self, now: Instant, stats: &Stats) {
        for (number, column) in self.numbers.iter_mut().zip(Column::value_variants()) {
            *number = column.number(stats);
        }
        self.put.read(now, self.of(Column::Puts));
        self.delete.read(now, self.of(Column::Deletes));
        self.has_oldest = stats.get(Column::Oldest.key()).is_some();
    }

    /// The number of a column. That of puts and deletes is a total.
    pub(super) const fn of(&self, column: Column) -> u64 {
        self.numbers[column as usize]
    }
}

impl Tubes {
    pub(super) fn new(sort: Column) -> Self {
        Self { sort, ..Self::default() }
    }

    /// Takes over a list of names. Tubes that are still there keep their counts.
    pub(super) fn list(&mut self, mut names: Vec<Untrusted>) {
        names.sort_unstable();
        names.dedup();
        let mut old = std::mem::take(&mut self.all).into_iter().peekable();
        for name in names {
            while old.next_if(|tube| tube.name < name).is_some() {}
            let known = old.next_if(|tube| tube.name == name);
            self.all.push(known.unwrap_or(Tube { name, counts: None, asked: 0 }));
        }
        self.arrange();
    }

    /// Takes over statistics of a tube. Without them the tube has disappeared, and stays until the next list.
    pub(super) fn read(&mut self, now: Instant, name: &str, stats: Option<&Stats>) {
        let Ok(at) = self.all.binary_search_by(|tube| tube.name.bytes().cmp(name.as_bytes())) else { return };
        let tube = &mut self.all[at];
        match stats {
            Some(stats) => tube.counts.get_or_insert_default().read(now, stats),
            None => tube.counts = None,
        }
    }

    /// Forgets the counts: they are those of another server.
    pub(super) fn forget(&mut self) {
        for tube in &mut self.all {
            tube.counts = None;
        }
    }

    /// Filters and sorts.
    pub(super) fn arrange(&mut self) {
        let all = &self.all;
        self.shown.clear();
        self.shown.extend((0..all.len()).filter(|&at| matches(&self.filter, all[at].name.bytes())));
        let sort = self.sort;
        self.shown.sort_by(|&one, &other| sort.compare(&all[one], &all[other]));
        if self.is_reversed {
            self.shown.reverse();
        }
    }

    pub(super) fn sort_by(&mut self, sort: Column) {
        self.sort = sort;
        self.is_reversed = false;
        self.arrange();
    }

    pub(super) fn reverse(&mut self) {
        self.is_reversed = !self.is_reversed;
        self.arrange();
    }

    pub(super) fn filter_by(&mut self, filter: String) {
        self.filter = filter;
        self.arrange();
    }

    pub(super) const fn sort(&self) -> Column {
        self.sort
    }

    /// Whether the largest numbers, or the last names, are at the end.
    pub(super) fn is_ascending(&self) -> bool {
        (self.sort == Column::Name) != self.is_reversed
    }

    pub(super) fn filter(&self) -> &str {
        &self.filter
    }

    /// The number of all tubes.
    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// The number of tubes that are shown.
    pub(super) fn shown(&self) -> usize {
        self.shown.len()
    }

    /// A tube that is shown.
    pub(super) fn at(&self, place: usize) -> Option<&Tube> {
        self.shown.get(place).map(|&at| &self.all[at])
    }

    /// The name of a tube that is shown, unless this poll has asked for it already, or no command can name it.
    pub(super) fn ask_once(&mut self, place: usize, poll: u64) -> Option<String> {
        let tube = &mut self.all[*self.shown.get(place)?];
        let name = tube.name.tube_name().filter(|_| tube.asked < poll)?.to_owned();
        tube.asked = poll;
        Some(name)
    }

    /// Where a tube is shown.
    pub(super) fn place_of(&self, name: &Untrusted) -> Option<usize> {
        self.shown.iter().position(|&at| self.all[at].name == *name)
    }

    /// Whether the server knows the age of jobs. Before there is a tube with counts, it is believed to.
    pub(super) fn has_oldest(&self) -> bool {
        self.all.iter().find_map(|tube| tube.counts.as_ref()).is_none_or(|counts| counts.has_oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use beanring::replies::Kind;

    #[test]
    fn rates() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut rate = Rate::default();
        rate.read(at(0), 100);
        assert_eq!(rate.per_second(), None);
        rate.read(at(2000), 150);
        assert_eq!(rate.per_second(), Some(25.0));
        // Too close.
        rate.read(at(2100), 1150);
        assert_eq!(rate.per_second(), Some(25.0));
        rate.read(at(3000), 1150);
        assert_eq!(rate.per_second(), Some(1000.0));
        // The server has started again.
        rate.read(at(4000), 3);
        assert_eq!(rate.per_second(), None);
        rate.read(at(5000), 3);
        assert_eq!(rate.per_second(), Some(0.0));
    }

    #[test]
    fn a_list_keeps_what_is_known() {
        let names = |list: &[&str]| list.iter().map(|name| (*name).into()).collect();
        let ready = |count| {
            let text = format!("---\ncurrent-jobs-ready: {count}\n");
            Stats::parse(Kind::Tube, &text.as_str().into()).expect("these are statistics")
        };
        let mut tubes = Tubes::new(Column::Ready);
        tubes.list(names(&["b", "a", "d", "b"]));
        tubes.read(Instant::now(), "a", Some(&ready(1)));
        tubes.read(Instant::now(), "d", Some(&ready(7)));
        tubes.read(Instant::now(), "z", Some(&ready(9)));
        tubes.list(names(&["d", "c", "a"]));
        let shown = |tubes: &Tubes| {
            (0..tubes.shown())
                .map(|place| tubes.at(place).expect("it is shown").name.to_string())
                .collect::<String>()
        };
        assert_eq!(shown(&tubes), "dac");
        tubes.reverse();
        assert_eq!(shown(&tubes), "cad");
        tubes.filter_by("?".to_owned());
        assert_eq!((tubes.shown(), tubes.count()), (3, 3));
        tubes.filter_by("a".to_owned());
        assert_eq!(shown(&tubes), "a");
        tubes.filter_by(String::new());
        tubes.sort_by(Column::Name);
        assert_eq!(
            (shown(&tubes), tubes.place_of(&"c".into()), tubes.is_ascending()),
            ("acd".to_owned(), Some(1), true)
        );
    }
}
