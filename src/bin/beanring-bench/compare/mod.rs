//! `beanring-bench compare`: whether two series of runs differ by more than chance explains.
//!
//! Each round of a workload gives one value of each metric. The rounds of a file come from `--rounds`, or from several reports
//! in one file.

mod interval;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use beanring::io::socket::text_of;
use clap::Args;
use serde::Deserialize;
use serde_json::{Deserializer, Map, Value};

use self::interval::{Ratio, values_needed};
use crate::args::{ROUNDS_MAX, number};
use crate::report::table;

const NOTES: &str = "\
A file has the rounds of one run with --rounds, or the reports of several runs,
one after the other. On a shared machine the runs should alternate, A B A B:

  for round in 1 2 3 4 5 6 7 8; do
    beanring-bench cycle -a HOST:PORT-OF-A --json - >>A.json
    beanring-bench cycle -a HOST:PORT-OF-B --json - >>B.json
  done
  beanring-bench compare A.json B.json

Exit code: 0 nothing is worse, 1 something is worse by more than the threshold,
2 the files cannot be compared, or invalid options.";

/// The options of `compare`.
#[derive(Args, Clone, Debug)]
#[command(after_help = NOTES)]
pub struct Comparison {
    /// Results before the change
    #[arg(value_name = "A.json")]
    before: PathBuf,
    /// Results after the change
    #[arg(value_name = "B.json")]
    after: PathBuf,
    /// Probability that the intervals contain all true changes
    #[arg(long, default_value_t = 95.0, value_name = "PERCENT", value_parser = number(50.0..=99.99))]
    confidence: f64,
    /// Accept what may be worse by this or less
    #[arg(long, default_value_t = 0.0, value_name = "PERCENT", value_parser = number(0.0..=100.0))]
    threshold: f64,
}

/// Why two files cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum Obstacle {
    #[error("{}: {}", .0.display(), text_of(.1))]
    File(PathBuf, std::io::Error),
    /// The file has other JSON than that of this program.
    #[error("{} is no JSON of beanring-bench: {}", .0.display(), .1)]
    Json(PathBuf, serde_json::Error),
    /// The results in the file say nothing about the server.
    #[error("{} cannot be compared: {}", .0.display(), .1)]
    Unfit(PathBuf, String),
    /// The files have different loads.
    #[error("the files cannot be compared: they differ in {0}")]
    Different(String),
    /// There are too few rounds for an interval.
    #[error(
        "{}: {workload} has {rounds} round{}; this confidence needs {needed} (--rounds {needed})",
        .path.display(),
        if *.rounds == 1 { "" } else { "s" }
    )]
    Short { path: PathBuf, workload: String, rounds: usize, needed: usize },
}

/// A report, as far as it is compared.
#[derive(Deserialize)]
struct Report {
    generator_io: String,
    interrupted: bool,
    settings: Map<String, Value>,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    workload: String,
    errors: u64,
    overloaded: bool,
    operations_per_s: f64,
    latency_us: Latency,
    server: Option<Server>,
}

#[derive(Deserialize)]
struct Latency {
    p50: f64,
    p99: f64,
}

#[derive(Deserialize)]
struct Server {
    cpu_us_per_operation: f64,
}

/// A number that is compared.
struct Metric {
    name: &'static str,
    is_better_if_larger: bool,
    of: fn(&Row) -> Option<f64>,
}

const METRICS: [Metric; 4] = [
    Metric { name: "ops/s", is_better_if_larger: true, of: |row| Some(row.operations_per_s) },
    Metric {
        name: "cpu",
        is_better_if_larger: false,
        of: |row| row.server.as_ref().map(|server| server.cpu_us_per_operation),
    },
    Metric { name: "p50", is_better_if_larger: false, of: |row| Some(row.latency_us.p50) },
    Metric { name: "p99", is_better_if_larger: false, of: |row| Some(row.latency_us.p99) },
];

/// The results of one file: equal loads, and for each workload its rounds.
struct Results {
    path: PathBuf,
    load: Map<String, Value>,
    rounds: BTreeMap<String, Vec<Row>>,
}

/// A line of the table.
struct Line {
    workload: String,
    metric: &'static Metric,
    medians: [f64; 2],
    ratio: Ratio,
    verdict: Verdict,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Better,
    Worse,
    /// Worse, but perhaps by no more than the threshold.
    Accepted,
    NoDifference,
}

/// The comparison of two files.
pub struct Outcome {
    comparison: Comparison,
    rounds: [usize; 2],
    lines: Vec<Line>,
}

impl Comparison {
    /// Compares the files.
    pub fn run(self) -> Result<Outcome, Obstacle> {
        let (before, after) = (Results::read(&self.before)?, Results::read(&self.after)?);
        before.check_same_load(&after)?;
        let series: Vec<(&String, &'static Metric, [Vec<f64>; 2])> = before
            .rounds
            .iter()
            .flat_map(|(workload, rows)| METRICS.iter().map(move |metric| (workload, rows, metric)))
            .filter_map(|(workload, rows, metric)| {
                let values = |rows: &[Row]| rows.iter().map(metric.of).collect::<Option<Vec<f64>>>();
                Some((workload, metric, [values(rows)?, values(&after.rounds[workload])?]))
            })
            .collect();
        // Each interval errs so rarely that all of them together err as rarely as requested.
        let error = (1.0 - self.confidence / 100.0) / series.len() as f64;
        let lines = series.into_iter().map(|(workload, metric, values)| {
            for (file, values) in [&before, &after].into_iter().zip(&values) {
                file.check_values(workload, metric, values, error)?;
            }
            let ratio = Ratio::estimate(&values[0], &values[1], error).expect("there are enough rounds");
            let verdict = self.verdict(metric, ratio);
            let medians = values.map(median);
            Ok(Line { workload: workload.clone(), metric, medians, ratio, verdict })
        });
        let lines = lines.collect::<Result<Vec<Line>, Obstacle>>()?;
        let rounds = [&before, &after].map(|file| file.rounds.values().map(Vec::len).min().unwrap_or(0));
        Ok(Outcome { comparison: self, rounds, lines })
    }

    fn verdict(&self, metric: &Metric, ratio: Ratio) -> Verdict {
        let Ratio { low, high, .. } = ratio;
        // By how much it is worse at least, and whether it is better.
        let (worse_by, is_better) =
            if metric.is_better_if_larger { (1.0 - high, low > 1.0) } else { (low - 1.0, high < 1.0) };
        if is_better {
            Verdict::Better
        } else if worse_by > self.threshold / 100.0 {
            Verdict::Worse
        } else if worse_by > 0.0 {
            Verdict::Accepted
        } else {
            Verdict::NoDifference
        }
    }
}

impl Results {
    fn read(path: &Path) -> Result<Results, Obstacle> {
        let text = fs::read(path).map_err(|error| Obstacle::File(path.into(), error))?;
        let mut results = Results { path: path.into(), load: Map::new(), rounds: BTreeMap::new() };
        let reports = Deserializer::from_slice(&text).into_iter::<Report>();
        for (number, report) in reports.enumerate() {
            let report = report.map_err(|error| Obstacle::Json(path.into(), error))?;
            results.add(report, number == 0)?;
        }
        match results.rounds.values().map(Vec::len).max() {
            None => Err(results.unfit("it has no results".to_owned())),
            Some(most) if most > ROUNDS_MAX as usize => {
                Err(results.unfit(format!("it has more than {ROUNDS_MAX} rounds")))
            }
            Some(_) => Ok(results),
        }
    }

    fn add(&mut self, report: Report, is_first: bool) -> Result<(), Obstacle> {
        let Report { generator_io, interrupted, settings: mut load, rows } = report;
        if interrupted {
            return Err(self.unfit("a run was interrupted".to_owned()));
        }
        load.insert("generator_io".to_owned(), Value::String(generator_io));
        if is_first {
            self.load = load;
        } else if let Some(name) = difference(&self.load, &load) {
            return Err(self.unfit(format!("its runs differ in {name}")));
        }
        for row in rows {
            if row.errors > 0 || row.overloaded {
                let why = if row.overloaded { "could not keep up with --rate" } else { "had errors" };
                return Err(self.unfit(format!("a round of {} {why}", row.workload)));
            }
            self.rounds.entry(row.workload.clone()).or_default().push(row);
        }
        Ok(())
    }

    fn check_same_load(&self, other: &Results) -> Result<(), Obstacle> {
        let differs = difference(&self.load, &other.load);
        let differs =
            differs.or((!self.rounds.keys().eq(other.rounds.keys())).then(|| "workloads".to_owned()));
        differs.map_or(Ok(()), |what| Err(Obstacle::Different(what)))
    }

    fn check_values(
        &self,
        workload: &str,
        metric: &Metric,
        values: &[f64],
        error: f64,
    ) -> Result<(), Obstacle> {
        let needed = values_needed(error);
        if values.len() < needed {
            let (path, workload, rounds) = (self.path.clone(), workload.to_owned(), values.len());
            return Err(Obstacle::Short { path, workload, rounds, needed });
        }
        if values.iter().all(|&value| value > 0.0) {
            return Ok(());
        }
        Err(self.unfit(format!("{} of a round of {workload} is 0: measure for longer", metric.name)))
    }

    fn unfit(&self, why: String) -> Obstacle {
        Obstacle::Unfit(self.path.clone(), why)
    }
}

/// Returns a name whose values differ.
fn difference(one: &Map<String, Value>, other: &Map<String, Value>) -> Option<String> {
    let names = one.keys().chain(other.keys());
    names.into_iter().find(|&name| one.get(name) != other.get(name)).cloned()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

impl Outcome {
    /// Whether a metric is worse by more than the threshold.
    pub fn is_worse(&self) -> bool {
        self.lines.iter().any(|line| line.verdict == Verdict::Worse)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Comparison { before, after, confidence, threshold } = &self.comparison;
        let [rounds_before, rounds_after] = self.rounds;
        writeln!(
            f,
            "A  {}, rounds: {rounds_before}\nB  {}, rounds: {rounds_after}\n",
            before.display(),
            after.display()
        )?;
        let heading = ["workload", "metric", "A", "B", "change", "interval", ""].map(str::to_owned);
        let lines = self.lines.iter().map(|line| line.cells(*threshold));
        f.write_str(&table(&[heading].into_iter().chain(lines).collect::<Vec<_>>(), &[0, 1, 6]))?;
        writeln!(
            f,
            "\nA and B are medians: cpu, p50 and p99 in us. With {confidence} % confidence, all true changes are in their intervals."
        )
    }
}

impl Line {
    fn cells(&self, threshold: f64) -> [String; 7] {
        let Ratio { middle, low, high } = self.ratio;
        let change = |ratio: f64| format!("{:+.1}", (ratio - 1.0) * 100.0);
        let number = |value: f64| if value >= 1000.0 { format!("{value:.0}") } else { format!("{value:.2}") };
        let verdict = match self.verdict {
            Verdict::Better => "better".to_owned(),
            Verdict::Worse => "worse".to_owned(),
            Verdict::Accepted => format!("worse, perhaps by no more than {threshold} %"),
            Verdict::NoDifference => "no difference".to_owned(),
        };
        [
            self.workload.clone(),
            self.metric.name.to_owned(),
            number(self.medians[0]),
            number(self.medians[1]),
            format!("{} %", change(middle)),
            format!("{} to {} %", change(low), change(high)),
            verdict,
        ]
    }
}
