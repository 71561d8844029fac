//! The results as a table and as JSON.

use serde_json::{Value, json};

use crate::bounds::{IDLE_CPU, LATENCY_P99};
use crate::options::Options;
use crate::record::ms;
use crate::run::Outcome;
use beanring_testkit::bench::machine::Machine;
use beanring_testkit::bench::table::{Table, rounded};

/// The contents of a report.
pub struct Report<'a> {
    pub machine: &'a Machine,
    pub options: &'a Options,
    pub outcomes: &'a [Outcome],
}

impl Report<'_> {
    /// Renders the report as Markdown.
    pub fn markdown(&self) -> String {
        let Machine { date, kernel, cpu, cores, revision, pins, .. } = self.machine;
        let mut out = format!("{date}, {kernel}, {cpu}, cores: {cores}, revision {revision}.\n");
        out += &match pins {
            Some((server, load)) => format!("Server on core {server}, all clients on core {load}.\n"),
            None => "Nothing is pinned.\n".to_owned(),
        };
        out += &format!(
            "Bounds: nothing lost; p99 of the control client {} ms; memory as the lines below add it up; idle CPU {} %; \
             descriptors as before.\n\n",
            LATENCY_P99.as_millis(),
            IDLE_CPU * 100.0
        );
        out += &self.table().markdown();
        out + &self.remarks() + &self.formulas()
    }

    fn table(&self) -> Table {
        let head = [
            "fault, driver",
            "s",
            "control cycles",
            "lost",
            "p50 / p99 / max, ms",
            "client lateness p99, ms",
            "server waiting for a core",
            "RSS peak / allowed, MiB",
            "CPU, idle crowd",
            "CPU, idle",
            "descriptors",
            "",
        ];
        let mut table = Table::new(head.map(str::to_owned).to_vec());
        for outcome in self.outcomes.iter().filter(|outcome| outcome.was_run()) {
            table.push(line(outcome));
        }
        table
    }

    fn remarks(&self) -> String {
        let mut out = String::new();
        for outcome in self.outcomes {
            let name = format!("{}, {}", outcome.fault, outcome.driver.name());
            let again =
                (outcome.tries > 1).then(|| format!("the machine was busy: attempt {}", outcome.tries));
            let kinds = [
                ("broken: ", &outcome.broken),
                ("skipped: ", &outcome.skipped),
                ("", &outcome.notes),
                ("", &again.into_iter().collect()),
            ];
            for (kind, texts) in kinds {
                out.extend(texts.iter().map(|text| format!("- {name}: {kind}{text}\n")));
            }
        }
        if out.is_empty() { out } else { format!("\n{out}") }
    }

    /// Renders the sums of memory. They are the same for every driver, so each fault appears once.
    fn formulas(&self) -> String {
        let mut out = "\nMemory allowed in addition to that of a server at its start (KiB):\n\n".to_owned();
        let mut rendered = Vec::new();
        for outcome in self.outcomes.iter().filter(|outcome| outcome.was_run()) {
            if rendered.contains(&outcome.fault) {
                continue;
            }
            rendered.push(outcome.fault);
            let item = |item: &crate::bounds::MemoryItem| {
                format!("{} {} × {}", item.count, item.what, rounded(item.bytes_each as f64 / 1024.0))
            };
            let memory_items: Vec<String> = outcome.memory_items.iter().map(item).collect();
            out += &format!("- {}: {}\n", outcome.fault, memory_items.join(" + "));
        }
        out
    }

    /// Renders all results as JSON.
    pub fn json(&self) -> String {
        let report = json!({
            "machine": self.machine,
            "short": self.options.short,
            "seed": self.options.seed,
            "faults": self.outcomes.iter().map(facts).collect::<Vec<_>>(),
        });
        format!("{report:#}\n")
    }
}

fn line(outcome: &Outcome) -> Vec<String> {
    let tally = &outcome.tally;
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let [p50, p99, max] = [0.5, 0.99, 1.0].map(|quantile| rounded(ms(&tally.latencies, quantile)));
    let mib = |kib: u64| rounded(kib as f64 / 1024.0);
    vec![
        format!("{}, {}", outcome.fault, outcome.driver.name()),
        format!("{:.0}", outcome.seconds),
        tally.cycles.to_string(),
        (tally.lost + tally.violations.len() as u64).to_string(),
        format!("{p50} / {p99} / {max}"),
        rounded(ms(&tally.lateness, 0.99)),
        percent(outcome.core_wait),
        format!("{} / {}", mib(outcome.rss_kib_peak), mib(outcome.rss_kib_max())),
        outcome.idle_crowd_cpu.map_or(String::new(), percent),
        percent(outcome.idle_cpu),
        format!("{} / {}", outcome.descriptors_begin, outcome.descriptors_end),
        if outcome.broken.is_empty() { "held" } else { "broken" }.to_owned(),
    ]
}

fn facts(outcome: &Outcome) -> Value {
    let tally = &outcome.tally;
    let quantiles = |histogram| {
        let of = |quantile| ms(histogram, quantile);
        json!({ "p50": of(0.5), "p90": of(0.9), "p99": of(0.99), "p999": of(0.999), "max": of(1.0) })
    };
    json!({
        "fault": outcome.fault,
        "driver": outcome.driver.name(),
        "seconds": outcome.seconds,
        "tries": outcome.tries,
        "control": {
            "cycles": tally.cycles,
            "operations": tally.latencies.len(),
            "refused": tally.refused,
            "early_us_max": tally.early.as_micros() as u64,
            "lost": tally.lost,
            "violations": tally.violations.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "latency_ms": quantiles(&tally.latencies),
            "own_lateness_ms": quantiles(&tally.lateness),
        },
        "rss_kib": {
            "begin": outcome.rss_kib_begin,
            "peak": outcome.rss_kib_peak,
            "end": outcome.rss_kib_end,
            "allowed": outcome.rss_kib_max(),
            "memory": outcome.memory_items,
        },
        "cpu": { "idle_crowd": outcome.idle_crowd_cpu, "idle": outcome.idle_cpu },
        "descriptors": { "begin": outcome.descriptors_begin, "end": outcome.descriptors_end },
        "server_waited_for_core": outcome.core_wait,
        "load": outcome.load,
        "notes": outcome.notes,
        "skipped": outcome.skipped,
        "broken": outcome.broken,
    })
}
