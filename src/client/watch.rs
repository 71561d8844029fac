//! `beanring watch`: a line per interval with the jobs of tubes, or of all of them, and what has happened since the last line.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::connection::Connection;
use super::error::ClientError;
use super::escape::escaped;
use super::output::{Output, say};
use super::stats::Stats;
use super::untrusted::Untrusted;
use super::{inspect, tubes};
use crate::cli::verbs;

/// Lines between two headers on a terminal.
const HEADER_LINES: u32 = 20;

/// The columns with a number: header, and width.
const COLUMNS: [(&str, usize); 9] = [
    ("READY", 9),
    ("RESERVED", 9),
    ("DELAYED", 9),
    ("BURIED", 9),
    ("WAITING", 8),
    ("PUT/S", 9),
    ("DELETE/S", 9),
    ("BURY/S", 7),
    ("TIMEOUT/S", 10),
];

/// Jobs at one time, and counters up to it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Counts {
    now: [u64; 5],
    /// Jobs put, deleted and buried, and reservations that timed out, in total. beanstalkd does not count all of them for
    /// tubes.
    total: [Option<u64>; 4],
}

/// A line of output.
#[derive(Serialize)]
struct Line<'a> {
    /// Seconds since 1970.
    time: f64,
    /// `None` for the whole server.
    #[serde(skip_serializing_if = "Option::is_none")]
    tube: Option<&'a str>,
    ready: u64,
    reserved: u64,
    delayed: u64,
    buried: u64,
    waiting: u64,
    put_per_second: Option<f64>,
    delete_per_second: Option<f64>,
    bury_per_second: Option<f64>,
    timeout_per_second: Option<f64>,
}

pub(super) fn run(verb: &verbs::Watch) -> Result<(), ClientError> {
    let mut connection = super::connect(&verb.common)?;
    let mut output = Output::new(&verb.common);
    let names: Vec<Option<String>> =
        if verb.tubes.is_empty() { vec![None] } else { verb.tubes.iter().cloned().map(Some).collect() };
    let first = read(&mut connection, &names)?;
    for (name, _) in names.iter().flatten().zip(&first).filter(|(_, counts)| counts.is_none()) {
        let name = escaped(name.as_bytes());
        say(format_args!("beanring: there is no tube {name}; its numbers are 0 until it exists"));
    }
    let mut before = known(first);
    let mut shown: Vec<Option<Counts>> = vec![None; names.len()];
    let mut at = Instant::now();
    let mut lines = 0;
    let interval = Duration::from_secs(verb.interval.into());
    let mut rounds = 0;
    while verb.count.is_none_or(|count| rounds < count) {
        thread::sleep(interval);
        let counts = known(read(&mut connection, &names)?);
        let elapsed = at.elapsed().as_secs_f64();
        at = Instant::now();
        for (place, (counts, before)) in counts.iter().zip(&before).enumerate() {
            if verb.quiet && shown[place] == Some(*counts) {
                continue;
            }
            shown[place] = Some(*counts);
            let name = names[place].as_deref();
            if output.is_json() {
                output.json(&line(name, counts, before, elapsed))?;
                continue;
            }
            if lines == 0 || lines % HEADER_LINES == 0 && output.is_terminal() {
                output.line(&header(&names))?;
            }
            lines += 1;
            output.line(&text(&line(name, counts, before, elapsed), name_width(&names)))?;
        }
        output.flush()?;
        if output.is_closed() {
            break;
        }
        before = counts;
        rounds += 1;
    }
    Ok(())
}

/// The counts of tubes that do not exist are 0.
fn known(counts: Vec<Option<Counts>>) -> Vec<Counts> {
    counts.into_iter().map(Option::unwrap_or_default).collect()
}

/// Reads the counts of each tube, or of the server. A tube that does not exist has none.
fn read(connection: &mut Connection, names: &[Option<String>]) -> Result<Vec<Option<Counts>>, ClientError> {
    if names == [None] {
        let stats = inspect::of_server(connection)?;
        let totals = ["total-jobs", "cmd-delete", "cmd-bury", "job-timeouts"];
        return Ok(vec![Some(Counts::new(&stats, totals))]);
    }
    let names: Vec<Untrusted> = names.iter().flatten().map(|name| name.as_str().into()).collect();
    let tubes = tubes::statistics(connection, &names)?;
    let counts = |name: &Untrusted| {
        let stats = tubes.iter().find(|stats| stats.text("name") == name);
        let keys = ["total-jobs", "cmd-delete", "job-buries", "job-timeouts"];
        stats.map(|stats| Counts::new(stats, keys))
    };
    Ok(names.iter().map(counts).collect())
}

impl Counts {
    fn new(stats: &Stats, totals: [&str; 4]) -> Self {
        let now = ["ready", "reserved", "delayed", "buried"].map(|state| format!("current-jobs-{state}"));
        let [ready, reserved, delayed, buried] = now.map(|key| stats.number(&key));
        let waiting = stats.number("current-waiting");
        let total = totals.map(|key| stats.get(key).map(|_| stats.number(key)));
        Self { now: [ready, reserved, delayed, buried, waiting], total }
    }
}

fn line<'a>(name: Option<&'a str>, counts: &Counts, before: &Counts, elapsed: f64) -> Line<'a> {
    let rate = |at: usize| {
        let total = counts.total[at]?;
        // The counters of a tube that is new begin at 0.
        let since = total.checked_sub(before.total[at].unwrap_or(0)).unwrap_or(total);
        Some((since as f64 / elapsed * 10.0).round() / 10.0)
    };
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let [ready, reserved, delayed, buried, waiting] = counts.now;
    Line {
        time: (time.as_secs_f64() * 1000.0).round() / 1000.0,
        tube: name,
        ready,
        reserved,
        delayed,
        buried,
        waiting,
        put_per_second: rate(0),
        delete_per_second: rate(1),
        bury_per_second: rate(2),
        timeout_per_second: rate(3),
    }
}

/// The width of the first column: 0 without names.
fn name_width(names: &[Option<String>]) -> usize {
    names.iter().flatten().map(String::len).max().map_or(0, |width| width.max("TUBE".len()))
}

fn header(names: &[Option<String>]) -> String {
    let width = name_width(names);
    let first = if width == 0 { String::new() } else { format!("{:width$}", "TUBE") };
    first + &COLUMNS.iter().map(|(title, width)| format!("{title:>width$}")).collect::<String>()
}

fn text(line: &Line<'_>, width: usize) -> String {
    let name = line.tube.map_or_else(String::new, |name| escaped(name.as_bytes()));
    let rate = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| rate.round().to_string());
    let cells = [
        line.ready.to_string(),
        line.reserved.to_string(),
        line.delayed.to_string(),
        line.buried.to_string(),
        line.waiting.to_string(),
        rate(line.put_per_second),
        rate(line.delete_per_second),
        rate(line.bury_per_second),
        rate(line.timeout_per_second),
    ];
    let cells = cells.iter().zip(COLUMNS).map(|(cell, (_, width))| format!("{cell:>width$}"));
    format!("{name:width$}") + &cells.collect::<String>()
}
