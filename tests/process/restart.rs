//! SIGUSR2: the process restarts in place. No connection is refused, none on which nothing has come is closed, and no job is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use std::{env, fs, thread};

use beanring::io::driver::Driver;
use beanring_testkit::client::{Client, launch, put, serve_by, serve_under, start};
use beanring_testkit::driver::under_each;
use beanring_testkit::kernel::has_landlock;
use beanring_testkit::logged::LoggedServer;
use beanring_testkit::process::{Address, ServerProcess, Transport, program};
use beanring_testkit::scratch::{Scratch, lines_of, script};
use beanring_testkit::statistics::number;
use beanring_testkit::wait::{self, Stop};
use nix::sys::signal::Signal;

/// The replies that one client has received.
#[derive(Default)]
struct Replies {
    /// Bodies by id.
    stored: BTreeMap<u64, String>,
    deleted: BTreeSet<u64>,
    /// Jobs whose delete has no reply.
    unknown: BTreeSet<u64>,
    reconnects: usize,
}

/// The jobs that the server has acknowledged to all clients, and whether the clients are to stop.
#[derive(Default)]
struct Load {
    stored: AtomicUsize,
    stop: AtomicBool,
}

impl Load {
    /// Waits until this number of further jobs is acknowledged, however slow the disk is.
    fn wait_for(&self, jobs: usize) {
        let before = self.stored.load(Ordering::Relaxed);
        wait::until("more jobs are acknowledged", || self.stored.load(Ordering::Relaxed) >= before + jobs);
    }
}

/// Sends a command and returns the first line of the reply. `None` if the connection is closed.
fn ask(client: &mut Client, command: &str) -> Option<String> {
    client.send(command);
    client.reply().map(|(line, _)| line)
}

/// Puts jobs, and deletes every second one, until it is to stop.
fn work(name: usize, server: &ServerProcess, load: &Load) -> Replies {
    let mut replies = Replies::default();
    let mut client = server.client();
    let mut round = 0;
    while !load.stop.load(Ordering::Relaxed) {
        round += 1;
        let body = format!("{name} {round}");
        let Some(line) = ask(&mut client, &put(0, 0, &body)) else {
            replies.reconnects += 1;
            client = server.client();
            continue;
        };
        let id = line.strip_prefix("INSERTED ").and_then(|id| id.parse().ok());
        let id: u64 = id.unwrap_or_else(|| panic!("{line:?} is no reply to a put"));
        assert!(replies.stored.insert(id, body).is_none(), "{id} is a new id");
        load.stored.fetch_add(1, Ordering::Relaxed);
        if round % 2 == 0 {
            match ask(&mut client, &format!("delete {id}\r\n")).as_deref() {
                Some("DELETED") => drop(replies.deleted.insert(id)),
                Some(line) => panic!("{line:?} is no reply to a delete"),
                None => {
                    replies.unknown.insert(id);
                    replies.reconnects += 1;
                    client = server.client();
                }
            }
        }
    }
    replies
}

#[test]
fn no_connection_is_refused_and_no_job_is_lost() {
    let restarts = env::var("BEANRING_TEST_RESTARTS").map_or(3, |text| text.parse().expect("a number"));
    under_each("restart", |io| {
        for transport in [Transport::Tcp, Transport::Unix] {
            for mode in [&["-f", "0"][..], &["-f", "50"], &["-F"]] {
                let (jobs, reconnects) = restarts_under_load(io, transport, mode, restarts);
                println!(
                    "{} {transport:?} {mode:?}: {restarts} restarts, {jobs} jobs acknowledged, \
                     {reconnects} reconnections",
                    io.name()
                );
            }
        }
    });
}

fn restarts_under_load(io: Driver, transport: Transport, mode: &[&str], restarts: usize) -> (usize, usize) {
    const CLIENTS: usize = 6;
    const JOBS_BETWEEN: usize = 3 * CLIENTS;
    let scratch = Scratch::new("restart");
    let flags = [&["-b", scratch.0.to_str().expect("UTF-8"), "-s", "65536"], mode].concat();
    let (mut server, first) = serve_under(io, transport, &flags);
    drop(first);

    let load = Load::default();
    let replies: Vec<Replies> = thread::scope(|scope| {
        let start = |name| {
            let (server, load) = (&server, &load);
            scope.spawn(move || work(name, server, load))
        };
        let clients: Vec<_> = (0..CLIENTS).map(start).collect();
        let stop = Stop(&load.stop);
        for _ in 0..restarts {
            load.wait_for(JOBS_BETWEEN);
            server.restart();
        }
        load.wait_for(JOBS_BETWEEN);
        drop(stop);
        clients.into_iter().map(|client| client.join().expect("the client does not panic")).collect()
    });

    let jobs = replies.iter().map(|replies| replies.stored.len()).sum();
    let reconnects = replies.iter().map(|replies| replies.reconnects).sum();
    check_jobs(&mut server.client(), &replies);
    assert!(
        jobs > JOBS_BETWEEN * restarts && reconnects >= restarts,
        "{jobs} jobs, {reconnects} reconnections"
    );
    server.stop();
    if let Address::Unix(path) = server.address() {
        assert!(fs::metadata(path).is_err(), "the last program removes the socket file");
    }
    (jobs, reconnects)
}

/// Asserts that each job that was acknowledged, and no deleted one, is there.
fn check_jobs(client: &mut Client, replies: &[Replies]) {
    for replies in replies {
        for (id, body) in &replies.stored {
            let (line, data) = client.ask(&format!("peek {id}\r\n"));
            if replies.deleted.contains(id) {
                assert_eq!(line, "NOT_FOUND", "{id} was deleted");
            } else if !(replies.unknown.contains(id) && line == "NOT_FOUND") {
                assert_eq!(line, format!("FOUND {id} {}", body.len()), "{id} was acknowledged");
                assert_eq!(data.trim_end(), body, "the body of {id}");
            }
        }
    }
}

/// Whether a restart under this driver hands connections over: the receives of tokio-uring cannot be cancelled without a loss.
fn hands_over(io: Driver) -> bool {
    io.name() != "tokio-uring"
}

/// Connects again and again, each time for one command after a pause. Returns how often it has no reply.
fn call(server: &ServerProcess, load: &Load, pause: Duration) -> usize {
    let mut dropped = 0;
    while !load.stop.load(Ordering::Relaxed) {
        let mut client = server.client();
        thread::sleep(pause);
        match ask(&mut client, "list-tube-used\r\n") {
            Some(line) => assert_eq!(line, "USING default"),
            None => dropped += 1,
        }
        load.stored.fetch_add(1, Ordering::Relaxed);
    }
    dropped
}

#[test]
fn no_connection_that_is_made_during_a_restart_is_dropped() {
    const CLIENTS: u64 = 6;
    const RESTARTS: usize = 4;
    under_each("connections that are made during restarts", |io| {
        for transport in [Transport::Tcp, Transport::Unix] {
            let scratch = Scratch::new("calls");
            let log = scratch.0.display().to_string();
            let (mut server, first) = serve_under(io, transport, &["-b", &log]);
            drop(first);
            let load = Load::default();
            let dropped: usize = thread::scope(|scope| {
                let (server, load) = (&server, &load);
                let start =
                    |client| scope.spawn(move || call(server, load, Duration::from_micros(300 * client)));
                let clients: Vec<_> = (0..CLIENTS).map(start).collect();
                let stop = Stop(&load.stop);
                for _ in 0..RESTARTS {
                    load.wait_for(3 * CLIENTS as usize);
                    server.restart();
                }
                load.wait_for(3 * CLIENTS as usize);
                drop(stop);
                clients.into_iter().map(|client| client.join().expect("the client does not panic")).sum()
            });
            let calls = load.stored.load(Ordering::Relaxed);
            println!("{} {transport:?}: {dropped} of {calls} connections have no reply", io.name());
            assert!(dropped == 0 || !hands_over(io), "{}: {dropped} of {calls}", io.name());
            server.stop();
        }
    });
}

#[test]
fn a_connection_on_which_nothing_has_come_is_handed_over() {
    const CLIENTS: u64 = 150;
    under_each("connections that are handed over", |io| {
        if !hands_over(io) {
            return;
        }
        for transport in [Transport::Tcp, Transport::Unix] {
            let scratch = Scratch::new("silent");
            let log = scratch.0.display().to_string();
            let (mut server, mut control) = serve_under(io, transport, &["-b", &log]);
            let mut silent: Vec<Client> = (0..CLIENTS).map(|_| server.client()).collect();
            let mut half = server.client();
            half.send("put 0 0 60 5\r\nhe");
            control.await_stat("current-connections", |count| count == CLIENTS + 2);
            server.settle();
            for _ in 0..2 {
                server.restart();
            }
            for (client, id) in silent.iter_mut().zip(1..) {
                client.expect(&put(0, 0, "x"), &format!("INSERTED {id}"));
            }
            half.expect_end();
            control.expect_end();
            server.stop();
        }
    });
}

#[test]
fn the_installed_program_is_executed_if_it_passes_the_check() {
    let scratch = Scratch::new("replaced");
    let (link, log) = (scratch.join("server"), scratch.dir("log"));
    symlink(program(), &link).expect("the link is created");
    let http = format!("unix:{}", scratch.join("http").display());
    let config = scratch.join("config.toml");
    fs::write(&config, "max-job-size = 100\n").expect("the file is written");
    let stderr = scratch.join("said");
    let mut command = Command::new(&link);
    command.stderr(fs::File::create(&stderr).expect("the file is created"));
    let [log, config_flag] = [&log, &config].map(|path| path.display().to_string());
    let flags = ["-b", &log, "--http", &http, "--config", &config_flag];
    let (mut server, mut client) = serve_by(command, Address::fresh(Transport::Tcp), &flags);
    client.expect(&put(0, 0, "kept"), "INSERTED 1");
    let first = server.id();

    // A program that cannot start changes nothing.
    let other = scratch.join("other");
    // A child process would not have the sockets.
    let parent = scratch.join("script").display().to_string();
    script(Path::new(&parent), &format!("{} \"$@\"\nexit $?\n", program()));
    let wrong = [
        ("/bin/false", "max-job-size = 100\n"),
        ("/bin/true", "max-job-size = 100\n"),
        ("/nowhere", ""),
        (&parent, "max-job-size = 100\n"),
        (program(), "max-job-size = \"x\"\n"),
    ];
    for (number, (program, configuration)) in wrong.into_iter().enumerate() {
        symlink(program, &other).and_then(|()| fs::rename(&other, &link)).expect("the file is renamed");
        fs::write(&config, configuration).expect("the file is written");
        server.signal(Signal::SIGUSR2);
        let said = lines_of(&stderr, number + 1);
        assert!(said.last().is_some_and(|last| last.contains(" WARN no restart: ")), "{program}: {said:?}");
        let is_foreign =
            said.last().is_some_and(|last| last.contains(" is no beanring: it has not printed "));
        assert_eq!(is_foreign, program == "/bin/true", "{said:?}");
        client.expect("peek 1\r\n", "FOUND 1 4");
        assert_eq!(server.id(), first, "{program}");
    }

    // A program that can start does, with the new contents of the file, and keeps all sockets.
    fs::write(&config, "max-job-size = 4\n").expect("the file is written");
    let mut client = server.restart();
    client.expect(&put(0, 0, "large"), "JOB_TOO_BIG");
    client.expect("peek 1\r\n", "FOUND 1 4");
    let mut monitor = UnixStream::connect(scratch.join("http")).expect("the server accepts connections");
    monitor.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").expect("the connection is open");
    let mut health = String::new();
    monitor.read_to_string(&mut health).expect("the reply ends");
    assert!(health.ends_with("ok\n"), "{health}");

    // Two signals at once cause one or two restarts. SIGTERM stops the server.
    server.signal(Signal::SIGUSR2);
    server.restart();
    server.stop();
}

#[test]
fn a_restart_needs_no_descriptor_that_connections_have() {
    under_each("restart without descriptors", |io| {
        let scratch = Scratch::new("descriptors");
        let (link, slow, log) = (scratch.join("server"), scratch.join("script"), scratch.dir("log"));
        let asked = log.join("asked");
        // The preflight check waits until the connections are made.
        let lines = format!(
            "case \"$*\" in *--check-config*) : > {0}; while [ -e {0} ]; do sleep 0.01; done; echo I/O driver: one; exit 0;; \
             esac\nexec {1} \"$@\"\n",
            asked.display(),
            program()
        );
        script(&slow, &lines);
        symlink(program(), &link).expect("the link is created");
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""]).arg(&link);
        let (mut server, client) = launch(limited, &log, io, &[]);
        let first = server.id();
        fs::rename(&slow, &link).expect("the file is renamed");
        server.signal(Signal::SIGUSR2);
        wait::until("the check starts", || asked.exists());
        let mut crowd: Vec<Client> = (0..100).map(|_| server.client()).collect();
        crowd[0].expect("list-tube-used\r\n", "USING default");
        fs::remove_file(&asked).expect("the file is removed");
        drop((client, crowd));
        server.await_other_than(&first);
        server.stop();
    });
}

/// Most numbers below the limit are those of connections that the next program gets.
#[test]
fn connections_are_handed_over_within_the_limit_of_descriptors() {
    under_each("restart with a crowd", |io| {
        let log = Scratch::new("crowd-log");
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -n 200; exec \"$0\" \"$@\"", program()]);
        let (mut server, client) = launch(limited, &log.0, io, &[]);
        let first = server.id();
        let mut crowd: Vec<Client> = (0..150).map(|_| server.client()).collect();
        wait::until("all are accepted", || server.descriptors() > 160);
        server.signal(Signal::SIGUSR2);
        drop(client);
        server.await_other_than(&first);
        crowd.retain_mut(|client| client.is_silent(Duration::from_millis(1)));
        // Its connections have a receive that cannot be taken back.
        let hands_over = io.name() != "tokio-uring";
        assert!(
            crowd.len() > 70 || !hands_over,
            "half the limit, without what is no connection: {}",
            crowd.len()
        );
        crowd.iter_mut().for_each(|client| client.expect("list-tube-used\r\n", "USING default"));
        server.stop();
    });
}

/// Restarts more often than the kernel stacks Landlock rulesets, in a process whose parent has ignored SIGCHLD.
#[test]
fn a_process_restarts_many_times() {
    let scratch = Scratch::new("again");
    let stderr = scratch.join("said");
    let mut ignoring = Command::new("sh");
    ignoring.args(["-c", "trap '' CHLD; exec \"$0\" \"$@\"", program()]);
    ignoring.stderr(fs::File::create(&stderr).expect("the file is created"));
    let flags = ["-b", &scratch.dir("log").display().to_string()];
    let (mut server, client) = serve_by(ignoring, Address::fresh(Transport::Tcp), &flags);
    drop(client);
    (0..18).for_each(|_| drop(server.restart()));
    server.stop();
    assert_eq!(fs::read_to_string(&stderr).expect("the file is read"), "");
}

#[test]
fn the_log_stays_locked_during_a_restart() {
    under_each("restart beside a reader of the log", |io| {
        let scratch = Scratch::new("locked");
        let (mut server, mut client) = start(&scratch.0, io, &[]);
        client.expect(&put(0, 0, "kept"), "INSERTED 1");
        let mut tries = 0;
        thread::scope(|scope| {
            let restarts = scope.spawn(|| (0..5).for_each(|_| drop(server.restart())));
            while !restarts.is_finished() {
                let output = Command::new(program()).args(["wal", "check"]).arg(&scratch.0).output();
                let output = output.expect("the program starts");
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(said.contains("a server uses this job log"), "{output:?}");
                tries += 1;
            }
        });
        assert!(tries > 0, "the log is read while the server restarts");
        server.stop();
    });
}

#[test]
fn every_stored_job_is_acknowledged_before_a_restart_closes_the_connection() {
    const ROUNDS: usize = 8;
    under_each("last answers", |io| {
        // Also at the maximum number of connections.
        for connections in ["100", "1"] {
            let scratch = Scratch::new("answered");
            let (mut server, first) = start(&scratch.0, io, &["-f", "0", "--max-connections", connections]);
            drop(first);
            let mut inserted = 0;
            for round in 0..=ROUNDS {
                let mut client = server.client();
                let ready = number(&client.ask("stats-tube default\r\n").1, "current-jobs-ready");
                assert_eq!(ready, inserted, "{io:?}, {connections} connections, round {round}");
                if round == ROUNDS {
                    break;
                }
                server.signal(Signal::SIGUSR2);
                while let Some(line) = ask(&mut client, &put(0, 0, "heard of")) {
                    assert!(line.starts_with("INSERTED "), "{line}");
                    inserted += 1;
                }
            }
            server.stop();
        }
    });
}

#[test]
fn a_foreign_file_at_the_path_of_the_socket_is_kept() {
    let scratch = Scratch::new("file");
    let path = scratch.join("socket");
    let flags = ["-b", &scratch.dir("log").display().to_string()];
    let (mut server, client) = serve_by(Command::new(program()), Address::Unix(path.clone()), &flags);
    drop(client);
    let mut client = server.restart();
    fs::remove_file(&path).expect("the file is removed");
    fs::write(&path, "foreign").expect("the file is written");
    server.signal(Signal::SIGUSR2);
    client.expect_end();
    server.stop();
    assert_eq!(fs::read_to_string(&path).expect("the file is read"), "foreign");
}

#[test]
fn without_a_log_there_is_no_restart() {
    let server = LoggedServer::start(&[]);
    let mut client = server.client();
    client.expect(&put(0, 0, "kept"), "INSERTED 1");
    let first = server.id();
    server.signal(Signal::SIGUSR2);
    // The line shows that the server has handled the signal.
    server.logged(" WARN no restart: without a job log (-b)");
    client.expect("peek 1\r\n", "FOUND 1 4");
    assert_eq!(server.id(), first);
    server.stopped();
}

#[test]
fn a_server_and_its_children_reach_only_their_own_files() {
    if !has_landlock("files out of reach") {
        return;
    }
    under_each("confined", |io| {
        let (scratch, other) = (Scratch::new("confined"), Scratch::new("confined-other"));
        let (link, log) = (scratch.join("server"), scratch.dir("log"));
        symlink(program(), &link).expect("the link is created");
        fs::write(other.join("secret"), "secret").expect("the file is written");
        let (server, mut client) = launch(Command::new(&link), &log, io, &[]);

        // A script that tries to read and write elsewhere replaces the program.
        let curious = scratch.join("script");
        let lines = format!(
            "cd {}\necho x > inside\ncat {1}/secret > read\necho x > {1}/outside\n\
             kill -0 {2} && echo x > signalled\nmv inside done\nexit 1\n",
            log.display(),
            other.0.display(),
            std::process::id()
        );
        script(&curious, &lines);
        fs::rename(&curious, &link).expect("the file is renamed");
        server.signal(Signal::SIGUSR2);
        let is_done = || log.join("done").exists();
        wait::until("the script starts, and can write to the log directory", is_done);
        let read = fs::read(log.join("read")).expect("the file is read");
        assert_eq!(read, b"", "files elsewhere cannot be read");
        assert!(!other.join("outside").exists() && !log.join("signalled").exists());
        client.expect(&put(0, 0, "goes on"), "INSERTED 1");
    });
}
