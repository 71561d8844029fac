//! `beanring healthcheck`: what a container asks to know whether its server serves.

use beanring_testkit::process::program;
use beanring_testkit::scratch::Scratch;
use beanring_testkit::unused_address;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};
use std::thread;

/// A running server, killed at the end.
struct Server {
    child: Child,
    /// What it said that it listens on.
    address: String,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        let mut child = beanring(&[&["-V"], arguments].concat())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it can be started");
        let stderr = BufReader::new(child.stderr.take().expect("it is a pipe"));
        let mut lines = stderr.lines().map_while(Result::ok);
        let line = lines.find(|line| line.contains("listening on ")).expect("it listens");
        thread::spawn(move || lines.for_each(drop));
        let address = line.split(' ').next_back().expect("an address").to_owned();
        Self { child, address }
    }

    fn port(&self) -> &str {
        self.address.rsplit_once(':').expect("it has a port").1
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn beanring(arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(arguments).stdin(Stdio::null());
    for (name, _) in
        std::env::vars().filter(|(name, _)| name.starts_with("BEANRING_") && name != "BEANRING_IO")
    {
        command.env_remove(name);
    }
    command
}

fn is_well(command: &mut Command) {
    let output = command.output().expect("it can be started");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{command:?}");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0), "{command:?}");
}

/// The one line that it says.
fn complaint(command: &mut Command) -> String {
    let output = command.output().expect("it can be started");
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{command:?}: {said}");
    let line = said.strip_prefix("beanring: ").and_then(|rest| rest.strip_suffix('\n'));
    let line = line.unwrap_or_else(|| panic!("{command:?}: {said:?}"));
    assert!(!line.contains('\n'), "{line}");
    line.to_owned()
}

/// Somebody else at a port, who does `what` with each that comes.
fn impostor(what: impl Fn(&mut dyn Write) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let port = listener.local_addr().expect("it is bound").port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("somebody comes");
            let mut command = [0; 16];
            stream.read_exact(&mut command).expect("it asks");
            what(&mut stream);
        }
    });
    port.to_string()
}

#[test]
fn a_server_is_found_as_its_own_flags_say() {
    for (listen, others) in [
        ("127.0.0.1", ["127.0.0.1", "localhost"]),
        ("0.0.0.0", ["0.0.0.0", "127.0.0.1"]),
        ("::", ["::", "::1"]),
        ("::", ["[::]", "[::1]"]),
    ] {
        let server = Server::start(&["-l", listen, "-p", "0"]);
        let port = server.port();
        for host in others {
            is_well(&mut beanring(&["-l", host, "-p", port, "healthcheck"]));
            is_well(&mut beanring(&["healthcheck", "-l", host, "-p", port]));
            is_well(beanring(&["healthcheck"]).env("BEANRING_LISTEN", host).env("BEANRING_PORT", port));
        }
    }
}

#[test]
fn what_is_given_to_it_comes_before_the_flags_and_these_before_the_environment() {
    let server = Server::start(&["-l", "127.0.0.1", "-p", "0"]);
    let port = server.port();
    is_well(beanring(&["-p", port, "healthcheck"]).env("BEANRING_PORT", "1"));
    is_well(beanring(&["-p", "1", "healthcheck", "-p", port]).env("BEANRING_PORT", "1"));
    // What else the server is given is none of its business.
    is_well(
        beanring(&["-p", port, "healthcheck"]).env("BEANRING_MAX_MEMORY", "1").env("BEANRING_LOG_DIR", "/no"),
    );
}

#[test]
fn over_a_unix_socket() {
    let scratch = Scratch::new("unix");
    let path = scratch.join("socket");
    let unix = format!("unix:{}", path.display());
    let missing = complaint(&mut beanring(&["healthcheck", "-l", &unix]));
    assert_eq!(missing, format!("nobody can be reached at {unix}: No such file or directory"));
    {
        let _server = Server::start(&["-l", &unix]);
        is_well(&mut beanring(&["healthcheck", "-l", &unix]));
        is_well(beanring(&["healthcheck"]).env("BEANRING_LISTEN", &unix));
    }
    let _ = fs::remove_file(&path);
    unused_address::file(&path);
    let left = complaint(&mut beanring(&["healthcheck", "-l", &unix]));
    assert_eq!(left, format!("nobody can be reached at {unix}: Connection refused"));

    fs::remove_file(&path).expect("it was left");
    let _silent = UnixListener::bind(&path).expect("the place is free");
    let silent = complaint(&mut beanring(&["healthcheck", "-t", "1", "-l", &unix]));
    assert_eq!(silent, format!("{unix}: no answer within 1 s"));
}

#[test]
fn nobody_listens() {
    let (_held, port) = unused_address::port();
    let port = port.to_string();
    let said = complaint(&mut beanring(&["healthcheck", "-p", &port]));
    assert_eq!(said, format!("nobody can be reached at 0.0.0.0:{port}: Connection refused"));
}

#[test]
fn somebody_is_silent() {
    let silent = impostor(|_| thread::park());
    let said = complaint(&mut beanring(&["healthcheck", "-l", "127.0.0.1", "-p", &silent, "--timeout", "1"]));
    assert_eq!(said, format!("127.0.0.1:{silent}: no answer within 1 s"));

    // Nor is one well that goes on for ever and does not come to the point.
    let slow = impostor(|stream| {
        for byte in b"USING default\r\n" {
            let _ = stream.write_all(&[*byte]);
            thread::sleep(std::time::Duration::from_millis(300));
        }
    });
    let said = complaint(&mut beanring(&["healthcheck", "-l", "127.0.0.1", "-p", &slow, "-t", "1"]));
    assert_eq!(said, format!("127.0.0.1:{slow}: no answer within 1 s"));
}

#[test]
fn somebody_answers_nonsense() {
    for (answer, shown) in [
        ("HTTP/1.1 400 Bad Request\r\n", "HTTP/1.1 400 Bad Request\\r\\n"),
        ("USING other\r\n", "USING other\\r\\n"),
        ("\x1b[2J\0\n", "\\x1b[2J\\x00\\n"),
    ] {
        let port = impostor(move |stream| stream.write_all(answer.as_bytes()).expect("it reads"));
        let said = complaint(&mut beanring(&["healthcheck", "-l", "127.0.0.1", "-p", &port]));
        assert_eq!(said, format!("127.0.0.1:{port}: this is no beanring: it answered \"{shown}\""));
    }
    let closing = impostor(|_| {});
    let said = complaint(&mut beanring(&["healthcheck", "-l", "127.0.0.1", "-p", &closing]));
    assert_eq!(said, format!("127.0.0.1:{closing}: the connection was closed without an answer"));
}

#[test]
fn what_cannot_be_asked_is_told() {
    let said = complaint(&mut beanring(&["healthcheck", "-p", "0"]));
    assert_eq!(said, "0.0.0.0:0: port 0 is one of the system's choice; give the server a port of its own");
    let said = complaint(&mut beanring(&["healthcheck", "-p", "70000"]));
    assert_eq!(said, "-p/--port (BEANRING_PORT) \"70000\": must be a number from 0 to 65535");
    let said = complaint(&mut beanring(&["healthcheck", "-l", "no host"]));
    assert_eq!(said, "no host:11300: no such host");
    let output = beanring(&["healthcheck", "-t", "0"]).output().expect("it can be started");
    assert_eq!(output.status.code(), Some(2));
}
