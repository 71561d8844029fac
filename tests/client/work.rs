//! `beanring work`: every job ends where it should, whatever happens to its command, the server or the program.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use beanring_testkit::process::{Address, ServerProcess, program};
use beanring_testkit::scratch::{Scratch, script};
use beanring_testkit::wait;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::place::{Place, Ran, Running, everywhere, with_both};
use super::session::sessions;

/// A worker that does what the body says, and leaves a file per run: `ID.RUN`. It waits no longer than its directory exists,
/// because a worker of a test that fails, or of a program that is killed, has no other end.
const WORKER: &str = r#"
body=$(cat)
run=1
while ! (set -C; : > "$OUT/$BEANRING_JOB_ID.$run") 2>/dev/null; do run=$((run + 1)); done
case $body in
    fail) echo begin >&2; echo 'disk "a" is full' >&2; echo >&2; exit 3 ;;
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

    fn out(&self) -> PathBuf {
        self.scratch.join("out")
    }

    fn begin(&self, place: &Place, flags: &[&str]) -> Running {
        let worker = self.scratch.join("worker");
        let mut command =
            place.command(&[&["work"], flags, &["--", worker.to_str().expect("UTF-8")]].concat());
        Running::spawn(command.env("OUT", self.out()).stdin(Stdio::null()))
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
        wait::until(&format!("there are {count} runs"), || self.runs().values().sum::<usize>() >= count);
    }

    fn go(&self) {
        fs::write(self.out().join("go"), "").expect("a file");
    }
}

/// Stops a program by a signal. Asserts success and the last line on stderr, and returns all of it.
fn stop(running: Running, last: &str) -> String {
    running.signal(Signal::SIGTERM);
    ended(running, last)
}

/// Waits for the end of a program. Asserts success and the last line on stderr, and returns all of it.
fn ended(running: Running, last: &str) -> String {
    let ran = running.end();
    assert_eq!((ran.code, last_line(&ran)), (Some(0), format!("beanring: {last}").as_str()), "{ran:?}");
    ran.stderr
}

fn last_line(ran: &Ran) -> &str {
    ran.stderr.lines().last().unwrap_or_default()
}

/// Takes what a program says on stderr, to be read line by line.
fn said(running: &mut Running) -> impl Iterator<Item = String> + use<> {
    let stderr: ChildStderr = running.0.stderr.take().expect("a pipe");
    BufReader::new(stderr).lines().map(|line| line.expect("text"))
}

#[test]
fn eight_workers_that_fail_hang_and_die() {
    everywhere("beanring work", |place| {
        let bench = Bench::new();
        // Those that take long come first.
        let kinds = ["deaf", "hang", "slow", "ok", "fail", "suicide"];
        let bodies: String = kinds.map(|kind| format!("{kind}\n").repeat(4)).concat();
        place.feed(&["put", "--lines", "-t", "mail", "-r", "1"], bodies.as_bytes()).ok();
        let flags = ["-j", "8", "-t", "mail", "--timeout", "3", "--until-empty"];
        let said = ended(bench.begin(place, &flags), "24 runs: 8 deleted, 16 buried, 0 released, 0 lost");
        let reasons = |text: &str| said.lines().filter(|line| line.contains(text)).count();
        assert_eq!(reasons(": exit code 3 after "), 4);
        assert_eq!(reasons(": killed by SIGKILL after "), 4);
        assert_eq!(reasons(": not done within 3 s and killed after "), 8);
        assert_eq!(place.jobs(), [0, 0, 0, 16]);
        assert_eq!(bench.runs(), (1..=24).map(|id| (id, 1)).collect());
        assert_eq!(place.control().stat("job-timeouts"), 0);
        assert_no_process(&bench.out());
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
    wait::until("no process of a worker is left", || pids().is_empty());
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
        let running = place.begin(&["work", "--until-empty", "--", "true"]);
        ended(running, "1 run: 1 deleted, 0 buried, 0 released, 0 lost");
    });
}

#[test]
fn failures_are_released_with_back_off() {
    everywhere("the back-off of beanring work", |place| {
        let bench = Bench::new();
        place.session(r"put --lines << fail-twice\nfail\n");
        let flags =
            ["--on-failure", "release", "--delay", "1", "--tries", "4", "--max-delay", "1", "-j", "2"];
        let running = bench.begin(place, &flags);
        place.wait_for_jobs([0, 0, 0, 1]);
        stop(running, "7 runs: 1 deleted, 1 buried, 5 released, 0 lost");
        assert_eq!(bench.runs(), [(1, 3), (2, 4)].into());
        assert_eq!(place.number(&["job", "2"], "releases"), 3);
    });
}

#[test]
fn a_release_without_a_delay_follows_the_rules_of_the_tube() {
    let place = Place::default();
    place.session(
        "tube-config slow retry-delay 100
        tube-config last max-attempts 1
        tube-config last dead-letter dead
        put -t slow a
        put -t last b
        put -t plain c",
    );
    let release = |flags: &[&str]| {
        let command =
            [&["work", "--until-empty", "--on-failure", "release"], flags, &["--", "false"]].concat();
        let ran = place.run(&command);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.stderr
    };
    // The rule delays the job by 80 to 100 s. The worker does not know by how much.
    let said = release(&["-t", "slow"]);
    assert!(said.lines().next().is_some_and(|line| line.ends_with(" s; released")), "{said}");
    assert!(place.number(&["job", "1"], "time_left_seconds") > 10);
    let said = release(&["-t", "last", "--delay", "0", "--json"]);
    let line: Value = serde_json::from_str(said.lines().next().expect("a line")).expect("JSON");
    assert_eq!((&line["fate"], line.get("delay_seconds")), (&"released".into(), None), "{said}");
    assert_eq!(place.json(&["job", "2"])["tube"], json!("dead"));
    // Without a rule the back-off begins with a second, and an explicit delay wins over the rule.
    let said = release(&["-t", "plain"]);
    assert!(said.lines().next().is_some_and(|line| line.ends_with("; released, ready in 1 s")), "{said}");
    place.session("kick 1");
    let said = release(&["-t", "slow", "--delay", "300"]);
    assert!(said.contains("; released, ready in 10 min"), "{said}");
}

#[test]
fn a_failure_is_noted_with_the_last_line_of_standard_error() {
    everywhere("the notes of beanring work", |place| {
        let bench = Bench::new();
        place.session(r"put --lines << fail\nsuicide\nok\n");
        let running = bench.begin(place, &["-j", "1"]);
        place.wait_for_jobs([0, 0, 0, 2]);
        let ran = stop(running, "3 runs: 1 deleted, 2 buried, 0 released, 0 lost");
        assert!(ran.contains("disk \"a\" is full\n"), "standard error goes on to that of the program: {ran}");
        let job = |id| place.json(&["job", id])["notes"][0]["text"].clone();
        if place.is_beanring {
            assert_eq!(job("1"), "exit code 3: disk \"a\" is full");
            assert_eq!(job("2"), "killed by SIGKILL");
        } else {
            assert_eq!(job("1"), Value::Null, "a server without the command gets none");
        }
    });
}

#[test]
fn the_first_signal_waits_for_running_commands() {
    everywhere("a signal to beanring work", |place| {
        let bench = Bench::new();
        place.session(r"put --lines << wait\nwait\nok\n");
        let mut running = bench.begin(place, &["-j", "2"]);
        let mut said = said(&mut running);
        bench.wait_for_runs(2);
        running.signal(Signal::SIGINT);
        let stopping = "beanring: stopping after 2 running commands; a second signal kills them, and hands their \
                        jobs back without a failed attempt";
        assert_eq!(said.next().as_deref(), Some(stopping));
        assert_eq!(place.jobs(), [1, 2, 0, 0]);
        bench.go();
        assert_eq!(running.end().code, Some(0));
        let last = "beanring: 2 runs: 2 deleted, 0 buried, 0 released, 0 lost";
        assert_eq!(said.last().as_deref(), Some(last));
        place.wait_for_jobs([1, 0, 0, 0]);
    });
}

#[test]
fn idle_slots_stop_at_once() {
    with_both("a signal to idle beanring work", |place| {
        let bench = Bench::new();
        let running = bench.begin(place, &["-j", "8"]);
        place.await_stat("current-waiting", 8);
        let asked = Instant::now();
        let last = "0 runs: 0 deleted, 0 buried, 0 released, 0 lost";
        assert_eq!(stop(running, last), format!("beanring: {last}\n"));
        assert!(asked.elapsed() < Duration::from_secs(5));
    });
}

#[test]
fn the_second_signal_kills_and_releases() {
    everywhere("two signals to beanring work", |place| {
        let bench = Bench::new();
        place.session(r"put --lines << hang\ndeaf\n");
        let mut running = bench.begin(place, &["-j", "2"]);
        let mut said = said(&mut running);
        bench.wait_for_runs(2);
        running.signal(Signal::SIGTERM);
        assert!(said.next().is_some_and(|line| line.starts_with("beanring: stopping after 2 ")));
        running.signal(Signal::SIGTERM);
        assert_eq!(running.end().code, Some(0));
        let last = "beanring: 2 runs: 0 deleted, 0 buried, 2 released, 0 lost";
        assert_eq!(said.last().as_deref(), Some(last));
        place.wait_for_jobs([2, 0, 0, 0]);
        assert_no_process(&bench.out());
    });
}

#[test]
fn without_touch_a_slow_job_times_out_and_is_not_deleted_twice() {
    everywhere("beanring work without touch", |place| {
        let bench = Bench::new();
        place.session("put slow-once -r 1 -q");
        let running = bench.begin(place, &["-j", "2", "--no-touch"]);
        place.wait_for_jobs([0; 4]);
        // The first command ends later, and finds that its job is gone.
        if !place.is_beanring && bench.runs() == [(1, 1)].into() {
            // beanstalkd 1.12 has missed the timeout. Then the job was this worker's until the end.
            stop(running, "1 run: 1 deleted, 0 buried, 0 released, 0 lost");
            return;
        }
        let said = stop(running, "2 runs: 1 deleted, 0 buried, 0 released, 1 lost");
        assert!(said.contains(": the reservation had timed out after "), "{said}");
        assert_eq!(bench.runs(), [(1, 2)].into());
    });
}

#[test]
fn a_program_that_is_killed_gives_its_jobs_back() {
    with_both("beanring work killed", |place| {
        let bench = Bench::new();
        place.session(r"put --lines << wait\nwait\n");
        let mut running = bench.begin(place, &["-j", "2"]);
        bench.wait_for_runs(2);
        running.0.kill().expect("it is ours");
        running.0.wait().expect("it is ours");
        place.wait_for_jobs([2, 0, 0, 0]);
        // The end of the directory is the end of its workers.
        let out = bench.out();
        drop(bench);
        assert_no_process(&out);
    });
}

/// A server with a job log that can be started again at its address.
fn with_log(bench: &Bench, flags: &[&str]) -> (Place, SocketAddr) {
    let at = Address::fresh_tcp();
    let mut all = vec!["-b".to_owned(), bench.scratch.dir("wal").display().to_string()];
    all.extend(flags.iter().map(|&flag| flag.to_owned()));
    (Place::launch(Path::new(program()), Address::Tcp(at), &all, true), at)
}

fn kill(place: &mut Place) {
    place.server.signal(Signal::SIGKILL);
    place.server.wait();
}

fn start_again(place: &mut Place, at: SocketAddr) {
    place.server = ServerProcess::launch(Command::new(program()), Address::Tcp(at), &place.flags).0;
}

#[test]
fn a_lost_connection_discards_the_result() {
    let bench = Bench::new();
    let (mut place, at) = with_log(&bench, &["-f", "0"]);
    place.session("put wait -r 1 -q");
    let running = bench.begin(&place, &["-j", "1"]);
    bench.wait_for_runs(1);
    kill(&mut place);
    // A touch fails, which nothing shows before the command has ended.
    thread::sleep(Duration::from_secs(1));
    start_again(&mut place, at);
    // The command has not ended, and its job is ready again.
    assert_eq!(place.jobs(), [1, 0, 0, 0]);
    bench.go();
    place.wait_for_jobs([0; 4]);
    let said = stop(running, "2 runs: 1 deleted, 0 buried, 0 released, 1 lost");
    assert!(said.contains("connecting again until it succeeds\n"), "{said}");
    assert!(said.contains(": connected again\n"), "{said}");
    assert_eq!(bench.runs(), [(1, 2)].into());
}

#[test]
fn an_outage_is_told_once() {
    let bench = Bench::new();
    let (mut place, at) = with_log(&bench, &[]);
    let running = bench.begin(&place, &["-j", "4"]);
    place.await_stat("current-waiting", 4);
    kill(&mut place);
    // io_uring closes the listener some time after the end of its process.
    wait::until("the listener is closed", || TcpStream::connect(at).is_err());
    start_again(&mut place, at);
    place.await_stat("current-waiting", 4);
    let said = stop(running, "0 runs: 0 deleted, 0 buried, 0 released, 0 lost");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!((lines.len(), lines[1]), (3, "beanring: connected again"), "{said}");
    let name = &place.address;
    let begin = [format!("beanring: {name} closed"), format!("beanring: the connection to {name} broke")];
    assert!(begin.iter().any(|begin| lines[0].starts_with(begin)), "{said}");
    assert!(lines[0].ends_with("; connecting again until it succeeds") && !said.contains('?'), "{said}");
}

sessions! {
    with_both a_command_that_cannot_run_leaves_the_jobs_alone "beanring work without a program" r#"
        put x -q
        work -j 3 -- /no/such =2> cannot run /no/such: No such file or directory
        until [1 0 0 0]
        work -j 3 -- / =2> cannot run /: Permission denied
        until [1 0 0 0]
        job 1 =~ {"releases": 0}
    "#
}

#[test]
fn an_output_without_a_reader_stops_it() {
    everywhere("beanring work into a pipe that is closed", |place| {
        place.feed(&["put", "--lines"], "line\n".repeat(1000).as_bytes()).ok();
        for (flags, command) in
            [(&["-j", "2"][..], "cat; echo"), (&["--on-failure", "release"], "(cat; echo); true")]
        {
            let arguments = [&["work", "--until-empty"], flags, &["--", "sh", "-c", command]].concat();
            let mut running = place.begin(&arguments);
            let mut lines = BufReader::new(running.0.stdout.take().expect("a pipe")).lines();
            assert!(lines.next().expect("a line").expect("text").starts_with("line"));
            drop(lines);
            let ran = running.end();
            let closed = "beanring: standard output is closed; no further job is reserved";
            assert_eq!((ran.code, last_line(&ran)), (Some(1), closed), "{ran:?}");
            wait::until("no job is reserved", || place.jobs()[1] == 0);
            let [ready, _, delayed, buried] = place.jobs();
            assert!(ready > 0 && delayed == 0 && buried == 0, "{ready} {delayed} {buried}");
        }
    });
}

#[test]
fn lines_of_json() {
    let place = Place::default();
    place.session(r"put --lines << 1\n0\n");
    let result =
        place.run(&["work", "--until-empty", "--json", "--", "sh", "-c", "read -r code; exit $code"]);
    let lines: Vec<Value> =
        result.stderr.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((&lines[0]["id"], &lines[0]["fate"]), (&1.into(), &"buried".into()));
    assert!(lines[0]["elapsed_seconds"].is_f64(), "{}", lines[0]);
    assert_eq!((&lines[0]["reason"], &lines[1]["reason"]), (&"exit code 1".into(), &Value::Null));
    assert_eq!((&lines[1]["id"], &lines[1]["fate"]), (&2.into(), &"deleted".into()));
    assert_eq!(lines[2], json!({ "deleted": 1, "buried": 1, "released": 0, "lost": 0 }));
}

#[test]
fn a_long_note_widens_no_other_line() {
    let place = Place::default();
    place.session("put job");
    let note = "x".repeat(400);
    let failing = format!("echo {note} >&2; exit 3");
    place.run(&["work", "--until-empty", "--", "sh", "-c", &failing]);
    let shown = place.ok(&["job", "1"]);
    let lines: Vec<&str> = shown.lines().collect();
    let at = lines.iter().position(|line| line.starts_with("note ")).expect("a note");
    assert!(lines[..at].iter().all(|line| line.len() < 60 && !line.starts_with("note")), "{shown}");
    assert!(
        lines[at].starts_with("note       ") && lines[at].ends_with(&format!(" exit code 3: {note}")),
        "{shown}"
    );
}
