//! `beanring healthcheck`: the health check of containers.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use beanring_testkit::logged::LoggedServer;
use beanring_testkit::process::beanring;
use beanring_testkit::scratch::Scratch;
use beanring_testkit::unused_address;

fn start(flags: &[&str]) -> (LoggedServer, String) {
    let server = LoggedServer::start(flags);
    let port = server.address().to_string().rsplit(':').next().expect("a port").to_owned();
    (server, port)
}

fn assert_healthy(command: &mut Command) {
    let output = command.output().expect("the program starts");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{command:?}");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0), "{command:?}");
}

/// Asserts that the check with these flags fails, and prints this one line.
fn fails(flags: &[&str], expected: impl AsRef<str>) {
    let output = beanring(&[&["healthcheck"], flags].concat()).output().expect("the program starts");
    assert_eq!(error_line(&output), expected.as_ref(), "{flags:?}");
}

fn error_line(output: &Output) -> &str {
    let said = std::str::from_utf8(&output.stderr).expect("UTF-8");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{said}");
    let line = said.strip_prefix("beanring: ").and_then(|rest| rest.strip_suffix('\n'));
    line.filter(|line| !line.contains('\n')).unwrap_or_else(|| panic!("{said:?}"))
}

/// Another server, which calls `what` for each connection. Returns its port.
fn impostor(what: impl Fn(&mut dyn Write) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("the listener is bound").port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection is accepted");
            stream.read_exact(&mut [0; 16]).expect("the command is received");
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
        let (_server, port) = &start(&["-l", listen]);
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
    let (_server, port) = &start(&[]);
    assert_healthy(beanring(&["-p", port, "healthcheck"]).env("BEANRING_PORT", "1"));
    assert_healthy(beanring(&["-p", "1", "healthcheck", "-p", port]).env("BEANRING_PORT", "1"));
    // The tool ignores other settings of the server.
    assert_healthy(
        beanring(&["-p", port, "healthcheck"]).env("BEANRING_MAX_MEMORY", "1").env("BEANRING_WAL_DIR", "/no"),
    );
}

#[test]
fn over_a_unix_socket() {
    let scratch = Scratch::new("unix");
    let path = scratch.join("socket");
    let unix = &format!("unix:{}", path.display());
    let refused = |why: &str| format!("cannot connect to {unix}: {why}; start the server, or correct -l");
    fails(&["-l", unix], refused("No such file or directory"));
    {
        let _server = LoggedServer::start(&["-l", unix]);
        assert_healthy(&mut beanring(&["healthcheck", "-l", unix]));
        assert_healthy(beanring(&["healthcheck"]).env("BEANRING_LISTEN", unix));
    }
    let _ = fs::remove_file(&path);
    unused_address::file(&path);
    fails(&["-l", unix], refused("Connection refused"));

    fs::remove_file(&path).expect("the stale file is removed");
    let _silent = UnixListener::bind(&path).expect("the path is free");
    fails(&["--timeout", "1", "-l", unix], format!("{unix}: no reply within 1 s"));
}

#[test]
fn without_a_server_the_connection_is_refused() {
    let (_held, port) = unused_address::port();
    let refused = "Connection refused; start the server, or correct -l and -p";
    fails(&["-p", &port.to_string()], format!("cannot connect to 127.0.0.1:{port}: {refused}"));
}

#[test]
fn a_silent_server_fails_the_check() {
    let silent = impostor(|_| thread::park());
    // An endless reply fails too.
    let slow = impostor(|stream| {
        for byte in b"USING default\r\n" {
            let _ = stream.write_all(&[*byte]);
            thread::sleep(Duration::from_millis(300));
        }
    });
    for port in [silent, slow] {
        fails(&["-p", &port, "--timeout", "1"], format!("127.0.0.1:{port}: no reply within 1 s"));
    }
}

#[test]
fn another_reply_fails_the_check() {
    for (answer, shown) in [
        ("HTTP/1.1 400 Bad Request\r\n", "HTTP/1.1 400 Bad Request\\r\\n"),
        ("USING other\r\n", "USING other\\r\\n"),
        ("\x1b[2J\0\n", "\\x1b[2J\\x00\\n"),
    ] {
        let port = &impostor(move |stream| stream.write_all(answer.as_bytes()).expect("the reply is sent"));
        let why = format!("this is not a beanstalk server: it replied \"{shown}\"");
        fails(&["-l", "127.0.0.1", "-p", port], format!("127.0.0.1:{port}: {why}"));
    }
    let closing = &impostor(|_| {});
    let why = "the connection was closed without a reply";
    fails(&["-l", "127.0.0.1", "-p", closing], format!("127.0.0.1:{closing}: {why}"));
}

#[test]
fn an_unusable_address_is_an_error() {
    fails(
        &["-p", "0"],
        "127.0.0.1:0: the system chooses port 0; set the port that the server has logged with -p",
    );
    fails(
        &["-l", "no-such-host.invalid"],
        "no-such-host.invalid:11300: no such host; correct the name, or check DNS",
    );
    fails(
        &["--tls-ca", "ca.pem"],
        "--tls-ca has no effect at an address without TLS; use -l beanstalks://HOST",
    );
    for (arguments, expected) in [
        (["-p", "70000"], "-p/--port \"70000\": must be a number from 0 to 65535"),
        (["-l", "no host"], "-l/--listen \"no host\": must be an IP address, a host name or unix:PATH"),
        (["--timeout", "0"], "--timeout \"0\": must be a number from 1 to 3600"),
    ] {
        let output = beanring(&["healthcheck"]).args(arguments).output().expect("the program starts");
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(String::from_utf8_lossy(&output.stderr), format!("beanring: {expected}\n"));
    }
}

#[cfg(feature = "tls")]
#[test]
fn over_tls() {
    use beanring_testkit::certificates::Certificates;
    let scratch = Scratch::new("tls");
    let all = Certificates::new(&scratch.0);
    let files = [&all.server.certificate, &all.server.key, &all.ca, &all.other_ca];
    let [certificate, key, ca, other] = files.map(|file| file.to_str().expect("UTF-8"));
    let flags = ["-l", "none", "--tls-listen", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key];
    for others in [&[][..], &["--tls-client-ca", ca]] {
        let server =
            LoggedServer::spawn(beanring(&[&flags, others].concat()), Scratch::new("tls")).listening();
        let address = server.address().to_string();
        let uri = format!("beanstalks://{address}");
        assert_healthy(&mut beanring(&["-l", "none", "--tls-listen", &address, "healthcheck"]));
        assert_healthy(&mut beanring(&["healthcheck", "-l", &uri]));
        assert_healthy(&mut beanring(&["healthcheck", "-l", &uri, "--tls-ca", ca]));
        let output = beanring(&["healthcheck", "-l", &uri, "--tls-ca", other]).output().expect("it starts");
        let expected = format!("{address}: no TLS with the server: invalid peer certificate");
        assert!(error_line(&output).starts_with(&expected), "{output:?}");
    }
    let silent = impostor(|_| thread::park());
    let uri = format!("beanstalks://127.0.0.1:{silent}");
    let expected = format!("127.0.0.1:{silent}: no reply over TLS within 1 s");
    fails(&["-l", &uri, "--timeout", "1"], expected);
}
