//! SIGUSR2: the process restarts in place. No connection is refused, and no job is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{env, fs};

use beanring::io::driver::Driver;
use beanring_testkit::client::{Client, put};
use beanring_testkit::driver;
use beanring_testkit::kernel::has_landlock;
use beanring_testkit::process::{Address, REPLY_PATIENCE, ServerProcess, Transport, program};
use beanring_testkit::scratch::{Scratch, lines_of, script};
use beanring_testkit::statistics::field;
use nix::sys::signal::Signal;

/// A connection over either transport.
trait Stream: Read + Write + Send {}
impl Stream for TcpStream {}
impl Stream for UnixStream {}

/// The address of the server.
#[derive(Clone)]
enum Place {
    Tcp(String),
    Unix(PathBuf),
}

impl Place {
    fn of(address: &Address) -> Self {
        match address {
            Address::Tcp(address) => Self::Tcp(address.to_string()),
            Address::Unix(path) => Self::Unix(path.clone()),
            #[cfg(feature = "tls")]
            Address::Tls(_) => unreachable!("tests/tls restarts servers with TLS"),
        }
    }

    /// # Panics
    /// If the connection is refused.
    fn connect(&self) -> BufReader<Box<dyn Stream>> {
        let stream: Box<dyn Stream> = match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address).expect("the server always accepts connections");
                stream.set_read_timeout(Some(REPLY_PATIENCE)).expect("the time-out is set");
                Box::new(stream)
            }
            Self::Unix(path) => {
                let stream = UnixStream::connect(path).expect("the server always accepts connections");
                stream.set_read_timeout(Some(REPLY_PATIENCE)).expect("the time-out is set");
                Box::new(stream)
            }
        };
        BufReader::new(stream)
    }
}

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
        let (before, asked) = (self.stored.load(Ordering::Relaxed), Instant::now());
        while self.stored.load(Ordering::Relaxed) < before + jobs {
            assert!(asked.elapsed() < REPLY_PATIENCE, "{jobs} more jobs are acknowledged");
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Puts jobs, and deletes every second one, until it is to stop.
fn work(name: usize, place: &Place, load: &Load) -> Replies {
    let mut replies = Replies::default();
    let mut stream = place.connect();
    let mut round = 0;
    while !load.stop.load(Ordering::Relaxed) {
        round += 1;
        let body = format!("{name} {round}");
        let Some(line) = ask(&mut stream, &put(0, 0, &body)) else {
            replies.reconnects += 1;
            stream = place.connect();
            continue;
        };
        let id: u64 = line.strip_prefix("INSERTED ").and_then(|id| id.parse().ok()).unwrap_or_else(|| {
            panic!("{line:?} is no reply to a put");
        });
        assert!(replies.stored.insert(id, body).is_none(), "{id} is a new id");
        load.stored.fetch_add(1, Ordering::Relaxed);
        if round % 2 == 0 {
            match ask(&mut stream, &format!("delete {id}\r\n")).as_deref() {
                Some("DELETED") => drop(replies.deleted.insert(id)),
                Some(line) => panic!("{line:?} is no reply to a delete"),
                None => {
                    replies.unknown.insert(id);
                    replies.reconnects += 1;
                    stream = place.connect();
                }
            }
        }
    }
    replies
}

/// Sends a command and returns the reply. `None` if the connection is closed.
fn ask(stream: &mut BufReader<Box<dyn Stream>>, text: &str) -> Option<String> {
    stream.get_mut().write_all(text.as_bytes()).ok()?;
    let mut line = String::new();
    match stream.read_line(&mut line) {
        Ok(0) => None,
        // Part of a line is no reply.
        Ok(_) => line.strip_suffix("\r\n").map(str::to_owned),
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
        Err(error) => panic!("{error}"),
    }
}

fn started(program: &Path, address: Address, flags: &[&str]) -> (ServerProcess, Client) {
    let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
    let (server, stream) = ServerProcess::launch(Command::new(program), address, &flags);
    (server, Client::new(stream))
}

/// The `id` in the statistics of the running program, from a new connection.
fn id_of(place: &Place) -> String {
    loop {
        let mut stream = place.connect();
        // A restart closes a connection that was made before it.
        let Some(line) = ask(&mut stream, "stats\r\n") else { continue };
        let bytes: usize = line.strip_prefix("OK ").expect("a reply with data").parse().expect("a number");
        let mut yaml = vec![0; bytes];
        if stream.read_exact(&mut yaml).is_ok() {
            return field(&String::from_utf8(yaml).expect("UTF-8"), "id").to_owned();
        }
    }
}

fn restart(server: &ServerProcess, place: &Place) {
    let before = id_of(place);
    server.signal(Signal::SIGUSR2);
    let asked = Instant::now();
    while id_of(place) == before {
        assert!(asked.elapsed() < REPLY_PATIENCE, "the new program runs");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn no_connection_is_refused_and_no_job_is_lost() {
    let restarts = env::var("BEANRING_TEST_RESTARTS").map_or(3, |text| text.parse().expect("a number"));
    for &io in Driver::ALL.iter().filter(|&&io| driver::is_allowed(io, "restart")) {
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
    }
}

fn restarts_under_load(io: Driver, transport: Transport, mode: &[&str], restarts: usize) -> (usize, usize) {
    const CLIENTS: usize = 6;
    const JOBS_BETWEEN: usize = 3 * CLIENTS;
    let scratch = Scratch::new("restart");
    let dir = scratch.0.display().to_string();
    let address = Address::fresh(transport);
    let place = Place::of(&address);
    let flags = driver::flags(io);
    let mut all: Vec<&str> = flags.iter().map(String::as_str).collect();
    all.extend(["-b", &dir, "-s", "65536"]);
    all.extend(mode);
    let (mut server, first) = started(Path::new(program()), address, &all);
    drop(first);

    let load = Arc::new(Load::default());
    let clients: Vec<JoinHandle<Replies>> = (0..CLIENTS)
        .map(|name| {
            let (place, load) = (place.clone(), load.clone());
            thread::spawn(move || work(name, &place, &load))
        })
        .collect();
    for _ in 0..restarts {
        thread::sleep(Duration::from_millis(50));
        load.wait_for(JOBS_BETWEEN);
        restart(&server, &place);
    }
    load.wait_for(JOBS_BETWEEN);
    load.stop.store(true, Ordering::Relaxed);
    let replies: Vec<Replies> =
        clients.into_iter().map(|client| client.join().expect("the client does not panic")).collect();

    let mut stream = place.connect();
    let mut jobs = 0;
    for replies in &replies {
        jobs += replies.stored.len();
        for (id, body) in &replies.stored {
            let line = ask(&mut stream, &format!("peek {id}\r\n")).expect("the server runs");
            if replies.deleted.contains(id) {
                assert_eq!(line, "NOT_FOUND", "{id} was deleted");
            } else if !(replies.unknown.contains(id) && line == "NOT_FOUND") {
                assert_eq!(line, format!("FOUND {id} {}", body.len()), "{id} was acknowledged");
                let mut found = String::new();
                stream.read_line(&mut found).expect("the server runs");
                assert_eq!(found.trim_end(), body, "the body of {id}");
            }
        }
    }
    let reconnects: usize = replies.iter().map(|replies| replies.reconnects).sum();
    assert!(
        jobs > JOBS_BETWEEN * restarts && reconnects >= restarts,
        "{jobs} jobs, {reconnects} reconnections"
    );
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait(), Some(0));
    if let Place::Unix(path) = &place {
        assert!(fs::metadata(path).is_err(), "the last program removes the socket file");
    }
    (jobs, reconnects)
}

#[test]
fn the_installed_program_is_executed_if_it_passes_the_check() {
    let scratch = Scratch::new("replaced");
    let (link, log) = (scratch.0.join("server"), scratch.0.join("log"));
    fs::create_dir(&log).expect("the directory is created");
    symlink(program(), &link).expect("the link is created");
    let http = format!("unix:{}", scratch.0.join("http").display());
    let config = scratch.0.join("config.toml");
    fs::write(&config, "max-job-size = 100\n").expect("the file is written");
    let address = Address::fresh(Transport::Tcp);
    let place = Place::of(&address);
    let flags =
        ["-b", &log.display().to_string(), "--http", &http, "--config", &config.display().to_string()];
    let stderr = scratch.0.join("said");
    let mut command = Command::new(&link);
    command.stderr(fs::File::create(&stderr).expect("the file is created"));
    let (mut server, stream) = ServerProcess::launch(command, address, &flags.map(str::to_owned));
    let mut client = Client::new(stream);
    client.expect(&put(0, 0, "kept"), "INSERTED 1");
    let first = id_of(&place);

    // A program that cannot start changes nothing.
    let other = scratch.0.join("other");
    // A child process would not have the sockets.
    let parent = scratch.0.join("script").display().to_string();
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
        assert_eq!(client.ask("peek 1\r\n").0, "FOUND 1 4", "{program}");
        assert_eq!(id_of(&place), first, "{program}");
    }

    // A program that can start does, with the new contents of the file, and keeps all sockets.
    fs::write(&config, "max-job-size = 4\n").expect("the file is written");
    restart(&server, &place);
    let mut stream = place.connect();
    assert_eq!(ask(&mut stream, &put(0, 0, "large")).as_deref(), Some("JOB_TOO_BIG"));
    assert_eq!(ask(&mut stream, "peek 1\r\n").as_deref(), Some("FOUND 1 4"));
    let mut monitor = UnixStream::connect(scratch.0.join("http")).expect("the server accepts connections");
    monitor.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").expect("the connection is open");
    let mut health = String::new();
    monitor.read_to_string(&mut health).expect("the reply ends");
    assert!(health.ends_with("ok\n"), "{health}");

    // Two signals at once cause one or two restarts. SIGTERM stops the server.
    server.signal(Signal::SIGUSR2);
    restart(&server, &place);
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn a_restart_needs_no_descriptor_that_connections_have() {
    for &io in Driver::ALL.iter().filter(|&&io| driver::is_allowed(io, "restart without descriptors")) {
        let scratch = Scratch::new("descriptors");
        let (link, slow) = (scratch.0.join("server"), scratch.0.join("script"));
        let (asked, log) = (scratch.0.join("log/asked"), scratch.0.join("log"));
        fs::create_dir(&log).expect("the directory is created");
        // The preflight check waits until the connections are made.
        let lines = format!(
            "case \"$*\" in *--check-config*) : > {0}; while [ -e {0} ]; do sleep 0.01; done; echo I/O driver: one; exit 0;; \
             esac\nexec {1} \"$@\"\n",
            asked.display(),
            program()
        );
        script(&slow, &lines);
        symlink(program(), &link).expect("the link is created");
        let address = Address::fresh(Transport::Tcp);
        let place = Place::of(&address);
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""]).arg(&link);
        let flags = [driver::flags(io), vec!["-b".to_owned(), log.display().to_string()]].concat();
        let (mut server, stream) = ServerProcess::launch(limited, address, &flags);
        let first = id_of(&place);
        fs::rename(&slow, &link).expect("the file is renamed");
        server.signal(Signal::SIGUSR2);
        let begun = Instant::now();
        while !asked.exists() {
            assert!(begun.elapsed() < REPLY_PATIENCE, "the check starts");
            thread::sleep(Duration::from_millis(2));
        }
        let mut crowd: Vec<_> = (0..100).map(|_| place.connect()).collect();
        assert_eq!(ask(&mut crowd[0], "list-tube-used\r\n").as_deref(), Some("USING default"), "{io:?}");
        fs::remove_file(&asked).expect("the file is removed");
        drop((stream, crowd));
        while id_of(&place) == first {
            assert!(begun.elapsed() < REPLY_PATIENCE, "{io:?}: the new program runs");
        }
        server.signal(Signal::SIGTERM);
        assert_eq!(server.wait(), Some(0), "{io:?}");
    }
}

/// Restarts more often than the kernel stacks Landlock rulesets, in a process whose parent has ignored SIGCHLD.
#[test]
fn a_process_restarts_many_times() {
    let scratch = Scratch::new("again");
    let (stderr, log) = (scratch.0.join("said"), scratch.0.join("log"));
    fs::create_dir(&log).expect("the directory is created");
    let address = Address::fresh(Transport::Tcp);
    let place = Place::of(&address);
    let mut ignoring = Command::new("sh");
    ignoring.args(["-c", "trap '' CHLD; exec \"$0\" \"$@\"", program()]);
    ignoring.stderr(fs::File::create(&stderr).expect("the file is created"));
    let (mut server, stream) =
        ServerProcess::launch(ignoring, address, &["-b".to_owned(), log.display().to_string()]);
    drop(stream);
    (0..18).for_each(|_| restart(&server, &place));
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait(), Some(0));
    assert_eq!(fs::read_to_string(&stderr).expect("the file is read"), "");
}

#[test]
fn the_log_stays_locked_during_a_restart() {
    for &io in Driver::ALL.iter().filter(|&&io| driver::is_allowed(io, "restart beside a reader of the log"))
    {
        let scratch = Scratch::new("locked");
        let dir = scratch.0.display().to_string();
        let address = Address::fresh(Transport::Tcp);
        let place = Place::of(&address);
        let flags = [driver::flags(io), vec!["-b".to_owned(), dir.clone()]].concat();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let (mut server, mut client) = started(Path::new(program()), address, &flags);
        client.expect(&put(0, 0, "kept"), "INSERTED 1");
        let stop = Arc::new(AtomicBool::new(false));
        let reader = thread::spawn({
            let stop = stop.clone();
            move || {
                let mut tries = 0;
                while !stop.load(Ordering::Relaxed) {
                    let output = Command::new(program()).args(["wal", "check", &dir]).output();
                    let output = output.expect("the program starts");
                    let said = String::from_utf8_lossy(&output.stderr).into_owned();
                    assert!(said.contains("a server uses this job log"), "{output:?}");
                    tries += 1;
                }
                tries
            }
        });
        (0..5).for_each(|_| restart(&server, &place));
        stop.store(true, Ordering::Relaxed);
        assert!(reader.join().expect("the log is always locked") > 0);
        server.signal(Signal::SIGTERM);
        assert_eq!(server.wait(), Some(0), "{io:?}");
    }
}

#[test]
fn every_stored_job_is_acknowledged_before_a_restart_closes_the_connection() {
    const ROUNDS: usize = 8;
    for &io in Driver::ALL.iter().filter(|&&io| driver::is_allowed(io, "last answers")) {
        // Also at the maximum number of connections.
        for connections in ["100", "1"] {
            let scratch = Scratch::new("answered");
            let dir = scratch.0.display().to_string();
            let address = Address::fresh(Transport::Tcp);
            let place = Place::of(&address);
            let mut flags = driver::flags(io);
            flags.extend(["-b", &dir, "-f", "0", "--max-connections", connections].map(str::to_owned));
            let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
            let (mut server, first) = started(Path::new(program()), address, &flags);
            drop(first);
            let mut inserted = 0;
            for round in 0..=ROUNDS {
                let mut stream = place.connect();
                let line = ask(&mut stream, "stats-tube default\r\n").expect("the server runs");
                let bytes: usize =
                    line.strip_prefix("OK ").expect("a reply with data").parse().expect("a number");
                let mut yaml = vec![0; bytes + 2];
                stream.read_exact(&mut yaml).expect("the data is received");
                let ready =
                    field(std::str::from_utf8(&yaml).expect("UTF-8"), "current-jobs-ready").to_owned();
                assert_eq!(ready, inserted.to_string(), "{io:?}, {connections} connections, round {round}");
                if round == ROUNDS {
                    break;
                }
                server.signal(Signal::SIGUSR2);
                while let Some(line) = ask(&mut stream, &put(0, 0, "heard of")) {
                    assert!(line.starts_with("INSERTED "), "{line}");
                    inserted += 1;
                }
            }
            server.signal(Signal::SIGTERM);
            assert_eq!(server.wait(), Some(0), "{io:?}");
        }
    }
}

#[test]
fn a_foreign_file_at_the_path_of_the_socket_is_kept() {
    let scratch = Scratch::new("file");
    let (path, log) = (scratch.0.join("socket"), scratch.0.join("log"));
    fs::create_dir(&log).expect("the directory is created");
    let address = Address::Unix(path.clone());
    let place = Place::of(&address);
    let (server, client) = started(Path::new(program()), address, &["-b", &log.display().to_string()]);
    drop(client);
    restart(&server, &place);
    let mut stream = place.connect();
    fs::remove_file(&path).expect("the file is removed");
    fs::write(&path, "foreign").expect("the file is written");
    server.signal(Signal::SIGUSR2);
    assert_eq!(stream.read_line(&mut String::new()).expect("the connection is closed"), 0);
    let mut server = server;
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait(), Some(0));
    assert_eq!(fs::read_to_string(&path).expect("the file is read"), "foreign");
}

#[test]
fn without_a_log_there_is_no_restart() {
    let scratch = Scratch::new("stays");
    let stderr = scratch.0.join("said");
    let address = Address::fresh(Transport::Tcp);
    let place = Place::of(&address);
    let mut command = Command::new(program());
    command.stderr(fs::File::create(&stderr).expect("the file is created"));
    let (mut server, stream) = ServerProcess::launch(command, address, &[]);
    let mut client = Client::new(stream);
    client.expect(&put(0, 0, "kept"), "INSERTED 1");
    let first = id_of(&place);
    server.signal(Signal::SIGUSR2);
    // The line shows that the server has handled the signal.
    let said = lines_of(&stderr, 1);
    assert!(said[0].contains(" WARN no restart: without a job log (-b)"), "{said:?}");
    assert_eq!(client.ask("peek 1\r\n").0, "FOUND 1 4");
    assert_eq!(id_of(&place), first);
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn a_server_and_its_children_reach_only_their_own_files() {
    if !has_landlock("files out of reach") {
        return;
    }
    for &io in Driver::ALL.iter().filter(|&&io| driver::is_allowed(io, "confined")) {
        let (scratch, other) = (Scratch::new("confined"), Scratch::new("confined-other"));
        let (link, log) = (scratch.0.join("server"), scratch.0.join("log"));
        fs::create_dir(&log).expect("the directory is created");
        symlink(program(), &link).expect("the link is created");
        fs::write(other.0.join("secret"), "secret").expect("the file is written");
        let flags = driver::flags(io);
        let mut all: Vec<&str> = flags.iter().map(String::as_str).collect();
        let dir = log.display().to_string();
        all.extend(["-b", &dir]);
        let (server, mut client) = started(&link, Address::fresh(Transport::Tcp), &all);

        // A script that tries to read and write elsewhere replaces the program.
        let curious = scratch.0.join("script");
        let lines = format!(
            "cd {dir}\necho x > inside\ncat {0}/secret > read\necho x > {0}/outside\n\
             kill -0 {1} && echo x > signalled\nmv inside done\nexit 1\n",
            other.0.display(),
            std::process::id()
        );
        script(&curious, &lines);
        fs::rename(&curious, &link).expect("the file is renamed");
        server.signal(Signal::SIGUSR2);
        let asked = Instant::now();
        while !log.join("done").exists() {
            assert!(
                asked.elapsed() < REPLY_PATIENCE,
                "the script starts, and can write to the log directory"
            );
            thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(
            fs::read(log.join("read")).expect("the file is read"),
            b"",
            "files elsewhere cannot be read"
        );
        assert!(!other.0.join("outside").exists() && !log.join("signalled").exists());
        client.expect(&put(0, 0, "goes on"), "INSERTED 1");
    }
}
