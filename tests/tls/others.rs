//! Other implementations of TLS, and the other listeners that have it.

use std::fs::{self, File};
use std::io::Write;
use std::process::{Command, Stdio};

use beanring_testkit::process::program;
use beanring_testkit::scratch::{Scratch, await_text};
use beanring_testkit::unused_address::ReservedPort;

use super::place::Place;

/// Whether a program is installed. Prints it if it is not.
pub fn has(program: &str, what: &str) -> bool {
    let is_there =
        Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !is_there {
        println!("skipped: {what} of {program}, because it is not installed");
    }
    is_there
}

const PYTHON: &str = r#"
import socket, ssl, sys
host, port, ca = sys.argv[1], int(sys.argv[2]), sys.argv[3]
context = ssl.create_default_context(cafile=ca)
def connect(session=None):
    return context.wrap_socket(socket.create_connection((host, port)), server_hostname='localhost', session=session)
def ask(stream, command, end):
    stream.sendall(command)
    reply = b''
    while not reply.endswith(end):
        piece = stream.recv(65536)
        assert piece, reply
        reply += piece
    return reply
stream = connect()
assert stream.version() == 'TLSv1.3', stream.version()
body = bytes(range(256)) * 200
assert ask(stream, b'put 0 0 60 %d\r\n%s\r\n' % (len(body), body), b'\r\n') == b'INSERTED 1\r\n'
assert ask(stream, b'reserve\r\n', body[-9:] + b'\r\n') == b'RESERVED 1 %d\r\n%s\r\n' % (len(body), body)
assert ask(stream, b'delete 1\r\n', b'\r\n') == b'DELETED\r\n'
again = connect(stream.session)
assert ask(again, b'list-tube-used\r\n', b'\r\n') == b'USING default\r\n'
assert again.session_reused, 'the session is not resumed'
stream.unwrap().close()
"#;

#[test]
fn python_uses_and_resumes_sessions() {
    if !has("python3", "TLS") {
        return;
    }
    let mut place = Place::new(&[]);
    let status = Command::new("python3")
        .args(["-c", PYTHON, &place.at.ip().to_string(), &place.at.port().to_string()])
        .arg(&place.certificates.ca)
        .status()
        .expect("python3 runs");
    assert!(status.success());
    assert_eq!(place.control.stat("tls-handshakes-resumed"), 1);
    assert_eq!(place.failures(), [0; 6]);
}

/// Runs `openssl s_client` with lines of input, each of which it must answer with a text, as often as that is among them. Returns what it
/// prints.
fn s_client(place: &Place, flags: &[&str], input: &[(&str, &str)]) -> String {
    let printed = place.dir.join("printed");
    let file = File::create(&printed).expect("there is space");
    let mut child = Command::new("openssl")
        .args(["s_client", "-connect", &place.at.to_string(), "-verify_return_error", "-crlf"])
        .args(["-verify_hostname", "localhost"])
        .arg("-CAfile")
        .arg(&place.certificates.ca)
        .args(flags)
        .stdin(Stdio::piped())
        .stdout(file.try_clone().expect("a descriptor is free"))
        .stderr(file)
        .spawn()
        .expect("openssl runs");
    let mut stdin = child.stdin.take().expect("it is a pipe");
    await_text(&printed, "Verify return code: ", 1);
    for (at, (line, answer)) in input.iter().enumerate() {
        // A key is a command only if it is the first byte of what openssl reads at once.
        stdin.write_all(format!("{line}\n").as_bytes()).expect("openssl reads");
        let count = input[..=at].iter().filter(|(_, other)| other == answer).count();
        await_text(&printed, answer, count);
    }
    // It may have ended.
    let _ = stdin.write_all(b"quit\n");
    child.wait().expect("openssl ends");
    fs::read_to_string(printed).expect("it is text")
}

#[test]
fn openssl_is_served_and_updates_keys() {
    if !has("openssl", "key updates") {
        return;
    }
    let mut place = Place::new(&[]);
    let input = [
        ("put 0 0 60 5\nhello", "INSERTED 1"),
        ("K", "KEYUPDATE"),
        ("k", "KEYUPDATE"),
        ("peek 1", "FOUND 1 5"),
    ];
    let output = s_client(&place, &[], &input);
    assert!(output.contains("Verify return code: 0 (ok)") && output.contains("TLSv1.3"), "{output}");
    // TLS 1.3 has no renegotiation, so the client does not even ask.
    s_client(&place, &[], &[("R", "RENEGOTIATING")]);
    place.expect_service();
    assert_eq!(place.failures(), [0; 6]);
}

#[test]
fn openssl_cannot_send_early_data() {
    if !has("openssl", "early data") {
        return;
    }
    let mut place = Place::new(&[]);
    let dir = Scratch::new("early");
    let (session, data) = (dir.join("session"), dir.join("data"));
    let session = session.to_str().expect("UTF-8");
    fs::write(&data, "put 0 0 60 5\r\nearly\r\n").expect("there is space");
    let input = [("list-tube-used", "USING default")];
    s_client(&place, &["-sess_out", session], &input);
    let flags = ["-sess_in", session, "-early_data", data.to_str().expect("UTF-8")];
    let output = s_client(&place, &flags, &input);
    assert!(!output.contains("Early data was accepted"), "{output}");
    assert_eq!(place.control.stat("total-jobs"), 0);
    place.expect_service();
}

#[test]
fn http_has_tls_too() {
    if !has("curl", "HTTPS") {
        return;
    }
    let port = ReservedPort::take();
    let http = format!("127.0.0.1:{}", port.get());
    let place = Place::new(&["--http", &http, "--http-tls"]);
    let fetch = |url: String| {
        let output = Command::new("curl")
            .args(["--silent", "--show-error", "--fail", "--cacert"])
            .arg(&place.certificates.ca)
            .arg(url)
            .output()
            .expect("curl runs");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    for path in ["healthz", "readyz", "metrics", "api/v1/tubes", "api/v1/server", ""] {
        let (is_ok, _) = fetch(format!("https://{http}/{path}"));
        println!("/{path}: {is_ok}");
        assert!(is_ok || path.starts_with("api/v1/server"), "/{path}");
    }
    assert!(fetch(format!("https://{http}/metrics")).1.contains("beanring_tls_handshakes_total"));
    assert!(!fetch(format!("http://{http}/healthz")).0, "there is no plaintext");
}

#[test]
fn a_bad_certificate_is_a_mistake_of_the_configuration() {
    let place = Place::new(&[]);
    let check = |certificate: &str, key: &str| {
        let output = Command::new(program())
            .args(["--check-config", "-l", "none", "--tls-listen", "127.0.0.1:1", "--tls-cert", certificate])
            .args(["--tls-key", key])
            .output()
            .expect("the program runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let path = |name: &str| place.dir.join(name).display().to_string();
    let (server, key) = (path("server.pem"), path("server.key"));
    assert_eq!(check(&server, &key).0, Some(0), "{}", check(&server, &key).1);
    for (certificate, key, says) in [
        (&path("nothing.pem"), &key, "there is no such file"),
        (&key, &key, "contains no certificate"),
        (&server, &server, "contains no private key"),
        (&server, &path("client.key"), "does not belong"),
    ] {
        let (code, text) = check(certificate, key);
        println!("{text}");
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(says), "{says} is missing in {text}");
        let names =
            [(certificate, "cert"), (key, "key")].map(|(path, flag)| format!("--tls-{flag} \"{path}\": "));
        assert!(names.iter().any(|name| text.contains(name)), "{text}");
        assert_eq!(text.trim_end().lines().count(), 1, "{text}");
    }
}
