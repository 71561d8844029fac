//! Ids in a binlog that a server continues from, or refuses.

use std::fs;
use std::path::Path;
use std::process::Command;

use beanring::beanstalkd_binlog::{self as binlog, Job, State};
use beanring::io::driver::Driver;
use beanring::queue::Counts;
use beanring::time::{Seconds, Time};
use beanring::values::ids::JobId;
use beanring::values::tube_name::TubeName;
use beanring_testkit::client::{launch, put, start};
use beanring_testkit::process::program;
use beanring_testkit::scratch::{Scratch, contents};

use super::super::common::refusal;

fn write_binlog(dir: &Path, id: u64, state: State) {
    let job = Job {
        id: JobId(id),
        created: Time::from_nanos(1_700_000_000_000_000_000),
        ttr: Seconds::whole(60),
        pri: 1,
        delay: Seconds::ZERO,
        body_bytes: 6,
        deadline: Time::ZERO,
        counts: Counts::default(),
        state: State::Ready,
    };
    let mut bytes = Vec::new();
    binlog::encode_version(&mut bytes);
    binlog::encode_job(TubeName::DEFAULT, &job, b"body\r\n", &mut bytes);
    if state == State::Deleted {
        binlog::encode_change(&Job { state, ..job }, &mut bytes);
    }
    fs::write(dir.join("binlog.1"), bytes).expect("a binlog");
}

/// More files than a process may open.
#[test]
fn two_thousand_files_are_imported_with_1024_descriptors() {
    let scratch = Scratch::in_memory("binlog-files");
    let (dir, one) = (scratch.dir("log"), scratch.dir("one"));
    for id in 1..=2000 {
        write_binlog(&one, id, State::Ready);
        fs::rename(one.join("binlog.1"), dir.join(format!("binlog.{id}"))).expect("the name is free");
    }
    let mut command = Command::new("prlimit");
    command.args(["--nofile=1024:1024"]).arg(program());
    let (_server, mut client) = launch(command, &dir, Driver::Epoll, &["-f", "0"]);
    assert_eq!(client.stat("current-jobs-ready"), 2000);
    assert_eq!(client.ask("peek 2000\r\n").1, "body\r\n");
}

#[test]
fn jobs_put_after_an_import_survive_a_restart() {
    const LAST: u64 = i64::MAX as u64;
    let ids =
        [0, 1, 2, (1 << 62) - 1, 1 << 62, (1 << 62) + 1, LAST - 1, LAST, LAST + 1, u64::MAX - 1, u64::MAX];
    for id in ids {
        for state in [State::Ready, State::Deleted] {
            let scratch = Scratch::in_memory("binlog");
            let dir = scratch.dir("log");
            write_binlog(&dir, id, state);
            if !(1..=1 << 62).contains(&id) {
                let message = refusal(&dir, &[], 1);
                let is_clear = message.contains("binlog.1") && message.contains(&id.to_string());
                assert!(is_clear, "{id}: {message}");
                let left = contents(&dir).into_keys().filter(|name| name != "lock").collect::<Vec<_>>();
                assert_eq!(left, ["binlog.1"], "nothing was changed");
                continue;
            }
            let (server, mut client) = start(&dir, Driver::Epoll, &["-f", "0"]);
            client.insert(id + 1..=id + 2, |_| put(0, 0, "new"));
            drop((client, server));
            let (_server, mut client) = start(&dir, Driver::Epoll, &["-f", "0"]);
            let imported =
                if state == State::Deleted { "NOT_FOUND".to_owned() } else { format!("FOUND {id} 4") };
            client.expect(&format!("peek {id}\r\n"), &imported);
            for id in id + 1..=id + 2 {
                client.expect(&format!("peek {id}\r\n"), &format!("FOUND {id} 3"));
            }
            client.expect(&put(0, 0, "third"), &format!("INSERTED {}", id + 3));
        }
    }
}
