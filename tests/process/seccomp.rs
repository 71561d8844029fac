//! The seccomp profile for containers, `deploy/seccomp-io-uring.json`: it allows everything that the server needs under each driver,
//! and refuses what containers must not do.
//!
//! `BEANRING_TEST_SYSCALLS` names a file with one system call per line, to which the server is restricted too. `ci/deploy` sets it to
//! those of the systemd unit.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::thread;

use beanring::io::driver::Driver;
use beanring_testkit::client::put;
use beanring_testkit::driver::under_each;
use beanring_testkit::logged::LoggedServer;
use beanring_testkit::process::{Address, program};
use beanring_testkit::seccomp::{allowing, filters, profile};
use caps::CapSet;
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::unistd::geteuid;
use seccompiler::{BpfProgram, TargetArch, apply_filter, compile_from_json};
use serde_json::{Value, json};

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
fn serve(driver: Driver) {
    let server = LoggedServer::start(&["-V", "-f", "0", "--io", driver.name(), "-b", "DIR"]);
    let mut client = server.client();
    let body = "x".repeat(60_000);
    client.expect("use a\r\n", "USING a");
    client.expect(&put(0, 0, &body), "INSERTED 1");
    client.expect("watch a\r\n", "WATCHING 2");
    let reserved = client.ask("reserve-with-timeout 1\r\n");
    assert!(reserved == ("RESERVED 1 60000".to_owned(), body + "\r\n"), "{}", driver.name());
    client.expect("delete 1\r\n", "DELETED");
    client.expect("reserve-with-timeout 1\r\n", "TIMED_OUT");
    client.stats();
    let (host, port) = match server.address() {
        Address::Tcp(at) => (at.ip().to_string(), at.port().to_string()),
        other => panic!("it listens on {other}"),
    };
    let is_well = || {
        let check = Command::new(program()).args(["healthcheck", "-l", &host, "-p", &port]).status();
        assert!(check.expect("the program starts").success());
    };
    is_well();

    // An in-place restart keeps the filters.
    server.signal(Signal::SIGUSR2);
    client.expect_end();
    is_well();
    let warnings: Vec<String> = server.stopped().into_iter().filter(|line| line.contains("WARN")).collect();
    assert_eq!(warnings, Vec::<String>::new(), "{}", driver.name());
}

/// Runs a server under each driver that the kernel allows without the filters. With them all of these must work.
fn serve_under_filters(rights: Rights, filters: impl Fn() -> Vec<BpfProgram> + Sync) {
    under_each("seccomp", |driver| under_filters(rights, filters(), move || serve(driver)));
}

#[test]
fn the_profile_allows_what_the_server_needs() {
    serve_under_filters(Rights::Own, || filters(&profile()));
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
    serve_under_filters(Rights::None, || vec![allowing(calls.clone())]);
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
