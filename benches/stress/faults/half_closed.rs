//! Clients that end their side and stay: waiting for a job, in the middle of a body, or with replies that they do not
//! read.

use std::time::{Duration, Instant};

use super::Fault;
use crate::bounds::Term;
use crate::client::put;
use crate::crowd::{Crowd, Link, Rogue};
use crate::failure::Failure;
use crate::field::Field;
use crate::options::Options;

const BODY_BYTES: usize = 8000;
const PEEKS: usize = 256;

/// A waiter that is half-closed is told that its wait is over at once; this is what the machine may take for it.
const ANSWER_MAX: Duration = Duration::from_secs(20);

pub struct HalfClosed;

impl Fault for HalfClosed {
    fn name(&self) -> &'static str {
        "half-closed"
    }

    fn title(&self) -> &'static str {
        "4,000 clients that end their side while they wait, put, or are owed replies that they do not read"
    }

    fn seconds(&self, options: &Options, _: bool) -> f64 {
        options.seconds(30.0, 3.0)
    }

    fn inject(&self, field: &mut Field<'_>) -> Result<(), Failure> {
        let count = field.options.scale(4_000, 1_000);
        let mut client = field.client()?;
        let ask = |error| Failure::Client("put", error);
        client.ask(b"use half\r\n").map_err(ask)?;
        let put = client.ask(&put(0, 0, 60, &vec![b'b'; BODY_BYTES])).map_err(ask)?;
        let id =
            put.number(1).ok_or_else(|| Failure::Answer(format!("a put was answered {:?}", put.line)))?;
        field.terms.extend([
            Term::connections(count as u64),
            Term::inboxes(count as u64),
            Term::outputs(count as u64 / 4, BODY_BYTES as u64 + 100),
            Term::bodies(count as u64 / 4, 1000),
            Term::jobs(1, BODY_BYTES as u64),
        ]);
        let mut crowd = Crowd::open(field.server.addr, count, Link::Narrow)?;
        let peeks = format!("peek {id}\r\n").repeat(PEEKS).into_bytes();
        // Half of the waiters are in the queue before they end their side, the others end it with the command.
        for (number, rogue) in crowd.rogues.iter_mut().enumerate() {
            begin(number, rogue, &peeks);
        }
        field.await_connections(crowd.len() / 2)?;
        crowd.rogues.iter_mut().for_each(Rogue::half_close);
        field.watch_standing(Duration::from_millis(field.options.scale(3000, 1000)))?;
        if !are_told(field, &mut crowd)? {
            field.broken.push("half-closed waiters are not told that their wait is over".to_owned());
        }
        // From now on they come and go.
        while field.rages()? {
            let which = field.random.below(count);
            let fresh = Rogue::connect(field.server.addr, Link::Narrow);
            let mut fresh = fresh.map_err(|errno| Failure::Client("connect", errno.into()))?;
            begin(which, &mut fresh, &peeks);
            fresh.half_close();
            std::mem::replace(&mut crowd.rogues[which], fresh).reset();
            field.pause(Duration::from_millis(2))?;
        }
        crowd.leave();
        client.ask(format!("delete {id}\r\n").as_bytes()).map_err(ask)?;
        Ok(())
    }
}

fn begin(number: usize, rogue: &mut Rogue, peeks: &[u8]) {
    match number % 4 {
        0 => rogue.say(b"watch nothing\r\nignore default\r\nreserve\r\n"),
        1 => rogue.say(peeks),
        2 => rogue.say(&[&b"put 0 0 60 60000\r\n"[..], &[b'b'; 1000]].concat()),
        _ => {
            let waits: usize = rogue.say(b"watch nothing\r\nignore default\r\nreserve-with-timeout 1000\r\n");
            // More than is kept for one that waits.
            waits + rogue.say(&b"list-tube-used\r\n".repeat(4000))
        }
    };
}

/// Whether all that wait get TIMED_OUT and the end.
fn are_told(field: &mut Field<'_>, crowd: &mut Crowd) -> Result<bool, Failure> {
    let begin = Instant::now();
    let mut heard: Vec<Vec<u8>> = vec![Vec::new(); crowd.rogues.len()];
    while begin.elapsed() < ANSWER_MAX {
        let mut open = 0;
        for (rogue, heard) in crowd.rogues.iter_mut().zip(&mut heard).step_by(4) {
            rogue.hear(heard);
            open += usize::from(!rogue.is_closed);
        }
        if open == 0 {
            return Ok(heard.iter().step_by(4).all(|heard| heard.ends_with(b"TIMED_OUT\r\n")));
        }
        field.pause(Duration::from_millis(20))?;
    }
    Ok(false)
}
