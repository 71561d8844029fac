//! The seccomp profile for containers, `deploy/seccomp-io-uring.json`: it allows everything that the server needs under each driver,
//! and refuses what containers must not do.
//!
//! `BEANRING_TEST_SYSCALLS` names a file with one system call per line, to which the server is restricted too. `ci/deploy` sets it to
//! those of the systemd unit.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use beanring::io::driver::Driver;
use beanring_testkit::kernel;
use beanring_testkit::scratch::Scratch;
use beanring_testkit::seccomp::{allowing, filters, profile};
use caps::CapSet;
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::unistd::{Pid, geteuid};
use seccompiler::{BpfProgram, TargetArch, apply_filter, compile_from_json};
use serde_json::{Value, json};

const BINARY: &str = env!("CARGO_BIN_EXE_beanring");
const PATIENCE: Duration = Duration::from_secs(60);

/// The capabilities that a server is started with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rights {
    /// The capabilities of this test.
    Own,
    /// None, as with the empty `CapabilityBoundingSet=` of the unit.
    None,
}

/// Calls `what` in a thread under the filters, which its child processes inherit.
fn under_filters(rights: Rights, filters: Vec<BpfProgram>, what: impl FnOnce() + Send + 'static) {
    let in_thread = move || {
        // Other users than root have none.
        if rights == Rights::None && geteuid().is_root() {
            // The bounding set first, which needs a capability.
            for set in [CapSet::Bounding, CapSet::Ambient, CapSet::Permitted, CapSet::Inheritable] {
                caps::clear(None, set).expect("root may");
            }
        }
        filters.iter().for_each(|filter| apply_filter(filter).expect("the filter is applied"));
        what();
    };
    thread::spawn(in_thread).join().expect("the thread does not panic");
}

/// Runs a server with a log, from its start to its graceful stop.
fn serve(driver: Driver, log: &Path) {
    let mut command = Command::new(BINARY);
    command.args(["-V", "-l", "127.0.0.1", "-p", "0", "-f", "0", "--io", driver.name(), "-b"]).arg(log);
    let mut child = command.stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut lines =
        BufReader::new(child.stderr.take().expect("stderr is a pipe")).lines().map_while(Result::ok);
    let mut said = String::new();
    let address = loop {
        let line = lines.next().unwrap_or_else(|| panic!("{}: {said}", driver.name()));
        match line.split_once("listening on ") {
            Some((_, address)) => break address.to_owned(),
            None => said += &(line + "\n"),
        }
    };
    let reader = thread::spawn(move || lines.filter(|line| line.contains("WARN")).collect::<Vec<_>>());

    let mut client = TcpStream::connect(&address).expect("the server accepts connections");
    client.set_read_timeout(Some(PATIENCE)).expect("the time-out is set");
    let body = "x".repeat(60_000);
    let conversation = [
        ("use a\r\n".to_owned(), "USING a\r\n".to_owned()),
        (format!("put 0 0 9 60000\r\n{body}\r\n"), "INSERTED 1\r\n".to_owned()),
        ("watch a\r\n".to_owned(), "WATCHING 2\r\n".to_owned()),
        ("reserve-with-timeout 1\r\n".to_owned(), format!("RESERVED 1 60000\r\n{body}\r\n")),
        ("delete 1\r\n".to_owned(), "DELETED\r\n".to_owned()),
        ("reserve-with-timeout 1\r\n".to_owned(), "TIMED_OUT\r\n".to_owned()),
        ("stats\r\n".to_owned(), "OK ".to_owned()),
    ];
    for (command, expected) in conversation {
        client.write_all(command.as_bytes()).expect("the command is sent");
        let mut answer = vec![0; expected.len()];
        client.read_exact(&mut answer).expect("the reply comes");
        assert!(answer == expected.as_bytes(), "{}: {command:.30}", driver.name());
    }
    let (host, port) = address.rsplit_once(':').expect("a port");
    let is_well = || {
        let check = Command::new(BINARY).args(["healthcheck", "-l", host, "-p", port]).status();
        assert!(check.expect("the program starts").success());
    };
    is_well();

    // An in-place restart keeps the filters.
    kill(Pid::from_raw(child.id() as i32), Signal::SIGUSR2).expect("the process runs");
    client.read_to_end(&mut Vec::new()).expect("the connection is closed");
    is_well();

    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("the process runs");
    assert!(child.wait().expect("the child ends").success());
    assert_eq!(reader.join().expect("the reader does not panic"), Vec::<String>::new(), "{}", driver.name());
}

/// Runs a server under each driver that the kernel allows without the filters. With them all of these must work.
fn serve_under_filters(name: &'static str, rights: Rights, filters: impl Fn() -> Vec<BpfProgram>) {
    for &driver in Driver::ALL {
        if let Err(reason) = kernel::allows(driver.name()) {
            println!("skipped: seccomp under {}, because {reason}", driver.name());
            continue;
        }
        println!("tested: seccomp under {}", driver.name());
        let log = Scratch::new(&format!("seccomp-{name}-{}", driver.name()));
        under_filters(rights, filters(), move || serve(driver, &log.0));
    }
}

#[test]
fn the_profile_allows_what_the_server_needs() {
    serve_under_filters("profile", Rights::Own, || filters(&profile()));
}

#[test]
fn the_unit_allows_what_the_server_needs() {
    let Some(path) = std::env::var_os("BEANRING_TEST_SYSCALLS") else {
        println!("skipped: the system calls of the unit, because ci/deploy has not listed them");
        return;
    };
    let calls = fs::read_to_string(path).expect("the list is there");
    let calls: Vec<Value> = calls.lines().map(|name| json!({ "syscall": name })).collect();
    // Some exist only on other architectures.
    let is_known = |call: &Value| {
        let filter =
            json!({ "all": { "mismatch_action": "allow", "match_action": "trap", "filter": [call] } });
        compile_from_json(filter.to_string().as_bytes(), TargetArch::x86_64).is_ok()
    };
    let calls: Vec<Value> = calls.into_iter().filter(is_known).collect();
    assert!(calls.len() > 100, "there are only {}", calls.len());
    serve_under_filters("unit", Rights::None, || vec![allowing(calls.clone())]);
}

#[test]
fn the_profile_refuses_what_containers_must_not_do() {
    under_filters(Rights::Own, filters(&profile()), || {
        assert_eq!(unshare(CloneFlags::CLONE_NEWUSER), Err(Errno::EPERM));
        for family in [AddressFamily::Packet, AddressFamily::Vsock, AddressFamily::Alg] {
            let refused = socket(family, SockType::Stream, SockFlag::empty(), None).map(drop);
            assert_eq!(refused, Err(Errno::EPERM), "{family:?}");
        }
        let child = Command::new("sh").args(["-c", "exit 7"]).status().expect("a program starts");
        assert_eq!(child.code(), Some(7));
    });
}

#[test]
fn each_call_is_named_once_and_the_architectures_are_known() {
    let profile = profile();
    let machines: Vec<&str> =
        profile.arch_map.iter().filter_map(|entry| entry["architecture"].as_str()).collect();
    assert_eq!(machines, ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"]);
    let mut seen = BTreeSet::new();
    for rule in &profile.syscalls {
        for name in &rule.names {
            assert!(seen.insert(name) || name == "socket", "{name} is there twice");
        }
    }
    for name in ["io_uring_enter", "io_uring_register", "io_uring_setup"] {
        assert!(seen.contains(&name.to_owned()), "{name}");
    }
    // Administration of the kernel and the machine.
    for name in ["bpf", "keyctl", "kexec_load", "mount", "perf_event_open", "ptrace", "setns", "unshare"] {
        assert!(!seen.contains(&name.to_owned()), "{name}");
    }
}
