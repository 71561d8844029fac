//! The driver uring with I/O threads. Other suites run with them too, if `BEANRING_TEST_IO_THREADS` is set.

use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::thread;
use std::time::Duration;

use beanring::io::driver::Driver;
use beanring_testkit::client::{Client, put, serve};
use beanring_testkit::driver::is_allowed;
use beanring_testkit::logged::LoggedServer;
use beanring_testkit::namespaces::command;
use beanring_testkit::process::{ServerProcess, Transport, program};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::statistics::{number, value};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::{Pid, geteuid};

/// Starts a server, if the kernel allows it.
fn start(threads: usize, flags: &[&str]) -> Option<(ServerProcess, Client)> {
    let own = ["--io", "uring", "--io-threads", &threads.to_string()];
    is_allowed(Driver::Uring, "I/O threads").then(|| serve(Transport::Tcp, &[&own, flags].concat()))
}

/// The CPU time of a thread, in microseconds.
fn cpu_us(stats: &str, thread: &str) -> u64 {
    let seconds = value(stats, &format!("io-thread-{thread}-cpu")).expect("the thread is there");
    (seconds.parse::<f64>().expect("a number") * 1e6) as u64
}

#[test]
fn connections_are_spread_and_the_threads_do_their_io() {
    for threads in [1, 3] {
        let Some((server, mut first)) = start(threads, &[]) else { return };
        let mut clients: Vec<Client> = (0..29).map(|_| server.client()).collect();
        let body = "b".repeat(60_000);
        for round in 0..3 {
            for (at, client) in clients.iter_mut().enumerate() {
                let id = round * 29 + at as u64 + 1;
                assert_eq!(client.put(&body), id);
                client.send("reserve\r\n");
                client.expect_bytes(format!("RESERVED {id} 60000\r\n{body}\r\n"));
                client.expect(&format!("delete {id}\r\n"), "DELETED");
            }
        }
        let stats = first.stats();
        assert_eq!(number(&stats, "io-threads"), threads as u64);
        let of_threads: Vec<u64> =
            (1..=threads).map(|thread| number(&stats, &format!("io-thread-{thread}-connections"))).collect();
        assert_eq!(of_threads.iter().sum::<u64>(), 30);
        assert!(of_threads.iter().all(|&count| count == 30 / threads as u64), "{of_threads:?}");
        assert!(cpu_us(&stats, "event-loop") > 0, "{stats}");
        // A thread has received and sent ten megabytes, and more.
        assert!((1..=threads).all(|thread| cpu_us(&stats, &thread.to_string()) > 500), "{stats}");
        drop(clients);
        server.settle();
        let stats = first.stats();
        assert_eq!(number(&stats, "current-connections"), 1);
        let left = (1..=threads).map(|thread| number(&stats, &format!("io-thread-{thread}-connections")));
        assert_eq!(left.sum::<u64>(), 1, "{stats}");
    }
}

#[test]
fn sleeping_threads_use_no_cpu_time() {
    let Some((server, mut first)) = start(3, &[]) else { return };
    first.stats();
    server.settle();
    let before = server.cpu_time();
    thread::sleep(Duration::from_secs(1));
    assert_eq!(server.cpu_time(), before);
}

#[test]
fn each_reply_before_a_stop_is_sent_and_the_jobs_are_kept() {
    let scratch = Scratch::new("io-threads");
    let directory = scratch.0.to_str().expect("the path is text");
    for round in 0..3 {
        let Some((mut server, mut first)) = start(3, &["-b", directory]) else { return };
        let mut clients: Vec<Client> = (0..12).map(|_| server.client()).collect();
        clients.iter_mut().for_each(|client| client.send(&put(0, 0, "a").repeat(100)));
        for client in &mut clients {
            for _ in 0..100 {
                let line = client.line().expect("the server runs");
                assert!(line.starts_with("INSERTED "), "{line}");
            }
        }
        assert_eq!(first.stat("current-jobs-ready"), 1200 * (round + 1));
        server.stop();
    }
}

/// Returns the CPUs that each thread of a process with one of these names may run on, in the order of the names.
fn cpus_of(server: &ServerProcess, names: &[&str]) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.pid())).expect("the server runs");
    let tasks: Vec<_> = tasks.map(|task| task.expect("the server runs").path()).collect();
    let read = |path: &Path, file: &str| fs::read_to_string(path.join(file)).expect("the thread runs");
    let cpus_of = |name: &&str| {
        let task = tasks.iter().find(|task| read(task, "comm").trim_end() == *name).expect("the thread runs");
        let status = read(task, "status");
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        line.expect("the kernel lists them").trim().to_owned()
    };
    names.iter().map(cpus_of).collect()
}

#[test]
fn each_thread_runs_on_the_cpu_that_is_named_for_it() {
    let allowed = sched_getaffinity(Pid::from_raw(0)).expect("this process runs");
    let cpus: Vec<usize> = (0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu) == Ok(true)).collect();
    let (first, last) = (cpus[0].to_string(), cpus[cpus.len() - 1].to_string());
    let list = format!("{last},{first},{last}");
    let Some((server, mut client)) = start(2, &["--io-cpus", &list]) else { return };
    // A reply has been sent, so all threads have begun.
    client.stats();
    assert_eq!(cpus_of(&server, &["beanring", "io 1", "io 2"]), [last.as_str(), &first, &last]);
}

#[test]
fn a_thread_whose_cpu_does_not_exist_runs_on_any() {
    let Some((server, mut client)) = start(1, &["--io-cpus", "0,1023"]) else { return };
    client.stats();
    let own = fs::read_to_string("/proc/thread-self/status").expect("this thread runs");
    let own = own.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("it is listed");
    assert_eq!(cpus_of(&server, &["io 1"]), [own.trim()]);
}

/// Starts a server with 32 threads over a UNIX socket, by the command `around` it if there is one. Returns what it logs.
fn start_many(around: &[&str]) -> Option<String> {
    if !is_allowed(Driver::Uring, "32 I/O threads") {
        return None;
    }
    let scratch = Scratch::new("io-threads-many");
    let listen = format!("unix:{}", scratch.join("socket").display());
    let words = [program(), "--io", "uring", "--io-threads", "32", "-l", &listen];
    let server = LoggedServer::spawn(command(&[around, &words].concat()), scratch).listening();
    server.logged("ready after");
    assert_eq!(server.client().put("a"), 1);
    Some(server.lines().join("\n"))
}

#[test]
fn a_start_with_more_threads_than_cpus_warns_once() {
    let Some(text) = start_many(&[]) else { return };
    assert!(text.contains("I/O driver: uring, with 32 I/O threads (experimental)"), "{text}");
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    let warnings = text.lines().filter(|line| line.contains("WARN --io-threads 32")).count();
    assert_eq!(warnings, usize::from(cpus < 34), "{text}");
}

/// A ring needs some 270 KiB of locked memory.
#[test]
fn the_server_runs_with_the_rings_that_the_kernel_grants() {
    let without_right = ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"];
    let limit = ["prlimit", "--memlock=1500000:1500000"];
    let around = if geteuid().is_root() { [&limit[..], &without_right].concat() } else { limit.to_vec() };
    let _turn = super::turn_of_limited();
    let Some(text) = start_many(&around) else { return };
    if text.contains("with 32 I/O threads") {
        println!("skipped: refused rings under uring, because this kernel does not count their memory");
        return;
    }
    let line = text.lines().find(|line| line.contains("the kernel grants the rings of")).expect("a warning");
    let granted = line.split("rings of ").nth(1).and_then(|rest| rest.split(' ').next());
    let granted = granted.and_then(|text| text.parse().ok()).unwrap_or(0);
    assert!((1..32).contains(&granted), "{line}");
    assert!(text.contains(&format!("I/O driver: uring, with {granted} I/O thread")), "{text}");
}
