//! Real server processes with `--auth`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use beanring::io::driver::Driver;
#[cfg(feature = "tls")]
use beanring_testkit::client::serve_under;
use beanring_testkit::client::{Client, launch};
use beanring_testkit::driver;
use beanring_testkit::http_client::{HttpClient, post, signed};
#[cfg(feature = "tls")]
use beanring_testkit::process::Transport;
use beanring_testkit::process::{Address, ServerProcess, program};
use beanring_testkit::scratch::{Scratch, await_text, secret};
use beanring_testkit::wait;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::{ROOT, one};

const TWO: &str = "[users.two]\ntoken = \"two-two-two-two-two\"\nproduce = [\"*\"]\n";

/// Starts a server whose log is in a file.
fn start(scratch: &Scratch, io: Driver, flags: &[&str]) -> (ServerProcess, Client) {
    let mut command = Command::new(program());
    command.stderr(fs::File::create(scratch.join("stderr")).expect("the file can be made"));
    launch(command, &scratch.dir("log"), io, flags)
}

fn client(server: &ServerProcess) -> Client {
    Client::new(server.connect())
}

#[test]
fn users_change_while_the_server_runs() {
    driver::under_each("auth", change_users);
}

fn change_users(io: Driver) {
    let scratch = Scratch::new("auth");
    let dir = scratch.dir("etc");
    let [first, second, link] = ["first", "second", "users.toml"].map(|name| dir.join(name));
    secret(&first, ROOT);
    secret(&second, &format!("{ROOT}{TWO}"));
    symlink(&first, &link).expect("the link can be made");
    let auth = link.to_str().expect("a name in UTF-8");
    let (mut server, mut root) = start(&scratch, io, &["--auth", auth, "--log-level", "info"]);
    let reload = |server: &ServerProcess, said: &str, count: usize| {
        server.signal(Signal::SIGWINCH);
        await_text(&scratch.join("stderr"), said, count);
    };
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
    reload(&server, "the users have changed", 1);
    let mut two = client(&server);
    two.expect("auth two-two-two-two-two\r\n", "AUTHENTICATED");
    two.expect("put 0 0 9 1\r\nx\r\n", "INSERTED 2");
    root.expect("use b\r\n", "USING b");

    // A bad file changes nothing.
    fs::write(&second, "[users").expect("the file can be written");
    reload(&server, "the users stay as they were", 1);
    two.expect("put 0 0 9 1\r\nx\r\n", "INSERTED 3");
    secret(&second, ROOT);
    reload(&server, "the users have changed", 2);
    assert_eq!(two.line(), None, "the user is gone");
    root.expect("use c\r\n", "USING c");

    // The program that continues reads the file too.
    secret(&second, &format!("{ROOT}[anonymous]\nproduce = [\"*\"]\n"));
    reload(&server, "the users have changed", 3);
    client(&server).expect("use d\r\n", "USING d");
    server.signal(Signal::SIGUSR2);
    assert_eq!(root.line(), None, "the connection ends with the old program");
    let mut next = client(&server);
    next.expect("use d\r\n", "USING d");
    next.expect("peek 1\r\n", "FORBIDDEN");
    next.expect("auth root-root-root-root\r\n", "AUTHENTICATED");
    next.expect("peek 1\r\n", "FOUND 1 1");
    server.stop();
}

#[cfg(feature = "tls")]
#[test]
fn a_wait_for_a_job_over_tls_ends_with_its_user() {
    driver::under_each("a removed user that waits over TLS", |io| {
        let scratch = Scratch::new("auth-wait");
        let users = scratch.join("users.toml");
        secret(&users, &format!("{ROOT}{TWO}"));
        let flags = ["--auth", users.to_str().expect("a name in UTF-8")];
        let (mut server, mut root) = serve_under(io, Transport::Tls, &flags);
        root.expect("auth root-root-root-root\r\n", "AUTHENTICATED");
        root.expect("put 0 0 9 1\r\nx\r\n", "INSERTED 1");
        let mut two = client(&server);
        two.expect("auth two-two-two-two-two\r\n", "AUTHENTICATED");
        two.send("wait-job 1 600\r\n");
        root.await_stat("current-job-waits", |waits| waits == 1);
        secret(&users, ROOT);
        server.signal(Signal::SIGWINCH);
        // No reply: the job has not ended.
        two.expect_end();
        for (key, left) in
            [("current-job-waits", 0), ("current-connections", 1), ("current-tls-connections", 1)]
        {
            root.await_stat(key, |count| count == left);
        }
        root.expect("delete 1\r\n", "DELETED");
        server.stop();
    });
}

#[test]
fn connections_are_shared_with_users_of_other_tubes() {
    driver::under_each("connections of other users", |io| {
        let scratch = Scratch::new("auth-connections");
        let users = scratch.join("users.toml");
        secret(&users, &format!("{ROOT}{TWO}"));
        let auth = users.to_str().expect("a name in UTF-8");
        let (mut server, mut root) = start(&scratch, io, &["--auth", auth, "--max-connections", "1"]);
        root.expect("auth root-root-root-root\r\n", "AUTHENTICATED");
        let mut two = client(&server);
        two.send("auth two-two-two-two-two\r\n");
        assert!(!two.has_reply(Duration::from_millis(100)), "it must wait");
        drop(root);
        two.expect_reply("AUTHENTICATED");
        server.stop();
    });
}

/// The file becomes something else than a file while the server runs. It says what, and serves on.
#[test]
fn a_file_that_blocks_stops_nothing() {
    driver::under_each("a file of users that blocks", |io| {
        let scratch = Scratch::new("auth-blocks");
        let (dir, elsewhere) = (scratch.dir("etc"), scratch.dir("elsewhere"));
        let users = dir.join("users.toml");
        secret(&users, ROOT);
        secret(&elsewhere.join("users.toml"), &format!("{ROOT}{TWO}"));
        let auth = users.to_str().expect("a name in UTF-8");
        let (mut server, mut root) = start(&scratch, io, &["--auth", auth, "--log-level", "info"]);
        root.expect("auth root-root-root-root\r\n", "AUTHENTICATED");
        let log = scratch.join("stderr");
        let refused = |said: &str| {
            server.signal(Signal::SIGWINCH);
            await_text(&log, &format!("users.toml: {said}"), 1);
        };
        fs::remove_file(&users).expect("it exists");
        mkfifo(&users, Mode::S_IRUSR | Mode::S_IWUSR).expect("it is new");
        refused("it is a FIFO, not a regular file");
        root.expect("use a\r\n", "USING a");
        fs::remove_file(&users).expect("it exists");
        fs::create_dir(&users).expect("it is new");
        // The server looks by itself, too.
        await_text(&log, "users.toml: it is a directory; name a file", 1);
        fs::remove_dir(&users).expect("it exists");
        symlink("/dev/zero", &users).expect("it is new");
        refused("it is a device, not a regular file");
        fs::remove_file(&users).expect("it exists");
        fs::File::create(&users).and_then(|file| file.set_len(1 << 40)).expect("the file system has holes");
        refused("the file is larger than its limit of 256 KiB");
        fs::remove_file(&users).expect("it exists");
        refused("there is no such file");
        symlink(elsewhere.join("users.toml"), &users).expect("it is new");
        server.signal(Signal::SIGWINCH);
        wait::until("the link is looked at", || {
            let said = fs::read_to_string(&log).expect("the log can be read");
            // Without Landlock it is followed.
            said.contains("a running server does not reach the directory")
                || said.contains("the users have changed")
        });
        root.expect("use b\r\n", "USING b");
        assert!(!fs::read_to_string(&log).expect("the log can be read").contains("permission denied"));
        fs::remove_file(&users).expect("it exists");
        mkfifo(&users, Mode::S_IRUSR | Mode::S_IWUSR).expect("it is new");
        server.signal(Signal::SIGWINCH);
        server.stop();
    });
}

#[test]
fn log_lines_name_the_user_and_no_token() {
    let scratch = Scratch::new("auth-log");
    let users = scratch.join("users.toml");
    secret(&users, ROOT);
    let (auth, http) = (users.to_str().expect("a name in UTF-8"), Address::fresh_tcp());
    let flags = ["--auth", auth, "-VV", "--http", &http.to_string()];
    let (mut server, mut root) = start(&scratch, Driver::Epoll, &flags);
    root.expect("auth root-root-root-root\r\n", "AUTHENTICATED");
    root.expect("drain\r\n", "DRAINING");
    let undrain = signed(&post("undrain", "{}"), "root-root-root-root");
    assert_eq!(HttpClient::tcp(http).ask(&undrain).status, 200);
    let mut wrong = client(&server);
    wrong.expect("auth wrong-wrong-wrong-wrong\r\n", "UNAUTHORIZED");
    let mut typo = client(&server);
    for word in ["auth", "AUTH ", " auth ", "\t \x01Auth "] {
        typo.expect(&format!("{word}root-root-root-root\r\n"), "UNKNOWN_COMMAND");
    }
    // A file that is about to be written.
    secret(&users, "");
    server.signal(Signal::SIGWINCH);
    let log = || fs::read_to_string(scratch.join("stderr")).expect("the log can be read");
    wait::until("the empty file is looked at", || log().contains("users.toml: no user has a right"));
    root.expect("list-tube-used\r\n", "USING default");
    secret(&users, &one("produce = [\"a\"]"));
    server.signal(Signal::SIGWINCH);
    assert_eq!(root.line(), None, "the user is gone");
    server.stop();
    let text = log();
    assert_eq!(text.matches("the users stay as they were: ").count(), 1, "{text}");
    assert!(!text.contains("root-root") && !text.contains("wrong-wrong"), "{text}");
    assert!(text.contains("authenticated as user root conn="), "{text}");
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
    // The exit code and the message, if any.
    let check = |flags: &[&str]| {
        let mut command = Command::new(program());
        command.args(["-l", "127.0.0.1", "-p", "0", "--check-config"]).args(flags);
        let output = command.output().expect("the program runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let auth = ["--auth", users.to_str().expect("a name in UTF-8")];
    let refused = |flags: &[&str], said: &str| {
        let (code, text) = check(flags);
        assert!(code == Some(2) && text.contains(said), "{said}: {code:?}, {text}");
    };
    refused(&auth, "there is no such file; correct the path");
    secret(&users, &format!("{ROOT}[users.one]\ntoken = \"short\"\n"));
    refused(&auth, "line 9: a token has 16 to 200");
    for useless in ["", "[users.root]\ntoken = \"root-root-root-root\"\nadmin = false\n"] {
        secret(&users, useless);
        let (code, text) = check(&auth);
        assert!(code == Some(0) && text.contains("users.toml: no user has a right"), "{text}");
    }
    secret(&users, "[anonymous]\nproduce = [\"*\"]\nconsume = [\"*\"]\nadmin = [\"*\"]\n");
    let (code, text) = check(&auth);
    assert!(
        code == Some(0) && text.contains("[anonymous] may produce, consume and administer all"),
        "{text}"
    );
    secret(&users, ROOT);
    let (code, text) = check(&auth);
    assert!(code == Some(0) && !text.contains("--auth"), "{text}");
    let shared = Path::new("/tmp").join(format!("beanring-users-{}", std::process::id()));
    secret(&shared, ROOT);
    let (code, text) = check(&["--auth", shared.to_str().expect("a name in UTF-8")]);
    fs::remove_file(&shared).expect("it exists");
    assert!(
        code == Some(0) && text.contains(": the directory /tmp is shared (docs/OPERATIONS.md)"),
        "{text}"
    );
    fs::set_permissions(&users, fs::Permissions::from_mode(0o644)).expect("the mode can be set");
    refused(&auth, "run chmod o-r on the file");
    refused(&[&auth[..], &["--http", "0", "--http-token", auth[1]]].concat(), "cannot be used with --auth");
}

/// Runs a verb of the client with this file of a token. Returns the exit code, and what was printed on standard output and error.
fn run_verb(server: &ServerProcess, token: &Path, line: &str) -> (Option<i32>, String, String) {
    let mut command = Command::new(program());
    command.args(line.split(' ')).args(server.client_flags().split_whitespace());
    let output = command.env("BEANRING_TOKEN_FILE", token).output().expect("the program runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// The client must not ask for statistics that its user may not see.
#[test]
fn verbs_of_the_client_need_the_rights_of_their_commands() {
    let scratch = Scratch::new("auth-client");
    let [users, token] = ["users.toml", "token"].map(|name| scratch.join(name));
    secret(&users, &format!("{ROOT}{}", one("produce = [\"a\"]\nadmin = [\"a\", \"b\"]")));
    secret(&token, "one-one-one-one-one\n");
    let auth = users.to_str().expect("a name in UTF-8");
    let (mut server, _) = start(&scratch, Driver::Epoll, &["--auth", auth]);
    let verb = |line: &str| run_verb(&server, &token, line);
    let done = |said: &str| (Some(0), said.to_owned(), String::new());
    assert_eq!(verb("put x -t a --idp order-7 --grp a --delay 60"), done("1\n"));
    assert_eq!(verb("kick -t a --count 1"), done("kicked 1 job\n"));
    assert_eq!(verb("move a b"), done("moved 1 job from a to b\n"));
    assert_eq!(verb("move a b --count 5"), done("moved 0 jobs from a to b\n"));
    let (code, _, said) = verb("kick -t a --all");
    let expected = "beanring: tube a: FORBIDDEN: --all asks how many jobs are buried, and needs the right inspect on the tube; use --count\n";
    assert_eq!((code, &*said), (Some(1), expected));
    for (line, rights) in [
        (
            "put x -t a --con other",
            "produce or consume or keys on the keys and groups of the tags, and produce on the tube",
        ),
        ("move a c", "produce or inspect or admin on the tube c"),
        ("stats", "inspect on any tube"),
        ("group g", "inspect on all tubes"),
        ("wait 1", "produce or inspect on the tube of the job"),
    ] {
        let (code, _, said) = verb(line);
        let expected = format!("FORBIDDEN: you need the right {rights}; see the server's --auth\n");
        assert!(code == Some(1) && said.ends_with(&expected), "{line}: {said}");
    }
    server.stop();
}

#[test]
fn schedules_of_the_client_need_rights_on_their_tubes() {
    let scratch = Scratch::new("auth-schedules");
    let [users, token] = ["users.toml", "token"].map(|name| scratch.join(name));
    secret(&users, &format!("{ROOT}{}", one("produce = [\"a\"]\ninspect = [\"b\"]")));
    secret(&token, "one-one-one-one-one\n");
    let auth = users.to_str().expect("a name in UTF-8");
    let (mut server, mut root) = start(&scratch, Driver::Epoll, &["--auth", auth]);
    root.expect("auth root-root-root-root\r\n", "AUTHENTICATED");
    for (name, tube) in [("seen", "b"), ("hidden", "c")] {
        root.expect(&format!("schedule-put {name} 0 0 60 1 {tube} every:1h\r\nx\r\n"), "SCHEDULED");
    }
    let verb = |line: &str| run_verb(&server, &token, line);
    let fails = |line: &str, said: &str| {
        assert_eq!(verb(line), (Some(1), String::new(), format!("beanring: schedule {said}\n")), "{line}");
    };
    assert_eq!(verb("schedule add own x -w every:1h -t a").0, Some(0));
    assert_eq!(verb("schedule run own"), (Some(0), "1\n".to_owned(), String::new()));
    let forbidden = |tube: &str| {
        format!(
            "FORBIDDEN: you need the right produce on the tube {tube}, and produce on the tube of the schedule; see the server's --auth"
        )
    };
    fails("schedule add other x -w every:1h -t b", &format!("other: {}", forbidden("b")));
    fails("schedule add hidden x -w every:1h -t a", &format!("hidden: {}", forbidden("a")));
    let names: Vec<String> = verb("schedule list").1.lines().skip(1).map(first_word).collect();
    assert_eq!(names, ["own", "seen"]);
    assert_eq!(verb("schedule show seen").0, Some(0));
    let may_not = |right: &str| {
        format!("FORBIDDEN: you need the right {right} on the tube of the schedule; see the server's --auth")
    };
    fails("schedule run seen", &format!("seen: {}", may_not("produce or admin")));
    fails("schedule rm seen", &format!("seen: {}", may_not("produce or admin")));
    fails("schedule show hidden", &format!("hidden: {}", may_not("produce or inspect or admin")));
    assert_eq!(verb("schedule rm own"), (Some(0), "deleted own\n".to_owned(), String::new()));
    server.stop();
}

fn first_word(row: &str) -> String {
    row.split(' ').next().unwrap_or_default().to_owned()
}
