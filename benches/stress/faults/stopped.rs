//! SIGSTOP and SIGCONT: everything that happened while the server was stopped arrives at once. The control client's
//! latency does not include the time in which the server was stopped.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::Fault;
use crate::bounds::MemoryItem;
use crate::context::Context;
use crate::crowd::{Crowd, Link};
use crate::failure::Failure;
use crate::options::Options;

const COUNT: usize = 1000;

const GREETINGS: [&[u8]; 4] = [
    b"use stopped\r\nput 0 0 1 5\r\nhello\r\n",
    b"watch stopped\r\nreserve-with-timeout 1\r\nlist-tube-used\r\n",
    b"watch stopped\r\nreserve\r\ndelete 1\r\n",
    b"use stopped\r\nput 0 1 1 5\r\nlater\r\nquit\r\n",
];

pub struct Stopped;

impl Fault for Stopped {
    fn name(&self) -> &'static str {
        "stopped"
    }

    fn title(&self) -> &'static str {
        "SIGSTOP and SIGCONT, with 1,000 clients that connect, send and disconnect while the server is stopped"
    }

    fn seconds(&self, options: &Options, _: bool) -> f64 {
        options.seconds(30.0, 4.0)
    }

    fn inject(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        let mut crowds = 0;
        while context.is_running()? {
            let long = context.random.below(6) == 0;
            let pause = if long { 1500 } else { 30 + context.random.below(300) };
            context.stop_server();
            let crowd = Crowd::open(context.server.addr, COUNT, Link::Narrow);
            let crowd = crowd.and_then(|mut crowd| {
                for (number, rogue) in crowd.rogues.iter_mut().enumerate() {
                    rogue.send(GREETINGS[number % GREETINGS.len()]);
                }
                context.pause(Duration::from_millis(pause as u64)).map(|()| crowd)
            });
            let mut crowd = match crowd {
                Ok(crowd) => crowd,
                Err(failure) => {
                    context.continue_server();
                    return Err(failure);
                }
            };
            // Half of the clients are gone when the server continues.
            let stay = crowd.rogues.split_off(COUNT / 2);
            crowd.leave();
            context.continue_server();
            context.pause(Duration::from_millis(300))?;
            Crowd { rogues: stay }.leave();
            crowds += 1;
        }
        context.memory_items.extend([
            MemoryItem::connections(2 * COUNT as u64),
            MemoryItem::inboxes(2 * COUNT as u64),
            MemoryItem::outputs(2 * COUNT as u64, 100),
            MemoryItem::jobs(crowds * COUNT as u64, 5),
        ]);
        context.notes.push(format!(
            "stopped {crowds} times; latency does not include the time in which the server was stopped"
        ));
        Ok(())
    }
}

impl Context<'_> {
    /// Stops the server, and the control client's clock with it.
    pub fn stop_server(&self) {
        self.control.stops().begin();
        self.server.signal(Signal::SIGSTOP);
    }

    /// Continues the server.
    pub fn continue_server(&self) {
        self.server.signal(Signal::SIGCONT);
        self.control.stops().end();
    }
}
