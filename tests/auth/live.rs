//! Real server processes with `--auth`.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use beanring::io::driver::Driver;
use beanring_testkit::client::{Client, launch, start};
use beanring_testkit::driver;
use beanring_testkit::process::{Address, ServerProcess, Transport, program};
use beanring_testkit::scratch::Scratch;
use nix::sys::signal::Signal;

use super::ROOT;

const TWO: &str = "[users.two]\ntoken = \"two-two-two-two-two\"\nproduce = [\"*\"]\n";

fn write(path: &Path, text: &str) {
    let mut file = fs::File::create(path).expect("the file can be made");
    file.set_permissions(fs::Permissions::from_mode(0o600)).expect("the mode can be set");
    file.write_all(text.as_bytes()).expect("the file can be written");
}

fn client(server: &ServerProcess) -> Client {
    Client::new(server.connect())
}

/// Sends a signal until a new connection gets this reply.
fn await_reply(server: &ServerProcess, command: &str, expected: &str) {
    server.signal(Signal::SIGWINCH);
    let begin = Instant::now();
    loop {
        let mut client = client(server);
        let (reply, _) = client.ask(command);
        if reply == expected {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(8), "{command} gets {reply}");
    }
}

#[test]
fn users_change_while_the_server_runs() {
    for io in Driver::ALL.iter().copied().filter(|&io| driver::is_allowed(io, "auth")) {
        let scratch = Scratch::new("auth");
        let log = scratch.dir("log");
        let dir = scratch.dir("etc");
        let [first, second, link] = ["first", "second", "users.toml"].map(|name| dir.join(name));
        write(&first, ROOT);
        write(&second, &format!("{ROOT}{TWO}"));
        symlink(&first, &link).expect("the link can be made");
        let auth = link.to_str().expect("a name in UTF-8");
        let (mut server, mut root) = start(&log, io, &["--auth", auth]);
        root.expect("use a\r\n", "FORBIDDEN");
        root.expect("auth root-root-root-root\r\n", "AUTHENTICATED");
        root.expect("put 0 0 9 1\r\nx\r\n", "INSERTED 1");

        // A wrong token is answered after a second.
        let mut wrong = client(&server);
        let begin = Instant::now();
        wrong.expect("auth two-two-two-two-two\r\n", "UNAUTHORIZED");
        assert!(begin.elapsed() >= Duration::from_millis(900));
        assert_eq!(wrong.line(), None);

        fs::remove_file(&link).expect("it exists");
        symlink(&second, &link).expect("the link can be made");
        server.signal(Signal::SIGWINCH);
        let begin = Instant::now();
        loop {
            let mut two = client(&server);
            two.send("auth two-two-two-two-two\r\n");
            if two.line().as_deref() == Some("AUTHENTICATED") {
                break;
            }
            assert!(begin.elapsed() < Duration::from_secs(9), "the file is read again");
        }
        let mut two = client(&server);
        two.expect("auth two-two-two-two-two\r\n", "AUTHENTICATED");
        two.expect("put 0 0 9 1\r\nx\r\n", "INSERTED 2");
        root.expect("use b\r\n", "USING b");

        // A bad file changes nothing.
        fs::write(&second, "[users").expect("the file can be written");
        server.signal(Signal::SIGWINCH);
        server.settle();
        two.expect("put 0 0 9 1\r\nx\r\n", "INSERTED 3");
        write(&second, ROOT);
        server.signal(Signal::SIGWINCH);
        assert_eq!(two.line(), None, "the user is gone");
        root.expect("use c\r\n", "USING c");

        // The program that continues reads the file too.
        write(&second, &format!("{ROOT}[anonymous]\nproduce = [\"*\"]\n"));
        await_reply(&server, "use d\r\n", "USING d");
        server.signal(Signal::SIGUSR2);
        assert_eq!(root.line(), None, "the connection ends with the old program");
        let mut next = client(&server);
        next.expect("use d\r\n", "USING d");
        next.expect("peek 1\r\n", "FORBIDDEN");
        next.expect("auth root-root-root-root\r\n", "AUTHENTICATED");
        let (reply, _) = next.ask("peek 1\r\n");
        assert_eq!(reply, "FOUND 1 1");
        server.signal(Signal::SIGTERM);
        assert_eq!(server.wait(), Some(0));
    }
}

#[test]
fn log_lines_name_the_user_and_no_token() {
    let scratch = Scratch::new("auth-log");
    let (users, log, dir) = (scratch.join("users.toml"), scratch.join("stderr"), scratch.dir("log"));
    write(&users, ROOT);
    let mut command = Command::new(program());
    command.stderr(fs::File::create(&log).expect("the file can be made"));
    let auth = users.to_str().expect("a name in UTF-8");
    let Address::Tcp(http) = Address::fresh(Transport::Tcp) else { panic!("it is TCP") };
    let flags = ["--auth", auth, "-VV", "--http", &http.to_string()];
    let (mut server, mut root) = launch(command, &dir, Driver::Epoll, &flags);
    root.expect("auth root-root-root-root\r\n", "AUTHENTICATED");
    root.expect("drain\r\n", "DRAINING");
    let mut api = TcpStream::connect(http).expect("it listens");
    let head = "POST /api/v1/undrain HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: 2\r\n";
    write!(api, "{head}Host: 127.0.0.1\r\nAuthorization: Bearer root-root-root-root\r\n\r\n{{}}")
        .expect("it is open");
    let mut answer = String::new();
    api.read_to_string(&mut answer).expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let mut wrong = client(&server);
    wrong.expect("auth wrong-wrong-wrong-wrong\r\n", "UNAUTHORIZED");
    let mut typo = client(&server);
    typo.expect("authroot-root-root-root\r\n", "UNKNOWN_COMMAND");
    write(&users, "");
    server.signal(Signal::SIGWINCH);
    assert_eq!(root.line(), None, "the user is gone");
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait(), Some(0));
    let text = fs::read_to_string(&log).expect("the log can be read");
    assert_eq!(text.matches("users.toml: no user has a right, so every").count(), 1, "{text}");
    assert!(!text.contains("root-root") && !text.contains("wrong-wrong"), "{text}");
    assert!(text.contains("command: auth ...") && text.contains("sent a wrong token"), "{text}");
    for act in ["drain from ", "undrain from "] {
        let line = text.lines().find(|line| line.contains(&format!(" {act}127.0.0.1:")));
        assert!(line.is_some_and(|line| line.contains(" (user root): put is")), "{text}");
    }
}

#[test]
fn a_bad_file_is_refused_with_its_line() {
    let scratch = Scratch::new("auth-mistakes");
    let users = scratch.join("users.toml");
    let run = |flags: &[&str]| {
        let mut command = Command::new(program());
        command.args(["-l", "127.0.0.1", "-p", "0", "--check-config"]).args(flags);
        let output = command.output().expect("the program runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let auth = users.to_str().expect("a name in UTF-8");
    let (code, text) = run(&["--auth", auth]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("there is no such file; correct the path"), "{text}");
    write(&users, &format!("{ROOT}[users.one]\ntoken = \"short\"\n"));
    let (code, text) = run(&["--auth", auth]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("line 9: a token has 16 to 200"), "{text}");
    for useless in ["", "[users.root]\ntoken = \"root-root-root-root\"\nadmin = false\n"] {
        write(&users, useless);
        let (code, text) = run(&["--auth", auth]);
        assert!(code == Some(0) && text.contains("users.toml: no user has a right"), "{text}");
    }
    write(&users, ROOT);
    let (code, text) = run(&["--auth", auth]);
    assert!(code == Some(0) && !text.contains("--auth"), "{text}");
    fs::set_permissions(&users, fs::Permissions::from_mode(0o644)).expect("the mode can be set");
    let (code, text) = run(&["--auth", auth]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("run chmod o-r on the file"), "{text}");
    let (code, text) = run(&["--auth", auth, "--http", "0", "--http-token", auth]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("cannot be used with --auth"), "{text}");
}
