//! Typical mistakes in the configuration. Each gives one line that says what is wrong, where it was given and what to do. The
//! exit code is 2, nothing listens, and nothing is written.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use beanring::flags::{FLAGS, Kind, Sources, VARIABLE_PREFIX, variable};
use beanring_testkit::process::{Address, Transport, program};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::unused_address;

/// The place where each command runs: an empty directory `wal`, one with another file, and a file of settings.
struct Place {
    dir: PathBuf,
}

impl Place {
    fn new(scratch: &Scratch) -> Self {
        let dir = scratch.0.clone();
        fs::create_dir(dir.join("wal")).expect("a directory is created");
        fs::create_dir(dir.join("photos")).expect("a directory is created");
        fs::write(dir.join("photos/photo.jpg"), "precious").expect("a file is written");
        Self { dir }
    }

    fn run(&self, words: &str, variables: &str) -> Output {
        let mut command = beanring();
        let words = words.split_whitespace().map(|word| if word == "''" { "" } else { word });
        command.current_dir(&self.dir).args(words);
        command.envs(variables.split_whitespace().filter_map(|pair| pair.split_once('=')));
        command.output().expect("the program starts")
    }

    /// Every file and directory with its contents.
    fn contents(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found = Vec::new();
        visit(&self.dir, &mut found);
        found.sort();
        found
    }
}

fn visit(dir: &Path, found: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            visit(&path, found);
        }
        let contents = fs::read(&path).unwrap_or_default();
        found.push((path, contents));
    }
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

/// Flags, with the message. `-p PORT` and `-b wal` precede each.
const MISTAKES: &[(&str, &str)] = &[
    ("--prot 1", "--prot: no such flag; did you mean --port?"),
    ("-q", "-q: no such flag; see beanring --help"),
    ("-p", "-p/--port: the value is missing"),
    ("servr", "servr: no such command; did you mean serve?"),
    ("serve --prot 1", "--prot: no such flag; did you mean --port?"),
    ("serve -p 70000", "-p/--port \"70000\": must be a number from 0 to 65535"),
    ("11300", "11300: no such command; see beanring --help"),
    ("wal chekc DIR", "chekc: no such command; did you mean check?"),
    ("wal", "beanring wal: name a command: backup, check, dump, export or salvage"),
    ("wal check", "DIR is missing; usage: beanring wal check DIR"),
    ("-p 70000", "-p/--port \"70000\": must be a number from 0 to 65535"),
    ("-z 1MB", "-z/--max-job-size \"1MB\": MB is not a unit here; write MiB or m for 1024^2 bytes"),
    ("-z big", "-z/--max-job-size \"big\": must be a size such as 65536, 64k, 10m or 2g, at most 1g"),
    (
        "-f 50ms",
        "-f/--sync-interval \"50ms\": must be a number of milliseconds from 0 to 4294967295, without a unit",
    ),
    ("-s 2t", "-s/--wal-segment-size \"2t\": must be a size such as 65536, 64k, 10m or 2g, at most 1024g"),
    (
        "-z 20m",
        "-z/--max-job-size \"20m\": such a job does not fit into a segment of the job log; set -s to 20488k or more, \
         or -z lower",
    ),
    ("--max-memory 1m", "--max-memory \"1m\": must be at least 16m, such as 512m or 2g, or 0 for no limit"),
    (
        "-l 127.0.0.1:11300",
        "-l/--listen \"127.0.0.1:11300\": must be an address without a port; set the port with -p 11300",
    ),
    ("-l tcp://a", "-l/--listen \"tcp://a\": must be an IP address, a host name or unix:PATH"),
    (
        "-l unix",
        "-l/--listen \"unix\": the path of the socket is missing; write unix:PATH, such as unix:/run/beanring/socket",
    ),
    ("-l /x.sock", "-l/--listen \"/x.sock\": a path needs unix: before it; write unix:/x.sock"),
    ("-l 10.0.0.256", "-l/--listen \"10.0.0.256\": must be an IP address, a host name or unix:PATH"),
    ("--http 0 --http-token missing", "--http-token \"missing\": there is no such file; correct the path"),
    ("--http 0 --http-token photos", "--http-token \"photos\": it is a directory; name a file"),
    ("--http 0 --http-token ''", "--http-token \"\": the value is empty; name a file, or remove the setting"),
    (
        "--http 0 --http-token photos/photo.jpg",
        "--http-token \"photos/photo.jpg\": the file must contain a token of 16 to 256 visible ASCII characters, such as \
         the output of openssl rand -hex 32",
    ),
    ("-verbose", "-verbose: a long flag begins with two dashes; did you mean --verbose?"),
    ("serve -version", "-version: a long flag begins with two dashes; did you mean --version?"),
    ("-Vv", "-Vv: -v prints the version and stands alone; see beanring --help"),
    (
        "healthcheck -b jobs",
        "-b/--wal-dir: this is a flag of the server; write it before the command: beanring -b ... healthcheck",
    ),
    (
        "healthcheck --log-dir=jobs",
        "-b/--wal-dir: this is a flag of the server; write it before the command: beanring --log-dir ... healthcheck",
    ),
    ("wal check a b", "b: unexpected argument; see beanring wal check --help"),
    ("--http 99999", "--http \"99999\": the port must be a number from 0 to 65535"),
    ("--http ::9999999", "--http \"::9999999\": must be PORT, HOST:PORT, [IPV6]:PORT or unix:PATH"),
    ("--http 127.0.0.1", "--http \"127.0.0.1\": the port is missing; write 127.0.0.1:PORT"),
    ("--http ::1", "--http \"::1\": must be PORT, HOST:PORT, [IPV6]:PORT or unix:PATH"),
    ("--io fast", "--io \"fast\": must be auto, uring, epoll or tokio-uring"),
    ("--log-level loud", "--log-level \"loud\": must be error, warn, info, debug or trace"),
    (
        "--metrics-prefix my-queue",
        "--metrics-prefix \"my-queue\": must consist of letters, digits and _, and not begin with a digit",
    ),
    ("--log-dir wal", "-b/--wal-dir and --log-dir are the same setting; remove --log-dir, its old name"),
    ("-b missing", "-b/--wal-dir \"missing\": no such directory; create it first"),
    ("-b beanring.toml", "-b/--wal-dir \"beanring.toml\": this is a file; name a directory"),
    ("-b ''", "-b/--wal-dir \"\": the value is empty; name a directory, or remove the setting"),
    ("-u ''", "-u/--user \"\": the value is empty; name a user, or remove the setting"),
    ("--config ''", "--config \"\": the value is empty; name a file, or remove the setting"),
    ("-l ''", "-l/--listen \"\": must be an IP address, a host name or unix:PATH"),
    ("--no-sync=yes", "-F/--no-sync \"yes\": this flag takes no value; remove it"),
    ("healthcheck --timeout x", "--timeout \"x\": must be a number from 1 to 3600"),
    (
        "-l unix:missing/socket",
        "-l/--listen: cannot listen on unix:missing/socket: the directory of the socket is missing; create it first",
    ),
    (
        "--http unix:beanring.toml",
        "--http: cannot listen on unix:beanring.toml: the path is a file and not a socket; remove the file, or choose \
         another path",
    ),
    (
        "-l unix:socket,mode=0888",
        "-l/--listen \"unix:socket,mode=0888\": mode=0888 must have octal digits from 0 to 0777, such as mode=0660",
    ),
    (
        "--http unix:socket,user=web",
        "--http \"unix:socket,user=web\": user=web is no option of a UNIX socket; write unix:PATH,mode=0660,group=NAME",
    ),
    (
        "-l unix:socket,group=nosuchgroup",
        "-l/--listen: cannot listen on unix:socket: there is no group nosuchgroup; create it, or correct group=",
    ),
    (
        "tubes -a unix:socket,mode=0660",
        "-a/--addr \"unix:socket,mode=0660\": mode= and group= are for the address that a server listens on; leave \
         them out here",
    ),
    ("wal check beanring.toml", "beanring.toml is a file; name the directory of the job log"),
    ("wal check missing", "missing: no such directory; correct the path"),
    ("wal dump photos", "photos: the directory contains no job log"),
    (
        "-b photos",
        "-b/--wal-dir \"photos\": the directory contains \"photo.jpg\" and no job log; choose an empty directory",
    ),
    (
        "-u 65534567",
        "-u/--user \"65534567\": must be the name of a user, not a number; getent passwd 65534567 shows the name",
    ),
    (
        "-u queue:queue",
        "-u/--user \"queue:queue\": must be the name of a user, without a group; the server takes the groups of that user",
    ),
    ("-u nosuchuser", "-u/--user \"nosuchuser\": no such user; create it, or correct the name"),
    ("--config missing.toml", "--config \"missing.toml\": there is no such file; correct the path"),
];

/// Flags, variables and lines of `beanring.toml`, with the message. `-p PORT` and `-b wal` precede each.
const MISTAKES_ELSEWHERE: &[(&str, &str, &str, &str)] = &[
    ("", "BEANRING_LISTN=::", "", "BEANRING_LISTN: no such variable; did you mean BEANRING_LISTEN?"),
    ("", "BEANRING_HTTP=host", "", "BEANRING_HTTP=\"host\": the port is missing; write host:PORT"),
    (
        "",
        "BEANRING_CONFIG=missing.toml",
        "",
        "BEANRING_CONFIG=\"missing.toml\": there is no such file; correct the path",
    ),
    ("", "BEANRING_CONFIG=wal", "", "BEANRING_CONFIG=\"wal\": it is a directory; name a file"),
    (
        "",
        "BEANRING_USER=nosuchuser",
        "",
        "BEANRING_USER=\"nosuchuser\": no such user; create it, or correct the name",
    ),
    (
        "",
        "BEANRING_HTTP=unix:missing/socket",
        "",
        "BEANRING_HTTP: cannot listen on unix:missing/socket: the directory of the socket is missing; create it first",
    ),
    ("", "BEANRING_VERBOSE=yes", "", "BEANRING_VERBOSE=\"yes\": must be a number from 0 to 2"),
    ("", "BEANRING_VERBOSE=7", "", "BEANRING_VERBOSE=\"7\": must be a number from 0 to 2"),
    (
        "",
        "BEANRING_NO_SYNC=yes BEANRING_SYNC_INTERVAL=50",
        "",
        "BEANRING_SYNC_INTERVAL and BEANRING_NO_SYNC set the same thing; remove one of them",
    ),
    (
        "",
        "BEANRING_CHECK_CONFIG=1",
        "",
        "BEANRING_CHECK_CONFIG: this is set only on the command line (--check-config)",
    ),
    (
        "--config beanring.toml",
        "",
        "check-config = true",
        "beanring.toml:1: check-config: this is set only on the command line (--check-config)",
    ),
    (
        "--config beanring.toml",
        "",
        "config = \"a\"",
        "beanring.toml:1: config: this is set only on the command line (--config), or by BEANRING_CONFIG",
    ),
    (
        "--config beanring.toml",
        "",
        "max-tubes = -1",
        "beanring.toml:1: max-tubes = -1: must be a number from 0 to 4294967295",
    ),
    (
        "--config beanring.toml",
        "",
        "max-tubes = \"-1\"",
        "beanring.toml:1: max-tubes = \"-1\": must be a number from 0 to 4294967295",
    ),
    ("--config beanring.toml", "", "port = x", "beanring.toml:1:8: port = x: must be a number"),
    (
        "--config beanring.toml",
        "",
        "listen = [\"::\"]",
        "beanring.toml:1:10: listen = [\"::\"]: must be one address, as a text in quotes",
    ),
    ("", "BEANRING_HTTP_HOST=a,,b", "", "BEANRING_HTTP_HOST=\"a,,b\": a name is empty; remove the comma"),
    ("", "BEANRING_NO_SYNC=maybe", "", "BEANRING_NO_SYNC=\"maybe\": must be yes or no"),
    (
        "",
        "BEANRING_WAL_SEGMENT_SIZE=1m BEANRING_LOG_FILE_SIZE=1m",
        "",
        "BEANRING_WAL_SEGMENT_SIZE and BEANRING_LOG_FILE_SIZE are the same setting; remove BEANRING_LOG_FILE_SIZE, its \
         old name",
    ),
    (
        "--config beanring.toml",
        "",
        "\nhttp = \"host\"",
        "beanring.toml:2: http = \"host\": the port is missing; write host:PORT",
    ),
    (
        "--config beanring.toml",
        "",
        "max-jobsize = 7",
        "beanring.toml:1: max-jobsize: no such key; did you mean max-job-size?",
    ),
    (
        "--config beanring.toml",
        "",
        "port = 7\nlog-dir = \"a\"\nwal-dir = \"b\"",
        "beanring.toml:3: wal-dir and log-dir of line 2 are the same setting; remove log-dir, its old name",
    ),
    (
        "--config beanring.toml",
        "",
        "[server]\nport = 7",
        "beanring.toml:1:2: [server]: no such table; put the keys at the top of the file",
    ),
    (
        "--config beanring.toml",
        "",
        "listen = \"::",
        "beanring.toml:1:13: listen = \"::: the closing quote is missing",
    ),
    (
        "--config beanring.toml",
        "",
        "p\0o\0r\0t\0",
        "--config \"beanring.toml\": the file has NUL bytes; save it as UTF-8 text",
    ),
    ("--config beanring.toml", "", "no-sync = 1", "beanring.toml:1:11: no-sync = 1: must be true or false"),
    (
        "--config beanring.toml",
        "",
        "max-memory = 2g",
        "beanring.toml:1:14: max-memory = 2g: a text needs quotes: max-memory = \"2g\"",
    ),
    (
        "--config beanring.toml",
        "",
        "io = \"epoll\"\nuser = \"nosuchuser\"",
        "beanring.toml:2: user = \"nosuchuser\": no such user; create it, or correct the name",
    ),
    (
        "",
        "BEANRING_CONFIG=beanring.toml",
        "io = \"fast\"",
        "beanring.toml:1: io = \"fast\": must be auto, uring, epoll or tokio-uring",
    ),
];

/// Runs the program with each of these flags. Asserts that it prints this one line and changes nothing.
fn check_mistake(lines: &[&str], variables: &str, file: &str, message: &str) {
    let scratch = Scratch::new("mistakes");
    let place = Place::new(&scratch);
    fs::write(place.dir.join("beanring.toml"), file).expect("a file is written");
    let before = place.contents();
    for words in lines {
        let output = place.run(words, variables);
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(said, format!("beanring: {message}\n"), "{words} {variables} {file:?}");
        assert_eq!(output.status.code(), Some(2), "{words} {variables} {file:?}");
        assert!(output.stdout.is_empty(), "{words}");
    }
    assert_eq!(place.contents(), before, "{lines:?} {variables} {file:?}");
}

#[test]
fn each_typical_mistake_is_one_line_and_starts_nothing() {
    // An address of this test alone.
    let Address::Tcp(address) = Address::fresh(Transport::Tcp) else { unreachable!("it is a TCP address") };
    let (host, port) = (address.ip(), address.port());
    let of_flags = MISTAKES.iter().map(|&(words, message)| (words, "", "", message));
    for (words, variables, file, message) in of_flags.chain(MISTAKES_ELSEWHERE.iter().copied()) {
        let words = format!("-l {host} -p {port} -b wal {words}");
        check_mistake(&[&words], variables, file, message);
        assert!(TcpStream::connect(address).is_err(), "nothing listens: {words}");
    }
}

/// Variables and lines of `beanring.toml`, with the message. `-p PORT` precedes each, and nothing else.
const MISTAKES_WITHOUT_FLAGS: &[(&str, &str, &str)] = &[
    ("BEANRING_WAL_DIR=missing", "", "BEANRING_WAL_DIR=\"missing\": no such directory; create it first"),
    (
        "BEANRING_CONFIG=beanring.toml",
        "\nwal-dir = \"missing\"",
        "beanring.toml:2: wal-dir = \"missing\": no such directory; create it first",
    ),
    (
        "BEANRING_CONFIG=beanring.toml",
        "listen = \"unix:missing/socket\"",
        "beanring.toml:1: listen: cannot listen on unix:missing/socket: the directory of the socket is missing; \
         create it first",
    ),
    (
        "BEANRING_CONFIG=beanring.toml",
        "http = \"unix:socket,group=nosuchgroup\"",
        "beanring.toml:1: http: cannot listen on unix:socket: there is no group nosuchgroup; create it, or correct group=",
    ),
    (
        "BEANRING_LISTEN=unix:socket,mode=rw",
        "",
        "BEANRING_LISTEN=\"unix:socket,mode=rw\": mode=rw must have octal digits from 0 to 0777, such as mode=0660",
    ),
    (
        "BEANRING_LISTEN=unix:beanring.toml",
        "",
        "BEANRING_LISTEN: cannot listen on unix:beanring.toml: the path is a file and not a socket; remove the file, or choose \
         another path",
    ),
];

#[test]
fn a_setting_that_the_system_refuses_names_its_source() {
    for (variables, file, message) in MISTAKES_WITHOUT_FLAGS {
        check_mistake(&["-p 0", "-p 0 --check-config"], variables, file, message);
    }
}

#[test]
fn a_refusal_of_the_system_has_another_exit_code() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = taken.local_addr().expect("it is bound").port().to_string();
    for (arguments, message) in [
        (
            ["-l", "127.0.0.1", "-p", &port],
            format!(
                "-l/--listen and -p/--port: cannot listen on 127.0.0.1:{port}: the address is in use; stop the other \
                 server, or choose another port"
            ),
        ),
        (
            ["-l", "no-such-host.invalid", "-p", "0"],
            "-l/--listen and -p/--port: cannot listen on no-such-host.invalid:0: no such host; correct the name, or check \
             DNS"
                .to_owned(),
        ),
    ] {
        let output = beanring().args(arguments).output().expect("the program starts");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), format!("beanring: {message}\n"));
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
    let scratch = Scratch::new("mistakes-rights");
    let place = Place::new(&scratch);
    // Another user may not reach the directory of the program.
    let copied = place.dir.join("server");
    assert!(Command::new("cp").arg(program()).arg(&copied).status().expect("cp starts").success());
    let private = place.dir.join("private");
    fs::create_dir(&private).expect("a directory is created");
    for path in [&private, &place.dir.join("wal")] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).expect("root may do so");
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
        command.current_dir(&place.dir).args(["-l", "127.0.0.1", "-p", "0"]).args(arguments.split(' '));
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
    for (words, part) in [
        ("help", "Job log:\n"),
        ("help wal", "salvage"),
        ("help wal check", "Directory of the job log"),
        ("version", "beanring 0."),
        ("-v", "beanring 0."),
    ] {
        let output = beanring().args(words.split(' ')).output().expect("the program starts");
        let said = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(output.status.success() && output.stderr.is_empty(), "{words}");
        assert!(said.contains(part) && !said.contains('\x1b'), "{words}: {said}");
    }
}

/// A user's start line of beanstalkd works with the name of the program alone changed.
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

#[test]
fn the_start_line_of_beanstalkd() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: the start line of beanstalkd, because -u needs root");
        return;
    }
    let scratch = Scratch::new("start-line");
    let dir = scratch.0.join("wal");
    fs::create_dir(&dir).expect("a directory is created");
    let nobody = nix::unistd::User::from_name("nobody").expect("the users are known").expect("nobody exists");
    for path in [&scratch.0, &dir] {
        nix::unistd::chown(path, Some(nobody.uid), Some(nobody.gid)).expect("root may do so");
    }
    let (held, port) = unused_address::port();
    drop(held);
    let mut command = beanring();
    command.args(["-l", "0.0.0.0", "-p", &port.to_string(), "-b"]).arg(&dir);
    command.args(["-f", "50", "-z", "65535", "-u", "nobody", "-V"]);
    // What Kubernetes and Docker set for a service of this name does not count.
    command.env("BEANRING_PORT", "tcp://10.0.0.1:1").env("BEANRING_SERVICE_HOST", "10.0.0.1");
    let mut child = command.stderr(Stdio::piped()).spawn().expect("the program starts");
    let connects = (0..1000).any(|_| {
        thread::sleep(Duration::from_millis(10));
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let uid = format!("Uid:\t{0}\t{0}\t{0}\t{0}", nobody.uid);
    child.kill().expect("the child is ours");
    let log = child.wait_with_output().expect("the child is ours").stderr;
    assert!(connects && status.contains(&uid), "{status}{}", String::from_utf8_lossy(&log));
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
        if let Some(old) = flag.old_name {
            assert!(text.contains(&format!("| `--{old}` | `--{}` |", flag.name)), "{old}");
        }
    }
    let rows = text.lines().filter(|line| line.starts_with("| `-") && line.matches(" | ").count() == 3);
    // Those of -h and -v have an empty column.
    assert_eq!(rows.count(), FLAGS.len(), "no row is left of a flag that is gone");
}
