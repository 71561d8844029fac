//! `beanring watch`: a line per interval with the jobs of tubes, or of all of them, and what has happened since the last line.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::{ClientError, Connection, Fields, Output, Stats, Untrusted, inspect, say, tubes};
use crate::cli::verbs;

/// Lines between two headers on a terminal.
const HEADER_LINES: u32 = 20;

/// The columns with a number: name in JSON, header, and width. The first are counts of jobs and clients, the others rates.
const COLUMNS: [(&str, &str, usize); 9] = [
    ("ready", "READY", 9),
    ("reserved", "RESERVED", 9),
    ("delayed", "DELAYED", 9),
    ("buried", "BURIED", 9),
    ("waiting", "WAITING", 8),
    ("put_per_second", "PUT/S", 9),
    ("delete_per_second", "DELETE/S", 9),
    ("bury_per_second", "BURY/S", 7),
    ("timeout_per_second", "TIMEOUT/S", 10),
];

/// Jobs at one time, and counters up to it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Counts {
    now: [u64; 5],
    /// Jobs put, deleted and buried, and reservations that timed out, in total. beanstalkd does not count all of them for
    /// tubes.
    total: [Option<u64>; 4],
}

pub(super) fn run(verb: &verbs::Watch) -> Result<(), ClientError> {
    let mut connection = super::connect(&verb.common)?;
    let mut output = Output::new(&verb.common);
    let names: Vec<Option<String>> =
        if verb.tubes.is_empty() { vec![None] } else { verb.tubes.iter().cloned().map(Some).collect() };
    let first = read(&mut connection, &names)?;
    for (name, _) in names.iter().flatten().zip(&first).filter(|(_, counts)| counts.is_none()) {
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
            let numbers = numbers(counts, before, elapsed);
            if output.is_json() {
                output.json(&json(name, numbers))?;
                continue;
            }
            if lines == 0 || lines % HEADER_LINES == 0 && output.is_terminal() {
                output.line(&header(&names))?;
            }
            lines += 1;
            output.line(&text(name, name_width(&names), &numbers))?;
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

/// Returns the numbers of a line: the counts, and the rates of what is counted.
fn numbers(counts: &Counts, before: &Counts, elapsed: f64) -> Vec<Value> {
    let rate = |(total, before): (&Option<u64>, &Option<u64>)| {
        let (total, before) = ((*total)?, before.unwrap_or(0));
        // The counters of a tube that is new begin at 0.
        let since = total.checked_sub(before).unwrap_or(total);
        Some((since as f64 / elapsed * 10.0).round() / 10.0)
    };
    let rates = counts.total.iter().zip(&before.total).map(rate);
    counts.now.into_iter().map(Value::from).chain(rates.map(Value::from)).collect()
}

/// A line of JSON. Without a name it is that of the whole server.
fn json(name: Option<&str>, numbers: Vec<Value>) -> Fields {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = (since_1970.as_secs_f64() * 1000.0).round() / 1000.0;
    let mut fields = vec![("time", Value::from(time))];
    fields.extend(name.map(|name| ("tube", Value::from(name))));
    fields.extend(COLUMNS.iter().map(|(key, ..)| *key).zip(numbers));
    Fields(fields)
}

/// The width of the first column: 0 without names.
fn name_width(names: &[Option<String>]) -> usize {
    names.iter().flatten().map(String::len).max().map_or(0, |width| width.max("TUBE".len()))
}

fn header(names: &[Option<String>]) -> String {
    let width = name_width(names);
    let first = if width == 0 { String::new() } else { format!("{:width$}", "TUBE") };
    first + &COLUMNS.iter().map(|(_, title, width)| format!("{title:>width$}")).collect::<String>()
}

fn text(name: Option<&str>, name_width: usize, numbers: &[Value]) -> String {
    let cell = |(number, (.., width)): (&Value, &(_, _, usize))| {
        let rate = || number.as_f64().map_or_else(|| "-".to_owned(), |rate| rate.round().to_string());
        let text = number.as_u64().map_or_else(rate, |count| count.to_string());
        format!("{text:>width$}")
    };
    let cells: String = numbers.iter().zip(&COLUMNS).map(cell).collect();
    format!("{:name_width$}{cells}", name.unwrap_or_default())
}
