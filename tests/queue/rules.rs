//! Rules of tubes with real server processes: from the configuration file, and across starts and compaction.

use std::fs;

use beanring::io::driver::Driver;
use beanring_testkit::client::{Client, put, start};
use beanring_testkit::driver;
use beanring_testkit::scratch::Scratch;
use nix::sys::signal::Signal;

/// The lines of `tube-config`.
fn rules(client: &mut Client, tube: &str) -> Vec<String> {
    let (reply, data) = client.ask(&format!("tube-config {tube}\r\n"));
    assert!(reply.starts_with("OK "), "{reply}");
    data.lines().skip(1).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn a_start_sets_the_rules_of_the_file_over_those_of_the_job_log() {
    for io in driver::allowed("rules") {
        let scratch = Scratch::new("rules");
        let (log, config) = (scratch.0.join("log"), scratch.0.join("config.toml"));
        fs::create_dir(&log).expect("the directory is created");
        let flags = ["--config", config.to_str().expect("a name in UTF-8")];
        let write = |text: &str| fs::write(&config, text).expect("the file is written");
        write("[tubes.mail]\nmax-jobs = 1\nrate = 5\n[tubes.\"mail/dead\"]\nretention = 9\n");
        let (mut server, mut client) = start(&log, io, &flags);
        assert_eq!(rules(&mut client, "mail"), ["max-jobs: 1", "rate: 5"]);
        assert_eq!(rules(&mut client, "mail/dead"), ["retention: 9"]);
        client.expect("use mail\r\n", "USING mail");
        client.expect(&put(0, 0, "one"), "INSERTED 1");
        client.expect(&put(0, 0, "two"), "OUT_OF_MEMORY");
        // What clients set holds until the next start, where the file has the key.
        client.expect("tube-config mail max-jobs 7\r\n", "CONFIGURED");
        client.expect("tube-config mail rate 0\r\n", "CONFIGURED");
        client.expect("tube-config mail max-bytes 8\r\n", "CONFIGURED");
        client.expect("tube-config other dead-letter mail\r\n", "CONFIGURED");
        server.stop();

        let (mut server, mut client) = start(&log, io, &flags);
        assert_eq!(rules(&mut client, "mail"), ["max-jobs: 1", "max-bytes: 8", "rate: 5"]);
        assert_eq!(rules(&mut client, "other"), ["dead-letter: \"mail\""]);
        server.stop();

        // Without the file the job log has what clients have set.
        write("");
        let (_server, mut client) = start(&log, io, &flags);
        assert_eq!(rules(&mut client, "mail"), ["max-jobs: 7", "max-bytes: 8"]);
        client.expect("tube-config mail/dead\r\n", "NOT_FOUND");
    }
}

#[test]
fn rules_survive_compaction_and_a_kill() {
    let scratch = Scratch::new("rules-compacted");
    let flags = ["-f", "0", "-s", "65536"];
    let (mut server, mut client) = start(&scratch.0, Driver::Epoll, &flags);
    client.expect("tube-config default max-attempts 3\r\n", "CONFIGURED");
    client.expect("tube-config default dead-letter dead\r\n", "CONFIGURED");
    client.expect("tube-config default default-ttr 50\r\n", "CONFIGURED");
    client.expect("tube-config default default-ttr 0\r\n", "CONFIGURED");
    let body = "x".repeat(20_000);
    for id in 1..=60 {
        client.expect(&put(0, 0, &body), &format!("INSERTED {id}"));
        client.expect(&format!("delete {id}\r\n"), "DELETED");
    }
    let (_, stats) = client.ask("stats\r\n");
    let oldest = stats.lines().find_map(|line| line.strip_prefix("binlog-oldest-index: "));
    assert!(oldest.is_some_and(|oldest| oldest.parse::<u64>().is_ok_and(|oldest| oldest > 1)), "{oldest:?}");
    server.signal(Signal::SIGKILL);
    server.wait();
    let (_server, mut client) = start(&scratch.0, Driver::Epoll, &flags);
    assert_eq!(rules(&mut client, "default"), ["max-attempts: 3", "dead-letter: \"dead\""]);
}
