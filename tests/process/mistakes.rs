//! Typical mistakes in the configuration. Each gives one line that says what is wrong, where it was given and what to do. The
//! exit code is 2, nothing listens, and nothing is written.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use beanring::flags::{FLAGS, Kind, Sources, VARIABLE_PREFIX, variable};
use beanring_testkit::logged::LoggedServer;
use beanring_testkit::process::{Address, Transport, program};
use beanring_testkit::scratch::Scratch;

/// Makes an empty directory `wal`, and one with another file.
fn place(name: &str) -> Scratch {
    let scratch = Scratch::new(name);
    scratch.dir("wal");
    fs::write(scratch.dir("photos").join("photo.jpg"), "precious").expect("a file is written");
    scratch
}

/// Every file and directory below, with its contents.
fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(contents(&path));
        }
        found.push((path.clone(), fs::read(&path).unwrap_or_default()));
    }
    found.sort();
    found
}

/// The program without variables of this test run.
fn beanring() -> Command {
    without_variables(Command::new(program()))
}

fn without_variables(mut command: Command) -> Command {
    command.stdin(Stdio::null());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("BEANRING_")) {
        command.env_remove(name);
    }
    command
}

/// A case of `mistakes.txt`.
#[derive(Default, Debug)]
struct Mistake {
    /// The flags that precede those of the case.
    before: &'static str,
    flags: &'static str,
    variables: &'static str,
    file: Vec<&'static str>,
    message: Vec<&'static str>,
}

fn mistakes() -> Vec<Mistake> {
    let mut found: Vec<Mistake> = Vec::new();
    let mut before = "";
    for line in include_str!("mistakes.txt").lines() {
        let (kind, text) = (&line[..1], line.get(2..).unwrap_or(""));
        if "$+|".contains(kind) && found.last().is_none_or(|last| !last.message.is_empty()) {
            found.push(Mistake { before, ..Mistake::default() });
        }
        match (kind, found.last_mut()) {
            ("#", _) => {}
            ("=", _) => before = text,
            ("$", Some(last)) => last.flags = text,
            ("+", Some(last)) => last.variables = text,
            ("|", Some(last)) => last.file.push(text),
            ("!", Some(last)) => last.message.push(text),
            _ => panic!("{line:?} begins with none of the signs"),
        }
    }
    found
}

#[test]
fn each_typical_mistake_is_one_line_and_starts_nothing() {
    // An address of this test alone.
    let Address::Tcp(address) = Address::fresh(Transport::Tcp) else { unreachable!("it is a TCP address") };
    let (host, port, long) = (address.ip().to_string(), address.port().to_string(), "x".repeat(108));
    let place = place("mistakes");
    for mistake in mistakes() {
        fs::write(place.join("beanring.toml"), mistake.file.join("\n").replace("\\0", "\0"))
            .expect("a file is written");
        let before = contents(&place.0);
        for check in ["", "--check-config"] {
            let words = [mistake.before, check, mistake.flags].join(" ");
            let words = words.replace("HOST", &host).replace("PORT", &port).replace("LONG", &long);
            let words = words.split_whitespace().map(|word| if word == "''" { "" } else { word });
            let variables = mistake.variables.split_whitespace().filter_map(|pair| pair.split_once('='));
            let output = beanring().current_dir(&place.0).args(words).envs(variables).output();
            let output = output.expect("the program starts");
            let expected = format!("beanring: {}\n", mistake.message.join(" "));
            assert_eq!(String::from_utf8_lossy(&output.stderr), expected, "{check} {mistake:?}");
            assert_eq!(output.status.code(), Some(2), "{check} {mistake:?}");
            assert!(output.stdout.is_empty(), "{check} {mistake:?}");
        }
        assert_eq!(contents(&place.0), before, "{mistake:?}");
        assert!(TcpStream::connect(address).is_err(), "nothing listens: {mistake:?}");
    }
}

#[cfg(feature = "replicate")]
#[test]
fn a_database_of_another_kind() {
    let expected = "beanring: --replicate: the URL must begin with postgres://\n";
    for check in [&[][..], &["--check-config"]] {
        let output = beanring().args(["-p", "0", "--replicate", "db.example/queue"]).args(check).output();
        let output = output.expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*said), (Some(2), expected), "{check:?}");
    }
}

#[test]
fn a_refusal_of_the_system_has_another_exit_code() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = taken.local_addr().expect("it is bound").port().to_string();
    let no_host = "no such host; correct the name, or check DNS";
    for (arguments, source, address, message) in [
        (
            &["-l", "127.0.0.1", "-p", &port][..],
            "-l/--listen and -p/--port",
            format!("127.0.0.1:{port}"),
            "the address is in use; stop the other server, or choose another port",
        ),
        (
            &["-l", "no-such-host.invalid", "-p", "0"],
            "-l/--listen and -p/--port",
            "no-such-host.invalid:0".to_owned(),
            no_host,
        ),
        (&["-l", "no-such-host.invalid"], "-l/--listen", "no-such-host.invalid:11300".to_owned(), no_host),
        (
            &["-l", "192.0.2.1"],
            "-l/--listen",
            "192.0.2.1:11300".to_owned(),
            "this machine does not have the address; use one of its own (ip addr), or 0.0.0.0 for all of IPv4",
        ),
    ] {
        let output = beanring().args(arguments).output().expect("the program starts");
        let expected = format!("beanring: {source}: cannot listen on {address}: {message}\n");
        assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{output:?}");
    }
}

/// The first port that needs no privilege.
fn first_port_of_users() -> u16 {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").expect("Linux has it");
    text.trim().parse().expect("a port")
}

/// A permission that is missing may come, so the exit code is 1.
#[test]
fn a_file_of_another_user_names_the_user() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: a file of another user, because only root can become one");
        return;
    }
    let place = place("mistakes-rights");
    // Another user may not reach the directory of the program.
    let copied = place.join("server");
    assert!(Command::new("cp").arg(program()).arg(&copied).status().expect("cp starts").success());
    for path in [place.dir("private"), place.join("wal")] {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("root may do so");
    }
    let nobody = nix::unistd::User::from_name("nobody").expect("the users are known").expect("nobody exists");
    for (as_nobody, arguments, message) in [
        (
            false,
            "-u nobody -b wal",
            "-b/--wal-dir \"wal\": permission denied: user nobody must be able to read and write wal; correct its owner or mode",
        ),
        (
            true,
            "--config private/a.toml",
            "--config \"private/a.toml\": permission denied: user nobody must be able to read it",
        ),
        (
            true,
            "-p 1",
            "-l/--listen and -p/--port: cannot listen on 127.0.0.1:1: permission denied; ports below 1024 need root or \
             CAP_NET_BIND_SERVICE: choose another port, or start as root with -u",
        ),
        (
            true,
            "-l unix:private/socket",
            "-l/--listen: cannot listen on unix:private/socket: permission denied; user nobody must be able to write to the \
             directory of the socket: correct its owner or mode, or choose another path",
        ),
        (
            true,
            "wal check wal",
            "wal/lock: permission denied; run the command as root, or as the owner of the job log",
        ),
    ] {
        let mut command = without_variables(Command::new(&copied));
        command.current_dir(&place.0).args(["-l", "127.0.0.1", "-p", "0"]).args(arguments.split(' '));
        if as_nobody {
            command.uid(nobody.uid.as_raw()).gid(nobody.gid.as_raw());
        }
        if arguments == "-p 1" && first_port_of_users() < 1024 {
            println!("skipped: a port below 1024, because any user may bind it here");
            continue;
        }
        let output = command.output().expect("the program starts");
        assert_eq!(String::from_utf8_lossy(&output.stderr), format!("beanring: {message}\n"));
        assert_eq!(output.status.code(), Some(1), "{arguments}");
    }
}

#[test]
fn help_and_version_as_commands() {
    let flags = "--max-memory|--max-connections|--listen|--port|--wal-dir|--sync-interval|--no-sync|--wal-segment-size";
    for (words, parts) in [
        ("help", "Job log:\n"),
        ("help wal", "salvage"),
        ("help wal check", "Directory of the job log"),
        ("-h", flags),
        ("--help", flags),
        ("version", "beanring 0.1.0\n"),
        ("--version", "beanring 0.1.0\n"),
        ("-v", "beanring 0.1.0\n"),
    ] {
        let output = beanring().args(words.split(' ')).output().expect("the program starts");
        let said = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(output.status.success() && output.stderr.is_empty(), "{words}");
        assert!(parts.split('|').all(|part| said.contains(part)), "{words}: {said}");
        assert!(!said.contains('\x1b'), "{words}: {said}");
    }
}

/// A reader such as `head` may close the output. A full disk is an error.
#[test]
fn an_output_that_is_closed_or_full() {
    let scratch = Scratch::new("output");
    for words in [
        "--help",
        "help",
        "help wal",
        "wal check --help",
        "version",
        "-v",
        "-l 127.0.0.1 -p 0 --max-memory 16m --check-config",
    ] {
        let run = |stdout: Stdio| {
            let mut command = beanring();
            command.args(words.split(' ')).current_dir(&scratch.0).stdout(stdout);
            let output = command.output().expect("the program starts");
            (output.status.code(), String::from_utf8(output.stderr).expect("UTF-8"))
        };
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        assert_eq!(run(writer.into()), (Some(0), String::new()), "{words}");
        let full = fs::File::create("/dev/full").expect("Linux has it");
        let error = "beanring: cannot write the output: No space left on device\n";
        assert_eq!(run(full.into()), (Some(1), error.to_owned()), "{words}");
    }
}

/// A user's start line of beanstalkd works with the name of the program alone changed.
#[test]
fn the_start_line_of_beanstalkd() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: the start line of beanstalkd, because -u needs root");
        return;
    }
    let scratch = Scratch::new("start-line");
    let dir = scratch.dir("wal");
    let nobody = nix::unistd::User::from_name("nobody").expect("the users are known").expect("nobody exists");
    for path in [&scratch.0, &dir] {
        nix::unistd::chown(path, Some(nobody.uid), Some(nobody.gid)).expect("root may do so");
    }
    let mut command = beanring();
    command.args(["-l", "0.0.0.0", "-p", "0", "-b"]).arg(&dir);
    command.args(["-f", "50", "-z", "65535", "-u", "nobody", "-V"]);
    // What Kubernetes and Docker set for a service of this name does not count.
    command.env("BEANRING_PORT", "tcp://10.0.0.1:1").env("BEANRING_SERVICE_HOST", "10.0.0.1");
    let server = LoggedServer::spawn(command, scratch).listening();
    server.client().expect("list-tube-used\r\n", "USING default");
    assert_eq!(server.status("Uid"), [nobody.uid.to_string().as_str(); 4].join("\t"));
}

/// The chart takes each flag that its templates do not set, and refuses any other word.
#[test]
fn the_chart_knows_every_flag() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/helm/beanring/values.schema.json");
    let schema = fs::read_to_string(path).expect("the schema exists");
    let schema: serde_json::Value = serde_json::from_str(&schema).expect("it is JSON");
    let words = |path: &str| -> Vec<String> {
        let all = schema.pointer(path).and_then(|list| list.as_array()).expect("a list");
        all.iter().map(|word| word.as_str().expect("a word").to_owned()).collect()
    };
    let taken = words("/properties/flags/propertyNames/enum");
    let set = words("/properties/extraEnv/items/properties/name/not/enum");
    let known: Vec<_> = FLAGS.iter().filter(|flag| flag.sources >= Sources::Variable).collect();
    for flag in &known {
        let is_taken = taken.iter().any(|name| name == flag.name);
        assert_ne!(is_taken, set.contains(&variable(flag.name)), "flags or the templates have {}", flag.name);
    }
    if cfg!(all(feature = "replicate", feature = "tls")) {
        assert_eq!(taken.len() + set.len(), known.len(), "no word is left of a flag that is gone");
    }
}

/// `docs/CONFIGURATION.md` has a row for each flag, with its variable and its default.
#[test]
fn the_documentation_has_every_flag() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/CONFIGURATION.md");
    let mut text = fs::read_to_string(path).expect("the document exists");
    if !cfg!(feature = "replicate") {
        let begin = text.find("### Replication\n").expect("a section of the feature");
        let end = text.find("### Limits\n").expect("the next section");
        text.replace_range(begin..end, "");
    }
    for flag in FLAGS {
        let short = flag.short.map(|short| format!("`-{short}`, ")).unwrap_or_default();
        let value = match flag.kind {
            Kind::Value(name) | Kind::Choice(name, _) | Kind::List(name) => format!(" {name}"),
            Kind::Switch | Kind::Count => String::new(),
        };
        let begin = format!("| {short}`--{}{value}` | ", flag.name);
        let row = text.lines().find(|line| line.starts_with(&begin));
        let row = row.unwrap_or_else(|| panic!("no row begins with {begin}"));
        let name = variable(flag.name);
        let name = name.strip_prefix(VARIABLE_PREFIX).expect("every variable has it");
        let is_variable = flag.sources >= Sources::Variable;
        assert!(!is_variable || row.contains(&format!("| `{name}` |")), "{row}");
        if let Some((_, default)) = flag.help.split_once("[default: ") {
            assert!(row.contains(&format!("| `{}` |", default.trim_end_matches(']'))), "{row}");
        }
    }
    let rows = text.lines().filter(|line| line.starts_with("| `-") && line.matches(" | ").count() == 3);
    // Those of -h and -v have an empty column.
    assert_eq!(rows.count(), FLAGS.len(), "no row is left of a flag that is gone");
}
