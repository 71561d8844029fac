//! Runs `beanring-bench compare` on files of real runs whose numbers the test has set.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use beanring_testkit::client::serve;
use beanring_testkit::process::Transport;
use serde_json::{Value, json};

use super::{beanring_bench, tool};

const ROUNDS: usize = 8;

/// Returns what `--json` has for some rounds of two workloads.
fn measured() -> Value {
    let (server, _client) = serve(Transport::Tcp, &[]);
    let options = format!("put cycle -c 2 -n 20 --rounds {ROUNDS} --pid {} --json -", server.pid());
    let output = tool::run(&server.address().to_string(), &options);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Sets the numbers of all rounds: some noise, times a factor for the costs.
fn set(mut report: Value, cost: f64) -> Value {
    for (round, row) in report["rows"].as_array_mut().unwrap().iter_mut().enumerate() {
        let cost = cost * (1.0 + round as f64 / 1000.0);
        row["operations_per_s"] = json!(100_000.0 / cost);
        row["server"] = json!({ "cpu_us_per_operation": 5.0 * cost });
        row["latency_us"] = json!({ "p50": 10.0 * cost, "p99": 30.0 * cost });
    }
    report
}

fn file(name: &str, reports: &[Value]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let text: String = reports.iter().map(|report| report.to_string() + "\n").collect();
    fs::write(&path, text).unwrap();
    path
}

fn compare(before: &Path, after: &Path, options: &[&str]) -> Output {
    beanring_bench().arg("compare").args([before, after]).args(options).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn a_difference_is_told_from_noise() {
    let report = measured();
    assert_eq!(report["rows"].as_array().unwrap().len(), 2 * ROUNDS);
    let base = file("compare-base.json", &[set(report.clone(), 1.0)]);
    let slower = file("compare-slower.json", &[set(report.clone(), 1.1)]);
    let check = |before: &Path, after: &Path, options: &[&str], code: i32, verdict: &str| {
        let output = compare(before, after, options);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let table = text(&output.stdout);
        assert_eq!(table.matches(verdict).count(), 8, "{table}");
        table.to_owned()
    };
    check(&base, &base, &[], 0, "no difference");
    let table = check(&base, &slower, &[], 1, "worse");
    assert!(table.contains("+10.0 %") && table.contains("-9.1 %"), "{table}");
    check(&slower, &base, &[], 0, "better");
    check(&base, &slower, &["--threshold", "15"], 0, "worse, perhaps by no more than 15 %");
    check(&base, &slower, &["--threshold", "5"], 1, "worse");

    // Several reports in a file are as good as several rounds in a report.
    let mut single = set(report, 1.1);
    let rows = single["rows"].as_array().unwrap().clone();
    let singles: Vec<Value> = rows
        .chunks(2)
        .map(|rows| {
            single["rows"] = json!(rows);
            single.clone()
        })
        .collect();
    let appended = file("compare-appended.json", &singles);
    assert_eq!(check(&base, &appended, &[], 1, "worse").lines().nth(3), table.lines().nth(3));
}

#[test]
fn files_that_cannot_be_compared_are_named() {
    let report = set(measured(), 1.0);
    let base = file("compare-good.json", std::slice::from_ref(&report));
    let check = |after: &Path, options: &[&str], says: &str| {
        let output = compare(&base, after, options);
        assert_eq!(output.status.code(), Some(2), "{says}: {output:?}");
        let error = text(&output.stderr);
        assert!(output.stdout.is_empty() && error.contains(says), "{says}: {error}");
    };
    check(Path::new("/nonexistent/b.json"), &[], "/nonexistent/b.json: No such file or directory");
    check(&file("compare-bad.json", &[]), &[], "it has no results");
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 9] = [
        (|report| *report = json!({ "rows": 1 }), "is no JSON of beanring-bench"),
        (|report| report["settings"]["depth"] = json!(2), "they differ in depth"),
        (|report| report["generator_io"] = json!("none"), "they differ in generator_io"),
        (|report| report["interrupted"] = json!(true), "a run was interrupted"),
        (|report| report["rows"][0]["errors"] = json!(1), "a round of put had errors"),
        (|report| report["rows"][3]["overloaded"] = json!(true), "could not keep up with --rate"),
        (|report| report["rows"][0]["operations_per_s"] = json!(0.0), "ops/s of a round of put is 0"),
        (
            |report| report["rows"].as_array_mut().unwrap().truncate(6),
            "cycle has 3 rounds; this confidence needs 6 (--rounds 6)",
        ),
        (|report| report["rows"].as_array_mut().unwrap().retain(|row| row["workload"] == "put"), "workloads"),
    ];
    for (change, says) in changes {
        let mut changed = report.clone();
        change(&mut changed);
        check(&file("compare-bad.json", &[changed]), &[], says);
    }
    let mut other = report.clone();
    other["settings"]["tubes"] = json!(3);
    check(&file("compare-bad.json", &[report.clone(), other]), &[], "its runs differ in tubes");
    check(&base, &["--confidence", "100"], "from 50 to 99.99");
    check(&base, &["--threshold", "x"], "from 0 to 100");
}
