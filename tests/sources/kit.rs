//! The test kit must not let a test pass that has tested nothing.

use std::os::unix::net::UnixListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use beanring_testkit::pattern::{Outcome, Pattern};
use beanring_testkit::process::{Address, ServerProcess, Transport, program};
use beanring_testkit::scratch::Scratch;
use nix::sys::signal::Signal;

/// Returns the panic message of `settle`, if it fails.
fn refusal(server: &ServerProcess, patience: Duration) -> Option<String> {
    let settled = catch_unwind(AssertUnwindSafe(|| server.settle_within(patience)));
    settled.err().map(|payload| payload.downcast_ref::<String>().expect("a message").clone())
}

#[test]
fn an_idle_server_settles() {
    let (server, _client) = ServerProcess::start(Path::new(program()), Transport::Tcp, &[""; 0]);
    server.settle();
}

#[test]
fn a_server_that_is_stopped_or_has_ended_does_not_settle() {
    let (server, _client) = ServerProcess::start(Path::new(program()), Transport::Tcp, &[""; 0]);
    server.signal(Signal::SIGSTOP);
    let message = refusal(&server, Duration::from_secs(60)).expect("settle fails");
    assert!(message.contains("in state T"), "{message}");
    server.signal(Signal::SIGKILL);
    // The process ends some time after the signal.
    let message = (0..1000)
        .find_map(|_| refusal(&server, Duration::ZERO).filter(|message| message.contains("state Z")));
    assert!(message.is_some(), "it has ended");
}

#[test]
fn a_busy_server_does_not_settle() {
    let scratch = Scratch::new("busy");
    let path = scratch.0.join("socket");
    let _listener = UnixListener::bind(&path).expect("the path is free");
    let mut busy = Command::new("sh");
    // It gets the arguments of a server.
    busy.args(["-c", "while :; do :; done"]);
    let (server, _client) = ServerProcess::launch(busy, Address::Unix(path), &[""; 0]);
    // It may sleep before it becomes the shell.
    let message = (0..1000).find_map(|_| refusal(&server, Duration::from_millis(100)));
    assert!(message.is_some_and(|message| message.contains("does not sleep: state R")));
}

fn check(pattern: &str, input: &str, outcome: Outcome) {
    assert_eq!(Pattern::parse(pattern).unwrap().compare(input.as_bytes()), outcome, "{pattern} {input}");
}

#[test]
fn patterns_match_input_in_pieces() {
    check("AB", "A", Outcome::Incomplete);
    check("AB", "ABC", Outcome::Match { bytes: 2 });
    check("AB", "AX", Outcome::Mismatch { at: 1 });
    check("A {num}\\r\\n", "A 12", Outcome::Incomplete);
    check("A {num}\\r\\n", "A 12\r\n", Outcome::Match { bytes: 6 });
    check("A {num}", "A x", Outcome::Mismatch { at: 2 });
    check("\"{any}\"\\n", "\"x y\"\n", Outcome::Match { bytes: 6 });
    check("{a*3}{\\x00*2}", "aaa\0\0", Outcome::Match { bytes: 5 });
}

#[test]
fn invalid_patterns_are_refused() {
    for text in ["{", "{number}", "{*3}", "{a*}", "\\q", "\\x1", "{{num}*2}"] {
        assert!(Pattern::parse(text).is_err(), "{text}");
    }
}
