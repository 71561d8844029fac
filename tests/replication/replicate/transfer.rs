//! `beanring replicate import` and `export`: a job log from a directory to the database and back.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use beanring::io::driver::Driver;
use beanring_testkit::client::{self, Client, put};
use beanring_testkit::postgres::{Cluster, Postgres};
use beanring_testkit::process::{ServerProcess, program};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::wait;
use nix::sys::signal::Signal;

use super::store::Store;
use crate::node::Node;
use crate::site::{replicate, run, sessions, site, start};

fn import(dir: &Path, site: &Cluster) -> (i32, String, String) {
    replicate(&["import", text(dir)], &site.url())
}

fn export(dir: &Path, site: &Cluster) -> (i32, String, String) {
    replicate(&["export", text(dir)], &site.url())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a name in UTF-8")
}

fn shown(url: &str) -> String {
    url.replace(":secret", "")
}

/// Fills a job log with jobs in every state and all that goes with them. Returns its server.
fn fill(dir: &Path) -> (ServerProcess, Client) {
    let (server, mut client) =
        client::start(dir, Driver::Epoll, &["-f", "0", "-s", "65536", "--keep-reservations"]);
    client.expect(&put(10, 0, "buried"), "INSERTED 1");
    client.expect("reserve\r\n", "RESERVED 1 6");
    client.expect("bury 1 77\r\n", "BURIED");
    client.expect(&put(20, 0, "reserved"), "INSERTED 2");
    client.expect("reserve\r\n", "RESERVED 2 8");
    client.expect(&put(30, 3000, "delayed"), "INSERTED 3");
    client.expect(&put(4_000_000_000, 0, "ready"), "INSERTED 4");
    client.expect("use mail\r\n", "USING mail");
    client.expect("put 5 0 60 3 idp:once con:host:1 grp:night\r\nkey\r\n", "INSERTED 5");
    client.expect("put 5 0 60 4 aft:night\r\nheld\r\n", "INSERTED 6");
    client.expect("put 5 0 60 4 idp:kept:600\r\ngone\r\n", "INSERTED 7");
    client.expect("delete 7\r\n", "DELETED");
    client.expect("tube-config mail max-attempts 3\r\n", "CONFIGURED");
    client.expect("pause-tube mail 2000\r\n", "PAUSED");
    for number in 8..300 {
        client.expect(&put(50, 0, &format!("{number:0500}")), &format!("INSERTED {number}"));
    }
    for number in (9..300).step_by(2) {
        client.expect(&format!("delete {number}\r\n"), "DELETED");
    }
    (server, client)
}

/// What `fill` has left, as a client sees it.
fn picture(client: &mut Client) -> Vec<String> {
    let mut lines = Vec::new();
    for id in 1..300 {
        let (reply, stats) = client.ask(&format!("stats-job {id}\r\n"));
        let kept =
            ["tube:", "state:", "pri:", "delay:", "ttr:", "reserves:", "buries:", "releases:", "kicks:"];
        let keys = |line: &&str| kept.iter().any(|key| line.starts_with(key)) || line.contains(" \"");
        lines.push(if reply.starts_with("OK") {
            let body = client.ask(&format!("peek {id}\r\n")).1;
            format!("{id} {} {body}", stats.lines().filter(keys).collect::<Vec<_>>().join(" "))
        } else {
            format!("{id} {reply}")
        });
    }
    lines.push(client.ask("tube-config mail\r\n").1);
    let (_, stats) = client.ask("stats-tube mail\r\n");
    lines.extend(stats.lines().filter(|line| line.starts_with("pause:")).map(str::to_owned));
    lines.push(client.ask("use mail\r\n").0);
    lines.push(client.ask("put 5 0 60 4 idp:once\r\ngone\r\n").0);
    lines.push(client.ask("put 5 0 60 4 idp:kept:600\r\ngone\r\n").0);
    lines
}

/// Stops a server with a directory, which must end well.
fn stop((mut server, client): (ServerProcess, Client)) {
    drop(client);
    server.stop();
}

fn stop_node((mut server, client): (Node, Client)) {
    drop(client);
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn a_log_moves_to_the_database_and_back() {
    let Some(site) = site("import and export") else { return };
    let scratch = Scratch::new("transfer");
    let (from, to) = (scratch.join("from"), scratch.join("to"));
    fs::create_dir(&from).expect("there is space");
    let (mut server, mut client) = fill(&from);
    let before = picture(&mut client);
    assert!(before[1].contains("state: reserved"), "{before:?}");
    assert!(before[5].contains("state: held"), "{before:?}");
    let locked =
        (1, String::new(), format!("beanring: {}: a server uses this job log; stop it first\n", text(&from)));
    assert_eq!(import(&from, &site), locked);
    // The end of a connection would release its reservation, so the server ends first.
    server.signal(Signal::SIGKILL);
    server.wait();
    drop(client);

    let (code, out, error) = import(&from, &site);
    let jobs = before.iter().filter(|line| line.contains("state:")).count();
    let line = format!(
        "{jobs} jobs written to log 1 in {}; start the servers with --replicate, and {} no more\n",
        shown(&site.url()),
        text(&from)
    );
    assert_eq!((code, &*out, &*error), (0, &*line, ""));
    let (code, _, error) = import(&from, &site);
    let text_of = format!(
        "beanring: log 1 has {jobs} jobs, which an import would replace; import into an empty database\n"
    );
    assert_eq!((code, error), (2, text_of));

    let (code, out, error) = export(&to, &site);
    let line = format!("{jobs} jobs written to {0}; start the server with beanring -b {0}\n", text(&to));
    assert_eq!((code, &*out, &*error), (0, &*line, ""));
    let (code, out, error) = run(&["wal", "check", text(&to)], "");
    assert!(code == 0 && out.contains("no damage; ") && out.contains("1 rule\n"), "{out}{error}");
    let (code, _, error) = export(&to, &site);
    assert!(code == 2 && error.contains("the directory is not empty"), "{error}");

    let (server, mut led) = start(&site.url(), &["--no-forward"]);
    assert_eq!(picture(&mut led), before);
    let (code, _, error) = import(&from, &site);
    assert_eq!(
        (code, &*error),
        (1, "beanring: a server leads log 1; stop all servers with --replicate first\n")
    );
    let beside = scratch.join("beside");
    assert_eq!(export(&beside, &site).0, 0, "beside a leader");
    stop_node((server, led));

    for dir in [&to, &beside] {
        let (server, mut client) = client::start(dir, Driver::Epoll, &["--keep-reservations"]);
        assert_eq!(picture(&mut client), before, "{}", text(dir));
        stop((server, client));
    }
}

#[test]
fn an_empty_log_that_was_led_takes_an_import() {
    let Some(site) = site("import into an empty log") else { return };
    let scratch = Scratch::new("transfer");
    let empty = scratch.join("empty");
    let from = scratch.join("from");
    fs::create_dir(&from).expect("there is space");
    assert_eq!(export(&empty, &site).0, 0, "there was no leader");
    let (server, mut client) = start(&site.url(), &["--no-forward"]);
    client.expect(&put(0, 0, "x"), "INSERTED 1");
    client.expect("delete 1\r\n", "DELETED");
    stop_node((server, client));
    let (server, mut client) = client::start(&from, Driver::Epoll, &[]);
    client.expect(&put(0, 0, &"large".repeat(8000)), "INSERTED 1");
    client.expect(&put(0, 0, "b"), "INSERTED 2");
    stop((server, client));
    let (code, _, error) = import(&from, &site);
    assert_eq!((code, &*error), (0, ""));
    let (server, mut client) = start(&site.url(), &["--no-forward"]);
    client.expect("reserve\r\n", "RESERVED 1 40000");
    client.expect(&put(0, 0, "c"), "INSERTED 3");
    stop_node((server, client));
    let (code, _, error) = import(&scratch.join("none"), &site);
    assert!(code == 2 && error.contains("no such directory"), "{error}");
}

fn spawn(words: &[&str], site: &Cluster) -> Child {
    let mut command = Command::new(program());
    command.args(words).env("BEANRING_REPLICATE", site.url()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("it is installed")
}

fn kill(mut child: Child) {
    child.kill().expect("it is a child");
    child.wait().expect("it is a child");
}

/// A directory with a job log of some 10 MB, in several files.
fn large_log(dir: &Path) {
    fs::create_dir(dir).expect("there is space");
    let (server, mut client) = client::start(dir, Driver::Epoll, &["-f", "100", "-s", "1048576"]);
    let body = "x".repeat(10_000);
    for number in 1..=1000 {
        client.expect(&put(0, 0, &body), &format!("INSERTED {number}"));
    }
    stop((server, client));
}

fn count(server: &Postgres) -> String {
    server.sql("select count(*) || ' ' || (select epoch from beanring_epoch) from beanring_log")
}

#[test]
fn a_killed_import_or_export_leaves_nothing_or_all() {
    let Some(site) = site("killed imports and exports") else { return };
    let scratch = Scratch::in_memory("transfer-killed");
    let from = scratch.join("from");
    large_log(&from);
    for pause_ms in [0, 20, 50, 100, 200, 300] {
        let child = spawn(&["replicate", "import", text(&from)], &site);
        thread::sleep(Duration::from_millis(pause_ms));
        kill(child);
        site.primary.wait_for(&sessions("application_name = 'beanring'"), "0");
        let found = count(&site.primary);
        if found != "0 0" {
            break;
        }
    }
    // A trigger holds the import in its middle.
    site.primary.sql(
        "create function pause() returns trigger language plpgsql as $$ begin
            if new.pos = 5 then perform pg_sleep(600); end if; return new; end $$;
         create trigger pause before insert on beanring_log for each row execute function pause();
         delete from beanring_log; update beanring_epoch set epoch = 0, begin = 1",
    );
    let child = spawn(&["replicate", "import", text(&from)], &site);
    let asleep = "wait_event = 'PgSleep'";
    site.primary.wait_for(&sessions(asleep), "1");
    kill(child);
    site.primary.sql(&sessions(asleep).replace("(*)", "(pg_terminate_backend(pid))"));
    site.primary.wait_for(&sessions(asleep), "0");
    assert_eq!(count(&site.primary), "0 0", "the transaction was rolled back");
    site.primary.sql("drop trigger pause on beanring_log");
    assert_eq!(import(&from, &site).0, 0);

    let started = Instant::now();
    assert_eq!(export(&scratch.join("to"), &site).0, 0);
    let usual = started.elapsed();
    let (mut partial, mut whole) = (0, 0);
    for round in 0..24 {
        let to = scratch.join(&format!("to{round}"));
        let child = spawn(&["replicate", "export", text(&to)], &site);
        // Rounds end soon after the first file is there, and up to the usual end.
        wait::until("it exports", || to.exists());
        thread::sleep(usual * round / 24);
        kill(child);
        let (code, out, _) = run(&["wal", "check", text(&to)], "");
        if code == 0 {
            assert!(out.contains("1000 jobs\n"), "{out}");
            whole += 1;
            continue;
        }
        partial += 1;
        let (code, _, error) = export(&to, &site);
        assert!(code == 0 || error.contains("remove the directory, and try again"), "{error}");
    }
    assert!(partial > 0, "{whole} of the killed exports were complete");
}

#[test]
fn an_export_leaves_out_what_is_not_complete() {
    let Some(site) = site("export of a damaged log") else { return };
    let scratch = Scratch::new("transfer");
    let (server, mut client) = start(&site.url(), &["--no-forward"]);
    for number in 1..=20 {
        client.expect(&put(0, 0, "x"), &format!("INSERTED {number}"));
    }
    stop_node((server, client));
    // A chunk of an append whose predecessor is in flight.
    site.primary.sql("delete from beanring_log where pos = (select max(pos) - 1 from beanring_log)");
    let (code, out, error) = export(&scratch.join("gap"), &site);
    assert!(code == 0 && out.starts_with("19 jobs") || out.starts_with("20 jobs"), "{out}{error}");
    site.primary.sql("delete from beanring_log where pos = 5");
    let (code, _, error) = export(&scratch.join("none"), &site);
    assert!(code == 1 && error.contains("the chunk at position 5 is missing; "), "{error}");
    assert!(!scratch.join("none").exists());
    let mut store = Store::new(&site.primary);
    assert!(store.read(1).chunks.len() > 10);
}
