//! More connections than the server has descriptors. New ones wait in the listen backlog, and existing ones are not
//! affected. The control client connects before the flood.

use std::path::Path;
use std::time::Duration;

use super::Fault;
use crate::bounds::MemoryItem;
use crate::context::Context;
use crate::crowd::{Crowd, Link, Rogue};
use crate::failure::Failure;
use crate::options::Options;
use crate::server::Setup;
use beanring_testkit::bench::logs::Log;

const DESCRIPTORS: u64 = 512;
const CONNECTIONS: usize = 3 * DESCRIPTORS as usize;

/// Connections that are closed, and opened, after each of these pauses.
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
            "the same, while the job log needs new files (-b, -s 65536)"
        } else {
            "three times as many connections as the limit of descriptors (512), opened and closed all the time"
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

    fn inject(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        let addr = context.server.addr;
        let mut crowd = Crowd::open(addr, CONNECTIONS, Link::Narrow)?;
        for (number, rogue) in crowd.rogues.iter_mut().enumerate() {
            greet(number, rogue);
        }
        context.memory_items.extend([
            MemoryItem::connections(DESCRIPTORS),
            MemoryItem::inboxes(DESCRIPTORS),
            MemoryItem::outputs(DESCRIPTORS, 2000),
            MemoryItem::jobs(100_000, 4),
        ]);
        context.measure_idle_crowd(Duration::from_millis(context.options.scale(3000, 700)))?;
        while context.is_running()? {
            for _ in 0..CHANGE {
                let which = context.random.below(CONNECTIONS);
                let fresh = Rogue::connect(addr, Link::Narrow);
                let mut fresh = fresh.map_err(|errno| Failure::Client("connect", errno.into()))?;
                greet(context.random.below(4), &mut fresh);
                std::mem::replace(&mut crowd.rogues[which], fresh).reset();
            }
            context.pause(PAUSE)?;
        }
        crowd.leave();
        if !context.server.accepts() {
            context.broken.push("no client can connect after the flood".to_owned());
        }
        Ok(())
    }
}

/// Sends a client's first commands, which the server may receive at once or later.
fn greet(number: usize, rogue: &mut Rogue) {
    match number % 4 {
        0 => rogue.send(b"use flood\r\nput 0 0 60 4\r\nblub\r\n"),
        1 => rogue.send(b"watch flood\r\nignore default\r\nreserve\r\n"),
        2 => rogue.send(b"stats\r\n"),
        _ => 0,
    };
}
