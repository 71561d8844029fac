//! SIGSTOP and SIGCONT: everything that happens meanwhile comes at once. What the control client waits while the server
//! stands still is not counted.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::Fault;
use crate::bounds::Term;
use crate::crowd::{Crowd, Link};
use crate::failure::Failure;
use crate::field::Field;
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
        "SIGSTOP and SIGCONT, with 1,000 clients that come, speak and go meanwhile"
    }

    fn seconds(&self, options: &Options, _: bool) -> f64 {
        options.seconds(30.0, 4.0)
    }

    fn inject(&self, field: &mut Field<'_>) -> Result<(), Failure> {
        let mut crowds = 0;
        while field.rages()? {
            let long = field.random.below(6) == 0;
            let pause = if long { 1500 } else { 30 + field.random.below(300) };
            field.stop_server();
            let crowd = Crowd::open(field.server.addr, COUNT, Link::Narrow);
            let crowd = crowd.and_then(|mut crowd| {
                for (number, rogue) in crowd.rogues.iter_mut().enumerate() {
                    rogue.say(GREETINGS[number % GREETINGS.len()]);
                }
                field.pause(Duration::from_millis(pause as u64)).map(|()| crowd)
            });
            let mut crowd = match crowd {
                Ok(crowd) => crowd,
                Err(failure) => {
                    field.continue_server();
                    return Err(failure);
                }
            };
            // Half are gone when the server comes back to it.
            let stay = crowd.rogues.split_off(COUNT / 2);
            crowd.leave();
            field.continue_server();
            field.pause(Duration::from_millis(300))?;
            Crowd { rogues: stay }.leave();
            crowds += 1;
        }
        field.terms.extend([
            Term::connections(2 * COUNT as u64),
            Term::inboxes(2 * COUNT as u64),
            Term::outputs(2 * COUNT as u64, 100),
            Term::jobs(crowds * COUNT as u64, 5),
        ]);
        field.notes.push(format!("stopped {crowds} times; latency does not count what it stood still"));
        Ok(())
    }
}

impl Field<'_> {
    /// Stops the server; the control client's clock stops with it.
    pub fn stop_server(&self) {
        self.control.stops().begin();
        self.server.signal(Signal::SIGSTOP);
    }

    /// It goes on.
    pub fn continue_server(&self) {
        self.server.signal(Signal::SIGCONT);
        self.control.stops().end();
    }
}
