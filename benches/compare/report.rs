//! The results as a page of tables, and as JSON with everything that was measured.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::bounds::verdicts;
use crate::failure::Failure;
use crate::machine::Machine;
use crate::matrix::{Group, RowFacts};
use crate::measure::{Cell, Figures, Metric, Outcome, Spread};
use crate::options::Options;
use crate::servers::{Kind, Peers};
use crate::table::{Table, figure, ratio};

/// The lines of docs/BENCHMARKS.md between which the tables stand.
pub const BEGIN: &str = "<!-- ci/bench: begin -->";
/// The second.
pub const END: &str = "<!-- ci/bench: end -->";

const PAGE: &str = "docs/BENCHMARKS.md";
const PICTURE: &str = "benchmarks.svg";

/// Everything that is to be told.
pub struct Report<'a> {
    pub machine: &'a Machine,
    pub peers: &'a Peers,
    pub options: &'a Options,
    pub results: &'a [Outcome],
}

impl Report<'_> {
    /// All measurements, with what the load wrote about each.
    pub fn json(&self) -> String {
        let cell =
            |cell: &Cell| json!({ "server": cell.kind.name(), "rounds": cell.raw, "failure": cell.failure });
        let row = |outcome: &Outcome| {
            let cells: Vec<_> = outcome.cells.iter().map(cell).collect();
            json!({ "row": RowFacts::from(&outcome.row), "servers": cells })
        };
        let left_out = |(kind, why): &(Kind, String)| json!({ "server": kind.name(), "why": why });
        let report = json!({
            "machine": self.machine,
            "command": command_line(),
            "rounds": self.options.rounds(),
            "seconds": self.options.seconds(),
            "versions": self.peers.versions,
            "left_out": self.peers.left_out.iter().map(left_out).collect::<Vec<_>>(),
            "rows": self.results.iter().map(row).collect::<Vec<_>>(),
            "bounds": verdicts(self.peers, self.results),
        });
        format!("{report:#}\n")
    }

    /// The tables with a title and the picture.
    pub fn page(&self) -> String {
        format!("# beanring and its peers\n\n{}\n![plots](report.svg)\n", self.markdown())
    }

    /// The tables.
    pub fn markdown(&self) -> String {
        let mut out = self.header();
        for group in Group::ALL {
            let rows: Vec<&Outcome> =
                self.results.iter().filter(|outcome| outcome.row.group == group).collect();
            if !rows.is_empty() {
                out += &format!("\n### {}\n", group.title());
                out += &self.section(group, &rows);
            }
        }
        out + &self.bounds() + &self.failures()
    }

    /// Where and how it was measured, in a line or two.
    pub fn subtitle(&self) -> String {
        let Machine { date, kernel, cpu, cores, revision, .. } = self.machine;
        format!("{date}, {kernel}, {cpu}, cores: {cores}, revision {revision}")
    }

    fn header(&self) -> String {
        let mut out = format!("{}.\n", self.subtitle());
        let pins = match (self.machine.pins, self.machine.unpinned()) {
            (Some((server, load)), _) => format!("servers on core {server}, load on core {load}"),
            (None, why) => format!(
                "{}: nothing is pinned, the load takes its time from the same cores, and the table is smaller",
                why.unwrap_or_default()
            ),
        };
        let (rounds, seconds) = (self.options.rounds(), self.options.seconds());
        out += &format!("`{}`: {rounds} × {seconds} s, {pins}.\n", command_line());
        out += &format!("Peers: {}.\n", or_none(&self.peers.versions));
        for (kind, why) in &self.peers.left_out {
            out += &format!("Left out: {}, because {why}.\n", kind.name());
        }
        out
    }

    fn section(&self, group: Group, rows: &[&Outcome]) -> String {
        let kinds: Vec<Kind> = self
            .peers
            .kinds
            .iter()
            .copied()
            .filter(|&kind| rows.iter().any(|row| row.cell(kind).is_some()))
            .collect();
        let mut out = String::new();
        let mut table = |title: &str, cell: &dyn Fn(&Cell) -> String| {
            let names = kinds.iter().map(|kind| kind.name());
            let mut table = Table::new([title.to_owned()].into_iter().chain(names).collect());
            for outcome in rows {
                let of = |kind: &Kind| outcome.cell(*kind).map_or(String::new(), cell);
                table.push([outcome.row.title()].into_iter().chain(kinds.iter().map(of)).collect());
            }
            out += &format!("\n{}", table.markdown());
        };
        table("CPU, µs an operation", &cpu_cell);
        table("of it in the kernel", &|cell| {
            let share = cell.spread(|figures| figures.server.system_share());
            share.map_or(missing(cell), |share| format!("{:.0} %", share.median * 100.0))
        });
        table("operations/s", &|cell| of(cell, |figures| figures.operations_per_s));
        table("latency, µs: p50 / p99 / p99.9 / max", &latency_cell);
        if matches!(group, Group::HandOver | Group::Idle) {
            table("load itself late, µs: p99", &|cell| {
                of(cell, |figures| figures.begun_late_us_p99.unwrap_or(f64::NAN))
            });
        }
        match group {
            Group::Puts | Group::LargeBodies => table("bytes resident a job put", &|cell| {
                // A cycle leaves nothing behind, nor does the bare loop.
                let grown = |figures: &Figures| {
                    let bytes = figures.server.grown_bytes() / figures.operations as f64;
                    if figures.workload.ends_with("cycle") { f64::NAN } else { bytes }
                };
                if matches!(cell.kind, Kind::Bare(_)) { String::new() } else { of(cell, grown) }
            }),
            Group::Idle => table("bytes resident an idle connection", &|cell| {
                of(cell, |figures| {
                    figures.idle.as_ref().map_or(f64::NAN, |idle| idle.rss_bytes_per_connection)
                })
            }),
            Group::Cycles | Group::Tubes | Group::HandOver => {
                table("resident at most, MiB", &|cell| {
                    of(cell, |figures| figures.server.peak_rss_kib / 1024.0)
                });
            }
        }
        out + &self.ratios(rows)
    }

    /// Ours to each peer, by processor time.
    fn ratios(&self, rows: &[&Outcome]) -> String {
        let ours = self.peers.kinds.iter().copied().filter(|kind| matches!(kind, Kind::Ours(_)));
        let to = |kind| {
            let bare = if let Kind::Ours(driver) = kind { Some(Kind::Bare(driver)) } else { None };
            [Some(Kind::Beanstalkd), Some(Kind::Redis), bare]
                .into_iter()
                .flatten()
                .map(move |peer| (kind, peer))
        };
        let measured = |&(_, peer): &(Kind, Kind)| rows.iter().any(|row| row.cell(peer).is_some());
        let pairs: Vec<(Kind, Kind)> = ours.flat_map(to).filter(measured).collect();
        if pairs.is_empty() {
            return String::new();
        }
        let names = pairs.iter().map(|(own, peer)| {
            let driver = own.name().replace("beanring ", "");
            let peer = if matches!(peer, Kind::Bare(_)) { "bare".to_owned() } else { peer.name() };
            format!("{driver} : {peer}")
        });
        let mut table = Table::new(["CPU, ratio".to_owned()].into_iter().chain(names).collect());
        for outcome in rows {
            let cell = |&(own, peer): &(Kind, Kind)| {
                let pair = outcome.median(own, cpu).zip(outcome.median(peer, cpu));
                pair.map_or(String::new(), |(own, peer)| ratio(own / peer))
            };
            table.push([outcome.row.title()].into_iter().chain(pairs.iter().map(cell)).collect());
        }
        format!("\n{}", table.markdown())
    }

    fn bounds(&self) -> String {
        let verdicts = verdicts(self.peers, self.results);
        if verdicts.is_empty() {
            return String::new();
        }
        let mut table = Table::new(["target", "at most", "measured", ""].map(str::to_owned).to_vec());
        for verdict in verdicts {
            let title = self.results.iter().find(|outcome| outcome.row.id == verdict.row);
            let title = title.map_or(verdict.row, |outcome| outcome.row.title());
            let (measured, word) = match verdict.measured {
                Some(measured) => {
                    (ratio(measured), if measured <= verdict.at_most { "met" } else { "missed" })
                }
                None => (String::new(), "not measured"),
            };
            let name = format!("{}, {title}: {}", verdict.driver, verdict.of);
            table.push(vec![name, ratio(verdict.at_most), measured, word.to_owned()]);
        }
        format!("\n### Targets\n\n{}", table.markdown())
    }

    fn failures(&self) -> String {
        let cells =
            self.results.iter().flat_map(|outcome| outcome.cells.iter().map(move |cell| (outcome, cell)));
        let failed = cells.filter_map(|(outcome, cell)| {
            let why = cell.failure.as_ref()?;
            Some(format!("- {}, {}: {why}\n", outcome.row.title(), cell.kind.name()))
        });
        let lines: String = failed.collect();
        if lines.is_empty() { lines } else { format!("\n### Failed measurements\n\n{lines}") }
    }
}

/// Puts the tables into the documentation, with the picture beside them.
pub fn publish(markdown: &str, directory: &Path) -> Result<(), Failure> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let picture = page.with_file_name(PICTURE);
    fs::copy(directory.join("report.svg"), &picture).map_err(|error| Failure::Write(picture, error))?;
    let unwritten = |error| Failure::Write(page.clone(), error);
    let text = fs::read_to_string(&page).map_err(unwritten)?;
    let parts = text.split_once(BEGIN).and_then(|(head, rest)| Some((head, rest.split_once(END)?.1)));
    let Some((head, tail)) = parts else { return Err(Failure::NoPlace(page)) };
    let text = format!("{head}{BEGIN}\n{markdown}\n![plots]({PICTURE})\n{END}{tail}");
    fs::write(&page, text).map_err(unwritten)
}

/// What somebody types to get the same.
fn command_line() -> String {
    let typed = std::env::args().skip(1).filter(|argument| argument != "--bench");
    ["ci/bench".to_owned()].into_iter().chain(typed).collect::<Vec<_>>().join(" ")
}

fn cpu(figures: &Figures) -> f64 {
    figures.server.cpu_us_per_operation
}

/// The median, and the spread where there is one.
fn cpu_cell(cell: &Cell) -> String {
    let Some(Spread { median, least, most }) = cell.spread(cpu) else { return missing(cell) };
    if cell.samples.len() == 1 {
        return figure(median);
    }
    format!("{} ({}–{})", figure(median), figure(least), figure(most))
}

fn latency_cell(cell: &Cell) -> String {
    let metrics: [Metric; 4] = [
        |figures| figures.latency_us.p50,
        |figures| figures.latency_us.p99,
        |figures| figures.latency_us.p999,
        |figures| figures.latency_us.max,
    ];
    if cell.samples.is_empty() {
        return missing(cell);
    }
    metrics
        .map(|metric| cell.spread(metric).map_or(String::new(), |spread| format!("{:.0}", spread.median)))
        .join(" / ")
}

fn of(cell: &Cell, metric: Metric) -> String {
    cell.spread(metric).map_or(missing(cell), |spread| figure(spread.median))
}

fn missing(cell: &Cell) -> String {
    if cell.failure.is_some() { "failed".to_owned() } else { String::new() }
}

fn or_none(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
