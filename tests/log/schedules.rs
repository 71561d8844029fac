//! Schedules and their runs in the job log.

use beanring::io::driver::Driver;
use beanring_testkit::client::Client;
use beanring_testkit::scratch::Scratch;
use nix::sys::signal::Signal;

use super::common::{Case, MODES, cases, in_parallel};

fn stat(client: &mut Client, name: &str, key: &str) -> String {
    let (_, data) = client.ask(&format!("schedule-stats {name}\r\n"));
    let value = data.lines().find_map(|line| line.strip_prefix(&format!("{key}: ")));
    value.unwrap_or_else(|| panic!("no {key} in {data}")).to_owned()
}

/// All in one write: the records of a name that goes and comes back, and of its runs, keep their order.
#[test]
fn what_was_told_of_schedules_and_their_runs_survives_a_crash() {
    in_parallel(cases("schedules in the log", &MODES[..1]), |case| {
        let scratch = Scratch::new("schedules-crash");
        let (mut server, mut client) = case.start(&scratch.0, &[]);
        let put =
            |name: &str, body: &str| format!("schedule-put {name} 7 0 60 1 mail every:1d\r\n{body}\r\n");
        let run = |name: &str| format!("schedule-run {name}\r\n");
        let commands = [
            (put("a", "1"), "SCHEDULED"),
            (run("a"), "INSERTED 1"),
            ("schedule-delete a\r\n".to_owned(), "DELETED"),
            (run("a"), "NOT_FOUND"),
            (put("a", "2"), "SCHEDULED"),
            (put("a", "3"), "SCHEDULED"),
            (run("a"), "INSERTED 2"),
            (put("b", "4"), "SCHEDULED"),
            (run("a"), "INSERTED 3"),
            (run("b"), "INSERTED 4"),
            ("delete 3\r\n".to_owned(), "DELETED"),
            ("schedule-delete b\r\n".to_owned(), "DELETED"),
        ];
        client.send(&commands.iter().map(|(command, _)| &**command).collect::<String>());
        for (command, expected) in &commands {
            assert_eq!(client.line().as_deref(), Some(*expected), "{command}");
        }
        for _ in 0..2 {
            server.signal(Signal::SIGKILL);
            server.wait();
            (server, client) = case.start(&scratch.0, &[]);
            let (_, list) = client.ask("list-schedules 10\r\n");
            assert!(list.contains("schedules: [\"a\"]"), "{list}");
            assert_eq!(stat(&mut client, "a", "last-job"), "3");
            assert_eq!(stat(&mut client, "a", "runs"), "2");
            for (id, body) in [(1, "1"), (2, "3"), (4, "4")] {
                let found = client.ask(&format!("peek {id}\r\n"));
                assert_eq!(found, (format!("FOUND {id} 1"), format!("{body}\r\n")));
            }
            client.expect("peek 3\r\n", "NOT_FOUND");
        }
        client.expect(&run("a"), "INSERTED 5");
    });
}

#[test]
fn schedules_survive_compaction() {
    const SCHEDULES: u64 = 300;
    let scratch = Scratch::in_memory("schedules-compaction");
    let case = Case { io: Driver::Epoll, mode: MODES[2] };
    let (server, mut client) = case.start(&scratch.0, &["-s", "65536"]);
    let name = |at: u64| format!("{at:0>150}");
    for at in 0..SCHEDULES {
        let body = "s".repeat(300);
        client.expect(
            &format!("schedule-put {} 0 0 60 300 mail every:1d\r\n{body}\r\n", name(at)),
            "SCHEDULED",
        );
    }
    client.expect(&format!("schedule-run {}\r\n", name(7)), "INSERTED 1");
    let before = client.stat("binlog-oldest-index");
    let body = "z".repeat(1000);
    for round in 0..40 {
        let ids = 2 + round * 100..102 + round * 100;
        let pairs = ids.flat_map(|id| [format!("put 0 0 60 1000\r\n{body}\r\n"), format!("delete {id}\r\n")]);
        assert!(
            client.ask_all(pairs).iter().all(|(line, _)| line.starts_with("INSERTED") || line == "DELETED")
        );
    }
    assert!(client.stat("binlog-oldest-index") > before + 20, "old segments have left the log");
    drop((client, server));
    let (_server, mut client) = case.start(&scratch.0, &["-s", "65536"]);
    for at in 0..SCHEDULES {
        assert_eq!(stat(&mut client, &name(at), "size"), "300");
    }
    assert_eq!(stat(&mut client, &name(7), "last-job"), "1");
    client.expect(&format!("schedule-run {}\r\n", name(8)), "INSERTED 4002");
}
