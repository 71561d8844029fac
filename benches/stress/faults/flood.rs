//! More connections than the server has descriptors for: they wait, and those that are there do not notice. The control
//! client is connected before.

use std::path::Path;
use std::time::Duration;

use super::Fault;
use crate::bounds::Term;
use crate::crowd::{Crowd, Link, Rogue};
use crate::failure::Failure;
use crate::field::Field;
use crate::options::Options;
use crate::server::Setup;
use beanring_testkit::bench::logs::Log;

const DESCRIPTORS: u64 = 512;
const CONNECTIONS: usize = 3 * DESCRIPTORS as usize;

/// Connections that go, and that come, at each of the moments of this distance.
const CHANGE: usize = 16;
const PAUSE: Duration = Duration::from_millis(40);

pub struct Flood {
    pub log: Option<Log>,
}

impl Fault for Flood {
    fn name(&self) -> &'static str {
        if self.log.is_some() { "flood-log" } else { "flood" }
    }

    fn title(&self) -> &'static str {
        if self.log.is_some() {
            "the same, while the log needs new files (-b, -s 65536)"
        } else {
            "three times the connections that the limit of descriptors (512) allows, coming and going"
        }
    }

    fn seconds(&self, options: &Options, _: bool) -> f64 {
        options.seconds(30.0, 3.0)
    }

    fn setup(&self, _: &Options, _: &Path) -> Result<Setup, String> {
        let prlimit = beanring_testkit::bench::machine::first_line("prlimit", &["--version"]);
        prlimit.ok_or("prlimit (util-linux) is not installed")?;
        Ok(Setup { descriptors: Some(DESCRIPTORS), ..Setup::default() })
    }

    fn log(&self) -> Option<Log> {
        self.log
    }

    fn inject(&self, field: &mut Field<'_>) -> Result<(), Failure> {
        let addr = field.server.addr;
        let mut crowd = Crowd::open(addr, CONNECTIONS, Link::Narrow)?;
        for (number, rogue) in crowd.rogues.iter_mut().enumerate() {
            greet(number, rogue);
        }
        field.terms.extend([
            Term::connections(DESCRIPTORS),
            Term::inboxes(DESCRIPTORS),
            Term::outputs(DESCRIPTORS, 2000),
            Term::jobs(100_000, 4),
        ]);
        field.watch_standing(Duration::from_millis(field.options.scale(3000, 700)))?;
        while field.rages()? {
            for _ in 0..CHANGE {
                let which = field.random.below(CONNECTIONS);
                let fresh = Rogue::connect(addr, Link::Narrow);
                let mut fresh = fresh.map_err(|errno| Failure::Client("connect", errno.into()))?;
                greet(field.random.below(4), &mut fresh);
                std::mem::replace(&mut crowd.rogues[which], fresh).reset();
            }
            field.pause(PAUSE)?;
        }
        crowd.leave();
        if !field.server.accepts() {
            field.broken.push("nobody can connect when the flood is over".to_owned());
        }
        Ok(())
    }
}

/// What one says when it comes, whether it is heard at once or later.
fn greet(number: usize, rogue: &mut Rogue) {
    match number % 4 {
        0 => rogue.say(b"use flood\r\nput 0 0 60 4\r\nblub\r\n"),
        1 => rogue.say(b"watch flood\r\nignore default\r\nreserve\r\n"),
        2 => rogue.say(b"stats\r\n"),
        _ => 0,
    };
}
