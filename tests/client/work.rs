//! `beanring work`: every job ends where it should, whatever happens to its command, the server or the program.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use beanring_testkit::process::{Address, ServerProcess, Transport, program};
use beanring_testkit::scratch::{Scratch, script};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::place::{Place, Ran, everywhere, spawn, wait_until, with_both};

/// A worker that does what the body says, and leaves a file per run: `ID.RUN`. It waits no longer than its directory exists,
/// because a worker of a test that fails, or of a program that is killed, has no other end.
const WORKER: &str = r#"
body=$(cat)
run=1
while ! (set -C; : > "$OUT/$BEANRING_JOB_ID.$run") 2>/dev/null; do run=$((run + 1)); done
case $body in
    fail) exit 3 ;;
    hang) sleep 100 ;;
    deaf) trap '' TERM; sleep 100 & sleep 100 ;;
    suicide) kill -9 $$ ;;
    slow) sleep 1.5 ;;
    slow-once) [ $run != 1 ] || sleep 3 ;;
    fail-twice) [ $run -gt 2 ] ;;
    wait) while [ -d "$OUT" ] && [ ! -e "$OUT/go" ]; do sleep 0.05; done ;;
    *) ;;
esac
"#;

/// A directory with the worker, in which it leaves its files.
struct Bench {
    scratch: Scratch,
}

impl Bench {
    fn new() -> Self {
        let scratch = Scratch::new("work");
        fs::create_dir(scratch.join("out")).expect("a directory");
        script(&scratch.join("worker"), WORKER);
        Self { scratch }
    }

    fn out(&self) -> std::path::PathBuf {
        self.scratch.join("out")
    }

    fn command(&self, place: &Place, flags: &[&str]) -> Command {
        let worker = self.scratch.join("worker");
        let mut command =
            place.command(&[&["work"], flags, &["--", worker.to_str().expect("UTF-8")]].concat());
        command.env("OUT", self.out()).stdin(Stdio::null());
        command
    }

    fn run(&self, place: &Place, flags: &[&str]) -> Ran {
        super::place::ran(&mut self.command(place, flags), b"")
    }

    /// The number of runs of each job.
    fn runs(&self) -> BTreeMap<u64, usize> {
        let mut runs = BTreeMap::new();
        for entry in fs::read_dir(self.out()).expect("a directory") {
            let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
            if let Some((id, _)) = name.split_once('.') {
                *runs.entry(id.parse().expect("an id")).or_default() += 1;
            }
        }
        runs
    }

    fn wait_for_runs(&self, count: usize) {
        wait_until(|| self.runs().values().sum::<usize>() >= count, || format!("{:?}", self.runs()));
    }

    fn go(&self) {
        fs::write(self.out().join("go"), "").expect("a file");
    }
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id() as i32), signal).expect("it runs");
}

/// Waits for the end. Returns the exit code and what was printed on stderr.
fn finish(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().expect("it is ours");
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

fn last_line(said: &str) -> &str {
    said.lines().last().unwrap_or_default()
}

#[test]
fn eight_workers_that_fail_hang_and_die() {
    everywhere("beanring work", |place| {
        let bench = Bench::new();
        let kinds = ["ok", "fail", "hang", "deaf", "suicide", "slow"];
        let bodies: String = (0..24).map(|at| format!("{}\n", kinds[at % kinds.len()])).collect();
        place.feed(&["put", "--lines", "-t", "mail", "-r", "1"], bodies.as_bytes()).ok();
        let result = bench.run(place, &["-j", "8", "-t", "mail", "--timeout", "3", "--until-empty"]);
        assert_eq!(result.code, Some(0), "{result:?}");
        assert_eq!(last_line(&result.stderr), "beanring: 24 runs: 8 deleted, 16 buried, 0 released, 0 lost");
        let reasons = |text: &str| result.stderr.lines().filter(|line| line.contains(text)).count();
        assert_eq!(reasons(": exit code 3 after "), 4);
        assert_eq!(reasons(": killed by SIGKILL after "), 4);
        assert_eq!(reasons(": not done within 3 s and killed after "), 8);
        assert_eq!(place.jobs(), [0, 0, 0, 16]);
        assert_eq!(bench.runs(), (1..=24).map(|id| (id, 1)).collect());
        assert_eq!(place.number(&["stats"], "totals.timeouts"), 0);
        assert_no_process(bench.out().as_path());
    });
}

/// No process that a worker has started is left.
fn assert_no_process(out: &Path) {
    let variable = [b"OUT=", out.as_os_str().as_encoded_bytes()].concat();
    let has_it = |pid: &str| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|entry| entry == variable)
    };
    let pids = || {
        let entries = fs::read_dir("/proc").expect("procfs").filter_map(Result::ok);
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names
            .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()) && has_it(name))
            .collect::<Vec<_>>()
    };
    wait_until(|| pids().is_empty(), || format!("processes {:?} are left", pids()));
}

#[test]
fn the_command_gets_body_and_variables() {
    everywhere("the environment of beanring work", |place| {
        place.ok(&["put", "-t", "mail", "-p", "7", "-r", "2m", "the body"]);
        let show = "cat; env | sort | sed -n 's/^BEANRING_/ /p' | tr -d '\\n'";
        let result = place.run(&["work", "-t", "mail", "--until-empty", "-v", "--", "sh", "-c", show]);
        let address = &place.address;
        let tls: String = place
            .variables()
            .map(|(name, value)| format!(" {}={value}", name.trim_start_matches("BEANRING_")))
            .collect();
        assert_eq!(
            result.text(),
            format!(
                "the body ADDR={address} JOB_AGE=0 JOB_ID=1 JOB_PRI=7 JOB_RELEASES=0 JOB_TIMEOUTS=0 JOB_TTR=120{tls} TUBE=mail"
            )
        );
        let mut lines = result.stderr.lines();
        assert!(
            lines.next().is_some_and(|line| line.starts_with("beanring: job 1 of mail: done after ")),
            "{result:?}"
        );
        assert_eq!(lines.next(), Some("beanring: 1 run: 1 deleted, 0 buried, 0 released, 0 lost"));
    });
}

#[test]
fn a_large_body_that_is_not_read() {
    with_both("a body that no command reads", |place| {
        place.feed(&["put", "-q"], &vec![b'x'; 65_000]).ok();
        let result = place.run(&["work", "--until-empty", "--", "true"]);
        assert_eq!(last_line(&result.stderr), "beanring: 1 run: 1 deleted, 0 buried, 0 released, 0 lost");
    });
}

#[test]
fn failures_are_released_with_back_off() {
    everywhere("the back-off of beanring work", |place| {
        let bench = Bench::new();
        place.feed(&["put", "--lines"], b"fail-twice\nfail\n").ok();
        let flags =
            ["--on-failure", "release", "--delay", "1", "--tries", "4", "--max-delay", "1", "-j", "2"];
        let child = spawn(&mut bench.command(place, &flags));
        place.wait_for_jobs([0, 0, 0, 1]);
        signal(&child, Signal::SIGTERM);
        let (code, said) = finish(child);
        assert_eq!(
            (code, last_line(&said)),
            (Some(0), "beanring: 7 runs: 1 deleted, 1 buried, 5 released, 0 lost")
        );
        assert_eq!(bench.runs(), [(1, 3), (2, 4)].into());
        assert_eq!(place.number(&["job", "2"], "releases"), 3);
    });
}

#[test]
fn the_first_signal_waits_for_running_commands() {
    everywhere("a signal to beanring work", |place| {
        let bench = Bench::new();
        place.feed(&["put", "--lines"], b"wait\nwait\nok\n").ok();
        let child = spawn(&mut bench.command(place, &["-j", "2"]));
        bench.wait_for_runs(2);
        signal(&child, Signal::SIGINT);
        thread::sleep(Duration::from_millis(200));
        assert_eq!(place.jobs(), [1, 2, 0, 0]);
        bench.go();
        let (code, said) = finish(child);
        assert_eq!(code, Some(0), "{said}");
        assert!(
            said.starts_with("beanring: stopping after 2 running commands; a second signal kills them\n"),
            "{said}"
        );
        assert_eq!(last_line(&said), "beanring: 2 runs: 2 deleted, 0 buried, 0 released, 0 lost");
        place.wait_for_jobs([1, 0, 0, 0]);
    });
}

#[test]
fn idle_slots_stop_at_once() {
    with_both("a signal to idle beanring work", |place| {
        let bench = Bench::new();
        let child = spawn(&mut bench.command(place, &["-j", "8"]));
        wait_until(|| place.number(&["stats"], "connections.waiting") == 8, || "8 must wait".to_owned());
        let asked = Instant::now();
        signal(&child, Signal::SIGTERM);
        let (code, said) = finish(child);
        assert_eq!((code, &*said), (Some(0), "beanring: 0 runs: 0 deleted, 0 buried, 0 released, 0 lost\n"));
        assert!(asked.elapsed() < Duration::from_secs(5));
    });
}

#[test]
fn the_second_signal_kills_and_releases() {
    everywhere("two signals to beanring work", |place| {
        let bench = Bench::new();
        place.feed(&["put", "--lines"], b"hang\ndeaf\n").ok();
        let child = spawn(&mut bench.command(place, &["-j", "2"]));
        bench.wait_for_runs(2);
        signal(&child, Signal::SIGTERM);
        thread::sleep(Duration::from_millis(200));
        signal(&child, Signal::SIGTERM);
        let (code, said) = finish(child);
        assert_eq!(
            (code, last_line(&said)),
            (Some(0), "beanring: 2 runs: 0 deleted, 0 buried, 2 released, 0 lost")
        );
        place.wait_for_jobs([2, 0, 0, 0]);
        assert_no_process(bench.out().as_path());
    });
}

#[test]
fn without_touch_a_slow_job_times_out_and_is_not_deleted_twice() {
    everywhere("beanring work without touch", |place| {
        let bench = Bench::new();
        place.ok(&["put", "slow-once", "-r", "1", "-q"]);
        let child = spawn(&mut bench.command(place, &["-j", "2", "--no-touch"]));
        place.wait_for_jobs([0; 4]);
        // The first command ends only now, and finds that its job is gone.
        thread::sleep(Duration::from_secs(2));
        signal(&child, Signal::SIGTERM);
        let (code, said) = finish(child);
        if !place.is_beanring && bench.runs() == [(1, 1)].into() {
            // beanstalkd 1.12 has missed the timeout. Then the job was this worker's until the end.
            assert_eq!(last_line(&said), "beanring: 1 run: 1 deleted, 0 buried, 0 released, 0 lost");
            return;
        }
        assert_eq!(
            (code, last_line(&said)),
            (Some(0), "beanring: 2 runs: 1 deleted, 0 buried, 0 released, 1 lost")
        );
        assert!(said.contains(": the reservation had timed out after "), "{said}");
        assert_eq!(bench.runs(), [(1, 2)].into());
    });
}

#[test]
fn a_program_that_is_killed_gives_its_jobs_back() {
    with_both("beanring work killed", |place| {
        let bench = Bench::new();
        place.feed(&["put", "--lines"], b"wait\nwait\n").ok();
        let mut child = spawn(&mut bench.command(place, &["-j", "2"]));
        bench.wait_for_runs(2);
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
        place.wait_for_jobs([2, 0, 0, 0]);
        // The end of the directory is the end of its workers.
        let out = bench.out();
        drop(bench);
        assert_no_process(&out);
    });
}

#[test]
fn a_lost_connection_discards_the_result() {
    let bench = Bench::new();
    let wal = bench.scratch.dir("wal");
    let flags = ["-b".to_owned(), wal.to_str().expect("UTF-8").to_owned(), "-f".to_owned(), "0".to_owned()];
    let Address::Tcp(address) = Address::fresh(Transport::Tcp) else { panic!("it is TCP") };
    let mut place = Place::launch(Path::new(program()), Address::Tcp(address), &flags, true);
    place.ok(&["put", "wait", "-r", "1", "-q"]);
    let child = spawn(&mut bench.command(&place, &["-j", "1"]));
    bench.wait_for_runs(1);
    place.server.signal(Signal::SIGKILL);
    place.server.wait();
    thread::sleep(Duration::from_secs(1));
    let (server, _) = ServerProcess::launch(Command::new(program()), Address::Tcp(address), &place.flags);
    place.server = server;
    // The command has not ended, and its job is ready again.
    assert_eq!(place.jobs(), [1, 0, 0, 0]);
    bench.go();
    place.wait_for_jobs([0; 4]);
    signal(&child, Signal::SIGTERM);
    let (code, said) = finish(child);
    assert_eq!(
        (code, last_line(&said)),
        (Some(0), "beanring: 2 runs: 1 deleted, 0 buried, 0 released, 1 lost")
    );
    assert!(
        said.contains("connecting again until it succeeds\n") && said.contains(": connected again\n"),
        "{said}"
    );
    assert_eq!(bench.runs(), [(1, 2)].into());
}

#[test]
fn an_outage_is_told_once() {
    let bench = Bench::new();
    let wal = bench.scratch.dir("wal");
    let flags = ["-b".to_owned(), wal.to_str().expect("UTF-8").to_owned()];
    let Address::Tcp(address) = Address::fresh(Transport::Tcp) else { panic!("it is TCP") };
    let mut place = Place::launch(Path::new(program()), Address::Tcp(address), &flags, true);
    let child = spawn(&mut bench.command(&place, &["-j", "4"]));
    wait_until(|| place.number(&["stats"], "connections.waiting") == 4, || "slots are missing".to_owned());
    place.server.signal(Signal::SIGKILL);
    place.server.wait();
    // io_uring closes the listener some time after the end of its process.
    wait_until(|| TcpStream::connect(address).is_err(), || "the listener stays".to_owned());
    let (server, _) = ServerProcess::launch(Command::new(program()), Address::Tcp(address), &place.flags);
    place.server = server;
    wait_until(|| place.number(&["stats"], "connections.waiting") == 4, || "slots are missing".to_owned());
    signal(&child, Signal::SIGTERM);
    let (code, said) = finish(child);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!((code, lines.len(), lines[1]), (Some(0), 3, "beanring: connected again"), "{said}");
    let name = &place.address;
    let begin = [format!("beanring: {name} closed"), format!("beanring: the connection to {name} broke")];
    assert!(begin.iter().any(|begin| lines[0].starts_with(begin)), "{said}");
    assert!(lines[0].ends_with("; connecting again until it succeeds") && !said.contains('?'), "{said}");
}

#[test]
fn a_command_that_cannot_run_leaves_the_jobs_alone() {
    with_both("beanring work without a program", |place| {
        place.ok(&["put", "x", "-q"]);
        for (program, reason) in [("/no/such", "No such file or directory"), ("/", "Permission denied")] {
            let result = place.run(&["work", "-j", "3", "--", program]);
            assert_eq!(result.code, Some(2), "{result:?}");
            assert_eq!(last_line(&result.stderr), format!("beanring: cannot run {program}: {reason}"));
            place.wait_for_jobs([1, 0, 0, 0]);
            assert_eq!(place.number(&["job", "1"], "releases"), 0);
        }
    });
}

#[test]
fn an_output_without_a_reader_stops_it() {
    everywhere("beanring work into a pipe that is closed", |place| {
        place.feed(&["put", "--lines"], "line\n".repeat(1000).as_bytes()).ok();
        for (flags, command) in
            [(&["-j", "2"][..], "cat; echo"), (&["--on-failure", "release"], "(cat; echo); true")]
        {
            let arguments = [&["work", "--until-empty"], flags, &["--", "sh", "-c", command]].concat();
            let mut child = spawn(&mut place.command(&arguments));
            let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
            assert!(lines.next().expect("a line").expect("text").starts_with("line"));
            drop(lines);
            let (code, said) = finish(child);
            assert_eq!(code, Some(1), "{said}");
            assert_eq!(last_line(&said), "beanring: standard output is closed; no further job is reserved");
            wait_until(|| place.jobs()[1] == 0, || "a job stays reserved".to_owned());
            let [ready, _, delayed, buried] = place.jobs();
            assert!(ready > 0 && delayed == 0 && buried == 0, "{ready} {delayed} {buried}");
        }
    });
}

#[test]
fn lines_of_json() {
    let place = Place::default();
    place.feed(&["put", "--lines"], b"1\n0\n").ok();
    let result =
        place.run(&["work", "--until-empty", "--json", "--", "sh", "-c", "read -r code; exit $code"]);
    let lines: Vec<serde_json::Value> =
        result.stderr.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((&lines[0]["id"], &lines[0]["fate"]), (&1.into(), &"buried".into()));
    assert!(lines[0]["elapsed_seconds"].is_f64(), "{}", lines[0]);
    assert_eq!((&lines[0]["reason"], &lines[1]["reason"]), (&"exit code 1".into(), &serde_json::Value::Null));
    assert_eq!((&lines[1]["id"], &lines[1]["fate"]), (&2.into(), &"deleted".into()));
    assert_eq!(lines[2], serde_json::json!({ "deleted": 1, "buried": 1, "released": 0, "lost": 0 }));
}
