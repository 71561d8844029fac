//! The tables of docs/METRICS.md beside a page of metrics whose prefix is `queue`.

use std::fs;

use beanring_testkit::statistics::pairs;

/// The metrics of a page, their types and labels are those of docs/METRICS.md.
pub fn check(page: &str) {
    let rows = documented();
    // It is missing before Linux 6.2.
    let counts_descriptors = fs::metadata("/proc/self/fd").is_ok_and(|directory| directory.len() > 0);
    let mut expected: Vec<(String, &str)> =
        rows.iter().map(|row| (row.name.replace("beanring_", "queue_"), row.kind)).collect();
    expected.retain(|(name, _)| counts_descriptors || name != "process_open_fds");
    let has_tls = cfg!(feature = "tls");
    let is_of_tls =
        |name: &str| name.starts_with("queue_tls_") || name == "queue_proxy_header_failures_total";
    expected.retain(|(name, _)| has_tls || !is_of_tls(name));
    // src/server/metric_catalog/replica.rs compares these.
    expected.retain(|(name, _)| !name.starts_with("queue_replication_"));
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let mut found: Vec<(String, &str)> = types.map(|(name, kind)| (name.to_owned(), kind)).collect();
    expected.sort();
    found.sort();
    assert_eq!(found, expected, "the tables of docs/METRICS.md, and a page");
    let mut covered = 0;
    for row in &rows {
        for (name, labels, _) in samples(page, row, "queue_") {
            covered += 1;
            let labels: Vec<&str> =
                labels.iter().map(|(name, _)| *name).filter(|&name| name != "le").collect();
            assert_eq!(labels, row.labels, "{name}");
        }
    }
    assert_eq!(covered, page.lines().filter(|line| !line.starts_with('#')).count(), "{page}");
    for line in page.lines().filter(|line| line.starts_with("# HELP ")) {
        let text = line.splitn(4, ' ').nth(3).expect("a help has a text");
        let begins = text.starts_with(|first: char| first.is_ascii_uppercase() || first.is_ascii_digit());
        assert!(begins && text.ends_with('.'), "a sentence: {line}");
    }
}

/// Compares the metrics that have a key with the reports. Returns their number.
pub fn compare_with_stats(page: &str, stats: &str, tube: &str) -> usize {
    let mut left: [Vec<(&str, &str)>; 2] = [stats, tube].map(|report| pairs(report).collect());
    let mut compared = 0;
    for row in documented() {
        let Some(template) = row.key else { continue };
        for (name, labels, value) in samples(page, &row, "queue_") {
            let tube_of = labels.iter().find(|(name, _)| *name == "tube").map(|(_, tube)| *tube);
            if tube_of.is_some_and(|tube| tube != "mail") {
                continue;
            }
            let own = labels.iter().find(|(name, _)| *name != "tube");
            let key = own.map_or(template.to_owned(), |(name, value)| {
                template.replace(&name.to_uppercase(), &value.replace('_', "-"))
            });
            let report = &mut left[usize::from(tube_of.is_some())];
            let Some(at) = report.iter().position(|(found, _)| *found == key) else {
                let is_uncounted = matches!(
                    &*key,
                    "cmd-reserve-job" | "cmd-kick-job" | "cmd-drain" | "cmd-undrain" | "cmd-quit"
                );
                assert!(is_uncounted, "no key {key} for {name}");
                continue;
            };
            let (_, expected) = report.remove(at);
            if !KEYS_THAT_MOVE.contains(&&*key) {
                let expected = expected.replace("false", "0").replace("true", "1");
                assert_eq!(value, expected, "{name} and {key}");
                compared += 1;
            }
        }
    }
    for (key, _) in left.iter().flatten() {
        assert!(KEYS_ALONE.contains(key), "{key} has no metric");
    }
    compared
}

/// A row of the tables of docs/METRICS.md.
struct Documented {
    name: &'static str,
    kind: &'static str,
    labels: Vec<&'static str>,
    key: Option<&'static str>,
}

fn documented() -> Vec<Documented> {
    let plain = |cell: &'static str| cell.trim().trim_matches('`');
    let page = include_str!("../../docs/METRICS.md");
    let rows =
        page.lines().filter(|line| line.starts_with("| `beanring_") || line.starts_with("| `process_"));
    let row = |line: &'static str| {
        let cells: Vec<&str> = line.split('|').map(plain).collect();
        let [_, name, kind, labels, key, ..] = cells[..] else { panic!("{line}") };
        let labels = labels.split(", ").map(plain).filter(|label| !label.is_empty()).collect();
        Documented { name, kind, labels, key: (!key.is_empty()).then_some(key) }
    };
    rows.map(row).collect()
}

/// A sample: its name, its labels and its value.
type Sample<'a> = (&'a str, Vec<(&'a str, &'a str)>, &'a str);

fn sample(line: &str) -> Sample<'_> {
    let (name, value) = line.rsplit_once(' ').expect("a sample has a value");
    let Some((name, labels)) = name.split_once('{') else { return (name, Vec::new(), value) };
    let labels = labels.strip_suffix('}').expect("labels end").split(',');
    let labels = labels.map(|text| {
        let (name, value) = text.split_once("=\"").expect("a label has a value");
        (name, value.strip_suffix('"').expect("a value is quoted"))
    });
    (name, labels.collect(), value)
}

/// The samples of a metric, with those of its parts.
fn samples<'a>(page: &'a str, metric: &Documented, prefix: &str) -> Vec<Sample<'a>> {
    let name = metric.name.replace("beanring_", prefix);
    let is_part = |suffix: &str| match metric.kind {
        "histogram" => matches!(suffix, "_bucket" | "_sum" | "_count"),
        "summary" => matches!(suffix, "_sum" | "_count"),
        _ => suffix.is_empty(),
    };
    let all = page.lines().filter(|line| !line.starts_with('#')).map(sample);
    all.filter(|(found, ..)| found.strip_prefix(&*name).is_some_and(is_part)).collect()
}

/// Keys of `stats` and `stats-tube` without a metric of the same value.
const KEYS_ALONE: [&str; 22] = [
    "pid",
    "version",
    "rusage-utime",
    "rusage-stime",
    "uptime",
    "id",
    "hostname",
    "os",
    "platform",
    "io-driver",
    "wal-syncs",
    "wal-records-per-sync",
    "wal-last-sync-us",
    "name",
    "pause",
    "queue-time-p50-us",
    "queue-time-p95-us",
    "queue-time-p99-us",
    "reserved-time-p50-us",
    "reserved-time-p95-us",
    "reserved-time-p99-us",
    "max-jobs",
];

/// Keys whose values change by themselves, or with each request.
const KEYS_THAT_MOVE: [&str; 4] = ["io-waits", "cmd-stats", "cmd-stats-tube", "memory-used"];
