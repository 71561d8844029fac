//! SIGUSR2: another program takes the process over, and nobody is refused and nothing is lost.

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
use beanring_testkit::client::{Client, field, put};
use beanring_testkit::driver;
use beanring_testkit::kernel::has_landlock;
use beanring_testkit::process::{Address, REPLY_PATIENCE, ServerProcess, Transport, program};
use beanring_testkit::scratch::{Scratch, lines_of, script};
use nix::sys::signal::Signal;

/// A connection of either kind.
trait Stream: Read + Write + Send {}
impl Stream for TcpStream {}
impl Stream for UnixStream {}

/// Where the server listens, to be connected to at any moment.
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
        }
    }

    /// # Panics
    /// If the connection is refused: the very thing that must not be.
    fn connect(&self) -> BufReader<Box<dyn Stream>> {
        let stream: Box<dyn Stream> = match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address).expect("somebody listens at every moment");
                stream.set_read_timeout(Some(REPLY_PATIENCE)).expect("it is a time");
                Box::new(stream)
            }
            Self::Unix(path) => {
                let stream = UnixStream::connect(path).expect("somebody listens at every moment");
                stream.set_read_timeout(Some(REPLY_PATIENCE)).expect("it is a time");
                Box::new(stream)
            }
        };
        BufReader::new(stream)
    }
}

/// What one client was told.
#[derive(Default)]
struct Told {
    /// Bodies by id.
    stored: BTreeMap<u64, String>,
    deleted: BTreeSet<u64>,
    /// Asked to be deleted, without an answer.
    perhaps: BTreeSet<u64>,
    reconnects: usize,
}

/// What all clients have been told so far, and whether they are to stop.
#[derive(Default)]
struct Load {
    stored: AtomicUsize,
    stop: AtomicBool,
}

impl Load {
    /// Waits until this many more jobs are acknowledged, however slow the disk is.
    fn goes_on(&self, jobs: usize) {
        let (before, asked) = (self.stored.load(Ordering::Relaxed), Instant::now());
        while self.stored.load(Ordering::Relaxed) < before + jobs {
            assert!(asked.elapsed() < REPLY_PATIENCE, "{jobs} more jobs are acknowledged");
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Puts, and deletes every other job again, over and over until told to stop.
fn work(name: usize, place: &Place, load: &Load) -> Told {
    let mut told = Told::default();
    let mut stream = place.connect();
    let mut round = 0;
    while !load.stop.load(Ordering::Relaxed) {
        round += 1;
        let body = format!("{name} {round}");
        let Some(line) = ask(&mut stream, &put(0, 0, &body)) else {
            told.reconnects += 1;
            stream = place.connect();
            continue;
        };
        let id: u64 = line.strip_prefix("INSERTED ").and_then(|id| id.parse().ok()).unwrap_or_else(|| {
            panic!("{line:?} is no answer to a put");
        });
        assert!(told.stored.insert(id, body).is_none(), "{id} is a new id");
        load.stored.fetch_add(1, Ordering::Relaxed);
        if round % 2 == 0 {
            match ask(&mut stream, &format!("delete {id}\r\n")).as_deref() {
                Some("DELETED") => drop(told.deleted.insert(id)),
                Some(line) => panic!("{line:?} is no answer to a delete"),
                None => {
                    told.perhaps.insert(id);
                    told.reconnects += 1;
                    stream = place.connect();
                }
            }
        }
    }
    told
}

/// The answer, or nothing if the connection has been closed.
fn ask(stream: &mut BufReader<Box<dyn Stream>>, text: &str) -> Option<String> {
    stream.get_mut().write_all(text.as_bytes()).ok()?;
    let mut line = String::new();
    match stream.read_line(&mut line) {
        Ok(0) => None,
        // A piece of an answer is none.
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

/// The `id` of the running program, from a connection of its own.
fn id_of(place: &Place) -> String {
    loop {
        let mut stream = place.connect();
        // One that came before a restart is closed.
        let Some(line) = ask(&mut stream, "stats\r\n") else { continue };
        let bytes: usize = line.strip_prefix("OK ").expect("it is data").parse().expect("a number");
        let mut yaml = vec![0; bytes];
        if stream.read_exact(&mut yaml).is_ok() {
            return field(&String::from_utf8(yaml).expect("it is text"), "id").to_owned();
        }
    }
}

fn restart(server: &ServerProcess, place: &Place) {
    let before = id_of(place);
    server.signal(Signal::SIGUSR2);
    let asked = Instant::now();
    while id_of(place) == before {
        assert!(asked.elapsed() < REPLY_PATIENCE, "another program is there");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn nobody_is_refused_and_nothing_is_lost() {
    let restarts = env::var("BEANRING_RESTARTS").map_or(3, |text| text.parse().expect("a number"));
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
    let clients: Vec<JoinHandle<Told>> = (0..CLIENTS)
        .map(|name| {
            let (place, load) = (place.clone(), load.clone());
            thread::spawn(move || work(name, &place, &load))
        })
        .collect();
    for _ in 0..restarts {
        thread::sleep(Duration::from_millis(50));
        load.goes_on(JOBS_BETWEEN);
        restart(&server, &place);
    }
    load.goes_on(JOBS_BETWEEN);
    load.stop.store(true, Ordering::Relaxed);
    let told: Vec<Told> =
        clients.into_iter().map(|client| client.join().expect("nothing was wrong")).collect();

    let mut stream = place.connect();
    let mut jobs = 0;
    for told in &told {
        jobs += told.stored.len();
        for (id, body) in &told.stored {
            let line = ask(&mut stream, &format!("peek {id}\r\n")).expect("it runs");
            if told.deleted.contains(id) {
                assert_eq!(line, "NOT_FOUND", "{id} was deleted");
            } else if !(told.perhaps.contains(id) && line == "NOT_FOUND") {
                assert_eq!(line, format!("FOUND {id} {}", body.len()), "{id} was acknowledged");
                let mut found = String::new();
                stream.read_line(&mut found).expect("it runs");
                assert_eq!(found.trim_end(), body, "the body of {id}");
            }
        }
    }
    let reconnects: usize = told.iter().map(|told| told.reconnects).sum();
    assert!(
        jobs > JOBS_BETWEEN * restarts && reconnects >= restarts,
        "{jobs} jobs, {reconnects} reconnections"
    );
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait(), Some(0));
    if let Place::Unix(path) = &place {
        assert!(fs::metadata(path).is_err(), "the socket file went with the last program");
    }
    (jobs, reconnects)
}

#[test]
fn the_program_is_the_one_that_is_there_now_if_it_could_start() {
    let scratch = Scratch::new("replaced");
    let (link, log) = (scratch.0.join("server"), scratch.0.join("log"));
    fs::create_dir(&log).expect("there is room");
    symlink(program(), &link).expect("there is room");
    let http = format!("unix:{}", scratch.0.join("http").display());
    let config = scratch.0.join("config.toml");
    fs::write(&config, "max-job-size = 100\n").expect("there is room");
    let address = Address::fresh(Transport::Tcp);
    let place = Place::of(&address);
    let flags =
        ["-b", &log.display().to_string(), "--http", &http, "--config", &config.display().to_string()];
    let stderr = scratch.0.join("said");
    let mut command = Command::new(&link);
    command.stderr(fs::File::create(&stderr).expect("there is room"));
    let (mut server, stream) = ServerProcess::launch(command, address, &flags.map(str::to_owned));
    let mut client = Client::new(stream);
    client.expect(&put(0, 0, "kept"), "INSERTED 1");
    let first = id_of(&place);

    // What cannot start, does not: nothing changes.
    let other = scratch.0.join("other");
    // Another process would not have the sockets.
    let parent = scratch.0.join("script").display().to_string();
    script(Path::new(&parent), &format!("{} \"$@\"\nexit $?\n", program()));
    let wrong = [
        ("/bin/false", "max-job-size = 100\n"),
        ("/nowhere", ""),
        (&parent, "max-job-size = 100\n"),
        (program(), "max-job-size = \"x\"\n"),
    ];
    for (number, (program, configuration)) in wrong.into_iter().enumerate() {
        symlink(program, &other).and_then(|()| fs::rename(&other, &link)).expect("there is room");
        fs::write(&config, configuration).expect("there is room");
        server.signal(Signal::SIGUSR2);
        let said = lines_of(&stderr, number + 1);
        assert!(said.last().is_some_and(|last| last.contains(" WARN no restart: ")), "{program}: {said:?}");
        assert_eq!(client.ask("peek 1\r\n").0, "FOUND 1 4", "{program}");
        assert_eq!(id_of(&place), first, "{program}");
    }

    // A good one does, with what the file says by then, and keeps all sockets.
    fs::write(&config, "max-job-size = 4\n").expect("there is room");
    restart(&server, &place);
    let mut stream = place.connect();
    assert_eq!(ask(&mut stream, &put(0, 0, "large")).as_deref(), Some("JOB_TOO_BIG"));
    assert_eq!(ask(&mut stream, "peek 1\r\n").as_deref(), Some("FOUND 1 4"));
    let mut monitor = UnixStream::connect(scratch.0.join("http")).expect("it listens");
    monitor.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").expect("it is open");
    let mut health = String::new();
    monitor.read_to_string(&mut health).expect("it ends");
    assert!(health.ends_with("ok\n"), "{health}");

    // Twice at once is once or twice, and told to stop it stops.
    server.signal(Signal::SIGUSR2);
    restart(&server, &place);
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn a_configuration_without_what_there_is_does_not_take_over() {
    let scratch = Scratch::new("changed");
    let path = |name: &str| scratch.0.join(name).display().to_string();
    let (config, stderr) = (path("config.toml"), path("said"));
    for name in ["log", "other", "socket"] {
        fs::create_dir(path(name)).expect("there is room");
    }
    let log = format!("log-dir = {:?}\n", path("log"));
    fs::write(&config, &log).expect("there is room");
    let address = Address::fresh(Transport::Tcp);
    let place = Place::of(&address);
    let mut command = Command::new(program());
    command.stderr(fs::File::create(&stderr).expect("there is room"));
    let (mut server, stream) =
        ServerProcess::launch(command, address, &["--config".to_owned(), config.clone()]);
    let mut client = Client::new(stream);
    client.expect(&put(0, 0, "kept"), "INSERTED 1");
    let first = id_of(&place);

    let changes = [
        (String::new(), "-b is not the directory whose jobs the server has"),
        (format!("log-dir = {:?}\n", path("other")), "-b is not the directory"),
        (format!("log-dir = {:?}\n", path("missing")), "there is no such directory"),
        (format!("{log}http = \"unix:{}\"\n", path("socket/http")), "--http was not there at the start"),
        (format!("{log}log-file-size = 65536\n"), "-s is less than the 10485760 bytes of now"),
        (format!("{log}log-file-size = {}\n", 1_u64 << 40), "-s: there is no space for a file of that size"),
        (format!("{log}user = \"no such user\"\n"), "-u no such user: there is no such user"),
        (format!("{log}max-job-size = \"x\"\n"), "must be a number"),
    ];
    let changes_count = changes.len();
    for (number, (text, why)) in changes.into_iter().enumerate() {
        fs::write(&config, &text).expect("there is room");
        server.signal(Signal::SIGUSR2);
        let said = lines_of(Path::new(&stderr), number + 1);
        let last = said.last().expect("there is one");
        assert!(
            said.len() == number + 1 && last.contains(" WARN no restart: ") && last.contains(why),
            "{said:?}"
        );
        assert_eq!(client.ask("peek 1\r\n").0, "FOUND 1 4", "{text}");
        assert_eq!(id_of(&place), first, "{text}");
    }
    fs::write(&config, format!("{log}max-job-size = 4\n")).expect("there is room");
    let binlog = path("log/binlog.1");
    fs::write(&binlog, "").expect("there is room");
    server.signal(Signal::SIGUSR2);
    let said = lines_of(Path::new(&stderr), changes_count + 1);
    assert!(said.last().is_some_and(|last| last.contains("are in one directory")), "{said:?}");
    assert_eq!(id_of(&place), first);
    fs::remove_file(&binlog).expect("it is there");
    restart(&server, &place);
    let mut stream = place.connect();
    assert_eq!(ask(&mut stream, &put(0, 0, "large")).as_deref(), Some("JOB_TOO_BIG"));
    assert_eq!(ask(&mut stream, "peek 1\r\n").as_deref(), Some("FOUND 1 4"));
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn connections_that_have_all_descriptors_do_not_keep_it_from_a_restart() {
    for &io in Driver::ALL.iter().filter(|&&io| driver::is_allowed(io, "restart without descriptors")) {
        let scratch = Scratch::new("descriptors");
        let (link, slow) = (scratch.0.join("server"), scratch.0.join("script"));
        let (asked, log) = (scratch.0.join("log/asked"), scratch.0.join("log"));
        fs::create_dir(&log).expect("there is room");
        // Asked whether it could take over, it thinks until connections have come.
        let lines = format!(
            "case \"$*\" in *--check-config*) : > {0}; while [ -e {0} ]; do sleep 0.01; done; exit 0;; \
             esac\nexec {1} \"$@\"\n",
            asked.display(),
            program()
        );
        script(&slow, &lines);
        symlink(program(), &link).expect("there is room");
        let address = Address::fresh(Transport::Tcp);
        let place = Place::of(&address);
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""]).arg(&link);
        let flags = [driver::flags(io), vec!["-b".to_owned(), log.display().to_string()]].concat();
        let (mut server, stream) = ServerProcess::launch(limited, address, &flags);
        let first = id_of(&place);
        fs::rename(&slow, &link).expect("there is room");
        server.signal(Signal::SIGUSR2);
        let begun = Instant::now();
        while !asked.exists() {
            assert!(begun.elapsed() < REPLY_PATIENCE, "it is asked");
            thread::sleep(Duration::from_millis(2));
        }
        let mut crowd: Vec<_> = (0..100).map(|_| place.connect()).collect();
        assert_eq!(ask(&mut crowd[0], "list-tube-used\r\n").as_deref(), Some("USING default"), "{io:?}");
        fs::remove_file(&asked).expect("it is there");
        drop((stream, crowd));
        while id_of(&place) == first {
            assert!(begun.elapsed() < REPLY_PATIENCE, "{io:?}: another program is there");
        }
        server.signal(Signal::SIGTERM);
        assert_eq!(server.wait(), Some(0), "{io:?}");
    }
}

/// More often than the kernel lets a process give up rights, and where whoever started it hears of no child.
#[test]
fn it_can_be_done_again_and_again() {
    let scratch = Scratch::new("again");
    let (stderr, log) = (scratch.0.join("said"), scratch.0.join("log"));
    fs::create_dir(&log).expect("there is room");
    let address = Address::fresh(Transport::Tcp);
    let place = Place::of(&address);
    let mut deaf = Command::new("sh");
    deaf.args(["-c", "trap '' CHLD; exec \"$0\" \"$@\"", program()]);
    deaf.stderr(fs::File::create(&stderr).expect("there is room"));
    let (mut server, stream) =
        ServerProcess::launch(deaf, address, &["-b".to_owned(), log.display().to_string()]);
    drop(stream);
    (0..18).for_each(|_| restart(&server, &place));
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait(), Some(0));
    assert_eq!(fs::read_to_string(&stderr).expect("it was made"), "");
}

#[test]
fn nobody_else_gets_the_log_meanwhile() {
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
                    let output = Command::new(program()).args(["log", "check", &dir]).output();
                    let output = output.expect("it can be started");
                    let said = String::from_utf8_lossy(&output.stderr).into_owned();
                    assert!(said.contains("a server uses this log"), "{output:?}");
                    tries += 1;
                }
                tries
            }
        });
        (0..5).for_each(|_| restart(&server, &place));
        stop.store(true, Ordering::Relaxed);
        assert!(reader.join().expect("it never reads the log") > 0);
        server.signal(Signal::SIGTERM);
        assert_eq!(server.wait(), Some(0), "{io:?}");
    }
}

#[test]
fn who_is_connected_hears_of_all_that_is_stored() {
    const ROUNDS: usize = 8;
    for &io in Driver::ALL.iter().filter(|&&io| driver::is_allowed(io, "last answers")) {
        // Also where there is no room for another connection.
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
                let line = ask(&mut stream, "stats-tube default\r\n").expect("it runs");
                let bytes: usize = line.strip_prefix("OK ").expect("it is data").parse().expect("a number");
                let mut yaml = vec![0; bytes + 2];
                stream.read_exact(&mut yaml).expect("it is sent");
                let ready =
                    field(std::str::from_utf8(&yaml).expect("it is text"), "current-jobs-ready").to_owned();
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
fn the_file_of_another_socket_stays() {
    let scratch = Scratch::new("file");
    let (path, log) = (scratch.0.join("socket"), scratch.0.join("log"));
    fs::create_dir(&log).expect("there is room");
    let address = Address::Unix(path.clone());
    let place = Place::of(&address);
    let (server, client) = started(Path::new(program()), address, &["-b", &log.display().to_string()]);
    drop(client);
    restart(&server, &place);
    let mut stream = place.connect();
    fs::remove_file(&path).expect("it is there");
    fs::write(&path, "of somebody else").expect("there is room");
    server.signal(Signal::SIGUSR2);
    assert_eq!(stream.read_line(&mut String::new()).expect("it is closed"), 0);
    let mut server = server;
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait(), Some(0));
    assert_eq!(fs::read_to_string(&path).expect("it is there"), "of somebody else");
}

#[test]
fn without_a_log_it_stays() {
    let scratch = Scratch::new("stays");
    let stderr = scratch.0.join("said");
    let address = Address::fresh(Transport::Tcp);
    let place = Place::of(&address);
    let mut command = Command::new(program());
    command.stderr(fs::File::create(&stderr).expect("there is room"));
    let (mut server, stream) = ServerProcess::launch(command, address, &[]);
    let mut client = Client::new(stream);
    client.expect(&put(0, 0, "kept"), "INSERTED 1");
    let first = id_of(&place);
    server.signal(Signal::SIGUSR2);
    // The line shows that the signal has been handled.
    let said = lines_of(&stderr, 1);
    assert!(said[0].contains(" WARN no restart: without a log (-b)"), "{said:?}");
    assert_eq!(client.ask("peek 1\r\n").0, "FOUND 1 4");
    assert_eq!(id_of(&place), first);
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn a_server_and_what_it_starts_reach_no_files_but_their_own() {
    if !has_landlock("files out of reach") {
        return;
    }
    for &io in Driver::ALL.iter().filter(|&&io| driver::is_allowed(io, "confined")) {
        let (scratch, other) = (Scratch::new("confined"), Scratch::new("confined-other"));
        let (link, log) = (scratch.0.join("server"), scratch.0.join("log"));
        fs::create_dir(&log).expect("there is room");
        symlink(program(), &link).expect("there is room");
        fs::write(other.0.join("secret"), "secret").expect("there is room");
        let flags = driver::flags(io);
        let mut all: Vec<&str> = flags.iter().map(String::as_str).collect();
        let dir = log.display().to_string();
        all.extend(["-b", &dir]);
        let (server, mut client) = started(&link, Address::fresh(Transport::Tcp), &all);

        // In the place of the program that is to take over, one that looks around.
        let curious = scratch.0.join("script");
        let lines = format!(
            "cd {dir}\necho x > inside\ncat {0}/secret > read\necho x > {0}/outside\n\
             kill -0 {1} && echo x > signalled\nmv inside done\nexit 1\n",
            other.0.display(),
            std::process::id()
        );
        script(&curious, &lines);
        fs::rename(&curious, &link).expect("there is room");
        server.signal(Signal::SIGUSR2);
        let asked = Instant::now();
        while !log.join("done").exists() {
            assert!(asked.elapsed() < REPLY_PATIENCE, "it was started, and can write where the log is");
            thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(fs::read(log.join("read")).expect("it was made"), b"", "what is elsewhere cannot be read");
        assert!(!other.0.join("outside").exists() && !log.join("signalled").exists());
        client.expect(&put(0, 0, "goes on"), "INSERTED 1");
    }
}
