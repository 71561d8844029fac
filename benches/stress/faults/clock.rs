//! The wall clock steps by an hour, both ways: while the server runs, and while it is down. Only the server sees it: a
//! library that is preloaded stands before the machine's clock.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::{DURABLE, Fault};
use crate::bounds::Term;
use crate::client::{Client, put};
use crate::failure::Failure;
use crate::field::Field;
use crate::options::Options;
use crate::run::END;
use crate::server::{Server, Setup};
use beanring_testkit::bench::logs::Directory;
use beanring_testkit::bench::machine::first_line;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/stress/clock.c");

const HOUR: i64 = 3600;

/// Between steps.
const PAUSE: Duration = Duration::from_millis(60);

/// A job's delay that outlasts the fault, and one that ends in it.
const LONG: u32 = 7200;
const SHORT: u32 = 2;

/// What a start, and a busy machine, may add to what is due.
const SLACK: f64 = 1.5;

pub struct Clock;

impl Fault for Clock {
    fn name(&self) -> &'static str {
        "clock"
    }

    fn title(&self) -> &'static str {
        "the wall clock steps by an hour both ways, in a running server and between two runs with a log"
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
            Err(error) => return Err(format!("there is no C compiler (cc) for the library: {error}")),
        }
        let environment = vec![
            ("LD_PRELOAD".to_owned(), library.display().to_string()),
            ("STORM_CLOCK".to_owned(), step.display().to_string()),
        ];
        Ok(Setup { environment, ..Setup::default() })
    }

    fn inject(&self, field: &mut Field<'_>) -> Result<(), Failure> {
        field.terms.extend([Term::connections(1), Term::jobs(2, 10)]);
        let setup = self.setup(field.options, field.spare.directory).map_err(Failure::Answer)?;
        let wall = Wall::open(field.spare.directory)?;
        step_while_running(field, &wall)?;
        wall.step(0)?;
        step_while_down(field, &wall, &setup)
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

    /// From now on it is wrong by so many seconds.
    fn step(&self, seconds: i64) -> Result<(), Failure> {
        let written = self.0.write_all_at(&seconds.to_ne_bytes(), 0);
        written.map_err(|error| Failure::Write(self.1.clone(), error))
    }
}

/// The control client watches that nothing comes early or late; this watches what the server says of times.
fn step_while_running(field: &mut Field<'_>, wall: &Wall) -> Result<(), Failure> {
    let asked = |error| Failure::Client("ask for statistics", error);
    let mut client = field.client()?;
    let begin = Instant::now();
    let uptime = client.ask(b"stats\r\n").map_err(asked)?.field("uptime").unwrap_or(f64::NAN);
    client.ask(b"use clock\r\n").map_err(asked)?;
    let id = client.ask(&put(0, LONG, 60, b"later")).map_err(asked)?.number(1).unwrap_or(0);
    let mut steps = 0;
    while field.rages()? {
        wall.step([HOUR, -HOUR, 0][field.random.below(3)])?;
        steps += 1;
        field.pause(PAUSE)?;
        let elapsed = begin.elapsed().as_secs_f64();
        let stats = client.ask(b"stats\r\n").map_err(asked)?;
        let job = client.ask(format!("stats-job {id}\r\n").as_bytes()).map_err(asked)?;
        let facts = [
            ("uptime", stats.field("uptime").map(|now| now - uptime)),
            ("age", job.field("age")),
            ("time-left", job.field("time-left").map(|left| f64::from(LONG) - left)),
        ];
        for (what, passed) in facts {
            if !passed.is_some_and(|passed| (passed - elapsed).abs() < SLACK + 1.0) {
                field.broken.push(format!("{what}: {passed:?} s have passed, not {elapsed:.1}"));
                return Ok(());
            }
        }
    }
    client.ask(format!("delete {id}\r\n").as_bytes()).map_err(asked)?;
    field.notes.push(format!("the wall clock of the running server stepped {steps} times"));
    Ok(())
}

/// A server with a log ends, and another one goes on with it when the clock has gone wrong, or the machine was started
/// again.
fn step_while_down(field: &mut Field<'_>, wall: &Wall, setup: &Setup) -> Result<(), Failure> {
    let anew = ["unshare", "--time", "--monotonic=1000000", "--boottime=1000000"];
    let is_possible = first_line(anew[0], &[&anew[1..], &["true"]].concat()).is_some()
        || Command::new(anew[0]).args(&anew[1..]).arg("true").status().is_ok_and(|status| status.success());
    let mut cases = vec![("an hour back", -HOUR, Vec::new()), ("an hour on", HOUR, Vec::new())];
    if is_possible {
        let wrapper: Vec<String> = anew.map(str::to_owned).to_vec();
        cases.push(("another boot", 0, wrapper));
    } else {
        field.skipped.push("another boot between two runs: `unshare --time` is not allowed".to_owned());
    }
    for (number, (what, step, wrapper)) in cases.into_iter().enumerate() {
        let log = field.spare.log(DURABLE)?;
        wall.step(0)?;
        let server = field.spare.start(1 + 2 * number as u32, field.server.driver, setup, Some(&log))?;
        let ids = fill(&server)?;
        server.end(END)?;
        wall.step(step)?;
        let setup = Setup { wrapper, ..setup.clone() };
        let nth = 2 + 2 * number as u32;
        if let Err(why) = compare(field, nth, &setup, &log, &ids, step) {
            field.broken.push(format!("{what} between two runs: {why}"));
        }
        field.check()?;
    }
    wall.step(0)
}

/// A job whose delay ends soon, one whose delay does not, and one in a tube that is paused for a moment.
fn fill(server: &Server) -> Result<[u64; 3], Failure> {
    let fill = || -> std::io::Result<[u64; 3]> {
        let mut client = Client::connect(server.addr)?;
        let mut ids = [0; 3];
        for (id, (tube, delay)) in ids.iter_mut().zip([("soon", SHORT), ("later", LONG), ("paused", 0)]) {
            client.ask(format!("use {tube}\r\n").as_bytes())?;
            *id = client.ask(&put(0, delay, 60, tube.as_bytes()))?.number(1).unwrap_or(0);
        }
        client.ask(format!("pause-tube paused {SHORT}\r\n").as_bytes())?;
        Ok(ids)
    };
    fill().map_err(|error| Failure::Client("put", error))
}

/// What the next server has made of them.
fn compare(
    field: &Field<'_>,
    nth: u32,
    setup: &Setup,
    log: &Directory,
    ids: &[u64; 3],
    step: i64,
) -> Result<(), String> {
    let begin = Instant::now();
    let failed = |failure: Failure| failure.to_string();
    let server = field.spare.start(nth, field.server.driver, setup, Some(log)).map_err(failed)?;
    let broken = |error: std::io::Error| error.to_string();
    let mut client = Client::connect(server.addr).map_err(broken)?;
    let [soon, later, paused] = *ids;
    let job = client.ask(format!("stats-job {later}\r\n").as_bytes()).map_err(broken)?;
    let (age, left) = (job.field("age").unwrap_or(-1.0), job.field("time-left").unwrap_or(-1.0));
    let long = f64::from(LONG);
    // A clock that goes back cannot be told from no time at all, and one that goes on from a long pause.
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
        client.ask(format!("watch {tube}\r\n").as_bytes()).map_err(broken)?;
        let wait = Instant::now();
        let job = client.ask(b"reserve-with-timeout 5\r\n").map_err(broken)?;
        let waited = wait.elapsed().as_secs_f64();
        if job.number(1) != Some(id) || waited > f64::from(SHORT) + SLACK {
            return Err(format!("{:?} after {waited:.1} s where job {id} was to come", job.line));
        }
    }
    drop(client);
    server.end(END).map_err(failed)
}
