//! The results as a page of tables, and as JSON with everything that was measured.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::bounds::verdicts;
use crate::failure::Failure;
use crate::matrix::{Group, RowFacts};
use crate::measure::{Cell, Handshakes, Metric, Outcome, Spread, bytes_per_job, cpu, rate, restart_ms};
use crate::options::Options;
use crate::servers::{Kind, Peers};
use beanring_testkit::bench::logs::Place;
use beanring_testkit::bench::machine::Machine;
use beanring_testkit::bench::table::{Table, ratio, rounded};

/// The markers in benches/results.md between which the tables belong.
pub const BEGIN: &str = "<!-- ci/bench: begin -->";
pub const END: &str = "<!-- ci/bench: end -->";

const PAGE: &str = "benches/results.md";
const PICTURE: &str = "benchmarks.svg";

/// Renders a cell of a table.
type Shown = fn(&Cell) -> String;

/// The contents of a report.
pub struct Report<'a> {
    pub machine: &'a Machine,
    pub logs: &'a Place,
    pub peers: &'a Peers,
    pub options: &'a Options,
    pub results: &'a [Outcome],
}

impl Report<'_> {
    /// Renders all measurements as JSON, each with the complete JSON of the load.
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
            "logs_on": self.logs.file_system,
            "left_out": self.peers.left_out.iter().map(left_out).collect::<Vec<_>>(),
            "rows": self.results.iter().map(row).collect::<Vec<_>>(),
            "bounds": verdicts(self.peers, self.results),
        });
        format!("{report:#}\n")
    }

    /// Renders the tables with a title and the plots.
    pub fn page(&self) -> String {
        format!("# beanring and other servers\n\n{}\n![plots](report.svg)\n", self.markdown())
    }

    /// Renders the tables.
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

    /// Renders where and how the results were measured.
    pub fn subtitle(&self) -> String {
        let Machine { date, kernel, cpu, cores, revision, .. } = self.machine;
        format!("{date}, {kernel}, {cpu}, cores: {cores}, revision {revision}")
    }

    fn header(&self) -> String {
        let mut out = format!("{}.\n", self.subtitle());
        let pins = match (self.machine.pins, self.machine.unpinned()) {
            (Some((server, load)), _) => format!("servers on core {server}, load on core {load}"),
            (None, why) => format!(
                "{}: nothing is pinned, the load shares the cores of the servers, and the table is smaller",
                why.unwrap_or_default()
            ),
        };
        let (rounds, seconds) = (self.options.rounds(), self.options.seconds());
        out += &format!("`{}`: {rounds} × {seconds} s, {pins}.\n", command_line());
        out += &format!("Peers: {}.\n", or_none(&self.peers.versions));
        if self.results.iter().any(|outcome| outcome.row.log.is_some()) {
            let what = if self.logs.is_memory() { ", which is no disk: a sync is free there" } else { "" };
            out += &format!("Job logs on {}{what}.\n", self.logs.file_system);
        }
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
        let table = |title: &str, cell: &dyn Fn(&Cell) -> String| table(title, rows, &kinds, cell);
        if group == Group::Restart {
            let times = table("time to first reply, ms", &|cell| with_spread(cell, restart_ms));
            return times + &self.ratios("time, ratio", rows, restart_ms);
        }
        let mut out = table("CPU, µs per operation", &|cell| with_spread(cell, cpu));
        out += &table("share in the kernel", &|cell| {
            let share = cell.spread(|figures| figures.server.system_share());
            share.map_or(missing(cell), |share| format!("{:.0} %", share.median * 100.0))
        });
        out += &table("operations/s", &|cell| of(cell, rate));
        out += &table("latency, µs: p50 / p99 / p99.9 / max", &latency_cell);
        if matches!(group, Group::Delivery | Group::Idle | Group::Moving) {
            out += &table("lateness of the load, µs: p99", &|cell| {
                of(cell, |figures| figures.begun_late_us_p99.unwrap_or(f64::NAN))
            });
        }
        if let Some((title, cell)) = particular(group) {
            out += &table(title, &cell);
        }
        match group {
            Group::Durable => out + &self.ratios("operations/s, ratio", rows, rate),
            Group::Tls => out + &to_plaintext(rows, &kinds) + &self.ratios("CPU, ratio", rows, cpu),
            _ => out + &self.ratios("CPU, ratio", rows, cpu),
        }
    }

    /// Compares our server with each other server.
    fn ratios(&self, title: &str, rows: &[&Outcome], metric: Metric) -> String {
        let ours = self.peers.kinds.iter().copied().filter(|kind| matches!(kind, Kind::Ours(_)));
        let to = |kind| {
            let bare = if let Kind::Ours(driver) = kind { Some(Kind::Bare(driver)) } else { None };
            [Some(Kind::Beanstalkd), Some(Kind::BeanstalkdRs), Some(Kind::Redis), bare]
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
            let peer = if matches!(peer, Kind::Bare(_)) { "no-op".to_owned() } else { peer.name() };
            format!("{driver} : {peer}")
        });
        let mut table = Table::new([title.to_owned()].into_iter().chain(names).collect());
        for outcome in rows {
            let cell = |&(own, peer): &(Kind, Kind)| {
                let pair = outcome.median(own, metric).zip(outcome.median(peer, metric));
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
        let mut table = Table::new(["target", "limit", "measured", ""].map(str::to_owned).to_vec());
        for verdict in verdicts {
            let title = self.results.iter().find(|outcome| outcome.row.id == verdict.row);
            let title = title.map_or(verdict.row, |outcome| outcome.row.title());
            let (measured, word) = match verdict.measured {
                Some(measured) => {
                    let word = if verdict.limit.is_met(measured) { "met" } else { "missed" };
                    (verdict.limit.show(measured), word)
                }
                None => (String::new(), "not measured"),
            };
            let name = format!("{}, {title}: {}", verdict.driver, verdict.of);
            table.push(vec![name, verdict.limit.title(), measured, word.to_owned()]);
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

/// Updates the tables in the documentation, and the plots beside them.
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

/// Returns the command that repeats the run.
fn command_line() -> String {
    let typed = std::env::args().skip(1).filter(|argument| argument != "--bench");
    ["ci/bench".to_owned()].into_iter().chain(typed).collect::<Vec<_>>().join(" ")
}

fn table(title: &str, rows: &[&Outcome], kinds: &[Kind], cell: &dyn Fn(&Cell) -> String) -> String {
    let names = kinds.iter().map(|kind| kind.name());
    let mut table = Table::new([title.to_owned()].into_iter().chain(names).collect());
    for outcome in rows {
        let of = |kind: &Kind| outcome.cell(*kind).map_or(String::new(), cell);
        table.push([outcome.row.title()].into_iter().chain(kinds.iter().map(of)).collect());
    }
    format!("\n{}", table.markdown())
}

/// Compares each server over TLS with itself in plaintext.
fn to_plaintext(rows: &[&Outcome], kinds: &[Kind]) -> String {
    let partner = |tls: &Outcome| rows.iter().find(|plain| plain.row.is_plaintext_of(&tls.row));
    let pairs: Vec<_> = rows.iter().filter_map(|tls| Some((tls, partner(tls)?))).collect();
    if pairs.is_empty() {
        return String::new();
    }
    let names = kinds.iter().map(|kind| kind.name());
    let mut table = Table::new(["CPU, ratio to plaintext".to_owned()].into_iter().chain(names).collect());
    for (tls, plain) in pairs {
        let cell = |&kind: &Kind| {
            let pair = tls.median(kind, cpu).zip(plain.median(kind, cpu));
            pair.map_or(String::new(), |(tls, plain)| ratio(tls / plain))
        };
        table.push([tls.row.title()].into_iter().chain(kinds.iter().map(cell)).collect());
    }
    format!("\n{}", table.markdown())
}

/// Returns the table that only this group has, if it has one.
fn particular(group: Group) -> Option<(&'static str, Shown)> {
    Some(match group {
        Group::Puts | Group::LargeBodies => ("resident bytes per job", |cell| {
            // The no-op baseline leaves no jobs behind.
            if matches!(cell.kind, Kind::Bare(_)) { String::new() } else { of(cell, bytes_per_job) }
        }),
        Group::Idle => ("resident bytes per idle connection", |cell| {
            of(cell, |figures| figures.idle.as_ref().map_or(f64::NAN, |idle| idle.rss_bytes_per_connection))
        }),
        Group::Cycles | Group::Tubes | Group::Delivery => {
            ("peak RSS, MiB", |cell| of(cell, |figures| figures.server.peak_rss_kib / 1024.0))
        }
        Group::Moving => ("records rewritten by compaction", |cell| {
            let moved = cell.spread(|figures| figures.moved_records.unwrap_or(f64::NAN));
            moved.map_or(missing(cell), |moved| format!("{:.0}", moved.median))
        }),
        Group::Transports => ("sends without a copy that were tried", |cell| {
            of(cell, |figures| figures.zero_copy_sends.unwrap_or(f64::NAN))
        }),
        Group::Tls => ("resident bytes per idle connection", |cell| {
            of(cell, |figures| figures.idle.as_ref().map_or(f64::NAN, |idle| idle.rss_bytes_per_connection))
        }),
        Group::Handshakes => ("share that resumed a session", |cell| {
            let share = cell
                .spread(|figures| figures.handshakes.as_ref().map_or(f64::NAN, Handshakes::resumed_share));
            share.map_or(missing(cell), |share| format!("{:.0} %", share.median * 100.0))
        }),
        Group::Durable | Group::Logged | Group::Restart => return None,
    })
}

/// Renders the median, and the spread if there are several rounds.
fn with_spread(cell: &Cell, metric: Metric) -> String {
    let Some(Spread { median, least, most }) = cell.spread(metric) else { return missing(cell) };
    if cell.samples.len() == 1 {
        return rounded(median);
    }
    format!("{} ({}–{})", rounded(median), rounded(least), rounded(most))
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
    cell.spread(metric).map_or(missing(cell), |spread| rounded(spread.median))
}

fn missing(cell: &Cell) -> String {
    if cell.failure.is_some() { "failed".to_owned() } else { String::new() }
}

fn or_none(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
