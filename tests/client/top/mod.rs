//! `beanring top` as users see it: on a terminal, driven by keys.

mod picture;
mod tmux;

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{env, fs, thread};

use beanring_testkit::certificates::Certificates;
use beanring_testkit::client::{Client, put};
use beanring_testkit::process::{ServerProcess, Transport, is_over_tls, program};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::statistics::number;
use beanring_testkit::{beanstalkd, driver, repository, tls_front, unused_address, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tmux::Terminal;

use crate::fake::{data, replies};
use crate::liar::fill;

/// The picture in the documents.
const PICTURE: &str = "docs/images/top.svg";

/// The columns of the picture.
const WIDTH: u16 = 100;

/// Set to write the picture instead of comparing with it.
const UPDATE: &str = "BEANRING_TEST_UPDATE";

/// A server on an address that can be bound again.
struct Place {
    server: ServerProcess,
    client: Client,
}

impl Place {
    fn new(program: &Path, flags: &[&str]) -> Self {
        let (server, stream) = ServerProcess::start(program, Transport::of_suite(), flags);
        Self { server, client: Client::new(stream) }
    }

    fn beanring() -> Self {
        Self::new(Path::new(program()), &[])
    }

    fn put(&mut self, tube: &str, count: usize, delay: u32, body: &str) {
        self.client.expect(&format!("use {tube}\r\n"), &format!("USING {tube}"));
        for _ in 0..count {
            let (line, _) = self.client.ask(&put(100, delay, body));
            assert!(line.starts_with("INSERTED"), "{line}");
        }
        self.client.expect("use default\r\n", "USING default");
    }

    fn tube(&mut self, tube: &str, key: &str) -> u64 {
        number(&self.client.ask(&format!("stats-tube {tube}\r\n")).1, key)
    }

    /// Waits until `top` has asked the server so often.
    fn await_polls(&mut self, count: u64) {
        let mut before = self.client.stat("cmd-stats");
        wait::until("top polls", || {
            thread::sleep(Duration::from_millis(50));
            // This asks too.
            before += 1;
            self.client.stat("cmd-stats") >= before + count
        });
    }

    fn top(&self, width: u16, height: u16, arguments: &str) -> Terminal {
        Terminal::top(width, height, &format!("{} {arguments}", self.server.client_flags()))
    }
}

/// The row of a tube.
fn row(screen: &[String], tube: &str) -> Option<Vec<String>> {
    let words = |line: &String| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    screen.iter().map(words).find(|words| words.first().is_some_and(|word| word == tube))
}

/// Whether the row of a tube begins with these cells.
fn has_row(screen: &[String], cells: &[&str]) -> bool {
    row(screen, cells[0]).is_some_and(|row| row.iter().take(cells.len()).eq(cells.iter().copied()))
}

/// The screen without what differs between runs: numbers, address, driver.
fn outline(screen: &[String]) -> String {
    let word = |word: &str| match word {
        "uring" | "epoll" | "tokio-uring" => "DRIVER".to_owned(),
        _ => {
            let is_digit = |one: char| one.is_ascii_digit() || one == '.';
            let word = word.trim_start_matches("beanstalks://");
            let number = if word.starts_with(is_digit) { "N" } else { "" };
            number.to_owned() + &word.replace(is_digit, "")
        }
    };
    let line = |line: &String| line.split_whitespace().map(word).collect::<Vec<_>>().join(" ");
    screen.iter().map(line).collect::<Vec<_>>().join("\n").trim_end().to_owned()
}

#[test]
fn the_screen_is_that_of_the_documents() {
    let Some(()) = tmux::found("the screen of beanring top") else { return };
    let mut place = Place::new(Path::new(program()), &["--max-memory", "512m"]);
    place.put("emails", 1240, 0, "to: someone");
    place.put("exports", 12, 0, "export");
    place.put("invoices", 320, 3600, "invoice");
    place.put("thumbnails", 86, 0, "image");
    place.client.expect("watch exports\r\n", "WATCHING 2");
    for at in 0..7 {
        let (line, _) = place.client.ask("reserve\r\n");
        let id = line.split(' ').nth(1).expect("an id").to_owned();
        if at < 3 {
            place.client.expect(&format!("bury {id} 100\r\n"), "BURIED");
        }
    }
    place.client.expect("pause-tube thumbnails 900\r\n", "PAUSED");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| work(&place.server, &is_over));
        let terminal = place.top(WIDTH, 14, "--sort ready");
        let file = repository().join(PICTURE);
        let is_update = env::var_os(UPDATE).is_some();
        let expected = if is_update {
            Vec::new()
        } else {
            picture::lines(&fs::read_to_string(&file).expect("there is a picture"))
        };
        let screen = terminal.wait("screen as in the picture", |screen| {
            let has_rates =
                row(screen, "emails").is_some_and(|row| row[6].parse().is_ok_and(|rate: f64| rate > 20.0));
            let has_ages = row(screen, "exports").is_some_and(|row| row[8].ends_with('s'));
            has_rates && has_ages && (is_update || outline(screen) == outline(&expected))
        });
        if is_update {
            let flags = place.server.client_flags();
            let address = flags.split(' ').nth(1).expect("the address follows -a");
            let lines: Vec<String> =
                screen.iter().map(|line| line.replace(address, "127.0.0.1:11300")).collect();
            fs::write(&file, picture::of(&lines, WIDTH)).expect("there is space");
        }
        terminal.keys(&["q"]);
        terminal.wait_for_end(0);
        is_over.store(true, Ordering::Relaxed);
    });
}

/// Puts, reserves and deletes jobs of `emails`.
fn work(server: &ServerProcess, is_over: &AtomicBool) {
    let mut client = Client::new(server.connect());
    client.expect("use emails\r\n", "USING emails");
    client.expect("watch emails\r\n", "WATCHING 2");
    while !is_over.load(Ordering::Relaxed) {
        client.ask(&put(100, 0, "to: someone"));
        let (line, _) = client.ask("reserve\r\n");
        let id = line.split(' ').nth(1).expect("an id").to_owned();
        client.expect(&format!("delete {id}\r\n"), "DELETED");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn keys_sort_filter_pause_kick_and_peek() {
    let Some(()) = tmux::found("the keys of beanring top") else { return };
    driver::under_each("the keys of beanring top", |io| {
        steer(&mut Place::new(Path::new(program()), &driver::flags(io)));
    });
    if is_over_tls() {
        // beanstalkd has no TLS.
        return;
    }
    match beanstalkd::installed() {
        Some(path) => steer(&mut Place::new(&path, &[])),
        None => println!("skipped: the keys of beanring top, because beanstalkd is not installed"),
    }
}

fn steer(place: &mut Place) {
    place.put("alpha", 2, 0, "first\n\tsecond");
    place.put("beta", 5, 0, "x");
    place.put("gamma", 3, 3600, "later");
    let terminal = place.top(110, 30, "");
    let names = |screen: &[String]| -> Vec<String> {
        let title = screen.iter().position(|line| line.starts_with("TUBE")).unwrap_or(screen.len());
        let rows = screen.iter().skip(title + 1).take_while(|line| !line.is_empty());
        rows.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
    };
    let expect = |expected: &[&str]| terminal.wait(&expected.join(" "), |screen| names(screen) == expected);
    expect(&["alpha", "beta", "default", "gamma"]);
    terminal.wait("counts", |screen| has_row(screen, &["beta", "5", "0", "0", "0"]));
    terminal.keys(&["s"]);
    expect(&["beta", "alpha", "default", "gamma"]);
    terminal.keys(&["r"]);
    expect(&["gamma", "default", "alpha", "beta"]);
    terminal.keys(&["<"]);
    expect(&["alpha", "beta", "default", "gamma"]);
    terminal.keys(&["/"]);
    terminal.text("*m");
    terminal.text("a");
    expect(&["gamma"]);
    terminal.keys(&["Enter"]);
    terminal.wait_for("tubes 1 of 4 match *ma");

    // Kick.
    terminal.keys(&["k"]);
    terminal.wait_for("kick up to N buried jobs of gamma (delayed ones if none is buried): 10");
    terminal.keys(&["2", "Enter"]);
    terminal.wait_for("kicked 2 jobs of gamma");
    assert_eq!(place.tube("gamma", "current-jobs-ready"), 2);
    terminal.wait("kicked jobs", |screen| has_row(screen, &["gamma", "2", "0", "1"]));

    // Pause and resume.
    terminal.keys(&["Escape"]);
    expect(&["alpha", "beta", "default", "gamma"]);
    // The cursor has stayed with the tube of the last action.
    terminal.keys(&["Home", "Down", "p"]);
    terminal.wait_for("pause beta for a time such as 90 or 5m (0 resumes): 60");
    terminal.text("600");
    terminal.keys(&["Enter"]);
    terminal.wait_for("paused beta for 10 min");
    assert!(place.tube("beta", "pause-time-left") > 500);
    terminal.wait("pause", |screen| row(screen, "beta").is_some_and(|row| row.contains(&"9m".to_owned())));
    terminal.keys(&["p"]);
    terminal.wait_for("pause beta for a time such as 90 or 5m (0 resumes): 0");
    terminal.keys(&["Enter"]);
    terminal.wait_for("resumed beta");
    assert_eq!(place.tube("beta", "pause-time-left"), 0);

    // A tube in full.
    terminal.keys(&["Home", "Enter"]);
    terminal.wait_for("Next ready job");
    let screen = terminal.wait_for("      second");
    assert!(screen.iter().any(|line| line == "  first") && screen.iter().any(|line| line == "No buried job"));
    terminal.keys(&["x"]);
    terminal.wait_for("  00000  66 69 72 73 74 0a 09 73 65 63 6f 6e 64           first..second");
    assert_eq!(place.tube("alpha", "current-using"), 0, "the tube is still used");
    terminal.keys(&["Escape"]);
    expect(&["alpha", "beta", "default", "gamma"]);
    terminal.keys(&["C-c"]);
    terminal.wait_for_end(0);
}

#[test]
fn a_server_may_start_again() {
    let Some(()) = tmux::found("a new start of the server of beanring top") else { return };
    let mut place = Place::beanring();
    place.put("before", 3, 0, "x");
    let terminal = place.top(120, 20, "");
    terminal.wait("counts", |screen| has_row(screen, &["before", "3"]));
    place.server.signal(Signal::SIGKILL);
    place.server.wait();
    let screen = terminal.wait_for("onnection refused");
    assert!(
        screen[0].ends_with("DISCONNECTED, trying again") && has_row(&screen, &["before", "3"]),
        "{screen:?}"
    );
    place.client = Client::new(place.server.launch_again(Command::new(program()), &[""; 0]));
    place.put("after", 4, 0, "x");
    let screen = terminal.wait("counts", |screen| has_row(screen, &["after", "4"]));
    assert!(row(&screen, "before").is_none() && !screen[0].contains("DISCONNECTED"), "{screen:?}");
    terminal.keys(&["q"]);
    terminal.wait_for_end(0);
}

#[test]
fn an_unchanged_screen_writes_nothing() {
    let Some(()) = tmux::found("the silence of beanring top") else { return };
    let mut place = Place::beanring();
    place.put("buried", 1, 3600, "x");
    let terminal = place.top(100, 20, "--sort ready");
    // Rates are known after the second poll.
    terminal.wait_for("put 0/s");
    place.await_polls(2);
    let file = terminal.record();
    let recorded = || fs::read(&file).expect("it is there").len();
    // The memory of an idle server can still change, for example when it takes a page of its program for the first time.
    let is_silent = (0..6).any(|_| {
        let screen = terminal.screen();
        // tmux shows what it has received before it records it.
        thread::sleep(Duration::from_millis(500));
        let before = recorded();
        place.await_polls(4);
        let is_unchanged = terminal.screen() == screen;
        assert!(!is_unchanged || recorded() == before, "{screen:?}");
        is_unchanged
    });
    assert!(is_silent, "the screen changes all the time: {:?}", terminal.screen());
    // It shows what has changed.
    let silence = recorded();
    place.put("buried", 1, 3600, "x");
    terminal.wait("new count", |screen| has_row(screen, &["buried", "0", "0", "2"]));
    wait::until("the change is recorded", || recorded() > silence);
    let written = recorded() - silence;
    assert!(written < 400, "{written} bytes");
}

#[test]
fn the_terminal_is_given_back() {
    let Some(()) = tmux::found("the end of beanring top") else { return };
    let place = Place::beanring();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let terminal = place.top(100, 20, "");
        terminal.wait_for("TUBE");
        kill(Pid::from_raw(terminal.pid()), signal).expect("it runs");
        terminal.wait_for_end(0);
    }
}

#[test]
fn the_shell_may_suspend_it() {
    let Some(()) = tmux::found("suspending beanring top") else { return };
    let place = Place::beanring();
    let terminal = Terminal::shell(100, 20, &["env", "PS1=prompt>", "bash", "--norc", "-i"]);
    terminal.wait_for("prompt>");
    terminal.text(&format!("'{}' top {}", program(), place.server.client_flags()));
    terminal.keys(&["Enter"]);
    terminal.wait_for("TUBE");
    terminal.keys(&["C-z"]);
    let screen = terminal.wait_for("Stopped");
    assert!(!screen.iter().any(|line| line.contains("TUBE")), "{}", screen.join("\n"));
    terminal.text("stty -a; fg");
    terminal.keys(&["Enter"]);
    let screen = terminal.wait_for("TUBE");
    assert!(!screen.iter().any(|line| line.contains("Stopped")), "{}", screen.join("\n"));
    terminal.keys(&["q"]);
    let screen = terminal.wait_for(" icanon");
    assert!(screen.iter().any(|line| line.contains(" echo ")), "{}", screen.join("\n"));
}

#[test]
fn it_ends_with_its_terminal() {
    let Some(()) = tmux::found("the end of the terminal of beanring top") else { return };
    let place = Place::beanring();
    let terminal = place.top(100, 20, "");
    terminal.wait_for("TUBE");
    let process = Path::new("/proc").join(terminal.pid().to_string());
    assert!(process.exists());
    drop(terminal);
    wait::until("the program ends", || !process.exists());
}

#[test]
fn a_pasted_text_does_not_act() {
    let Some(()) = tmux::found("a text pasted into beanring top") else { return };
    let mut place = Place::beanring();
    place.put("default", 3, 3600, "x");
    let terminal = place.top(100, 20, "");
    terminal.wait("counts", |screen| has_row(screen, &["default", "0", "0", "3"]));
    terminal.paste("k\n1\nq");
    terminal.keys(&["/"]);
    terminal.paste("def\n");
    terminal.wait_for("tubes 1 of 1 match def");
    assert_eq!(place.tube("default", "current-jobs-delayed"), 3);
}

#[test]
fn it_fits_every_terminal() {
    let Some(()) = tmux::found("the sizes of beanring top") else { return };
    let mut place = Place::beanring();
    place.put("tube", 3, 0, "x");
    place.client.expect("pause-tube tube 500\r\n", "PAUSED");
    let terminal = place.top(40, 20, "");
    let has_title = |columns: &'static str| {
        terminal.wait(columns, |screen| {
            screen.iter().any(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") == columns)
        })
    };
    let screen = has_title("TUBE▲ READY RESERVED");
    assert!(screen.iter().all(|line| line.chars().count() <= 40), "{screen:?}");
    terminal.wait_for("tube (paused)");
    terminal.resize(120, 30);
    has_title("TUBE▲ READY RESERVED DELAYED BURIED WAITING PUT/S DELETE/S OLDEST PAUSED");
    terminal.resize(20, 5);
    terminal.wait_for("q quit  ? help");
    terminal.resize(80, 24);
    has_title("TUBE▲ READY RESERVED DELAYED BURIED PUT/S DELETE/S OLDEST");
    terminal.keys(&["?"]);
    terminal.wait_for("any other key goes back");
}

#[test]
fn colors_are_for_who_wants_them() {
    let Some(()) = tmux::found("the colors of beanring top") else { return };
    let mut place = Place::beanring();
    place.client.expect("pause-tube default 500\r\n", "PAUSED");
    for (variables, expected) in [("", true), ("NO_COLOR=1", false), ("NO_COLOR=", true)] {
        let terminal = Terminal::run(120, 20, variables, &place.server.client_flags());
        terminal.wait("pause", |screen| {
            row(screen, "default").is_some_and(|row| {
                row.contains(&"8m".to_owned()) || row.last().is_some_and(|cell| cell.ends_with('s'))
            })
        });
        // Bold and reversed are no colors, and 39 and 49 are those of the terminal.
        let screen = terminal.colored_screen().replace("\x1b[39m", "").replace("\x1b[49m", "");
        let has_colors = ["\x1b[3", "\x1b[9", ";3", ";9"].iter().any(|part| screen.contains(part));
        assert_eq!(has_colors, expected, "{variables}: {screen:?}");
    }
}

/// Starts a server that replies with tube names and bodies that no server should have. Returns its address.
fn liar() -> SocketAddr {
    let address = replies(|| {
        |line| match line.split(' ').next().unwrap_or_default() {
            "stats" => data("OK", &fill("---\nversion: @\nid: @\nio-driver: @\n")),
            "list-tubes" => data("OK", &fill("---\n- @\n- zgood\n")),
            "stats-tube" => data("OK", &fill("---\nname: @\n@: @\ncurrent-jobs-ready: 7\n")),
            "stats-job" => data("OK", &fill("---\nid: 1\nstate: @\n")),
            "use" => (line.replace("use", "USING") + "\r\n").into_bytes(),
            "kick" => fill("NO_@\r\n"),
            // Bodies may have every byte.
            _ => data("FOUND 1", &fill("@\n@")),
        }
    });
    address.parse().expect("an address")
}

#[test]
fn no_byte_of_others_steers_the_terminal() {
    let Some(()) = tmux::found("bytes of others in beanring top") else { return };
    let scratch = Scratch::new("top-liar");
    let mut flags = format!("-a {}", liar());
    if is_over_tls() {
        let certificates = Certificates::new(&scratch.0);
        let front = tls_front::config(&certificates.server, None);
        flags = certificates.client_flags(tls_front::start(liar(), front));
    }
    let terminal = Terminal::top(100, 30, &flags);
    terminal.wait("counts", |screen| has_row(screen, &["zgood", "7"]));
    let title = terminal.title();
    let file = terminal.record();
    let screen = terminal.wait_for("\\x1b]0;pwned\\x07");
    assert!(screen.iter().filter(|line| line.contains("pwned")).count() >= 2, "{screen:?}");
    terminal.keys(&["p"]);
    terminal.wait_for("the protocol does not allow this name in a command");
    terminal.keys(&["End", "Enter"]);
    terminal.wait_for("Next ready job");
    terminal.keys(&["x"]);
    terminal.keys(&["End"]);
    let body = fill("@\n@");
    let row = (body.len() - 2) / 16 * 16;
    terminal.wait_for(&format!("  {row:05x}  {:02x} {:02x}", body[row], body[row + 1]));
    terminal.keys(&["k", "Enter"]);
    terminal.wait_for("NO_\\x1b]0;pwned");
    let written = fs::read(&file).expect("it is there");
    assert_eq!(terminal.title(), title);
    for sequence in [&b"\x1b]"[..], b"\x1b[2J", b"\x9b2J", b"\xe2\x80\xae", b"\x07", b"\0"] {
        // 0x9b is also part of a character.
        let found = written.windows(sequence.len()).any(|window| window == sequence);
        assert!(!found, "{sequence:?}");
    }
    terminal.keys(&["q"]);
    terminal.wait_for_end(0);
}

#[test]
fn ten_thousand_tubes_are_cheap() {
    let Some(()) = tmux::found("many tubes in beanring top") else { return };
    let mut place = Place::beanring();
    for at in 0..10_000 {
        place.client.send(&format!("use t{at:04}\r\n{}", put(1, 0, "x")));
        for _ in 0..2 {
            place.client.line();
        }
    }
    place.client.expect("use default\r\n", "USING default");
    let terminal = place.top(100, 30, "");
    terminal.wait("counts", |screen| has_row(screen, &["t0000", "1"]));
    place.await_polls(1);
    let asked = |place: &mut Place| ["cmd-stats-tube", "cmd-list-tubes"].map(|key| place.client.stat(key));
    let before = asked(&mut place);
    place.await_polls(4);
    let after = asked(&mut place);
    // At most 25 rows are on the screen.
    assert!((25..=6 * 25).contains(&(after[0] - before[0])), "{before:?} {after:?}");
    assert!(after[1] - before[1] <= 1, "{before:?} {after:?}");
    place.put("t7777", 3, 0, "x");
    terminal.keys(&["s"]);
    terminal.wait("order", |screen| {
        has_row(screen, &["t7777", "4"]) && screen.join("").contains("order up to 10 s old")
    });
    terminal.keys(&["End"]);
    terminal.wait("last row", |screen| has_row(screen, &["default", "0"]));
}

#[test]
fn errors_have_exit_codes() {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(program());
        let output = command.arg("top").args(arguments).stdin(Stdio::null()).output().expect("it starts");
        (output.status.code(), String::from_utf8(output.stderr).expect("it is UTF-8"))
    };
    let (code, error) = run(&[]);
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("use beanring tubes or beanring watch"), "{error}");
    for wrong in [&["--interval", "0"][..], &["--sort", "size"], &["--json"], &["-a", "nowhere:x"]] {
        let (code, error) = run(wrong);
        assert_eq!(code, Some(2), "{wrong:?}: {error}");
        assert!(error.contains(wrong[0]), "{wrong:?}: {error}");
    }
    if tmux::found("a server that is gone before beanring top").is_some() {
        let (_held, port) = unused_address::port();
        let terminal = Terminal::top(140, 20, &format!("-a 127.0.0.1:{port}"));
        terminal.wait_for("onnection refused; start the server, or name it with --addr");
        terminal.wait_for_end(3);
        let terminal = Terminal::run(140, 20, "TERM=dumb", "");
        terminal.wait_for("top needs a terminal");
        terminal.wait_for_end(2);
    }
}
