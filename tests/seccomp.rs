//! The profile for containers, `deploy/seccomp-io-uring.json`: under it the server has all that it needs, with each
//! driver, and what containers are kept from stays refused.
//!
//! `BEANRING_SYSCALLS` names a file with one system call a line: then the server is held to these too. `ci/deploy` does so
//! with those of the systemd unit.

#![cfg(target_arch = "x86_64")]

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

/// Which capabilities a server is started with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rights {
    /// Those of this test.
    Own,
    /// None, as `CapabilityBoundingSet=` of the unit has it.
    None,
}

/// Does `what` in a thread that is held to the filters, with all that it starts.
fn held_to(rights: Rights, filters: Vec<BpfProgram>, what: impl FnOnce() + Send + 'static) {
    let in_thread = move || {
        // What is not root has none already.
        if rights == Rights::None && geteuid().is_root() {
            // From the bounding set first, which takes the right to do so.
            for set in [CapSet::Bounding, CapSet::Ambient, CapSet::Permitted, CapSet::Inheritable] {
                caps::clear(None, set).expect("root may");
            }
        }
        filters.iter().for_each(|filter| apply_filter(filter).expect("a thread may restrict itself"));
        what();
    };
    thread::spawn(in_thread).join().expect("it went well");
}

/// A life of a server with a log, from its start to its orderly end.
fn serve(driver: Driver, log: &Path) {
    let mut command = Command::new(BINARY);
    command.args(["-V", "-l", "127.0.0.1", "-p", "0", "-f", "0", "--io", driver.name(), "-b"]).arg(log);
    let mut child = command.stderr(Stdio::piped()).spawn().expect("it can be started");
    let mut lines = BufReader::new(child.stderr.take().expect("it is a pipe")).lines().map_while(Result::ok);
    let mut said = String::new();
    let address = loop {
        let line = lines.next().unwrap_or_else(|| panic!("{}: {said}", driver.name()));
        match line.split_once("listening on ") {
            Some((_, address)) => break address.to_owned(),
            None => said += &(line + "\n"),
        }
    };
    let reader = thread::spawn(move || lines.filter(|line| line.contains("WARN")).collect::<Vec<_>>());

    let mut client = TcpStream::connect(&address).expect("it listens");
    client.set_read_timeout(Some(PATIENCE)).expect("a time-out");
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
        client.write_all(command.as_bytes()).expect("it reads");
        let mut answer = vec![0; expected.len()];
        client.read_exact(&mut answer).expect("it answers");
        assert!(answer == expected.as_bytes(), "{}: {command:.30}", driver.name());
    }
    let (host, port) = address.rsplit_once(':').expect("it has a port");
    let is_well = || {
        let check = Command::new(BINARY).args(["healthcheck", "-l", host, "-p", port]).status();
        assert!(check.expect("it can be started").success());
    };
    is_well();

    // A program takes over, to which the filters go with the process.
    kill(Pid::from_raw(child.id() as i32), Signal::SIGUSR2).expect("it runs");
    client.read_to_end(&mut Vec::new()).expect("the connection is closed");
    is_well();

    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("it runs");
    assert!(child.wait().expect("it was started").success());
    assert_eq!(reader.join().expect("it only reads"), Vec::<String>::new(), "{}", driver.name());
}

/// Under each driver that there is without the filters; with them there must be all of these.
fn serve_held_to(name: &'static str, rights: Rights, filters: impl Fn() -> Vec<BpfProgram>) {
    for &driver in Driver::ALL {
        if let Err(reason) = kernel::allows(driver.name()) {
            println!("skipped: seccomp under {}, because {reason}", driver.name());
            continue;
        }
        println!("tested: seccomp under {}", driver.name());
        let log = Scratch::new(&format!("seccomp-{name}-{}", driver.name()));
        held_to(rights, filters(), move || serve(driver, &log.0));
    }
}

#[test]
fn the_server_has_what_it_needs() {
    serve_held_to("profile", Rights::Own, || filters(&profile()));
}

#[test]
fn the_unit_lets_it_have_what_it_needs() {
    let Some(path) = std::env::var_os("BEANRING_SYSCALLS") else {
        println!("skipped: the system calls of the unit, because ci/deploy has not listed them");
        return;
    };
    let calls = fs::read_to_string(path).expect("the list is there");
    let calls: Vec<Value> = calls.lines().map(|name| json!({ "syscall": name })).collect();
    // Some are those of other machines.
    let is_known = |call: &Value| {
        let filter =
            json!({ "all": { "mismatch_action": "allow", "match_action": "trap", "filter": [call] } });
        compile_from_json(filter.to_string().as_bytes(), TargetArch::x86_64).is_ok()
    };
    let calls: Vec<Value> = calls.into_iter().filter(is_known).collect();
    assert!(calls.len() > 100, "there are only {}", calls.len());
    serve_held_to("unit", Rights::None, || vec![allowing(calls.clone())]);
}

#[test]
fn what_containers_are_kept_from_is_refused() {
    held_to(Rights::Own, filters(&profile()), || {
        assert_eq!(unshare(CloneFlags::CLONE_NEWUSER), Err(Errno::EPERM));
        for family in [AddressFamily::Packet, AddressFamily::Vsock, AddressFamily::Alg] {
            let refused = socket(family, SockType::Stream, SockFlag::empty(), None).map(drop);
            assert_eq!(refused, Err(Errno::EPERM), "{family:?}");
        }
        let child = Command::new("sh").args(["-c", "exit 7"]).status().expect("it may start programs");
        assert_eq!(child.code(), Some(7));
    });
}

#[test]
fn each_call_is_named_once_and_the_machines_are_known() {
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
    // The kernel's and the machine's own affairs.
    for name in ["bpf", "keyctl", "kexec_load", "mount", "perf_event_open", "ptrace", "setns", "unshare"] {
        assert!(!seen.contains(&name.to_owned()), "{name}");
    }
}
