//! `beanring healthcheck`: the health check of containers.

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
    /// The address that it logged.
    address: String,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        let mut child = beanring(&[&["-V"], arguments].concat())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let stderr = BufReader::new(child.stderr.take().expect("stderr is a pipe"));
        let mut lines = stderr.lines().map_while(Result::ok);
        let line = lines.find(|line| line.contains("listening on ")).expect("the server logs its address");
        thread::spawn(move || lines.for_each(drop));
        let line = line.trim_end_matches(" with TLS");
        let address = line.split(' ').next_back().expect("an address").to_owned();
        Self { child, address }
    }

    fn port(&self) -> &str {
        self.address.rsplit_once(':').expect("a port").1
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

fn assert_healthy(command: &mut Command) {
    let output = command.output().expect("the program starts");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{command:?}");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0), "{command:?}");
}

/// The one line that the tool prints.
fn error_line(command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{command:?}: {said}");
    let line = said.strip_prefix("beanring: ").and_then(|rest| rest.strip_suffix('\n'));
    let line = line.unwrap_or_else(|| panic!("{command:?}: {said:?}"));
    assert!(!line.contains('\n'), "{line}");
    line.to_owned()
}

/// Another server, which calls `what` for each connection. Returns its port.
fn impostor(what: impl Fn(&mut dyn Write) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("the listener is bound").port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection is accepted");
            let mut command = [0; 16];
            stream.read_exact(&mut command).expect("the command is received");
            what(&mut stream);
        }
    });
    port.to_string()
}

#[test]
fn the_tool_takes_the_address_from_the_flags_of_the_server() {
    for (listen, others) in [
        ("127.0.0.1", ["127.0.0.1", "localhost"]),
        ("0.0.0.0", ["0.0.0.0", "127.0.0.1"]),
        ("::", ["::", "::1"]),
        ("::", ["[::]", "[::1]"]),
    ] {
        let server = Server::start(&["-l", listen, "-p", "0"]);
        let port = server.port();
        for host in others {
            assert_healthy(&mut beanring(&["-l", host, "-p", port, "healthcheck"]));
            assert_healthy(&mut beanring(&["healthcheck", "-l", host, "-p", port]));
            assert_healthy(
                beanring(&["healthcheck"]).env("BEANRING_LISTEN", host).env("BEANRING_PORT", port),
            );
        }
    }
}

#[test]
fn flags_of_the_tool_precede_those_of_the_server_and_these_the_environment() {
    let server = Server::start(&["-l", "127.0.0.1", "-p", "0"]);
    let port = server.port();
    assert_healthy(beanring(&["-p", port, "healthcheck"]).env("BEANRING_PORT", "1"));
    assert_healthy(beanring(&["-p", "1", "healthcheck", "-p", port]).env("BEANRING_PORT", "1"));
    // The tool ignores other settings of the server.
    assert_healthy(
        beanring(&["-p", port, "healthcheck"]).env("BEANRING_MAX_MEMORY", "1").env("BEANRING_LOG_DIR", "/no"),
    );
}

#[test]
fn over_a_unix_socket() {
    let scratch = Scratch::new("unix");
    let path = scratch.join("socket");
    let unix = format!("unix:{}", path.display());
    let missing = error_line(&mut beanring(&["healthcheck", "-l", &unix]));
    assert_eq!(
        missing,
        format!("cannot connect to {unix}: No such file or directory; start the server, or correct -l")
    );
    {
        let _server = Server::start(&["-l", &unix]);
        assert_healthy(&mut beanring(&["healthcheck", "-l", &unix]));
        assert_healthy(beanring(&["healthcheck"]).env("BEANRING_LISTEN", &unix));
    }
    let _ = fs::remove_file(&path);
    unused_address::file(&path);
    let left = error_line(&mut beanring(&["healthcheck", "-l", &unix]));
    assert_eq!(
        left,
        format!("cannot connect to {unix}: Connection refused; start the server, or correct -l")
    );

    fs::remove_file(&path).expect("the stale file is removed");
    let _silent = UnixListener::bind(&path).expect("the path is free");
    let silent = error_line(&mut beanring(&["healthcheck", "--timeout", "1", "-l", &unix]));
    assert_eq!(silent, format!("{unix}: no reply within 1 s"));
}

#[test]
fn without_a_server_the_connection_is_refused() {
    let (_held, port) = unused_address::port();
    let port = port.to_string();
    let said = error_line(&mut beanring(&["healthcheck", "-p", &port]));
    assert_eq!(
        said,
        format!(
            "cannot connect to 127.0.0.1:{port}: Connection refused; start the server, or correct -l and -p"
        )
    );
}

#[test]
fn a_silent_server_fails_the_check() {
    let silent = impostor(|_| thread::park());
    let said =
        error_line(&mut beanring(&["healthcheck", "-l", "127.0.0.1", "-p", &silent, "--timeout", "1"]));
    assert_eq!(said, format!("127.0.0.1:{silent}: no reply within 1 s"));

    // An endless reply fails too.
    let slow = impostor(|stream| {
        for byte in b"USING default\r\n" {
            let _ = stream.write_all(&[*byte]);
            thread::sleep(std::time::Duration::from_millis(300));
        }
    });
    let said = error_line(&mut beanring(&["healthcheck", "-l", "127.0.0.1", "-p", &slow, "--timeout", "1"]));
    assert_eq!(said, format!("127.0.0.1:{slow}: no reply within 1 s"));
}

#[test]
fn another_reply_fails_the_check() {
    for (answer, shown) in [
        ("HTTP/1.1 400 Bad Request\r\n", "HTTP/1.1 400 Bad Request\\r\\n"),
        ("USING other\r\n", "USING other\\r\\n"),
        ("\x1b[2J\0\n", "\\x1b[2J\\x00\\n"),
    ] {
        let port = impostor(move |stream| stream.write_all(answer.as_bytes()).expect("the reply is sent"));
        let said = error_line(&mut beanring(&["healthcheck", "-l", "127.0.0.1", "-p", &port]));
        assert_eq!(said, format!("127.0.0.1:{port}: this is not a beanstalk server: it replied \"{shown}\""));
    }
    let closing = impostor(|_| {});
    let said = error_line(&mut beanring(&["healthcheck", "-l", "127.0.0.1", "-p", &closing]));
    assert_eq!(said, format!("127.0.0.1:{closing}: the connection was closed without a reply"));
}

#[test]
fn an_unusable_address_is_an_error() {
    let said = error_line(&mut beanring(&["healthcheck", "-p", "0"]));
    assert_eq!(
        said,
        "127.0.0.1:0: the system chooses port 0; set the port that the server has logged with -p"
    );
    let said = error_line(&mut beanring(&["healthcheck", "-l", "no-such-host.invalid"]));
    assert_eq!(said, "no-such-host.invalid:11300: no such host; correct the name, or check DNS");
    let said = error_line(&mut beanring(&["healthcheck", "--tls-ca", "ca.pem"]));
    assert_eq!(said, "--tls-ca has no effect at an address without TLS; use -l beanstalks://HOST");
    for (arguments, expected) in [
        (["-p", "70000"], "-p/--port \"70000\": must be a number from 0 to 65535"),
        (["-l", "no host"], "-l/--listen \"no host\": must be an IP address, a host name or unix:PATH"),
    ] {
        let output = beanring(&["healthcheck"]).args(arguments).output().expect("the program starts");
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(String::from_utf8_lossy(&output.stderr), format!("beanring: {expected}\n"));
    }
    let output = beanring(&["healthcheck", "--timeout", "0"]).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(2));
}

#[cfg(feature = "tls")]
#[test]
fn over_tls() {
    use beanring_testkit::certificates::Certificates;
    let scratch = Scratch::new("tls");
    let all = Certificates::new(&scratch.0);
    let files = [&all.server.certificate, &all.server.key, &all.ca].map(|file| file.to_str().expect("UTF-8"));
    let [certificate, key, ca] = files;
    let other = all.other_ca.to_str().expect("UTF-8");
    let flags = ["-l", "none", "--tls-listen", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key];
    for others in [&[][..], &["--tls-client-ca", ca]] {
        let server = Server::start(&[&flags, others].concat());
        let address = format!("127.0.0.1:{}", server.port());
        let uri = format!("beanstalks://{address}");
        assert_healthy(&mut beanring(&["-l", "none", "--tls-listen", &address, "healthcheck"]));
        assert_healthy(&mut beanring(&["healthcheck", "-l", &uri]));
        assert_healthy(&mut beanring(&["healthcheck", "-l", &uri, "--tls-ca", ca]));
        let said = error_line(&mut beanring(&["healthcheck", "-l", &uri, "--tls-ca", other]));
        assert!(
            said.starts_with(&format!("{address}: no TLS with the server: invalid peer certificate")),
            "{said}"
        );
    }
    let silent = impostor(|_| thread::park());
    let uri = format!("beanstalks://127.0.0.1:{silent}");
    let said = error_line(&mut beanring(&["healthcheck", "-l", &uri, "--timeout", "1"]));
    assert_eq!(said, format!("127.0.0.1:{silent}: no reply over TLS within 1 s"));
}
