//! The sections in which `beanring stats` shows the statistics of a server to people.

/// The sections, in their order, each with its keys. A word that ends with `-` stands for all keys that begin so. A key
/// belongs to the first section that has it.
const SECTIONS: [(&str, &[&str]); 12] = [
    (
        "Server",
        &["version", "uptime", "draining", "hostname", "os", "platform", "pid", "id", "io-driver", "rusage-"],
    ),
    ("Jobs", &["current-jobs-", "current-job-", "total-jobs", "job-", "put-refusals-", "max-job-size"]),
    ("Tubes", &["current-tubes", "max-tubes", "tube-", "current-ruled-tubes", "rule-", "rate-"]),
    (
        "Connections",
        &[
            "current-connections",
            "current-producers",
            "current-workers",
            "current-waiting",
            "total-connections",
            "max-connections",
            "max-watches",
            "foreign-requests",
            "proxy-header-failures",
            "io-accept-pauses",
        ],
    ),
    ("Schedules", &["current-schedules", "schedule-"]),
    ("TLS", &["tls-", "current-tls-"]),
    ("Idempotency keys", &["current-kept-keys", "memory-kept-keys", "memory-promised-keys", "key-"]),
    ("Memory", &["memory-", "max-memory"]),
    ("Job log", &["binlog-", "wal-"]),
    ("Replication", &["replication-", "forwarded-", "current-forwarded-"]),
    ("I/O", &["io-"]),
    ("Commands", &["cmd-"]),
];

/// The section of what another server may have.
const OTHER: &str = "Other";

/// Returns the place of a key's section, and its title.
pub(super) fn section(key: &[u8]) -> (usize, &'static str) {
    let has = |words: &[&str]| {
        words.iter().any(|word| match word.strip_suffix('-') {
            Some(_) => key.starts_with(word.as_bytes()),
            None => key == word.as_bytes(),
        })
    };
    let found = SECTIONS.iter().position(|(_, words)| has(words));
    found.map_or((SECTIONS.len(), OTHER), |at| (at, SECTIONS[at].0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_a_section() {
        for (key, title) in [
            ("uptime", "Server"),
            ("current-jobs-held", "Jobs"),
            ("job-timeouts", "Jobs"),
            ("schedule-runs", "Schedules"),
            ("current-job-waits", "Jobs"),
            ("tube-refusals", "Tubes"),
            ("current-waiting", "Connections"),
            ("current-tls-connections", "TLS"),
            ("memory-kept-keys", "Idempotency keys"),
            ("memory-used", "Memory"),
            ("put-refusals-disk", "Jobs"),
            ("wal-syncs", "Job log"),
            ("replication-lag", "Replication"),
            ("current-forwarded-waiting", "Replication"),
            ("io-waits", "I/O"),
            ("io-driver", "Server"),
            ("cmd-put", "Commands"),
            ("new", "Other"),
        ] {
            assert_eq!(section(key.as_bytes()).1, title, "{key}");
        }
    }
}
