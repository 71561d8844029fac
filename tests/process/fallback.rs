//! A kernel that refuses io_uring, as in most containers: the server runs on epoll. On a kernel that allows it, the server uses
//! io_uring.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;

use beanring::io::driver::Driver;
use beanring_testkit::kernel;
use beanring_testkit::live::Live;
use beanring_testkit::peer::Received;
use beanring_testkit::process::{REPLY_PATIENCE, ServerProcess, Transport};
use beanring_testkit::runner::{Dialect, run};
use beanring_testkit::suite::{flags, in_real_time, run_all};
use nix::errno::Errno;
use nix::libc::SYS_io_uring_setup;
use nix::sys::utsname::uname;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

const BEANRING: &str = env!("CARGO_BIN_EXE_beanring");

#[test]
fn conversations_where_io_uring_is_forbidden() {
    where_setup_fails(Errno::EPERM, || hold_conversations(Transport::Tcp));
}

#[test]
fn conversations_where_io_uring_is_missing() {
    where_setup_fails(Errno::ENOSYS, || hold_conversations(Transport::Unix));
}

#[test]
fn the_choice_is_logged_once_and_shown_by_stats() {
    where_setup_fails(Errno::EPERM, || {
        let (_server, mut client) = ServerProcess::start(
            Path::new(BEANRING),
            Transport::Tcp,
            &["--io".to_owned(), "auto".to_owned()],
        );
        client.send(b"stats\r\n");
        let Received::Bytes(stats) = client.receive(REPLY_PATIENCE) else { panic!("no reply") };
        assert!(String::from_utf8_lossy(&stats).contains("\nio-driver: epoll\n"));

        let mut command = Command::new(BEANRING);
        command.args(["-l", "127.0.0.1", "-p", "0", "--io", "auto"]).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let mut lines =
            BufReader::new(child.stderr.take().expect("stderr is a pipe")).lines().map_while(Result::ok);
        let line = lines.find(|line| line.contains("I/O driver: ")).expect("the driver is logged");
        child.kill().and_then(|()| child.wait()).expect("the child is killed");
        for part in ["I/O driver: epoll", Errno::EPERM.desc(), "seccomp", "kernel.io_uring_disabled"] {
            assert!(line.contains(part), "{line}");
        }
    });
}

#[test]
fn without_io_uring_there_are_no_io_threads() {
    where_setup_fails(Errno::EPERM, || {
        let mut command = Command::new(BEANRING);
        command.args(["-l", "127.0.0.1", "-p", "0", "--io-threads", "2"]).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let lines =
            BufReader::new(child.stderr.take().expect("stderr is a pipe")).lines().map_while(Result::ok);
        let warnings: Vec<String> = lines
            .take_while(|line| !line.contains("ready after"))
            .filter(|line| line.contains("WARN"))
            .collect();
        child.kill().and_then(|()| child.wait()).expect("the child is killed");
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].ends_with("--io-threads 2 has no effect: the driver is epoll"), "{warnings:?}");
    });
}

#[test]
fn auto_is_io_uring_where_the_kernel_allows_it() {
    let expected = match kernel::allows("uring") {
        Ok(()) => "uring",
        Err(reason) => {
            println!("skipped: --io auto under uring, because {reason}");
            "epoll"
        }
    };
    println!("tested: --io auto under {expected}");
    let auto = ["--io".to_owned(), "auto".to_owned()];
    let (_server, mut client) = ServerProcess::start(Path::new(BEANRING), Transport::Tcp, &auto);
    client.send(b"stats\r\n");
    let Received::Bytes(stats) = client.receive(REPLY_PATIENCE) else { panic!("no reply") };
    let stats = String::from_utf8_lossy(&stats);
    assert!(stats.contains(&format!("\nio-driver: {expected}\n")), "{stats}");
}

#[test]
fn the_test_kit_detects_what_the_kernel_refuses() {
    for errno in [Errno::EPERM, Errno::ENOSYS] {
        where_setup_fails(errno, move || {
            for driver in ["uring", "tokio-uring"] {
                let reason = kernel::allows(driver).expect_err("the driver is refused");
                assert!(
                    reason.contains(&format!("{errno:?}")) && reason.contains("seccomp mode 2"),
                    "{reason}"
                );
            }
            assert_eq!(kernel::allows("epoll"), Ok(()));
        });
    }
}

#[test]
fn a_refused_driver_that_is_named_is_an_error() {
    for errno in [Errno::EPERM, Errno::EACCES, Errno::ENOSYS, Errno::EINVAL, Errno::EOPNOTSUPP] {
        where_setup_fails(errno, move || {
            for name in ["uring", "tokio-uring"] {
                if name == "tokio-uring" && cfg!(not(feature = "tokio-uring")) {
                    continue;
                }
                let output = output(&["-l", "127.0.0.1", "-p", "0", "--io", name]);
                let said = String::from_utf8(output.stderr).expect("UTF-8");
                assert_eq!(output.status.code(), Some(1), "{said}");
                assert_eq!(said.lines().count(), 1, "{said}");
                check_explanation(&said, errno, name);
                assert!(said.contains("; --io epoll works"), "{said}");
            }
        });
    }
}

#[test]
fn check_config_names_the_driver_of_a_start() {
    for errno in [Errno::EPERM, Errno::EINVAL, Errno::EOPNOTSUPP] {
        where_setup_fails(errno, move || {
            let said = checked_driver(&[]);
            assert!(said.starts_with("epoll (") && said.ends_with(')'), "{said}");
            check_explanation(&said, errno, "uring");
            assert_eq!(checked_driver(&["--io", "epoll"]), "epoll");
        });
    }
    if beanring_testkit::driver::is_allowed(Driver::Uring, "the driver that --check-config names") {
        assert_eq!(checked_driver(&[]), "uring");
    }
}

/// The driver as `--check-config` prints it.
fn checked_driver(arguments: &[&str]) -> String {
    let output = output(&[&["--check-config", "-l", "127.0.0.1", "-p", "0"], arguments].concat());
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(output.status.success(), "{said}");
    let driver = said.lines().find_map(|line| line.strip_prefix("I/O driver: "));
    driver.unwrap_or_else(|| panic!("{said}")).to_owned()
}

/// The message for a kernel that is too old differs from that for a filter, which has another remedy.
fn check_explanation(said: &str, errno: Errno, driver: &str) {
    let forbidden = ["seccomp", "kernel.io_uring_disabled"];
    let oldest = if driver == "uring" { "Linux 6.0" } else { "Linux 5.10" };
    let running = uname().expect("uname does not fail").release().to_string_lossy().into_owned();
    let too_old = [oldest, &*running];
    let (parts, others) = match errno {
        Errno::EINVAL | Errno::EOPNOTSUPP => (too_old, forbidden),
        _ => (forbidden, too_old),
    };
    for part in [errno.desc()].into_iter().chain(parts) {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
    assert!(!others.into_iter().any(|part| said.contains(part)), "{said}");
}

fn hold_conversations(transport: Transport) {
    run_all(in_real_time().collect(), |conversation| {
        let flags = [flags(conversation), vec!["--io".to_owned(), "auto".to_owned()]].concat();
        let mut peer = Live::start(Path::new(BEANRING), transport, &flags);
        run(conversation, &mut peer, Dialect::Quoted)
    });
}

fn output(arguments: &[&str]) -> Output {
    let mut command = Command::new(BEANRING);
    command.args(arguments).stdin(Stdio::null()).output().expect("the program starts")
}

/// Calls `what` where io_uring_setup fails, as under the seccomp filter of a container. The filter holds for one thread and the
/// processes that it starts.
fn where_setup_fails(errno: Errno, what: impl FnOnce() + Send + 'static) {
    let in_thread = move || {
        let architecture = std::env::consts::ARCH.try_into().expect("a known architecture");
        let rules = [(SYS_io_uring_setup, Vec::new())].into_iter().collect();
        let refuse = SeccompAction::Errno(errno as u32);
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture).expect("a filter");
        let program: BpfProgram = filter.try_into().expect("the filter compiles");
        seccompiler::apply_filter(&program).expect("the filter is applied");
        what();
    };
    thread::spawn(in_thread).join().expect("the thread does not panic");
}
