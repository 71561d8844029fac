//! A wall clock that steps. A preloaded library replaces that of the server.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use beanring::io::driver::Driver;
use beanring_testkit::client::{Client, put, serve_by};
use beanring_testkit::driver;
use beanring_testkit::process::{Address, ServerProcess, Transport, program};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::statistics::field;

/// Without the file, which has a number of seconds, the clock is right.
const LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *step;

__attribute__((constructor)) static void open_step(void)
{
    int file = open(getenv("WALL_CLOCK"), O_RDONLY | O_CLOEXEC);
    step = mmap(NULL, sizeof *step, PROT_READ, MAP_SHARED, file, 0);
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && clock == CLOCK_REALTIME)
        now->tv_sec += *step;
    return result;
}
"#;

/// In seconds.
pub const HOUR: i64 = 3600;
/// A delay that outlasts every test, and one that does not, in seconds.
pub const LONG: u32 = 7200;
const SHORT: u32 = 1;
/// What statistics in whole seconds, and a busy machine, may differ by.
pub const SLACK: f64 = 4.0;

/// The monotonic clocks of another boot.
const REBOOTED: [&str; 4] = ["unshare", "--time", "--monotonic=1000000", "--boottime=1000000"];

pub struct WallClock {
    step: PathBuf,
    library: PathBuf,
}

impl WallClock {
    pub fn new(dir: &Scratch) -> Self {
        let [source, library, step] = ["clock.c", "clock.so", "step"].map(|name| dir.join(name));
        fs::write(&source, LIBRARY).and_then(|()| fs::write(&step, [0; 8])).expect("there is space");
        let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status();
        assert!(built.expect("the linker of Rust programs is cc").success());
        Self { step, library }
    }

    /// Shifts the clock by `seconds` from now on.
    pub fn step(&self, seconds: i64) {
        let file = fs::OpenOptions::new().write(true).open(&self.step);
        file.and_then(|file| file.write_all_at(&seconds.to_ne_bytes(), 0)).expect("there is space");
    }

    /// Starts a server with this clock by a command that becomes the server.
    pub fn serve(&self, mut command: Command, io: Driver, flags: &[&str]) -> (ServerProcess, Client) {
        command.env("LD_PRELOAD", &self.library).env("WALL_CLOCK", &self.step);
        serve_by(command, Address::fresh(Transport::Tcp), &[&driver::flags(io)[..], flags].concat())
    }
}

/// Returns a time of statistics, in seconds.
pub fn seconds(statistics: &str, key: &str) -> f64 {
    field(statistics, key).parse().expect("a number")
}

/// Asserts that no time that clients see depends on the wall clock. Job 1 was put at `begun`, when the uptime was `started`.
pub fn check(client: &mut Client, begun: Instant, started: f64) {
    let passed = begun.elapsed().as_secs_f64();
    let (stats, job) = (client.stats(), client.ask("stats-job 1\r\n").1);
    for (what, found) in [
        ("uptime", seconds(&stats, "uptime") - started),
        ("age", seconds(&job, "age")),
        ("time-left", f64::from(LONG) - seconds(&job, "time-left")),
    ] {
        assert!((found - passed).abs() < SLACK, "{what}: {found} after {passed} seconds");
    }
}

/// A clock that went back looks like no time at all, and one that went forward like a long time.
#[test]
fn delays_continue_after_the_clock_was_changed_between_two_runs() {
    let mut cases = vec![("an hour back", -HOUR, &[][..], 0), ("an hour on", HOUR, &[], HOUR)];
    let status = Command::new(REBOOTED[0]).args(&REBOOTED[1..]).arg("true").status();
    if status.is_ok_and(|status| status.success()) {
        cases.push(("another boot", 0, &REBOOTED, 0));
    } else {
        println!("skipped: a boot between two runs, because `unshare --time` is not allowed");
    }
    driver::under_each("a clock that was changed", |io| {
        thread::scope(|scope| {
            for &(what, step, wrapper, passed) in &cases {
                scope.spawn(move || change_between_two_runs(io, what, step, wrapper, passed));
            }
        });
    });
}

fn change_between_two_runs(io: Driver, what: &str, step: i64, wrapper: &[&str], passed: i64) {
    let dir = Scratch::in_memory("clock");
    let path = dir.dir("log").display().to_string();
    let wall = WallClock::new(&dir);
    let (mut server, mut client) = wall.serve(Command::new(program()), io, &["-b", &path]);
    for (id, tube, delay) in [(1, "soon", SHORT), (2, "later", LONG), (3, "paused", 0)] {
        client.expect(&format!("use {tube}\r\n"), &format!("USING {tube}"));
        client.expect(&put(0, delay, tube), &format!("INSERTED {id}"));
    }
    client.expect(&format!("pause-tube paused {SHORT}\r\n"), "PAUSED");
    server.stop();
    wall.step(step);
    let words = [wrapper, &[program()]].concat();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    let (mut server, mut client) = wall.serve(command, io, &["-b", &path]);
    let job = client.ask("stats-job 2\r\n").1;
    for (key, expected) in [("age", passed), ("time-left", i64::from(LONG) - passed)] {
        let found = seconds(&job, key);
        assert!((found - expected as f64).abs() < SLACK, "{what}: {key} is {found}, not {expected}");
    }
    for (id, tube) in [(1, "soon"), (3, "paused")] {
        client.expect(&format!("watch {tube}\r\n"), if id == 1 { "WATCHING 2" } else { "WATCHING 3" });
        let begun = Instant::now();
        client.expect("reserve-with-timeout 30\r\n", &format!("RESERVED {id} {}", tube.len()));
        let late = begun.elapsed().saturating_sub(Duration::from_secs(SHORT.into()));
        assert!(late.as_secs_f64() < SLACK, "{what}: {tube} {:?}", begun.elapsed());
    }
    server.stop();
}
