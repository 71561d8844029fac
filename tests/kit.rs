//! The tests' own tools must not pass without having tested anything.

#[allow(dead_code)] // Each test program uses a part of it.
mod support;

use std::os::unix::net::UnixListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use support::lines::{PROGRAM, Scratch};
use support::live::{Address, ServerProcess, Transport};

/// What `settle` says when it fails.
fn refusal(server: &ServerProcess, patience: Duration) -> Option<String> {
    let settled = catch_unwind(AssertUnwindSafe(|| server.settle_within(patience)));
    settled.err().map(|payload| payload.downcast_ref::<String>().expect("a message").clone())
}

#[test]
fn a_server_that_has_nothing_to_do_settles() {
    let (server, _client) = ServerProcess::start(Path::new(PROGRAM), Transport::Tcp, &[]);
    server.settle();
}

#[test]
fn a_server_that_is_stopped_or_has_ended_does_not_settle() {
    let (server, _client) = ServerProcess::start(Path::new(PROGRAM), Transport::Tcp, &[]);
    server.signal(Signal::SIGSTOP);
    let said = refusal(&server, Duration::from_secs(60)).expect("it is stopped");
    assert!(said.contains("in state T"), "{said}");
    server.signal(Signal::SIGKILL);
    // It ends some time after the signal.
    let said =
        (0..1000).find_map(|_| refusal(&server, Duration::ZERO).filter(|said| said.contains("state Z")));
    assert!(said.is_some(), "it has ended");
}

#[test]
fn a_server_that_never_sleeps_does_not_settle() {
    let scratch = Scratch::new("busy");
    let path = scratch.0.join("socket");
    let _listener = UnixListener::bind(&path).expect("the path is free");
    let mut busy = Command::new("sh");
    // Its arguments are those of a server.
    busy.args(["-c", "while :; do :; done"]);
    let (server, _client) = ServerProcess::launch(busy, Address::Unix(path), &[]);
    // Before it is the shell it may sleep.
    let said = (0..1000).find_map(|_| refusal(&server, Duration::from_millis(100)));
    assert!(said.is_some_and(|said| said.contains("does not sleep: state R")));
}
