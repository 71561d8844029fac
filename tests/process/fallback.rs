//! A kernel that refuses io_uring, as in most containers: the server runs on epoll. On a kernel that allows it, the server uses
//! io_uring.

use std::path::Path;
use std::process::Output;
use std::thread;

use beanring::io::driver::Driver;
use beanring_testkit::client::serve;
use beanring_testkit::kernel;
use beanring_testkit::live::Live;
use beanring_testkit::logged::LoggedServer;
use beanring_testkit::process::{Transport, beanring, program};
use beanring_testkit::runner::{Dialect, run};
use beanring_testkit::statistics::field;
use beanring_testkit::suite::{flags, in_real_time, run_all};
use nix::errno::Errno;
use nix::libc::SYS_io_uring_setup;
use nix::sys::utsname::uname;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

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
        let server = LoggedServer::start(&["--io", "auto"]);
        assert_eq!(field(&server.client().stats(), "io-driver"), "epoll");
        let line = server.logged("I/O driver: ");
        for part in ["I/O driver: epoll", Errno::EPERM.desc(), "seccomp", "kernel.io_uring_disabled"] {
            assert!(line.contains(part), "{line}");
        }
        assert_eq!(server.count("I/O driver: "), 1);
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
    let (_server, mut client) = serve(Transport::Tcp, &["--io", "auto"]);
    assert_eq!(field(&client.stats(), "io-driver"), expected);
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
            for name in Driver::ALL.iter().map(|driver| driver.name()).filter(|&name| name != "epoll") {
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
        let mut peer = Live::start(Path::new(program()), transport, &flags);
        run(conversation, &mut peer, Dialect::Quoted)
    });
}

fn output(arguments: &[&str]) -> Output {
    beanring(arguments).env_remove("BEANRING_IO").output().expect("the program starts")
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
