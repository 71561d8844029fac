//! The wall clock steps by an hour in either direction, while the server runs and while it is down. Only the server is
//! affected: a preloaded library replaces its clock.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::{DURABLE, Fault};
use crate::bounds::MemoryItem;
use crate::client::{Client, put};
use crate::context::Context;
use crate::failure::Failure;
use crate::options::Options;
use crate::run::END;
use crate::server::{Server, Setup};
use beanring_testkit::bench::logs::Directory;
use beanring_testkit::bench::machine::first_line;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/stress/clock.c");

const HOUR: i64 = 3600;

/// Time between steps, in seconds.
const PAUSE: Duration = Duration::from_millis(60);

/// A delay that outlasts the fault, and one that ends during it, in seconds.
const LONG: u32 = 7200;
const SHORT: u32 = 2;

/// Allowance for a start and a busy machine, in seconds.
const SLACK: f64 = 1.5;

pub struct Clock;

impl Fault for Clock {
    fn name(&self) -> &'static str {
        "clock"
    }

    fn title(&self) -> &'static str {
        "the wall clock steps by an hour in either direction, in a running server and between two runs with a job log"
    }

    fn seconds(&self, options: &Options, _: bool) -> f64 {
        options.seconds(20.0, 2.0)
    }

    fn setup(&self, _: &Options, directory: &Path) -> Result<Setup, String> {
        let (library, step) = (directory.join("clock.so"), step_file(directory));
        fs::write(&step, 0i64.to_ne_bytes()).map_err(|error| format!("{}: {error}", step.display()))?;
        let built =
            Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(SOURCE).output();
        match built {
            Ok(output) if output.status.success() => {}
            Ok(output) => return Err(String::from_utf8_lossy(&output.stderr).into_owned()),
            Err(error) => return Err(format!("the library needs a C compiler (cc): {error}")),
        }
        let environment = vec![
            ("LD_PRELOAD".to_owned(), library.display().to_string()),
            ("FAULT_CLOCK".to_owned(), step.display().to_string()),
        ];
        Ok(Setup { environment, ..Setup::default() })
    }

    fn inject(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        context.memory_items.extend([MemoryItem::connections(1), MemoryItem::jobs(2, 10)]);
        let setup = self.setup(context.options, context.servers.directory).map_err(Failure::Answer)?;
        let wall = Wall::open(context.servers.directory)?;
        step_while_running(context, &wall)?;
        wall.step(0)?;
        step_while_down(context, &wall, &setup)
    }
}

fn step_file(directory: &Path) -> PathBuf {
    directory.join("clock.step")
}

/// The wall clock of the servers.
struct Wall(fs::File, PathBuf);

impl Wall {
    fn open(directory: &Path) -> Result<Wall, Failure> {
        let path = step_file(directory);
        let file = fs::OpenOptions::new().write(true).open(&path);
        Ok(Wall(file.map_err(|error| Failure::Write(path.clone(), error))?, path))
    }

    /// Shifts the clock by `seconds` from now on.
    fn step(&self, seconds: i64) -> Result<(), Failure> {
        let written = self.0.write_all_at(&seconds.to_ne_bytes(), 0);
        written.map_err(|error| Failure::Write(self.1.clone(), error))
    }
}

/// The control client checks that nothing is early or late. This checks the times in the server's statistics.
fn step_while_running(context: &mut Context<'_>, wall: &Wall) -> Result<(), Failure> {
    let failed = |error| Failure::Client("request statistics", error);
    let mut client = context.client()?;
    let begin = Instant::now();
    let uptime = client.request(b"stats\r\n").map_err(failed)?.field("uptime").unwrap_or(f64::NAN);
    client.request(b"use clock\r\n").map_err(failed)?;
    let id = client.request(&put(0, LONG, 60, b"later")).map_err(failed)?.number(1).unwrap_or(0);
    let mut steps = 0;
    while context.is_running()? {
        wall.step([HOUR, -HOUR, 0][context.random.below(3)])?;
        steps += 1;
        context.pause(PAUSE)?;
        let elapsed = begin.elapsed().as_secs_f64();
        let stats = client.request(b"stats\r\n").map_err(failed)?;
        let job = client.request(format!("stats-job {id}\r\n").as_bytes()).map_err(failed)?;
        let facts = [
            ("uptime", stats.field("uptime").map(|now| now - uptime)),
            ("age", job.field("age")),
            ("time-left", job.field("time-left").map(|left| f64::from(LONG) - left)),
        ];
        for (what, passed) in facts {
            if !passed.is_some_and(|passed| (passed - elapsed).abs() < SLACK + 1.0) {
                context.broken.push(format!("{what}: the server reports {passed:?} s, not {elapsed:.1}"));
                return Ok(());
            }
        }
    }
    client.request(format!("delete {id}\r\n").as_bytes()).map_err(failed)?;
    context.notes.push(format!("the wall clock of the running server stepped {steps} times"));
    Ok(())
}

/// Stops a server with a job log and starts another one, with a wrong clock or as if the machine had booted in between.
fn step_while_down(context: &mut Context<'_>, wall: &Wall, setup: &Setup) -> Result<(), Failure> {
    let unshare = ["unshare", "--time", "--monotonic=1000000", "--boottime=1000000"];
    let is_possible = first_line(unshare[0], &[&unshare[1..], &["true"]].concat()).is_some()
        || Command::new(unshare[0])
            .args(&unshare[1..])
            .arg("true")
            .status()
            .is_ok_and(|status| status.success());
    let mut cases = vec![("an hour back", -HOUR, Vec::new()), ("an hour on", HOUR, Vec::new())];
    if is_possible {
        let wrapper: Vec<String> = unshare.map(str::to_owned).to_vec();
        cases.push(("another boot", 0, wrapper));
    } else {
        context.skipped.push("a boot between two runs: `unshare --time` is not allowed".to_owned());
    }
    for (number, (what, step, wrapper)) in cases.into_iter().enumerate() {
        let log = context.servers.log(DURABLE)?;
        wall.step(0)?;
        let server =
            context.servers.start(1 + 2 * number as u32, context.server.driver, setup, Some(&log))?;
        let ids = fill(&server)?;
        server.end(END)?;
        wall.step(step)?;
        let setup = Setup { wrapper, ..setup.clone() };
        let nth = 2 + 2 * number as u32;
        if let Err(why) = compare(context, nth, &setup, &log, &ids, step) {
            context.broken.push(format!("{what} between two runs: {why}"));
        }
        context.check()?;
    }
    wall.step(0)
}

/// Puts three jobs: with a short delay, with a long delay, and into a tube that is paused for a moment.
fn fill(server: &Server) -> Result<[u64; 3], Failure> {
    let fill = || -> std::io::Result<[u64; 3]> {
        let mut client = Client::connect(server.addr)?;
        let mut ids = [0; 3];
        for (id, (tube, delay)) in ids.iter_mut().zip([("soon", SHORT), ("later", LONG), ("paused", 0)]) {
            client.request(format!("use {tube}\r\n").as_bytes())?;
            *id = client.request(&put(0, delay, 60, tube.as_bytes()))?.number(1).unwrap_or(0);
        }
        client.request(format!("pause-tube paused {SHORT}\r\n").as_bytes())?;
        Ok(ids)
    };
    fill().map_err(|error| Failure::Client("put", error))
}

/// Checks these jobs in the next server.
fn compare(
    context: &Context<'_>,
    nth: u32,
    setup: &Setup,
    log: &Directory,
    ids: &[u64; 3],
    step: i64,
) -> Result<(), String> {
    let begin = Instant::now();
    let failed = |failure: Failure| failure.to_string();
    let server = context.servers.start(nth, context.server.driver, setup, Some(log)).map_err(failed)?;
    let broken = |error: std::io::Error| error.to_string();
    let mut client = Client::connect(server.addr).map_err(broken)?;
    let [soon, later, paused] = *ids;
    let job = client.request(format!("stats-job {later}\r\n").as_bytes()).map_err(broken)?;
    let (age, left) = (job.field("age").unwrap_or(-1.0), job.field("time-left").unwrap_or(-1.0));
    let long = f64::from(LONG);
    // A clock that went back looks like no time at all, and one that went forward like a long pause.
    let (age_expected, left_expected) =
        if step > 0 { (HOUR as f64, long - HOUR as f64) } else { (0.0, long) };
    let slack = begin.elapsed().as_secs_f64() + SLACK + 1.0;
    if (age - age_expected).abs() > slack {
        return Err(format!("a job is {age} s old, not {age_expected}"));
    }
    if (left - left_expected).abs() > slack {
        return Err(format!("a delay of {LONG} s has {left} s left, not {left_expected}"));
    }
    for (tube, id) in [("soon", soon), ("paused", paused)] {
        client.request(format!("watch {tube}\r\n").as_bytes()).map_err(broken)?;
        let wait = Instant::now();
        let job = client.request(b"reserve-with-timeout 5\r\n").map_err(broken)?;
        let waited = wait.elapsed().as_secs_f64();
        if job.number(1) != Some(id) || waited > f64::from(SHORT) + SLACK {
            return Err(format!("{:?} after {waited:.1} s instead of job {id}", job.line));
        }
    }
    drop(client);
    server.end(END).map_err(failed)
}
